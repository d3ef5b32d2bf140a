"""A run in progress: what surrounds the algorithm between two updates."""

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
from enn_ppo.tracking.metrics import Row, Timing, metrics_row
from enn_ppo.tracking.run_dir import CHECKPOINTS
from enn_ppo.tracking.run_output import RunOutput
from entity_gym.pools.episodes import Episode


class Due(NamedTuple):
    """What the last update was the time for."""

    evaluation: bool
    checkpoint: bool
    end: bool


class Run:
    """Tells of every update, saves, and has checkpoints evaluated. As a context, it is closed however it ends.

    Args:
        state: what is trained.
        output: where its metrics go.
        evaluator: of its checkpoints.
        callback: the user's own code.
    """

    def __init__(self, state: TrainState, output: RunOutput, evaluator: Evaluator, callback: Callback) -> None:
        self.state = state
        self.output = output
        self.evaluator = evaluator
        self.callback = callback
        self.metrics: Row | None = None  # of the last update
        self.stopped = False  # whether a callback has asked for the end
        self.together: Sequence[Run] = (self,)  # of all policies that play in the same environments
        self.home = output.run_dir  # what resuming takes
        self._evaluated_until = state.step

    def report(self, learned: Learned, settings: Settings, seconds: float) -> None:
        """Count an update that took so many seconds, by the lead's clock; log it, and call the user's code."""
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
            timing=Timing(state.seconds, elapsed),
            extra=state.metrics() | evaluated,
        )
        self.metrics = row
        self.stopped = state.ranks.lead(lambda: self._tell(row, played.episodes))

    def _tell(self, row: Row, episodes: Sequence[Episode]) -> bool:
        """Log, and call the user's code; whether it asks for the end."""
        self._log(row)
        for episode in episodes:
            self.callback.on_episode(episode)
        update = Update(self.state.step, row, lambda: self.state.net)
        self.callback.on_update(update)
        return update.stopped

    def save_if_due(self, interrupted: str | None) -> None:
        """Write a checkpoint where one is due, and submit it for evaluation where that is due.

        Args:
            interrupted: how the user has asked for the end: None, "interrupted" or "terminated".

        Raises:
            Interrupted: he has, before the end of the training; a checkpoint is saved.
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
        """Write a checkpoint, and call the user's code.

        Args:
            due: why.
            evaluations: steps whose checkpoints are being evaluated, or will be.
        """
        state, step = self.state, self.state.step
        # one that only an interruption has brought is none of the best: the uninterrupted run would not have it
        scored = self.evaluator.config.interval is None and due.checkpoint
        saved = state.save(
            self.output.run_dir, evaluations=evaluations, score=state.recent_reward() if scored else None
        )
        state.ranks.lead(lambda: self.callback.on_checkpoint(saved, step))
        return saved

    def evaluate(self, checkpoint: Path) -> None:
        """Submit the checkpoint that was just saved."""
        self.state.ranks.lead(lambda: self.evaluator.submit(checkpoint, self.state.step))
        self._evaluated_until = self.state.step

    def finish(self, interrupted: Callable[[], str | None]) -> None:
        """Wait for the evaluations under way, and log them.

        Raises:
            Interrupted: before they were done; the run that is resumed does them.
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
            return RankFailed(EXIT_CODES[how])  # the lead says where to go on
        resume = f"go on with resume={self.home}"
        return Interrupted(f"{how} after {self.state.step:,} steps; saved {_listed(saved)}; {resume}", EXIT_CODES[how])

    def _saved(self) -> Sequence[Path]:
        """The checkpoint that resuming takes; of each policy, where there are several."""
        if len(self.together) == 1:
            return [resolve_checkpoint(self.output.run_dir)]
        return [checkpoint.path for checkpoint in load_common([run.output.run_dir for run in self.together])]

    def _log(self, row: Row) -> None:
        try:
            self.output.log(row)
        except ValueError as error:
            raise ValueError(f"{error}; {self._rescued()}") from error

    def _rescued(self) -> str:
        """Where the run can go on from: its last checkpoint, or where that is gone too, one that is saved now."""
        try:
            return f"saved is {_listed(self._saved())}: go on with resume={self.home}"
        except CheckpointError as error:
            return self._saved_now() or f"nothing is saved: {error}"

    def _saved_now(self) -> str | None:
        try:
            if len(self.together) > 1:  # where one's learner is gone, none is saved: others may be an update ahead
                for run in self.together:
                    run.state.learner.state()
            saved = [run.state.save(run.output.run_dir) for run in self.together]
            return f"saved is {_listed(saved)}, written just now: go on with resume={self.home}"
        except (ValueError, PartLost):
            return None

    def _evaluated(self, done: EvalRow | None) -> Row:
        """Metrics of an evaluation that is done; its checkpoint learns how good it is."""
        if done is None:
            return {}
        try:
            record_score(self.output.run_dir / CHECKPOINTS, done.step, done.score)
        except CheckpointError as error:  # the next save will meet the same disk, and end the run if it must
            self.output.say(str(error))
        return dict(done.metrics)

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._explain(error)
        with ExitStack() as stack:  # all are closed, also where one fails; the first last, whose Ray all need
            for run in self.together:
                stack.callback(run.close, kind, error, trace)

    def _explain(self, error: BaseException) -> None:
        """Add what can be done about an error that has ended the run."""
        if isinstance(error, RecordingError):
            self.state.recorder = None  # which is closed
            error.add_note(self._rescued())
        if isinstance(error, PartLost | TooManyFailures):  # between two updates; a learner that is gone cannot be saved
            error.add_note(self._saved_now() or self._rescued())
        if isinstance(error, RankDied):
            ignore_sigterm()  # of torchrun, which ends the others when one is gone: first this rank says why
            error.add_note(f"go on from the last checkpoint with resume={self.home}")

    def close(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Release everything; arguments as of `__exit__`."""
        with ExitStack() as stack:  # all are closed, also where one fails
            stack.callback(self.state.ranks.leave, error)
            stack.callback(self.output.__exit__, kind, error, trace)
            stack.callback(self.state.close)
            stack.callback(self.evaluator.close)


def _listed(paths: Sequence[Path]) -> str:
    return ", ".join(map(str, paths))
