"""A sweep over settings with Optuna: trials that report their learning curve, and are pruned where it stays behind.

python -m enn_ppo.sweep sweep=ppo env=Xor total_timesteps=100000 sweep.trials=30 sweep.jobs=2

A sweep is a folder: `study.db` is Optuna's study, which `optuna-dashboard sqlite:///<folder>/study.db` shows, `trials/` has the
runs, and `experiment/best.yaml` all settings of the best trial. The same command goes on with it.
"""

from __future__ import annotations

import os
import shlex
import shutil
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import asdict, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import yaml

from enn_ppo.callbacks import Callback, Update
from enn_ppo.command_line.job_process import GRACE, JobProcess, StopSignals, shared_cores
from enn_ppo.config import TrainConfig
from enn_ppo.errors import Interrupted
from enn_ppo.files import replace_file
from enn_ppo.settings.schema import to_dict
from enn_ppo.tracking.logger import read_metrics
from enn_ppo.train import train
from enn_ppo.tuning.config import SweepConfig
from enn_ppo.tuning.curve import Curve

if TYPE_CHECKING:
    import optuna

SETTINGS, STUDY, TRIALS, BEST = "sweep.yaml", "study.db", "trials", Path("experiment") / "best.yaml"
POINTS = 20  # of a learning curve, at which trials are compared
HOPELESS = 10  # failed trials, without a single one that did not, after which a sweep ends
ENDED = ("complete", "pruned", "fail")
#: User attributes of trials: arguments of the command line, why it failed, the process that runs it, whether it was stopped,
#: and the trial that it goes on with.
ARGUMENTS, REASON, PROCESS, STOPPED, CONTINUES = "arguments", "reason", "process", "stopped", "continues"
SECONDS = "seconds"  # user attribute of the study: used so far
_MAY_CHANGE = ("trials", "minutes", "jobs", "sampler", "sampler_seed", "startup_trials", "pruner", "prune_after")
_NOT_SETTINGS = ("run_dir", "resume", "overwrite", "debug")  # of one run, and not of the next with the same settings
_POLL_INTERVAL = 0.2  # seconds


class SweepResult(NamedTuple):
    """A finished sweep."""

    folder: Path
    best: int  # number of the best trial
    value: float  # its score
    command: str  # trains with its settings


class Plan(NamedTuple):
    """Arguments of a sweep, which each of its processes gets."""

    config: SweepConfig
    folder: Path
    compose: Callable[[Sequence[str]], TrainConfig]
    run: Callable[..., object]


def sweep(
    config: SweepConfig,
    folder: Path,
    compose: Callable[[Sequence[str]], TrainConfig],
    *,
    arguments: Sequence[str] = (),
    overwrite: bool = False,
    run: Callable[..., object] = train,
) -> SweepResult:
    """Run the trials that are left of a sweep, and print one line for each.

    Args:
        config: of the sweep.
        folder: takes everything. One that holds the same sweep goes on.
        compose: makes the settings of training, with these arguments over those that all trials share.
        arguments: those that all trials share; a sweep goes on only with the same.
        overwrite: whether a sweep in the folder is removed first.
        run: trains, as `enn_ppo.train.train`.

    Raises:
        ValueError: a setting or the folder is not as it must be, or no trial succeeded.
        Interrupted: after Ctrl-C or SIGTERM; what ran goes on with the same command.
    """
    import_optuna()
    _prepare_folder(folder, config, list(arguments), overwrite=overwrite)
    plan = Plan(config, folder, compose, run)
    with _study_errors(folder):
        study = open_study(plan)
        _wait_for_orphans(study)
        for trial in trials_in(study, "running"):  # whose processes were killed
            continue_later(study, trial)
        done, unfinished = len(trials_in(study, *ENDED)), len(trials_in(study, "waiting"))
        if done or unfinished:
            print(f"going on: {done} trials are done, {unfinished} were left unfinished", flush=True)
        exit_code = _run_trials(plan, study)
        best = best_of(study)
    if best is not None:
        command = best_command(folder)
        print(f"best: trial {number_of(best)}, {config.metric} {best.value:.4g}; train with it:\n  {command}")
    if exit_code:
        raise Interrupted(f"interrupted; the same command goes on with {folder}", exit_code=exit_code)
    if best is None or best.value is None:
        raise ValueError(_nothing_found(study, folder))
    return SweepResult(folder, number_of(best), best.value, best_command(folder))


