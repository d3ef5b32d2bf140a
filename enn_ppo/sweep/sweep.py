"""Hyperparameter search with Optuna: each trial trains in a process, and is pruned if its learning curve falls behind.

python -m enn_ppo.sweep sweep=ppo env=Xor total_timesteps=100000 sweep.trials=30 sweep.jobs=2

The sweep's folder holds `study.db`, Optuna's study, which `optuna-dashboard sqlite:///<folder>/study.db` shows, and the runs in
`trials/`. The same command continues the sweep.
"""

from __future__ import annotations

import math
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from enn_ppo.settings.schema import quoted
from enn_ppo.sweep.config import SweepCommand, SweepConfig
from enn_ppo.sweep.space import suggest
from enn_ppo.training.errors import Interrupted
from enn_ppo.training.tracking.logger import read_metrics
from enn_ppo.training.tracking.run_dir import METRICS
from enn_ppo.training.tracking.run_lock import RunLock
from entity_gym.errors import nearest
from entity_gym.pools.processes.interpreter import describe_end

if TYPE_CHECKING:
    import optuna

STUDY, TRIALS = "study.db", "trials"
POINTS = 20  # points of a learning curve at which trials are compared
LAST = 0.2  # fraction of a run over which its score is the mean
STARTUP = 5  # trials before the median pruner begins
HOPELESS = 10  # a sweep ends if this many trials have failed and none has succeeded
GRACE = 60.0  # seconds that a trainer has to save and end
LOOK = 0.5  # seconds between two looks at a trial
REASON = "reason"  # user attribute of trials that have failed or were pruned; interrupted trials have none
_MUST_AGREE = ("space", "metric", "direction", "seeds")  # settings of a sweep that is continued


class Sweep(NamedTuple):
    """A sweep; `objective` is Optuna's."""

    config: SweepCommand
    arguments: Sequence[str]  # of `enn_ppo.train`, shared by all trials
    signals: list[int]  # Ctrl-C and SIGTERM, as they come

    def objective(self, trial: optuna.Trial) -> float:
        """Train with the values of a trial, once for each seed, and return the mean score."""
        config = self.config.sweep
        drawn = [suggest(trial, name, given) for name, given in config.space.items()]
        trial.set_user_attr("arguments", drawn)
        scores: list[float] = []
        try:
            for seed in range(self.config.seed, self.config.seed + config.seeds):
                scores.append(self._train(trial, [*drawn, f"seed={seed}"], scores))
        except (OSError, ValueError) as error:
            trial.set_user_attr(REASON, str(error))
            raise
        return sum(scores) / len(scores)

    def _train(self, trial: optuna.Trial, arguments: Sequence[str], scores: Sequence[float]) -> float:
        """Train in a process and return the score. `scores` are those of the trial's earlier seeds.

        Raises:
            ValueError: the trainer has failed, or the metric has no value.
            TrialPruned: the learning curve falls behind those of other trials.
            Interrupted: after Ctrl-C or SIGTERM, which also ends the sweep.
        """
        import optuna

        config, folder = self.config.sweep, Path(str(self.config.run_dir))
        run_dir = folder / TRIALS / f"{trial.number:04d}" / arguments[-1].replace("=", "_")
        process = start([*self.arguments, *arguments], run_dir, config.jobs)
        reported = 0
        try:
            while process.poll() is None:
                curve = learning_curve(run_dir / METRICS, self.config)
                for point in range(reported + 1, math.floor(POINTS * curve[-1][0]) + 1 if curve else 0):
                    reported, level = point, mean_before(curve, point / POINTS)
                    trial.report((sum(scores) + level) / (len(scores) + 1), len(scores) * POINTS + point)
                    if trial.should_prune():
                        trial.set_user_attr(REASON, f"behind the others after {point / POINTS:.0%} of {run_dir.name}")
                        raise optuna.TrialPruned
                if self.signals:
                    trial.study.stop()
                    raise Interrupted("")
                time.sleep(LOOK)
        finally:
            end(process)
        if process.returncode < 0:
            raise ValueError(describe_end(process))
        if process.returncode:
            lines = run_dir.with_suffix(".log").read_text("utf-8", errors="replace").splitlines()
            last = next((line for line in reversed(lines) if line.strip()), "it printed nothing")
            raise ValueError(last.removeprefix("error: "))
        curve = learning_curve(run_dir / METRICS, self.config)
        if not curve:
            names = dict.fromkeys(name for row in read_metrics(run_dir / METRICS) for name in row)
            raise ValueError(f"{config.metric} has no value in metrics.jsonl; {nearest(config.metric, names)}")
        return mean_before(curve, curve[-1][0])

    def report(self, study: optuna.Study, trial: optuna.trial.FrozenTrial) -> None:
        """Print a line about a finished trial, and stop the sweep if everything fails."""
        if not has_ended(trial):
            return
        best, failed = best_of(study), [each.state.name for each in ended(study)].count("FAIL")
        if best is None and failed >= HOPELESS:
            study.stop()
        result = {"PRUNED": "pruned: ", "FAIL": "failed: "}.get(trial.state.name) or f"{trial.value:.4g}"
        record = "" if best is None else f" (best {best.value:.4g}, trial {best.number})"
        arguments = " ".join(trial.user_attrs["arguments"])
        line = f"trial {trial.number}: {result}{trial.user_attrs.get(REASON, '')}{record}  {arguments}"
        print(f"{len(ended(study))} of {self.config.sweep.trials} done; {line}", flush=True)


