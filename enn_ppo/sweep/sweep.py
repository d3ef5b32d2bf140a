"""Hyperparameter search with Optuna: trials report their learning curves, and trials that fall behind are pruned.

python -m enn_ppo.sweep sweep=ppo env=Xor total_timesteps=100000 sweep.trials=30 sweep.jobs=2

The sweep's folder holds `study.db`, Optuna's study, which `optuna-dashboard sqlite:///<folder>/study.db` shows, the runs in
`trials/`, and all settings of the best trial in `experiment/best.yaml`. The same command continues the sweep.
"""

from __future__ import annotations

import os
import shlex
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import yaml

from enn_ppo.settings.command_line.composition import escaped
from enn_ppo.settings.command_line.job_process import GRACE, JobProcess, StopSignals, shared_cores
from enn_ppo.settings.config import TrainConfig
from enn_ppo.settings.schema import to_dict
from enn_ppo.sweep.config import SweepConfig
from enn_ppo.sweep.curve import Curve
from enn_ppo.train import train
from enn_ppo.training.errors import Interrupted
from enn_ppo.training.files import replace_file
from enn_ppo.training.tracking.logger import read_metrics
from enn_ppo.training.tracking.run_dir import METRICS
from entity_gym.untrusted import YAML_BYTES, parse_yaml, read_regular

if TYPE_CHECKING:
    import optuna

SETTINGS, STUDY, TRIALS, BEST = "sweep.yaml", "study.db", "trials", Path("experiment") / "best.yaml"
POINTS = 20  # points of a learning curve at which trials are compared
HOPELESS = 10  # a sweep ends if this many trials have failed and none has succeeded
ENDED = ("complete", "pruned", "fail")
#: User attributes of a trial: its command line arguments, the reason why it failed or was pruned, its process, and the number of
#: the interrupted trial that it continues.
ARGUMENTS, REASON, PROCESS, CONTINUES = "arguments", "reason", "process", "continues"
SECONDS = "seconds"  # user attribute of the study: time used so far
_MAY_CHANGE = ("trials", "minutes", "jobs", "sampler", "sampler_seed", "startup_trials", "pruner", "prune_after")
_NOT_SETTINGS = ("run_dir", "resume", "overwrite", "trust", "debug")  # specific to one run
_POLL_INTERVAL = 0.2  # seconds
_READING = 0.05  # largest fraction of the time spent reading the metrics of one trial


class SweepResult(NamedTuple):
    """A finished sweep."""

    folder: Path
    best: int  # number of the best trial
    value: float  # its score
    command: str  # trains with its settings


def sweep(
    config: SweepConfig,
    folder: Path,
    compose: Callable[[Sequence[str]], TrainConfig],
    *,
    arguments: Sequence[str] = (),
    overwrite: bool = False,
    run: Callable[[TrainConfig], object] = train,
) -> SweepResult:
    """Run the remaining trials of a sweep, and print one line for each.

    Args:
        config: of the sweep.
        folder: the sweep's folder. If it holds the same sweep, that sweep is continued.
        compose: makes the settings of training from a trial's arguments and the shared ones.
        arguments: shared by all trials; a sweep can only be continued with the same arguments.
        overwrite: whether a sweep in the folder is removed first.
        run: trains, as `enn_ppo.train.train`.

    Raises:
        ValueError: a setting or the folder is invalid, or no trial succeeded.
        Interrupted: after Ctrl-C or SIGTERM; the same command continues the running trials.
    """
    import_optuna()
    _prepare_folder(folder, config, list(arguments), overwrite=overwrite)
    with _study_errors(folder):
        study = open_study(config, folder)
        _wait_for_orphans(study)
        _continue_later(study)
        done, unfinished = len(trials_in(study, *ENDED)), len(trials_in(study, "waiting"))
        if done or unfinished:
            print(f"going on: {done} trials are done, {unfinished} were left unfinished", flush=True)
        exit_code = _Trials(config, folder, compose, run, study).run_all()
        best = best_of(study)
    if best is not None:
        command = best_command(folder)
        print(f"best: trial {number_of(best)}, {config.metric} {best.value:.4g}; train with it:\n  {command}")
    if exit_code:
        raise Interrupted(f"interrupted; the same command goes on with {folder}", exit_code=exit_code)
    if best is None or best.value is None:
        raise ValueError(_nothing_found(study, folder))
    return SweepResult(folder, number_of(best), best.value, best_command(folder))


