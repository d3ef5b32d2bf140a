"""A run in progress: logging, checkpoints and evaluations between two updates."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from enn_ppo.checkpoints import (
    CheckpointError,
    load_checkpoint,
    load_common,
    record_score,
    resolve_checkpoint,
    step_files,
)
from enn_ppo.eval.evaluator import EvalRow, Evaluator, is_due
from enn_ppo.rollout import Watch
from enn_ppo.training.callbacks import Update
from enn_ppo.training.errors import EnvironmentHangs, Interrupted, PartLost, RankDied, RankFailed
from enn_ppo.training.interrupt import EXIT_CODES, ignore_sigterm
from enn_ppo.training.learning.learner import Learned, Settings
from enn_ppo.training.recording import RecordingError
from enn_ppo.training.state import TrainState
from enn_ppo.training.tracking.logger import Row
from enn_ppo.training.tracking.metrics import metrics_row
from enn_ppo.training.tracking.run_dir import CHECKPOINTS, RunLock
from enn_ppo.training.tracking.run_output import RunOutput, say
from rogue_net.finite import NotFinite

#: Seconds of a rollout after which its progress is shown.
SHOWN_AFTER = 5.0
#: Seconds that the rest of a rollout may take after an interrupt or the limit of time; a longer rollout ends where it is.
PATIENCE = 2.0


class Run:
    """Logs every update, saves checkpoints and submits them for evaluation. A context manager, which closes everything.

    Args:
        state: of the training.
        run_dir: what `resume` takes.
        outputs: policy -> terminal, metrics.jsonl and trackers; empty on all ranks but the first, which show and write nothing.
        evaluators: policy -> evaluator of its checkpoints; empty likewise.
        lock: of the run directory; released at the end.

    Attributes:
        metrics: policy -> row of its last update; empty before the first.
        stopped: whether a callback has stopped the training.
    """

    def __init__(
        self,
        state: TrainState,
        run_dir: Path,
        outputs: Mapping[str, RunOutput],
        evaluators: Mapping[str, Evaluator],
        lock: RunLock,
    ) -> None:
        self.state, self.run_dir, self._lock = state, run_dir, lock
        self._outputs, self._evaluators = outputs, evaluators
        self.metrics: dict[str, Row] = {}
        self.stopped = False
        self._evaluated_until = state.step

    def say(self, text: str) -> None:
        """Print a line, once for all policies."""
        if self._outputs:
            say(text)

    def watch(self, steps: int, interrupted: Callable[[], str | None]) -> Watch:
        """Return what shows the progress of a long rollout, and ends it after an interrupt or at `max_train_seconds`.

        A rollout that is nearly over is played to its end, so that a resumed run is that without the interruption.

        Args:
            steps: of the rollout in each environment.
            interrupted: as in `save_if_due`.
        """
        state, limit = self.state, self.state.config.max_train_seconds
        num_frames, started = steps * state.config.rollout.num_envs, time.monotonic()

        def watch(played: float) -> bool:
            seconds = time.monotonic() - started
            if seconds >= SHOWN_AFTER:
                for output in self._outputs.values():
                    output.show(state.step + round(played * num_frames), state.seconds + seconds, played)
            if seconds / played - seconds <= PATIENCE:
                return False
            if how := interrupted():
                self.say(
                    f"{how} after {played:.0%} of a rollout, which ends here: a resumed run goes on from this step, but not "
                    "exactly as without the interruption"
                )
            return bool(how) or (limit is not None and state.seconds + seconds >= limit)

        return watch

    def report(self, learned: Mapping[str, Learned], settings: Settings, seconds: float) -> None:
        """Count an update of all policies, log it, and call the user's callbacks.

        Args:
            learned: policy -> result of its update.
            settings: of the update.
            seconds: that it took; those of rank 0 count.
        """
        state = self.state
        elapsed = state.ranks.lead(lambda: seconds)
        evaluated = {name: self._evaluated(name, evaluator.poll()) for name, evaluator in self._evaluators.items()}
        state.advance(learned, elapsed)
        schedule = {"learning_rate": settings.learning_rates[0], "entropy_coefficient": float(settings.ppo.ent_coef)}
        shared = state.metrics()
        for name, each in learned.items():
            self.metrics[name] = metrics_row(
                state.step,
                each.played,
                each.stats | schedule,
                run_seconds=state.seconds,
                update_seconds=elapsed,
                extra=shared | dict(state.learners[name].metrics()) | evaluated.get(name, {}),
            )
        self.stopped = state.ranks.lead(lambda: any([self._tell(name, each) for name, each in learned.items()]))

    def _tell(self, name: str, learned: Learned) -> bool:
        """Log a policy's row and call the user's callbacks; returns whether that stops the training."""
        self._log(name, self.metrics[name])
        for episode in learned.played.episodes:
            for callback in self.state.callbacks:
                callback.on_episode(episode)
        learner = self.state.learners[name]
        update = Update(self.state.step, self.metrics[name], lambda: learner.model.policy, policy_name=name or None)
        for callback in self.state.callbacks:
            callback.on_update(update)
        return update.stopped

    def save_if_due(self, interrupted: str | None) -> None:
        """Write checkpoints if they are due, and submit them for evaluation if that is due.

        Args:
            interrupted: "interrupted" after Ctrl-C, "terminated" after SIGTERM, else None.

        Raises:
            Interrupted: after Ctrl-C or SIGTERM, unless this was the last update; the checkpoint is saved.
        """
        state, config = self.state, self.state.config
        interrupted = next((how for how in state.ranks.gather_objects(interrupted) if how), None)
        last = self.stopped or state.next_steps() == 0
        interval = config.eval.interval
        evaluate = is_due(interval, self._evaluated_until, state.step, last)
        due = last or state.num_updates % config.checkpoint_interval == 0
        if not (interrupted or evaluate or due):
            return
        # an evaluation needs the checkpoints of all policies
        pending = self._pending_evaluations() + ([state.step] if evaluate else [])
        # a checkpoint saved only because of Ctrl-C gets no score: the uninterrupted run would not have it
        scores = {name: state.recent_reward(name) for name in state.learners} if interval is None and due else {}
        saved = state.save(self.run_dir, evaluations=pending, scores=scores)
        state.ranks.lead(lambda: self._tell_checkpoints(saved))
        if interrupted and not last:
            raise self.interruption(interrupted)
        if evaluate:
            for name, evaluator in self._evaluators.items():
                evaluator.submit(saved[name], state.step)
            self._evaluated_until = state.step

    def _tell_checkpoints(self, saved: Mapping[str, Path]) -> None:
        for checkpoint in saved.values():
            for callback in self.state.callbacks:
                callback.on_checkpoint(checkpoint, self.state.step)

    def _pending_evaluations(self) -> list[int]:
        """Steps whose evaluation is unfinished."""
        steps = [step for evaluator in self._evaluators.values() for step in evaluator.pending_steps]
        return list(dict.fromkeys(steps))

    def finish(self, interrupted: Callable[[], str | None]) -> None:
        """Wait for unfinished evaluations, and log them.

        Raises:
            Interrupted: after Ctrl-C or SIGTERM; a resumed run does the evaluations that are left.
        """
        if pending := self._pending_evaluations():
            steps = ", ".join(f"{step:,}" for step in pending)
            self.say(f"waiting for the evaluation of step {steps}; Ctrl-C ends the run, and resuming it evaluates")
        for name, evaluator in self._evaluators.items():
            while done := evaluator.wait(interrupted):
                row = {"step": self.state.step, **self._evaluated(name, done)}
                self._log(name, row)
                self.metrics[name] = self.metrics.get(name, {}) | row
        if (how := interrupted()) and self._pending_evaluations():
            raise self.interruption(how)

    def interruption(self, how: str) -> Interrupted | RankFailed:
        """The error that ends a run whose checkpoint was saved after a signal; `how` is "interrupted" or "terminated"."""
        if self.state.ranks.rank:
            return RankFailed(EXIT_CODES[how])  # rank 0 says how to resume
        resume = f"go on with resume={self.run_dir}"
        return Interrupted(
            f"{how} after {self.state.step:,} steps; saved {_listed(self._saved())}; {resume}", EXIT_CODES[how]
        )

    def _saved(self) -> Sequence[Path]:
        """The checkpoint that a resumed run starts from, or one for each policy."""
        if not self.state.config.policies:
            return [resolve_checkpoint(self.run_dir)]
        return [checkpoint.path for checkpoint in load_common([self.run_dir / name for name in self.state.learners])]

    def _log(self, name: str, row: Row) -> None:
        try:
            self._outputs[name].log(row)
        except ValueError as error:
            raise ValueError(f"{error}; {self._rescued()}") from error

    def _rescued(self) -> str:
        """Advice on resuming: from the last checkpoint, or if there is none, from one that is saved now."""
        try:
            return f"saved is {_listed(self._saved())}: go on with resume={self.run_dir}"
        except CheckpointError as error:
            return self._saved_now() or f"nothing is saved: {error}"

    def _rescued_with_last_update(self) -> str:
        """Advice on resuming after a rollout has broken off: the last update is saved first, if it is not yet."""
        first = next(iter(self.state.learners))
        saved = [step for step, _ in step_files(self.run_dir / first / CHECKPOINTS)]
        if self.state.step in saved or self.state.ranks.size > 1:  # other ranks wait in the rollout, and cannot save
            return self._rescued()
        return self._saved_now() or self._rescued()

    def _last_finite(self) -> str:
        """Advice on resuming after the network has become NaN: from the newest checkpoint, since only finite ones load."""
        first = next(iter(self.state.learners))
        for _, file in step_files(self.run_dir / first / CHECKPOINTS):
            files = [self.run_dir / name / CHECKPOINTS / file.name for name in self.state.learners]
            try:
                for path in files:
                    load_checkpoint(path)
            except CheckpointError:
                continue
            resume = f"go on from there with a lower optim.lr and resume={file}"
            return f"the last checkpoint with finite weights is {_listed(files)}" + f": {resume}" * (len(files) == 1)
        return f"{self.run_dir} holds no checkpoint with finite weights: begin again with a lower optim.lr"

    def _since(self) -> str:
        """The update that made the networks NaN, for the beginning of a message; empty if they are finite."""
        models = [learner.model for learner in self.state.learners.values()]
        if all(bool(each.isfinite().all()) for model in models for each in model.parameters()):
            return ""
        # the networks acted in its rollout, which is checked, so they were finite until then
        return f"they are not finite since update {self.state.num_updates}, which ended at step {self.state.step:,}; "

    def _saved_now(self) -> str | None:
        try:
            saved = self.state.save(self.run_dir)
            return f"saved is {_listed(saved.values())}, written just now: go on with resume={self.run_dir}"
        except (ValueError, PartLost):
            return None

    def _evaluated(self, name: str, done: EvalRow | None) -> Row:
        """Metrics of a finished evaluation, whose score is written into its checkpoint."""
        if done is None:
            return {}
        try:
            record_score(self.run_dir / name / CHECKPOINTS, done.step, done.score)
        except CheckpointError as error:  # not the end of the run: the next save may succeed
            self._outputs[name].say(str(error))
        return dict(done.metrics)

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._explain(error)
        with ExitStack() as stack:  # all are closed, even if one fails
            stack.callback(self.state.ranks.leave, error)
            stack.callback(self._lock.close)
            for output in self._outputs.values():
                stack.callback(output.__exit__, kind, error, trace)
            stack.callback(self.state.close)
            for evaluator in self._evaluators.values():
                stack.callback(evaluator.close)

    def _explain(self, error: BaseException) -> None:
        """Add to an error that has ended the run how to resume."""
        if isinstance(error, RecordingError):
            self.state.recorder = None  # its last frames are lost
            error.add_note(self._rescued())
        if isinstance(error, NotFinite):
            error.add_note(f"{self._since()}{self._last_finite()}")
        if isinstance(error, EnvironmentHangs):
            error.add_note(self._rescued_with_last_update())
        if isinstance(error, PartLost):  # raised between two updates, so saving is safe
            error.add_note(self._saved_now() or self._rescued())
        if isinstance(error, RankDied):
            ignore_sigterm()  # torchrun sends it to the other ranks when one has ended; this one prints the reason first
            error.add_note(f"go on from the last checkpoint with resume={self.run_dir}")


def _listed(paths: Collection[Path]) -> str:
    return ", ".join(map(str, paths))