def sweep(command: SweepCommand, arguments: Sequence[str]) -> optuna.Study:
    """Run the remaining trials of a sweep, and print a line for each and for the best one.

    Args:
        command: settings of the sweep and of training. A sweep that `run_dir` holds is continued.
        arguments: of `enn_ppo.train`, shared by all trials.

    Raises:
        ValueError: Optuna is missing, a setting or the folder is invalid, or no trial succeeded.
        Interrupted: after Ctrl-C or SIGTERM; the same command continues the sweep.
    """
    try:
        import optuna
        from sqlalchemy.exc import SQLAlchemyError  # a part of optuna
    except ImportError as error:
        raise ValueError(f'a sweep needs {error.name}: pip install "enn-ppo[sweep]"') from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)  # the sweep prints its trials itself
    for name in command.sweep.space:
        if given := [each for each in arguments if each.lstrip("+").startswith(f"{name}=")]:
            raise ValueError(f"{given[0]} is given for all trials, and sweep.space varies it: leave one out")
    config, folder, signals, lock = command.sweep, Path(str(command.run_dir)), list[int](), RunLock()
    made = Sweep(command, arguments, signals)
    lock.take(folder)

    def on_signal(number: int, frame: object) -> None:
        signals.append(number)
        signal.signal(number, signal.default_int_handler)  # a second one does not wait for the trainers

    previous = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        study = open_study(config, folder, arguments, command.seed)
        left = max(0, config.trials - len(ended(study)))
        if left and config.pruner == "median":
            print(f"{config.trials} trials; those that fall behind are pruned once {STARTUP} are complete", flush=True)
        # Optuna looks at the exceptions of parallel trials only before it starts another one, so all are caught.
        caught = (Interrupted, OSError, ValueError)
        study.optimize(made.objective, left, None, config.jobs, catch=caught, callbacks=[made.report])
    except SQLAlchemyError as error:
        raise ValueError(f"{folder / STUDY} cannot be used: {getattr(error, 'orig', error)}") from error
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        lock.close()
    if signals and len(ended(study)) < config.trials:
        raise Interrupted(f"interrupted; the same command goes on with {folder}", exit_code=128 + signals[0])
    best = best_of(study)
    if best is None:
        reasons = "".join(f"; trial {each.number}: {each.user_attrs[REASON]}" for each in ended(study)[:1])
        raise ValueError(f"no trial was complete{reasons} (what the trials printed: {folder / TRIALS})")
    train = shlex.join(["python", "-m", "enn_ppo.train", *arguments, *best.user_attrs["arguments"]])
    print(f"best: trial {best.number}, {config.metric} {best.value:.4g}; train with it:\n  {train}")
    return study