@dataclass
class _Trials:
    """The remaining trials of a sweep; arguments as in `sweep`."""

    config: SweepConfig
    folder: Path
    compose: Callable[[Sequence[str]], TrainConfig]
    run: Callable[[TrainConfig], object]
    study: optuna.Study

    def run_all(self) -> int:
        """Run the trials, each in a process. Returns 0, or the exit code after Ctrl-C or SIGTERM."""
        config, study, running = self.config, self.study, list[RunningTrial]()
        started, before = time.monotonic(), study.user_attrs.get(SECONDS, 0.0)
        asked, timed_out = 0, False
        try:
            with StopSignals() as signals:
                while True:
                    used = before + time.monotonic() - started
                    late = config.minutes is not None and used > 60 * config.minutes
                    if signals.count > asked or late > timed_out:
                        asked, timed_out = signals.count, late
                        for each in running:
                            each.worker.interrupt()
                    stopped = asked > 0 or timed_out
                    for each in [each for each in running if each.follow(stopped=stopped)]:
                        running.remove(each)
                        self._tell(each.trial.number)
                    left = (
                        None if config.trials is None else config.trials - len(trials_in(study, *ENDED)) - len(running)
                    )
                    hopeless = len(trials_in(study, "fail")) >= HOPELESS and best_of(study) is None
                    enough = stopped or hopeless or (left is not None and left <= 0)
                    if not enough and len(running) < config.jobs:
                        running += self._begin()
                    elif not running:
                        return signals.exit_code
                    else:
                        time.sleep(_POLL_INTERVAL)
        finally:
            for each in running:
                each.worker.kill()
            _continue_later(study)
            study.set_user_attr(SECONDS, before + time.monotonic() - started)

    def _begin(self) -> list[RunningTrial]:
        """Draw a trial and start its process. Returns an empty list if the trial failed because its settings are not allowed."""
        self.study.sampler = _sampler(self.config, draw=len(self.study.trials))
        trial = self.study.ask()
        home = self.folder / TRIALS / f"{trial.user_attrs.get(CONTINUES, trial.number):04d}"
        arguments = [parameter.suggest(trial) for parameter in self.config.parameters]
        trial.set_user_attr(ARGUMENTS, arguments)
        try:
            training = self.compose(arguments)
            seeds = range(training.seed, training.seed + self.config.seeds)
            runs = [replace(training, seed=seed, run_dir=str(home / f"seed_{seed}")) for seed in seeds]
            left = [run for run in runs if _curve(self.config, run).progress < 1]
            environment = shared_cores(self.config.jobs)
            worker = JobProcess(partial(run_seeds, self.run), left, home.with_suffix(".log"), environment=environment)
        except ValueError as error:
            _fail(self.study, trial, " ".join([str(error), *getattr(error, "__notes__", [])]).strip())
            self._tell(trial.number)
            return []
        trial.set_user_attr(PROCESS, worker.pid)
        return [RunningTrial(self.config, self.study, trial, runs, worker)]

    def _tell(self, number: int) -> None:
        """Print a line about a finished trial; write `best.yaml` if it is the best one."""
        config, study = self.config, self.study
        trial, best = study.trials[number], best_of(study)
        if not trial.state.is_finished():
            return
        if best is not None and best.number == number:
            write_best(self.folder, trial, self.compose(trial.user_attrs[ARGUMENTS]), config.metric)
        limit = "" if config.trials is None else f" of {config.trials}"
        result = {"PRUNED": "pruned", "FAIL": "failed"}.get(trial.state.name) or f"{trial.value:.4g}"
        reason = f": {text}" if (text := trial.user_attrs.get(REASON)) else ""
        record = f" (best {best.value:.4g}, trial {number_of(best)})" if best is not None else ""
        line = f"trial {number_of(trial)}: {result}{reason}{record}  {' '.join(trial.user_attrs[ARGUMENTS])}"
        print(f"{len(trials_in(study, *ENDED))}{limit} done; {line}", flush=True)


