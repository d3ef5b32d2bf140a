"""One trial while it runs: its seeds one after another, each in a process, and the learning curve watched."""

from __future__ import annotations

import dataclasses
import math
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from enn_ppo.checkpoints.layout import LATEST
from enn_ppo.command_line.job_process import JobProcess
from enn_ppo.config import TrainConfig
from enn_ppo.tracking.run_dir import CHECKPOINTS, METRICS
from enn_ppo.tuning.config import SweepConfig
from enn_ppo.tuning.curve import Curve
from enn_ppo.tuning.study import POINTS, TRIALS, VALUES
from entity_gym.errors import nearest

if TYPE_CHECKING:
    import optuna


class Outcome(NamedTuple):
    """How a trial ended."""

    state: str  # complete, pruned or fail
    value: float | None = None
    reason: str = ""


class RunningTrial:
    """A trial of a study, whose runs lie in `<folder>/trials/<number>/seed_<seed>`.

    A trial that was begun before goes on: seeds that are done are not run again, and a run that was stopped continues from
    its checkpoint.

    Args:
        trial: of the study, with its values drawn.
        training: the settings of its runs, all but seed and run directory.
        config: of the sweep.
        folder: of the sweep.
        run: trains.
        environment: variables of the processes.
        lock: file descriptor that the processes hold while they run.
    """

    def __init__(
        self,
        trial: optuna.Trial,
        training: TrainConfig,
        config: SweepConfig,
        folder: Path,
        run: Callable[[TrainConfig], object],
        environment: Mapping[str, str],
        lock: int,
    ) -> None:
        self.trial, self.training = trial, training
        self._config, self._run, self._environment, self._lock = config, run, environment, lock
        self._folder = folder / TRIALS / f"{trial.number:04d}"
        self._values: list[float] = list(trial.user_attrs.get(VALUES, []))
        self._reported = set(trial.study.get_trials(deepcopy=False)[trial.number].intermediate_values)
        self.stopped = False
        self.told = False  # whether the study knows how it ended
        self._process: JobProcess | None = None
        self._curve: Curve | None = None

    def advance(self) -> Outcome | None:
        """Look after the trial: start its next run, follow the curve, prune.

        Returns:
            How it ended, once; None while it runs, and None for ever if it was stopped before its end.
        """
        if self._process is None:
            if len(self._values) < self._config.seeds:
                if not self.stopped:
                    self._start(len(self._values))
                return None
            return Outcome("complete", sum(self._values) / len(self._values))
        code = self._process.poll()
        assert self._curve is not None
        self._curve.follow()
        if code is None:
            return self._pruning()
        process, self._process = self._process, None
        if self.stopped and code != 0:
            return None
        if code != 0:
            return Outcome("fail", reason=process.reason())
        return self._finish_run(self._curve)

    @property
    def alive(self) -> bool:
        """Whether a process runs."""
        return self._process is not None and self._process.poll() is None

    def stop(self) -> None:
        """Ask the run to end in order, and start no other. A second time: at once."""
        self.stopped = True
        if self._process is not None:
            self._process.interrupt()

    def kill(self) -> None:
        """End the run without any order."""
        if self._process is not None:
            self._process.kill()

    def _start(self, index: int) -> None:
        seed = self.training.seed + index
        run_dir = self._folder / f"seed_{seed}"
        resume = (run_dir / CHECKPOINTS / LATEST).exists()
        if not resume and run_dir.exists():
            shutil.rmtree(run_dir)  # stopped before its first checkpoint
        settings = dataclasses.replace(
            self.training, seed=seed, run_dir=str(run_dir), resume=str(run_dir) if resume else None, overwrite=False
        )
        self._curve = Curve(run_dir / METRICS, self._config.metric, settings, self._config.last_fraction)
        log = run_dir.with_suffix(".log")
        self._process = JobProcess(self._run, settings, log, environment=self._environment, inherited=[self._lock])

    def _finish_run(self, curve: Curve) -> Outcome | None:
        value = curve.mean()
        metric = self._config.metric
        if value is None and metric not in curve.names:
            return Outcome("fail", reason=f"metrics.jsonl has no column {metric}; {nearest(metric, curve.names)}")
        if value is None:
            return Outcome("fail", reason=f"{metric} has no value: no episode ended")
        self._report(curve, 1.0)
        self._values.append(value)
        self.trial.set_user_attr(VALUES, self._values)
        return None

    def _pruning(self) -> Outcome | None:
        assert self._curve is not None
        news = self._report(self._curve, self._curve.progress)
        if self.stopped or not news or not self.trial.should_prune():
            return None
        self.stop()
        where = max(self._reported) % POINTS or POINTS
        return Outcome("pruned", reason=f"behind the others after {where / POINTS:.0%} of run {len(self._values) + 1}")

    def _report(self, curve: Curve, progress: float) -> bool:
        """Report the points that the run has passed: the mean of the finished seeds and of the running one so far.

        Returns:
            Whether there was anything new.
        """
        before = len(self._reported)
        for point in range(1, math.floor(progress * POINTS + 1e-9) + 1):
            step = len(self._values) * POINTS + point
            value = curve.mean(point / POINTS)
            if step not in self._reported and value is not None:
                self.trial.report((sum(self._values) + value) / (len(self._values) + 1), step)
                self._reported.add(step)
        return len(self._reported) > before