def _run_trials(plan: Plan, study: optuna.Study) -> int:
    """Run what is left of the sweep, each trial in a process; 0, or the exit code after Ctrl-C or SIGTERM."""
    config, used = plan.config, study.user_attrs.get(SECONDS, 0.0)
    started, workers = time.monotonic(), list[JobProcess]()
    asked, timed_out, draw = 0, False, len(study.trials)
    try:
        with StopSignals() as signals:
            while True:
                late = config.minutes is not None and used + time.monotonic() - started > 60 * config.minutes
                if signals.count > asked or late > timed_out:
                    asked, timed_out = signals.count, late
                    for worker in workers:
                        worker.interrupt()
                for worker in [worker for worker in workers if worker.poll() is not None]:
                    workers.remove(worker)
                    _finish(plan, study, worker, stopped=signals.count > 0 or timed_out)
                left = None if config.trials is None else config.trials - len(trials_in(study, *ENDED)) - len(workers)
                hopeless = len(trials_in(study, "fail")) >= HOPELESS and best_of(study) is None
                enough = signals.count > 0 or timed_out or hopeless or (left is not None and left <= 0)
                if not enough and len(workers) < config.jobs:
                    logs = [plan.folder / f"process_{k}.log" for k in range(config.jobs)]
                    log = next(log for log in logs if log not in {worker.log for worker in workers})
                    log.unlink(missing_ok=True)
                    run = partial(run_trial, draw=draw)
                    workers.append(JobProcess(run, plan, log, environment=shared_cores(config.jobs)))
                    draw += 1
                elif not workers:
                    return signals.exit_code
                else:
                    time.sleep(_POLL_INTERVAL)
    finally:
        for worker in workers:
            worker.kill()
        study.set_user_attr(SECONDS, used + time.monotonic() - started)


def _finish(plan: Plan, study: optuna.Study, worker: JobProcess, *, stopped: bool) -> None:
    """Tell how the trial of a process ended. One that was stopped goes on later; one that died has failed."""
    mine = [trial for trial in study.get_trials(deepcopy=False) if trial.user_attrs.get(PROCESS) == worker.pid]
    if not mine:  # it ended before it had a trial
        if not stopped:
            raise ValueError(f"a trial could not begin: {worker.reason()} ({worker.log})")
        return
    trial = mine[-1]
    if trial.user_attrs.get(STOPPED):
        return
    if stopped and not trial.state.is_finished():  # it would not end, and was killed
        continue_later(study, trial)
        return
    if not trial.state.is_finished():
        study.set_user_attr(f"{REASON} {trial.number}", worker.reason())
        study.tell(trial.number, state=import_optuna().trial.TrialState.FAIL)
    _tell(plan, study, study.trials[trial.number])


def run_trial(plan: Plan, draw: int) -> None:
    """Draw one trial and run it, in a process of its own. A trial that is stopped is put in line to go on.

    Args:
        plan: of the sweep.
        draw: number of trials that were drawn before.
    """

    def end(study: optuna.Study, trial: optuna.trial.FrozenTrial) -> None:
        if trial.user_attrs.get(STOPPED):
            continue_later(study, trial)

    open_study(plan, draw).optimize(Objective(plan), n_trials=1, catch=(Exception,), callbacks=[end])


