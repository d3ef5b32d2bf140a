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
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from enn_ppo.settings.schema import quoted
from enn_ppo.settings.sweeping import SweepCommand, SweepConfig
from enn_ppo.training.errors import Interrupted
from enn_ppo.training.interrupt import EXIT_CODES, finish_on_interrupt
from enn_ppo.training.tracking.logger import read_metrics
from enn_ppo.training.tracking.run_dir import METRICS, RunLock
from entity_gym.errors import nearest
from entity_gym.pools.processes.interpreter import describe_end

if TYPE_CHECKING:
    import optuna

STUDY, TRIALS = "study.db", "trials"
POINTS = 20  # points of a learning curve at which trials are compared
LAST = 0.2  # fraction of a run over which its score is the mean
STARTUP = 5  # complete trials before the median pruner begins
LOOK = 0.5  # seconds between two looks at a trial
GRACE = 60.0  # seconds that a trainer has to save and end
OUTCOME = "outcome"  # user attribute of trials that have failed or were pruned; interrupted trials have none
_MUST_AGREE = ("space", "metric", "seeds")  # settings of a sweep that is continued


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
    except ImportError as error:
        raise ValueError('a sweep needs optuna: pip install "enn-ppo[sweep]"') from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)  # the sweep prints its trials itself
    config, folder = command.sweep, Path(str(command.run_dir))
    if twice := [each for each in arguments if each.lstrip("+").partition("=")[0] in config.space]:
        raise ValueError(f"{twice[0]} is given for all trials, and sweep.space varies it: leave one out")
    with closing(RunLock()) as lock, finish_on_interrupt(lambda text: None) as interrupted:
        lock.take(folder)
        study = open_study(config, folder, arguments, command.seed)
        left = max(0, config.trials - count_done(study))
        pruning = f"pruning begins once {STARTUP} are complete" if config.pruner == "median" else "none is pruned"
        print(f"{config.trials} trials, {left} to go; {pruning}", flush=True)
        # Optuna looks at the exceptions of parallel trials only before it starts another one, so all are caught.
        objective = partial(train_trial, command=command, arguments=arguments, interrupted=interrupted)
        study.optimize(objective, left, None, config.jobs, catch=(Interrupted, OSError, ValueError), callbacks=[report])
        if (how := interrupted()) and count_done(study) < config.trials:
            raise Interrupted(f"interrupted; the same command goes on with {folder}", EXIT_CODES[how])
    best = best_of(study)
    if best is None:
        raise ValueError(f"no trial was complete; what they printed is in {folder / TRIALS}")
    train = shlex.join(["python", "-m", "enn_ppo.train", *arguments, *best.user_attrs["arguments"]])
    print(f"best: trial {best.number}, {config.column} {best.value:.4g}; train with it:\n  {train}")
    return study