def run_seeds(run: Callable[[TrainConfig], object], runs: Sequence[TrainConfig]) -> None:
    """Train with one seed after another, in the process of a trial; resume runs that have a checkpoint."""
    for config in runs:
        run_dir = Path(str(config.run_dir))
        resume = (run_dir / "checkpoints" / "latest").exists()
        if not resume and run_dir.exists():
            shutil.rmtree(run_dir)  # stopped before its first checkpoint
        run(replace(config, resume=str(run_dir) if resume else None, overwrite=False))


@dataclass
class RunningTrial:
    """A trial whose process runs."""

    config: SweepConfig
    study: optuna.Study
    trial: optuna.Trial
    runs: Sequence[TrainConfig]  # of each seed
    worker: JobProcess
    _reported: int = field(default=0, init=False)  # points of the learning curves of all seeds
    _pruned: bool = field(default=False, init=False)
    _next_look: float = field(default=0.0, init=False)

    def follow(self, *, stopped: bool) -> bool:
        """Report the learning curve, stop the process if the trial is pruned, and report the trial's end to the study.

        Args:
            stopped: whether the process was asked to end; the trial is then continued later.

        Returns:
            Whether the process has ended.
        """
        code, now = self.worker.poll(), time.monotonic()
        if code is None and now < self._next_look:
            return False
        try:
            if not self._pruned:
                self._report()
            self._next_look = time.monotonic() + (time.monotonic() - now) / _READING
            if code is None:
                return False
            if self._pruned:
                self.study.tell(self.trial, state=import_optuna().trial.TrialState.PRUNED)
            elif code == 0:
                scores = [_curve(self.config, run).score() for run in self.runs]
                self.study.tell(self.trial, sum(scores) / len(scores))
            elif not stopped:
                _fail(self.study, self.trial, self.worker.reason())
        except ValueError as error:  # the metrics cannot be read, or have no score
            self.worker.kill()
            _fail(self.study, self.trial, str(error))
        return True

    def _report(self) -> None:
        """Report new points of the learning curve, each the mean over the seeds so far, and prune the trial if it is behind."""
        scores: list[float] = []
        for number, run in enumerate(self.runs):
            curve = Curve(self.config.metric, run, self.config.last_fraction)
            for row in _rows(run):
                curve.add(row)
                point, value = number * POINTS + int(curve.progress * POINTS + 1e-9), curve.mean()
                if point <= self._reported or value is None:
                    continue
                self._reported = point
                self.trial.report((sum(scores) + value) / (len(scores) + 1), point)
                if curve.progress < 1 and self.trial.should_prune():
                    part = (point - number * POINTS) / POINTS
                    self.trial.set_user_attr(REASON, f"behind the others after {part:.0%} of run {number + 1}")
                    self._pruned = True
                    self.worker.interrupt()
                    return
            if (score := curve.mean()) is None:
                return
            scores.append(score)


def _curve(config: SweepConfig, run: TrainConfig) -> Curve:
    """The learning curve of a run."""
    return Curve(config.metric, run, config.last_fraction, _rows(run))


def _rows(run: TrainConfig) -> Sequence[dict[str, Any]]:
    file = Path(str(run.run_dir)) / METRICS
    return read_metrics(file) if file.exists() else ()


# ---- The study


def import_optuna() -> Any:
    """Import Optuna.

    Raises:
        ValueError: Optuna is missing or too old; the message has the command that installs it.
    """
    try:
        import optuna
    except ImportError as error:
        raise ValueError(f'a sweep needs {error.name}: pip install "enn-ppo[sweep]"') from error
    if int(optuna.__version__.partition(".")[0]) < 4:
        raise ValueError(
            f'a sweep needs optuna 4 or newer, and this environment has {optuna.__version__}: pip install "enn-ppo[sweep]"'
        )
    optuna.logging.set_verbosity(optuna.logging.ERROR)  # the sweep prints failed trials itself
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


def open_study(config: SweepConfig, folder: Path) -> optuna.Study:
    """Open or create the study in the folder."""
    library, warmup = import_optuna(), round(config.prune_after * POINTS)
    pruners = {
        "median": lambda: library.pruners.MedianPruner(config.startup_trials, warmup),
        "halving": lambda: library.pruners.SuccessiveHalvingPruner(max(1, warmup), 3),
        "none": library.pruners.NopPruner,
    }
    study: optuna.Study = library.create_study(
        storage=f"sqlite:///{(folder / STUDY).resolve()}",
        study_name="sweep",
        load_if_exists=True,
        pruner=pruners[config.pruner](),
        direction=config.direction,
    )
    return study