class Objective:
    """Trains with the settings that a trial draws, and tells the score."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def __call__(self, trial: optuna.Trial) -> float:
        """The mean of the seeds' scores.

        Raises:
            TrialPruned: its learning curve stays behind the others'.
            Exception: it cannot be trained so; the trial has failed.
        """
        config = self._plan.config
        arguments = [parameter.suggest(trial) for parameter in config.parameters]
        trial.set_user_attr(ARGUMENTS, arguments)
        trial.set_user_attr(PROCESS, os.getpid())
        home = self._plan.folder / TRIALS / f"{trial.user_attrs.get(CONTINUES, trial.number):04d}"
        scores: list[float] = []
        try:
            training = self._plan.compose(arguments)
            for seed in range(training.seed, training.seed + config.seeds):
                scores.append(self._score(trial, replace(training, seed=seed), home / f"seed_{seed}", scores))
        except (Interrupted, KeyboardInterrupt) as interrupted:
            trial.set_user_attr(STOPPED, True)
            raise Interrupted("the trial was stopped") from interrupted
        except Exception as error:
            trial.set_user_attr(REASON, " ".join([str(error), *getattr(error, "__notes__", [])]).strip())
            raise
        return sum(scores) / len(scores)

    def _score(self, trial: optuna.Trial, training: TrainConfig, run_dir: Path, before: Sequence[float]) -> float:
        """Train one seed, or go on with it."""
        config = self._plan.config
        resume = (run_dir / "checkpoints" / "latest").exists()
        if not resume and run_dir.exists():
            shutil.rmtree(run_dir)  # stopped before its first checkpoint
        settings = replace(training, run_dir=str(run_dir), resume=str(run_dir) if resume else None, overwrite=False)
        curve = Curve(config.metric, settings, config.last_fraction)
        for row in read_metrics(run_dir / "metrics.jsonl") if resume else ():
            curve.add(row)
        if curve.progress == 1:
            return curve.score()
        watch = _Watch(trial, curve, before)
        run_dir.parent.mkdir(parents=True, exist_ok=True)
        with open(run_dir.with_suffix(".log"), "a") as log, redirect_stdout(log), redirect_stderr(log):
            try:
                self._plan.run(settings, callbacks=[watch])
            except Exception:
                traceback.print_exc()
                raise
        if watch.pruned:
            raise import_optuna().TrialPruned(f"behind the others after {watch.pruned:.0%} of run {len(before) + 1}")
        whole = Curve(config.metric, settings, config.last_fraction)  # with the last evaluation
        for row in read_metrics(run_dir / "metrics.jsonl"):
            whole.add(row)
        return whole.score()


class _Watch(Callback):
    """Reports a run's learning curve to its trial, and ends the run where it is behind."""

    def __init__(self, trial: optuna.Trial, curve: Curve, before: Sequence[float]) -> None:
        self._trial, self._curve, self._before = trial, curve, list(before)
        self._reported = 0
        self.pruned = 0.0  # how far the run was when it was ended

    def on_update(self, update: Update) -> None:
        self._curve.add(update.row)
        point = int(self._curve.progress * POINTS + 1e-9)
        value = self._curve.mean()
        if point > self._reported and value is not None:
            self._reported = point
            mean = (sum(self._before) + value) / (len(self._before) + 1)
            self._trial.report(mean, len(self._before) * POINTS + point)
            if self._curve.progress < 1 and self._trial.should_prune():
                self.pruned = point / POINTS
                update.stop()


# ---- The study


def import_optuna() -> Any:
    """Optuna, of a version that this needs.

    Raises:
        ValueError: it is missing or too old, with the command that installs it.
    """
    try:
        import optuna
    except ImportError as error:
        raise ValueError(f'a sweep needs {error.name}: pip install "enn-ppo[sweep]"') from error
    if int(optuna.__version__.partition(".")[0]) < 4:
        raise ValueError(
            f'a sweep needs optuna 4 or newer, and this environment has {optuna.__version__}: pip install "enn-ppo[sweep]"'
        )
    optuna.logging.set_verbosity(optuna.logging.ERROR)  # failed trials are told in a line
    return optuna


@contextmanager
def _study_errors(folder: Path) -> Iterator[None]:
    """Turn errors of the study's database, such as a full disk, into a ValueError."""
    from sqlalchemy.exc import SQLAlchemyError  # a part of optuna

    try:
        yield
    except (SQLAlchemyError, import_optuna().exceptions.StorageInternalError) as error:
        cause = getattr(error, "orig", None) or error.__cause__ or error
        raise ValueError(f"{folder / STUDY} cannot be written: {cause}; the same command goes on with it") from error