def open_study(config: SweepConfig, folder: Path, arguments: Sequence[str], seed: int = 1) -> optuna.Study:
    """Open or create the study in a folder. Interrupted trials are enqueued again.

    Raises:
        ValueError: the folder holds a sweep with other settings.
    """
    import optuna
    from optuna.trial import TrialState

    pruners = {
        "median": lambda: optuna.pruners.MedianPruner(STARTUP, n_warmup_steps=POINTS // 4),
        "halving": lambda: optuna.pruners.SuccessiveHalvingPruner(POINTS // 4, 3),
        "none": optuna.pruners.NopPruner,
    }
    study: optuna.Study = optuna.create_study(
        storage=f"sqlite:///{(folder / STUDY).resolve()}",
        study_name="sweep",
        load_if_exists=True,
        pruner=pruners[config.pruner](),
        direction=config.direction,
    )
    now = {name: getattr(config, name) for name in _MUST_AGREE} | {"train": list(arguments)}
    before = study.user_attrs.get("settings", now)
    if other := [f"sweep.{name} {before[name]!r}, now {now[name]!r}" for name in now if now[name] != before[name]]:
        raise ValueError(f"{folder} holds a sweep with other settings: {other[0]}; give another run_dir")
    study.set_user_attr("settings", now)
    again = {each.user_attrs.get("again") for each in study.trials}
    for each in study.trials:
        if each.state == TrialState.RUNNING:  # the sweep was killed
            study.tell(each.number, state=TrialState.FAIL)
        is_interrupted = each.state in (TrialState.RUNNING, TrialState.FAIL) and REASON not in each.user_attrs
        if is_interrupted and each.number not in again:
            study.enqueue_trial(each.params, user_attrs={"again": each.number})
    # a sweep that is continued repeats no draws
    draws = (seed + len(study.trials)) % 2**32
    study.sampler = optuna.samplers.TPESampler(seed=draws, constant_liar=config.jobs > 1)
    return study


def ended(study: optuna.Study) -> list[optuna.trial.FrozenTrial]:
    """The finished trials, without interrupted ones."""
    return [each for each in study.get_trials(deepcopy=False) if has_ended(each)]


def has_ended(trial: optuna.trial.FrozenTrial) -> bool:
    """Whether a trial is complete, pruned or has failed; an interrupted one has not ended, and begins anew."""
    return trial.state.name in ("COMPLETE", "PRUNED") or REASON in trial.user_attrs


def best_of(study: optuna.Study) -> optuna.trial.FrozenTrial | None:
    """The complete trial with the best score; None if there is none."""
    complete = any(each.state.name == "COMPLETE" for each in study.get_trials(deepcopy=False))
    return study.best_trial if complete else None


def start(arguments: Sequence[str], run_dir: Path, jobs: int) -> subprocess.Popen[bytes]:
    """Start a trainer, one of `jobs` that share the cores. It prints into `<run_dir>.log`."""
    run_dir.parent.mkdir(parents=True, exist_ok=True)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = {"OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": str(max(1, cores // jobs))}
    with open(run_dir.with_suffix(".log"), "wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "enn_ppo.train", *arguments, f"run_dir={quoted(str(run_dir), 'run_dir')}"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=threads | os.environ,
            process_group=0,  # Ctrl-C in a terminal reaches only the sweep
        )


def end(process: subprocess.Popen[bytes]) -> None:
    """Ask a trainer to save and end; kill it if it does not, or after a second Ctrl-C."""
    try:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM if os.name == "nt" else signal.SIGINT)
        process.wait(GRACE)
    except subprocess.TimeoutExpired:
        pass
    finally:
        process.kill()
        process.wait()


def learning_curve(file: Path, config: SweepCommand) -> list[tuple[float, float]]:
    """The progress from 0 to 1 and the value of each row of `metrics.jsonl` that has the metric."""
    metric, curve = config.sweep.metric, []
    for row in read_metrics(file) if file.exists() else ():
        value, step = row.get(metric), row.get("eval/step" if metric.startswith("eval/") else "step", 0)
        progress = step / config.total_timesteps
        if config.max_train_seconds is not None:
            progress = max(progress, row.get("seconds", 0) / config.max_train_seconds)
        if isinstance(value, int | float) and math.isfinite(value):
            curve.append((min(1.0, progress), float(value)))
    return curve


def mean_before(curve: Sequence[tuple[float, float]], progress: float) -> float:
    """The mean of the values in the last fifth of a run before `progress`, or the last value before it."""
    before = [(at, value) for at, value in curve if at <= progress + 1e-9] or list(curve[:1])
    recent = [value for at, value in before if at > progress - LAST] or [before[-1][1]]
    return sum(recent) / len(recent)