def open_study(config: SweepConfig, folder: Path, arguments: Sequence[str], seed: int = 1) -> optuna.Study:
    """Open or create the study in a folder.

    Raises:
        ValueError: the folder holds a sweep with other settings.
    """
    import optuna

    median = optuna.pruners.MedianPruner(STARTUP, n_warmup_steps=POINTS // 4)
    study: optuna.Study = optuna.create_study(
        storage=f"sqlite:///{(folder / STUDY).resolve()}",
        study_name="sweep",
        load_if_exists=True,
        pruner=median if config.pruner == "median" else optuna.pruners.NopPruner(),
        direction="minimize" if config.metric.startswith("-") else "maximize",
    )
    now: dict[str, Any] = {name: getattr(config, name) for name in _MUST_AGREE} | {"train": list(arguments)}
    before = study.user_attrs.get("settings", now)
    if other := [f"sweep.{name} {before[name]!r}, now {now[name]!r}" for name in now if now[name] != before[name]]:
        raise ValueError(f"{folder} holds a sweep with other settings: {other[0]}; give another run_dir")
    study.set_user_attr("settings", now)
    for each in study.get_trials(states=[optuna.trial.TrialState.RUNNING]):  # the sweep was killed
        study.tell(each.number, state=optuna.trial.TrialState.FAIL)
    # a sweep that is continued repeats no draws
    draws = (seed + len(study.trials)) % 2**32
    study.sampler = optuna.samplers.TPESampler(seed=draws, constant_liar=config.jobs > 1)
    return study


def count_done(study: optuna.Study) -> int:
    """The number of complete and pruned trials. Others take the place of those that have failed or were interrupted."""
    return sum(each.state.name in ("COMPLETE", "PRUNED") for each in study.get_trials(deepcopy=False))


def best_of(study: optuna.Study) -> optuna.trial.FrozenTrial | None:
    """The complete trial with the best score; None if there is none."""
    complete = any(each.state.name == "COMPLETE" for each in study.get_trials(deepcopy=False))
    return study.best_trial if complete else None


def report(study: optuna.Study, trial: optuna.trial.FrozenTrial) -> None:
    """Print a line about a finished trial: its score, or why it was pruned or has failed, and its values."""
    best = best_of(study)
    how = f"{trial.value:.4g}" if trial.state.name == "COMPLETE" else trial.user_attrs.get(OUTCOME)
    record = "" if best is None else f" (best {best.value:.4g}, trial {best.number})"
    if how is not None:  # else it was interrupted
        print(f"trial {trial.number}: {how}{record}  {' '.join(trial.user_attrs['arguments'])}", flush=True)


def train_trial(
    trial: optuna.Trial, command: SweepCommand, arguments: Sequence[str], interrupted: Callable[[], object]
) -> float:
    """Train with the values of a trial, once for each seed, and return the mean score: Optuna's objective.

    Raises:
        ValueError: a trainer has failed, or the metric has no value.
        TrialPruned: the learning curve falls behind those of other trials.
        Interrupted: after Ctrl-C or SIGTERM, which also ends the sweep.
    """
    import optuna

    config, folder = command.sweep, Path(str(command.run_dir)) / TRIALS / f"{trial.number:04d}"
    drawn = [suggest(trial, name, given) for name, given in config.space.items()]
    trial.set_user_attr("arguments", drawn)
    scores: list[float] = []
    try:
        for seed in range(command.seed, command.seed + config.seeds):
            run_dir, reported = folder / f"seed_{seed}", 0
            with trainer([*arguments, *drawn, f"seed={seed}"], run_dir, config.jobs) as process:
                while process.poll() is None:
                    curve = learning_curve(run_dir / METRICS, command)
                    for point in range(reported + 1, math.floor(POINTS * curve[-1][0]) + 1 if curve else 0):
                        reported, level = point, mean_before(curve, point / POINTS)
                        trial.report((sum(scores) + level) / (len(scores) + 1), len(scores) * POINTS + point)
                        if trial.should_prune():
                            behind = f"pruned: behind the others after {point / POINTS:.0%} of {run_dir.name}"
                            trial.set_user_attr(OUTCOME, behind)
                            raise optuna.TrialPruned
                    if interrupted():
                        trial.study.stop()
                        raise Interrupted("")
                    time.sleep(LOOK)
            if not (curve := learning_curve(run_dir / METRICS, command)):
                names = dict.fromkeys(name for row in read_metrics(run_dir / METRICS) for name in row)
                raise ValueError(f"{config.column} has no value in metrics.jsonl; {nearest(config.column, names)}")
            scores.append(mean_before(curve, curve[-1][0]))
    except (OSError, ValueError) as error:
        trial.set_user_attr(OUTCOME, f"failed: {error}")
        raise
    return sum(scores) / len(scores)


def suggest(trial: optuna.Trial, name: str, given: Any) -> str:
    """Let a trial draw a value of one parameter. Returns the argument that sets it, for example `optim.lr=0.001`."""
    if isinstance(given, list):
        return f"{name}={trial.suggest_categorical(name, [quoted(choice, name) for choice in given])}"
    low, high, scale = float(given["low"]), float(given["high"]), given.get("scale", "linear")
    if scale == "integer":
        return f"{name}={trial.suggest_int(name, int(low), int(high))}"
    return f"{name}={trial.suggest_float(name, low, high, log=scale == 'log'):.6g}"  # precise enough, and readable


@contextmanager
def trainer(arguments: Sequence[str], run_dir: Path, jobs: int) -> Iterator[subprocess.Popen[bytes]]:
    """Start a trainer, one of `jobs` that share the cores, which prints into `<run_dir>.log`. At the end of the context it saves.

    It is killed if that takes longer than `GRACE`, or after a second Ctrl-C.

    Raises:
        ValueError: the trainer has failed.
    """
    run_dir.parent.mkdir(parents=True, exist_ok=True)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = {"OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": str(max(1, cores // jobs))}
    with open(run_dir.with_suffix(".log"), "wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "enn_ppo.train", *arguments, f"run_dir={quoted(str(run_dir), 'run_dir')}"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=threads | os.environ,
            process_group=0,  # Ctrl-C in a terminal reaches only the sweep
        )
    try:
        yield process
    finally:
        try:
            with suppress(subprocess.TimeoutExpired):
                process.send_signal(signal.SIGTERM if os.name == "nt" else signal.SIGINT)
                process.wait(GRACE)
        finally:
            process.kill()
            process.wait()
    if process.returncode < 0:
        raise ValueError(describe_end(process))
    if process.returncode:
        lines = run_dir.with_suffix(".log").read_text("utf-8", errors="replace").splitlines()
        last = next((line for line in reversed(lines) if line.strip()), "it printed nothing")
        raise ValueError(last.removeprefix("error: "))


def learning_curve(file: Path, config: SweepCommand) -> list[tuple[float, float]]:
    """The progress from 0 to 1 and the value of each row of `metrics.jsonl` that has the metric."""
    metric, curve = config.sweep.column, []
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


if __name__ == "__main__":
    from enn_ppo.settings.command_line.cli import run_sweep

    raise SystemExit(run_sweep(sweep))
