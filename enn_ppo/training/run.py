"""A run in progress: logging, checkpoints and evaluations between two updates."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType

from enn_ppo.checkpoints import CheckpointError, load_common, record_score, resolve_checkpoint, step_files
from enn_ppo.eval.evaluator import EvalRow, Evaluator, is_due
from enn_ppo.rollout import Watch
from enn_ppo.training.callbacks import Update
from enn_ppo.training.errors import Interrupted, PartLost, RankFailed
from enn_ppo.training.interrupt import EXIT_CODES
from enn_ppo.training.learning.learner import Learned, UpdateSettings
from enn_ppo.training.state import TrainState
from enn_ppo.training.tracking.logger import Row
from enn_ppo.training.tracking.metrics import metrics_row
from enn_ppo.training.tracking.run_dir import CHECKPOINTS
from enn_ppo.training.tracking.run_output import RunOutput, announce
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
        interrupted: returns "interrupted" after Ctrl-C, "terminated" after SIGTERM, else None.
        stack: closes everything that the run uses.

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
        interrupted: Callable[[], str | None],
        stack: ExitStack,
    ) -> None:
        self.state, self.run_dir, self._interrupted, self._stack = state, run_dir, interrupted, stack
        self._outputs, self._evaluators = outputs, evaluators
        self.metrics: dict[str, Row] = {}
        self.stopped = False
        self._evaluated_until = state.step

    def watch(self, steps: int) -> Watch:
        """Return what shows the progress of a long rollout, and ends it after an interrupt or at `max_train_seconds`.

        A rollout that is nearly over is played to its end, so that a resumed run is that without the interruption.

        Args:
            steps: of the rollout in each environment.
        """
        state, limit = self.state, self.state.config.max_train_seconds
        num_frames, started = steps * state.config.rollout.num_envs, time.monotonic()

        def watch(played: float) -> bool:
            seconds = time.monotonic() - started
            if seconds >= SHOWN_AFTER:
                for output in self._outputs.values():
                    output.show(state.step + round(played * num_frames), state.seconds + seconds)
            if seconds / played - seconds <= PATIENCE:
                return False
            if how := self._interrupted():
                announce(
                    f"{how} after {played:.0%} of a rollout, which ends here: a resumed run goes on from this step, but not "
                    "exactly as without the interruption"
                )
            return bool(how) or (limit is not None and state.seconds + seconds >= limit)

        return watch

    def report(self, learned: Mapping[str, Learned], scheduled: UpdateSettings, seconds: float) -> None:
        """Count an update of all policies, log it, and call the user's callbacks.

        Args:
            learned: policy -> result of its update.
            scheduled: settings of the update.
            seconds: that it took; those of rank 0 count.
        """
        state = self.state
        elapsed = state.ranks.lead(lambda: seconds)
        evaluated = {name: self._evaluated(name, evaluator.poll()) for name, evaluator in self._evaluators.items()}
        state.advance(learned, elapsed)
        schedule = {"learning_rate": scheduled.learning_rate, "entropy_coefficient": float(scheduled.ppo.ent_coef)}
        shared = state.metrics()
        for name, each in learned.items():
            self.metrics[name] = metrics_row(
                state.step,
                each.played,
                each.stats | schedule,
                run_seconds=state.seconds,
                update_seconds=elapsed,
                extra=shared | evaluated.get(name, {}),
            )
        self.stopped = state.ranks.lead(lambda: any([self._tell(name, each) for name, each in learned.items()]))

    def _tell(self, name: str, learned: Learned) -> bool:
        """Log a policy's row and call the user's callbacks; returns whether that stops the training."""
        self._outputs[name].log(self.metrics[name])
        learner = self.state.learners[name]
        update = Update(self.state.step, self.metrics[name], lambda: learner.model.policy, policy_name=name or None)
        for episode in learned.played.stats.episodes:
            for callback in self.state.callbacks:
                callback.on_episode(episode)
        for callback in self.state.callbacks:
            callback.on_update(update)
        return update.stopped

    def save_if_due(self) -> None:
        """Write checkpoints if they are due, and submit them for evaluation if that is due.

        Raises:
            Interrupted: after Ctrl-C or SIGTERM, unless this was the last update; the checkpoint is saved.
        """
        state, config = self.state, self.state.config
        interrupted = next((how for how in state.ranks.gather_objects(self._interrupted()) if how), None)
        last = self.stopped or state.next_steps() == 0
        interval = config.eval.interval
        evaluate = is_due(interval, self._evaluated_until, state.step, last)
        due = last or state.num_updates % config.checkpoint_interval == 0
        if not (interrupted or evaluate or due):
            return
        # an evaluation needs the checkpoints of all policies
        pending = self._pending_evaluations() + ([state.step] if evaluate else [])
        # a checkpoint saved only because of Ctrl-C gets no score: the uninterrupted run would not have it
        scores = state.recent_means() if interval is None and due else {}
        saved = state.save(self.run_dir, evaluations=pending, scores=scores)
        state.ranks.lead(lambda: self._tell_checkpoints(saved))
        if interrupted and not last:
            raise self._interruption(interrupted)
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

    def finish(self) -> None:
        """Wait for unfinished evaluations, and log them.

        Raises:
            Interrupted: after Ctrl-C or SIGTERM; a resumed run does the evaluations that are left.
        """
        if pending := self._pending_evaluations():
            steps = ", ".join(f"{step:,}" for step in pending)
            announce(f"waiting for the evaluation of step {steps}; Ctrl-C ends the run, and resuming it evaluates")
        for name, evaluator in self._evaluators.items():
            while done := evaluator.wait(self._interrupted):
                row = {"step": self.state.step, **self._evaluated(name, done)}
                self._outputs[name].log(row)
                self.metrics[name] = self.metrics.get(name, {}) | row
        if (how := self._interrupted()) and self._pending_evaluations():
            raise self._interruption(how)

    def _evaluated(self, name: str, done: EvalRow | None) -> Row:
        """Metrics of a finished evaluation, whose score is written into its checkpoint."""
        if done is None:
            return {}
        try:
            record_score(self.run_dir / name / CHECKPOINTS, done.step, done.metrics["eval/episodic_reward"])
        except CheckpointError as error:  # not the end of the run: the next save may succeed
            self._outputs[name].say(str(error))
        return dict(done.metrics)

    def _interruption(self, how: str) -> Interrupted | RankFailed:
        """The error that ends a run whose checkpoint was saved after a signal; `how` is "interrupted" or "terminated"."""
        if self.state.ranks.rank:
            return RankFailed(EXIT_CODES[how])  # rank 0 says how to resume
        return Interrupted(f"{how} after {self.state.step:,} steps; {self._saved()}", EXIT_CODES[how])

    def _saved(self) -> str:
        """The checkpoints that a resumed run starts from, and how to resume it."""
        try:
            if self.state.config.policies:
                paths = [each.path for each in load_common([self.run_dir / name for name in self.state.learners])]
            else:
                paths = [resolve_checkpoint(self.run_dir)]
        except CheckpointError as error:
            return f"nothing is saved: {error}"
        return f"saved {', '.join(map(str, paths))}; go on with resume={self.run_dir}"

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception) and not isinstance(error, Interrupted):
            self._explain(error)
        self._stack.__exit__(kind, error, trace)  # closes everything, even if one fails

    def _explain(self, error: Exception) -> None:
        """Add to an error that has ended the run how to resume."""
        state = self.state
        of_ranks = isinstance(error, PartLost) and state.ranks.size > 1
        if of_ranks and threading.current_thread() is threading.main_thread():
            # torchrun sends it to the other ranks when one has ended; this one prints the reason first
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        first = next(iter(state.learners))
        saved = [step for step, _ in step_files(self.run_dir / first / CHECKPOINTS)]
        lost = isinstance(error, PartLost) and state.step not in saved  # between two updates
        if (lost or not saved) and state.ranks.size == 1:  # other ranks wait in the rollout
            with suppress(ValueError, PartLost):  # the learner may be lost
                state.save(self.run_dir)
        error.add_note(self._saved() + " and a lower optim.lr" * isinstance(error, NotFinite))
