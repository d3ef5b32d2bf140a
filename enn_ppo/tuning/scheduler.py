"""The trials of a sweep: chosen, run some at a time, told to the study, and left so that the sweep can go on later."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from enn_ppo.command_line.job_process import StopSignals, shared_cores
from enn_ppo.config import TrainConfig
from enn_ppo.tuning.config import SweepConfig
from enn_ppo.tuning.study import ARGUMENTS, REASON, SECONDS, best_of, import_optuna, trials_in
from enn_ppo.tuning.trial import Outcome, RunningTrial

if TYPE_CHECKING:
    import optuna

HOPELESS = 10  # trials that fail before any succeeds, after which the sweep ends
_POLL_INTERVAL = 0.2  # seconds
_SAVE_INTERVAL = 10.0  # seconds between notes of how long the sweep has taken


class Scheduler:
    """Runs the trials that are left of a sweep.

    Args:
        study: with the trials so far.
        config: of the sweep.
        folder: of the sweep.
        compose: the settings of training with these arguments over those of the command.
        run: trains.
        lock: file descriptor that trials hold while they run.
        on_best: called when a trial is better than those before.
    """

    def __init__(
        self,
        study: optuna.Study,
        config: SweepConfig,
        folder: Path,
        *,
        compose: Callable[[Sequence[str]], TrainConfig],
        run: Callable[[TrainConfig], object],
        lock: int,
        on_best: Callable[[optuna.trial.FrozenTrial], object],
    ) -> None:
        self._study, self._config, self._folder = study, config, folder
        self._compose, self._run_training, self._lock, self._on_best = compose, run, lock, on_best
        self._parameters = config.parameters
        self._running: list[RunningTrial] = []
        self._unfinished = trials_in(study, "running")
        self._before: float = study.user_attrs.get(SECONDS, 0.0)
        self._started = self._saved = time.monotonic()
        self._environment = shared_cores(config.jobs)

    def run(self) -> int:
        """Run until the budget is used up.

        Returns:
            The exit code: 0, or 130 after Ctrl-C and 143 after SIGTERM, which leave what ran to be continued.
        """
        asked = 0
        with StopSignals() as signals:
            try:
                while self._running or (not signals.count and self._may_start()):
                    while len(self._running) < self._config.jobs and not signals.count and self._may_start():
                        self._start()
                    if signals.count > asked:
                        asked = signals.count
                        print(
                            "ending the runs in order; press again to abort them" if asked == 1 else "aborting",
                            flush=True,
                        )
                        self._stop()
                    elif not asked and self._time_is_up() and not all(trial.stopped for trial in self._running):
                        self._stop()
                    self._look_after()
                    time.sleep(_POLL_INTERVAL)
            finally:
                for trial in self._running:
                    trial.kill()
                self._save_seconds()
            return signals.exit_code

    def _may_start(self) -> bool:
        if self._time_is_up() or self._is_hopeless():
            return False
        limit = self._config.trials
        return bool(self._unfinished) or limit is None or len(self._study.get_trials(deepcopy=False)) < limit

    def _time_is_up(self) -> bool:
        return self._config.minutes is not None and self._seconds() >= 60 * self._config.minutes

    def _is_hopeless(self) -> bool:
        return len(trials_in(self._study, "fail")) >= HOPELESS and not trials_in(self._study, "complete", "pruned")

    def _seconds(self) -> float:
        return self._before + time.monotonic() - self._started

    def _save_seconds(self) -> None:
        self._saved = time.monotonic()
        self._study.set_user_attr(SECONDS, self._seconds())

    def _start(self) -> None:
        """Begin another trial, or go on with one that was left."""
        if self._unfinished:  # Optuna has no public way to go on with a trial but its constructor, which wants the id
            trial = import_optuna().trial.Trial(self._study, self._unfinished.pop(0)._trial_id)
        else:
            trial = self._study.ask()
        arguments = [parameter.suggest(trial) for parameter in self._parameters]
        trial.set_user_attr(ARGUMENTS, arguments)
        try:
            training = self._compose(arguments)
            running = RunningTrial(
                trial, training, self._config, self._folder, self._run_training, self._environment, self._lock
            )
        except ValueError as error:
            self._tell(trial, Outcome("fail", reason=str(error)))
            return
        self._running.append(running)

    def _stop(self) -> None:
        for trial in self._running:
            trial.stop()

    def _look_after(self) -> None:
        for running in list(self._running):
            outcome = None if running.told else running.advance()
            if outcome is not None:
                running.told = True
                self._tell(running.trial, outcome)
            if (running.told or running.stopped) and not running.alive:
                self._running.remove(running)
        if time.monotonic() - self._saved > _SAVE_INTERVAL:
            self._save_seconds()

    def _tell(self, trial: optuna.Trial, outcome: Outcome) -> None:
        """Tell the study, and the user in a line."""
        trial.set_user_attr(REASON, outcome.reason)
        states = import_optuna().trial.TrialState
        frozen = self._study.tell(trial, outcome.value, states[outcome.state.upper()])
        best = best_of(self._study)
        if best is not None and best.number == trial.number:
            self._on_best(best)
        done = len(trials_in(self._study, "complete", "pruned", "fail"))
        limit = "" if self._config.trials is None else f" of {self._config.trials}"
        result = {"pruned": "pruned", "fail": "failed"}.get(outcome.state) or f"{outcome.value:.4g}"
        record = f" (best {best.value:.4g}, trial {best.number})" if best is not None and best.value is not None else ""
        arguments = " ".join(frozen.user_attrs[ARGUMENTS])
        reason = f": {outcome.reason}" if outcome.reason else ""
        print(f"{done}{limit} done; trial {trial.number}: {result}{reason}{record}  {arguments}", flush=True)