def _sampler(config: SweepConfig, draw: int) -> Any:
    """The sampler of one trial, seeded with the number of earlier trials, so that a continued sweep repeats no draw."""
    library = import_optuna()
    seed = int(np.random.SeedSequence([config.sampler_seed, draw]).generate_state(1)[0])
    if config.sampler == "random":
        return library.samplers.RandomSampler(seed)
    return library.samplers.TPESampler(seed=seed, n_startup_trials=config.startup_trials, constant_liar=config.jobs > 1)


def _fail(study: optuna.Study, trial: optuna.Trial, reason: str) -> None:
    trial.set_user_attr(REASON, reason)
    study.tell(trial, state=import_optuna().trial.TrialState.FAIL)


def _continue_later(study: optuna.Study) -> None:
    """Enqueue the interrupted trials, so that the next trials continue them."""
    for trial in trials_in(study, "running"):
        study.tell(trial.number, state=import_optuna().trial.TrialState.FAIL)
        study.enqueue_trial(trial.params, user_attrs={CONTINUES: number_of(trial)})


def number_of(trial: optuna.trial.FrozenTrial) -> int:
    """The number of a trial, or of the interrupted trial that it continues."""
    return int(trial.user_attrs.get(CONTINUES, trial.number))


def trials_in(study: optuna.Study, *states: str) -> list[optuna.trial.FrozenTrial]:
    """The trials in any of the states `waiting`, `running`, `complete`, `pruned` and `fail`.

    Interrupted trials that another trial continues are left out.
    """
    trials = study.get_trials(deepcopy=False)
    last = {number_of(trial): trial.number for trial in trials}
    return [trial for trial in trials if trial.state.name.lower() in states and last[number_of(trial)] == trial.number]


def best_of(study: optuna.Study) -> optuna.trial.FrozenTrial | None:
    """The complete trial with the best score; None if there is none."""
    return study.best_trial if trials_in(study, "complete") else None


def _wait_for_orphans(study: optuna.Study) -> None:
    """Wait until no process runs a trial: processes of a killed sweep save their trials and end by themselves.

    Raises:
        ValueError: a process still runs after `GRACE` seconds; it belongs to another sweep in the same folder.
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
    if os.name == "nt":  # where signal 0 is Ctrl-C; the lock of a run's folder keeps a second trainer out
        return False
    try:
        os.kill(int(str(process)), 0)
    except (ValueError, ProcessLookupError):
        return False
    except PermissionError:
        pass
    return True


# ---- Messages and files


def write_best(folder: Path, trial: optuna.trial.FrozenTrial, training: TrainConfig, metric: str) -> None:
    """Write all settings of a trial to `experiment/best.yaml`, for `best_command`."""
    values = {name: escaped(value) for name, value in to_dict(training).items() if name not in _NOT_SETTINGS}
    header = (
        "# @package _global_\n"
        f"# Trial {number_of(trial)} of the sweep, {metric} {trial.value:.6g}: {' '.join(trial.user_attrs[ARGUMENTS])}\n"
    )
    # `env=custom` has no arguments of its own, so the environment has exactly the arguments below
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
    """Create the sweep's folder, or check that it holds the same sweep.

    Raises:
        ValueError: the folder holds another sweep or other files, or cannot be written.
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
            try:
                before = parse_yaml(read_regular(file, YAML_BYTES))
            except ValueError as error:
                raise ValueError(f"{file} is not that of a sweep: {error}; give another run_dir") from error
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
        replace_file(file, yaml.safe_dump(settings, sort_keys=False).encode())
    except OSError as error:
        raise ValueError(f"run_dir {folder} cannot be used for the sweep: {error}") from error


def _nothing_found(study: optuna.Study, folder: Path) -> str:
    failed = trials_in(study, "fail")
    if not failed:
        return f"no trial was complete when the budget was used up: {folder} goes on with more sweep.minutes or sweep.trials"
    first = f"trial {number_of(failed[0])}: {failed[0].user_attrs.get(REASON) or 'no reason is known'}"
    early = f"the first {len(failed)} trials" if len(failed) >= HOPELESS else f"all {len(failed)} trials"
    return f"{early} failed; {first} (what the others printed: {folder / TRIALS})"