def open_study(plan: Plan, draw: int = 0) -> optuna.Study:
    """Open the study in the folder, or begin it. `draw` seeds the sampler together with `sweep.sampler_seed`."""
    library, config = import_optuna(), plan.config
    warmup = round(config.prune_after * POINTS)
    pruners = {
        "median": lambda: library.pruners.MedianPruner(config.startup_trials, warmup),
        "halving": lambda: library.pruners.SuccessiveHalvingPruner(max(1, warmup), 3),
        "none": library.pruners.NopPruner,
    }
    study: optuna.Study = library.create_study(
        storage=f"sqlite:///{(plan.folder / STUDY).resolve()}",
        study_name="sweep",
        load_if_exists=True,
        pruner=pruners[config.pruner](),
        direction=config.direction,
    )
    seed = int(np.random.SeedSequence([config.sampler_seed, draw]).generate_state(1)[0])  # no two trials draw the same
    startup, parallel = config.startup_trials, config.jobs > 1
    study.sampler = (
        library.samplers.RandomSampler(seed)
        if config.sampler == "random"
        else library.samplers.TPESampler(seed=seed, n_startup_trials=startup, constant_liar=parallel)
    )
    return study


def continue_later(study: optuna.Study, trial: optuna.trial.FrozenTrial) -> None:
    """Have a trial that was stopped before its end go on when the next one begins."""
    if trial.state.name == "RUNNING":
        study.tell(trial.number, state=import_optuna().trial.TrialState.FAIL)
    study.enqueue_trial(trial.params, user_attrs={CONTINUES: number_of(trial)})


def number_of(trial: optuna.trial.FrozenTrial) -> int:
    """The number of a trial; of one that goes on with another, that one's."""
    return int(trial.user_attrs.get(CONTINUES, trial.number))


def trials_in(study: optuna.Study, *states: str) -> list[optuna.trial.FrozenTrial]:
    """The trials in any of the states `waiting`, `running`, `complete`, `pruned` and `fail`.

    Those that another trial goes on with are left out.
    """
    trials = study.get_trials(deepcopy=False)
    last = {number_of(trial): trial.number for trial in trials}
    return [trial for trial in trials if trial.state.name.lower() in states and last[number_of(trial)] == trial.number]


def best_of(study: optuna.Study) -> optuna.trial.FrozenTrial | None:
    """The complete trial with the best score; None if there is none."""
    sign = 1 if study.direction.name == "MAXIMIZE" else -1
    return max(trials_in(study, "complete"), key=lambda trial: sign * (trial.value or 0.0), default=None)


def _wait_for_orphans(study: optuna.Study) -> None:
    """Wait until no process runs a trial: those of a sweep that was killed save their trials and end by themselves.

    Raises:
        ValueError: one goes on for longer than that takes; it belongs to another sweep in the same folder.
    """
    deadline = time.monotonic() + GRACE
    while alive := [trial for trial in trials_in(study, "running") if _is_alive(trial.user_attrs.get(PROCESS))]:
        if time.monotonic() >= deadline:
            raise ValueError(
                f"process {alive[0].user_attrs[PROCESS]} runs trial {number_of(alive[0])} of this sweep: wait until its sweep "
                "has ended, or end it"
            )
        time.sleep(_POLL_INTERVAL)


def _is_alive(process: object) -> bool:
    try:
        os.kill(int(str(process)), 0)
    except (ValueError, ProcessLookupError):
        return False
    except PermissionError:
        pass
    return True


# ---- What it tells and writes


def _tell(plan: Plan, study: optuna.Study, trial: optuna.trial.FrozenTrial) -> None:
    """A line about a trial that has ended; and the file of the best one, if it is that."""
    best = best_of(study)
    if best is not None and best.number == trial.number:
        write_best(plan.folder, trial, plan.compose(trial.user_attrs[ARGUMENTS]), plan.config.metric)
    ended = sorted(trials_in(study, *ENDED), key=lambda other: other.datetime_complete or datetime.max)
    done = 1 + [other.number for other in ended].index(trial.number)
    limit = "" if plan.config.trials is None else f" of {plan.config.trials}"
    result = {"PRUNED": "pruned", "FAIL": "failed"}.get(trial.state.name) or f"{trial.value:.4g}"
    reason = f": {text}" if (text := _reason(study, trial)) else ""
    record = f" (best {best.value:.4g}, trial {number_of(best)})" if best is not None else ""
    arguments = " ".join(trial.user_attrs.get(ARGUMENTS, ()))
    print(f"{done}{limit} done; trial {number_of(trial)}: {result}{reason}{record}  {arguments}", flush=True)


