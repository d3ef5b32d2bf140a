"""A run in progress: logging, checkpoints and evaluations between two updates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from enn_ppo.callbacks import Callback, Update
from enn_ppo.checkpoints import CheckpointError, record_score, resolve_checkpoint
from enn_ppo.checkpoints.common import load_common
from enn_ppo.errors import Interrupted, PartLost, RankDied, RankFailed, TooManyFailures
from enn_ppo.evaluation.episodes import summarize
from enn_ppo.evaluation.evaluator import EvalRow, Evaluator, as_metrics
from enn_ppo.interrupt import EXIT_CODES, ignore_sigterm
from enn_ppo.learner import Learned, Settings
from enn_ppo.recording.recorder import RecordingError
from enn_ppo.state import TrainState
from enn_ppo.tracking.logger import Row
from enn_ppo.tracking.metrics import metrics_row
from enn_ppo.tracking.run_dir import CHECKPOINTS
from enn_ppo.tracking.run_output import RunOutput
from entity_gym.pools.episodes import Episode


class Due(NamedTuple):
    """Tasks that are due after an update."""

    evaluation: bool
    checkpoint: bool
    end: bool  # the update was the last


class Run:
    """Logs every update, saves checkpoints and submits them for evaluation. A context manager, which closes everything.

    Args:
        state: of the training.
        output: terminal, metrics.jsonl and trackers.
        evaluator: of checkpoints.
        callback: of the user.
    """

    def __init__(self, state: TrainState, output: RunOutput, evaluator: Evaluator, callback: Callback) -> None:
        self.state = state
        self.output = output
        self.evaluator = evaluator
        self.callback = callback
        self.metrics: Row | None = None  # of the last update
        self.stopped = False  # whether a callback has stopped the training
        self.together: Sequence[Run] = (self,)  # the runs of all policies that play in the same environments
        self.home = output.run_dir  # what `resume` takes
        self._evaluated_until = state.step

    def report(self, learned: Learned, settings: Settings, seconds: float) -> None:
        """Count an update, log it, and call the user's callback. `seconds` is how long it took; rank 0's value counts."""
        state, played = self.state, learned.played
        elapsed = state.ranks.lead(lambda: seconds)
        evaluated = state.ranks.lead(lambda: self._evaluated(self.evaluator.poll()))
        state.advance(played, elapsed)
        row = metrics_row(
            state.step,
            played,
            learned.stats,
            learning_rate=settings.learning_rates[0],
            ent_coef=float(settings.ppo.ent_coef),
            run_seconds=state.seconds,
            update_seconds=elapsed,
            extra=state.metrics() | evaluated,
        )
        self.metrics = row
        self.stopped = state.ranks.lead(lambda: self._tell(row, played.episodes))

    def _tell(self, row: Row, episodes: Sequence[Episode]) -> bool:
        """Log a row and call the user's callback; returns whether that stops the training."""
        self._log(row)
        for episode in episodes:
            self.callback.on_episode(episode)
        update = Update(self.state.step, row, lambda: self.state.net)
        self.callback.on_update(update)
        return update.stopped

    def save_if_due(self, interrupted: str | None) -> None:
        """Write a checkpoint if one is due, and submit it for evaluation if that is due.

        Args:
            interrupted: "interrupted" after Ctrl-C, "terminated" after SIGTERM, else None.

        Raises:
            Interrupted: after Ctrl-C or SIGTERM, unless this was the last update; the checkpoint is saved.
        """
        interrupted = next((how for how in self.state.ranks.gather_objects(interrupted) if how), None)
        due = self._due()
        if not (interrupted or due.evaluation or due.checkpoint):
            return
        # an evaluation needs the checkpoints of all policies
        pending = list(dict.fromkeys(step for run in self.together for step in run.evaluator.pending_steps))
        pending += [self.state.step] if due.evaluation else []
        saved = [run.save(due, pending) for run in self.together]
        if interrupted and not due.end:
            raise self._interrupted(interrupted, saved)
        for run, checkpoint in zip(self.together, saved, strict=True):
            if due.evaluation:
                run.evaluate(checkpoint)

    def _due(self) -> Due:
        state = self.state
        last = self.stopped or state.next_steps() == 0
        return Due(
            evaluation=self.evaluator.is_due(self._evaluated_until, state.step, last),
            checkpoint=last or state.num_updates % state.config.checkpoint_interval == 0,
            end=last,
        )

    def save(self, due: Due, evaluations: Sequence[int]) -> Path:
        """Write a checkpoint, and call the user's callback.

        Args:
            due: what is due after this update.
            evaluations: steps whose evaluation is unfinished; a resumed run does it.
        """
        state, step = self.state, self.state.step
        # a checkpoint saved only because of Ctrl-C gets no score: the uninterrupted run would not have it
        scored = self.evaluator.config.interval is None and due.checkpoint
        saved = state.save(
            self.output.run_dir, evaluations=evaluations, score=state.recent_reward() if scored else None
        )
        state.ranks.lead(lambda: self.callback.on_checkpoint(saved, step))
        return saved

    def evaluate(self, checkpoint: Path) -> None:
        """Submit the checkpoint of the last update for evaluation."""
        self.state.ranks.lead(lambda: self.evaluator.submit(checkpoint, self.state.step))
        self._evaluated_until = self.state.step

    def finish(self, interrupted: Callable[[], str | None]) -> None:
        """Wait for unfinished evaluations, and log them.

        Raises:
            Interrupted: after Ctrl-C or SIGTERM; a resumed run does the evaluations that are left.
        """
        if pending := self.evaluator.pending_steps:
            steps = ", ".join(f"{step:,}" for step in pending)
            self.output.say(
                f"waiting for the evaluation of step {steps}; Ctrl-C ends the run, and resuming it evaluates"
            )
        if self.metrics is not None and (episodes := self.state.sampler.final_episodes()):
            final: Row = {"step": self.state.step, "final/episodes": len(episodes)}
            final |= as_metrics(summarize(episodes), "final")
            self._log(final)
            self.metrics |= final
        while done := self.evaluator.wait(interrupted):
            row = {"step": self.state.step, **self._evaluated(done)}
            self._log(row)
            self.metrics = (self.metrics or {}) | row
        if (how := interrupted()) and self.evaluator.pending_steps:
            raise self._interrupted(how, self._saved())

    def _interrupted(self, how: str, saved: Sequence[Path]) -> Interrupted | RankFailed:
        if self.state.ranks.rank:
            return RankFailed(EXIT_CODES[how])  # rank 0 says how to resume
        resume = f"go on with resume={self.home}"
        return Interrupted(f"{how} after {self.state.step:,} steps; saved {_listed(saved)}; {resume}", EXIT_CODES[how])

    def _saved(self) -> Sequence[Path]:
        """The checkpoint that a resumed run starts from, or one for each policy."""
        if len(self.together) == 1:
            return [resolve_checkpoint(self.output.run_dir)]
        return [checkpoint.path for checkpoint in load_common([run.output.run_dir for run in self.together])]

    def _log(self, row: Row) -> None:
        try:
            self.output.log(row)
        except ValueError as error:
            raise ValueError(f"{error}; {self._rescued()}") from error

    def _rescued(self) -> str:
        """Advice on resuming: from the last checkpoint, or if there is none, from one that is saved now."""
        try:
            return f"saved is {_listed(self._saved())}: go on with resume={self.home}"
        except CheckpointError as error:
            return self._saved_now() or f"nothing is saved: {error}"

    def _saved_now(self) -> str | None:
        try:
            if (
                len(self.together) > 1
            ):  # raises if a learner is gone; then none is saved, as others may be an update ahead
                for run in self.together:
                    run.state.learner.state()
            saved = [run.state.save(run.output.run_dir) for run in self.together]
            return f"saved is {_listed(saved)}, written just now: go on with resume={self.home}"
        except (ValueError, PartLost):
            return None

    def _evaluated(self, done: EvalRow | None) -> Row:
        """Metrics of a finished evaluation, whose score is written into its checkpoint."""
        if done is None:
            return {}
        try:
            record_score(self.output.run_dir / CHECKPOINTS, done.step, done.score)
        except CheckpointError as error:  # not the end of the run: the next save may succeed
            self.output.say(str(error))
        return dict(done.metrics)

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._explain(error)
        with ExitStack() as stack:  # all are closed, even if one fails; the first run last, as it owns Ray
            for run in self.together:
                stack.callback(run.close, kind, error, trace)

    def _explain(self, error: BaseException) -> None:
        """Add to an error that has ended the run how to resume."""
        if isinstance(error, RecordingError):
            self.state.recorder = None  # it has closed itself
            error.add_note(self._rescued())
        if isinstance(error, PartLost | TooManyFailures):  # raised between two updates, so saving is safe
            error.add_note(self._saved_now() or self._rescued())
        if isinstance(error, RankDied):
            ignore_sigterm()  # torchrun sends it to the other ranks when one has ended; this one prints the reason first
            error.add_note(f"go on from the last checkpoint with resume={self.home}")

    def close(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Release everything; arguments as of `__exit__`."""
        with ExitStack() as stack:  # all are closed, even if one fails
            stack.callback(self.state.ranks.leave, error)
            stack.callback(self.output.__exit__, kind, error, trace)
            stack.callback(self.state.close)
            stack.callback(self.evaluator.close)


def _listed(paths: Sequence[Path]) -> str:
    return ", ".join(map(str, paths))