def _reason(study: optuna.Study, trial: optuna.trial.FrozenTrial) -> str:
    """Reason why a trial failed or was pruned. If its process died, it is stored in the study: ended trials are read-only."""
    return str(trial.user_attrs.get(REASON) or study.user_attrs.get(f"{REASON} {trial.number}", ""))


def write_best(folder: Path, trial: optuna.trial.FrozenTrial, training: TrainConfig, metric: str) -> None:
    """Write all settings of a trial as `experiment/best.yaml`, which `best_command` trains with."""
    values = {name: value for name, value in to_dict(training).items() if name not in _NOT_SETTINGS}
    header = (
        "# @package _global_\n"
        f"# Trial {number_of(trial)} of the sweep, {metric} {trial.value:.6g}: {' '.join(trial.user_attrs[ARGUMENTS])}\n"
    )
    # `custom` holds no arguments of a world, so those below are all there are
    text = header + yaml.safe_dump({"defaults": [{"override /env": "custom"}], **values}, sort_keys=False)
    file = folder / BEST
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(file, text.encode())
    except OSError as error:
        raise ValueError(f"{file} cannot be written: {error}; the same command goes on") from error


def best_command(folder: Path) -> str:
    """The command that trains with the best settings."""
    return f"python -m enn_ppo.train --config-dir {shlex.quote(str(folder))} experiment={BEST.stem}"


def _prepare_folder(folder: Path, config: SweepConfig, arguments: list[str], *, overwrite: bool) -> None:
    """Make the sweep's folder, or check that the sweep in it is the same one, which then goes on.

    Raises:
        ValueError: the folder holds another sweep, or something else, or cannot be written.
    """
    settings = {**asdict(config), "train": arguments}
    file = folder / SETTINGS
    try:
        if file.exists() and overwrite:
            for name in (TRIALS, "experiment"):
                shutil.rmtree(folder / name, ignore_errors=True)
            for name in (STUDY, SETTINGS):
                (folder / name).unlink(missing_ok=True)
        elif file.exists():
            before = yaml.safe_load(file.read_text("utf-8"))
            before = before if isinstance(before, dict) else {}
            for name in settings:
                if name not in _MAY_CHANGE and before.get(name) != settings[name]:
                    label = "the arguments of training" if name == "train" else f"sweep.{name}"
                    raise ValueError(
                        f"{folder} holds a sweep with other settings: {label} {before.get(name)!r}, now {settings[name]!r}; "
                        "give another run_dir, or overwrite=true to remove that sweep"
                    )
        elif folder.exists() and any(folder.iterdir()):
            raise ValueError(f"run_dir {folder} holds something that is no sweep: give another run_dir")
        folder.mkdir(parents=True, exist_ok=True)
        file.write_text(yaml.safe_dump(settings, sort_keys=False), "utf-8")
    except (OSError, yaml.YAMLError) as error:
        raise ValueError(f"run_dir {folder} cannot be used for the sweep: {error}") from error


def _nothing_found(study: optuna.Study, folder: Path) -> str:
    failed = trials_in(study, "fail")
    if not failed:
        return f"no trial was complete when the budget was used up: {folder} goes on with more sweep.minutes or sweep.trials"
    first = f"trial {number_of(failed[0])}: {_reason(study, failed[0]) or 'no reason is known'}"
    early = f"the first {len(failed)} trials" if len(failed) >= HOPELESS else f"all {len(failed)} trials"
    return f"{early} failed; {first} (what the others printed: {folder / TRIALS})"


if __name__ == "__main__":
    from enn_ppo.tuning.command import run_sweep

    raise SystemExit(run_sweep(sweep))
