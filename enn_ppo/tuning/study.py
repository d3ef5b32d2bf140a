"""The study of a sweep: Optuna's record of all trials, in a file that the sweep goes on from."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from enn_ppo.command_line.job_process import GRACE
from enn_ppo.tuning.config import SweepConfig

if TYPE_CHECKING:
    import optuna

SETTINGS, STUDY, LOCK, TRIALS, REPORT, BEST = (
    "sweep.yaml",
    "study.db",
    "lock",
    "trials",
    "sweep.html",
    Path("experiment") / "best.yaml",
)
POINTS = 20  # of a learning curve, at which trials are compared
REASON, VALUES, ARGUMENTS, SECONDS = "reason", "values", "arguments", "seconds"  # attributes of trials and of the study
_STRIDE = 1_000_003  # between the sampler's seeds before and after an interruption
_MAY_CHANGE = ("trials", "minutes", "jobs", "sampler", "sampler_seed", "startup_trials", "pruner", "prune_after")


def import_optuna() -> Any:
    """Optuna, of a version that this needs.

    Raises:
        ValueError: it is missing or too old, with the command that installs it.
    """
    try:
        import optuna
        import plotly  # noqa: F401 - for the report, which must not fail after hours
    except ImportError as error:
        raise ValueError(f'a sweep needs {error.name}: pip install "enn-ppo[sweep]"') from error
    if int(optuna.__version__.partition(".")[0]) < 4:
        raise ValueError(
            f'a sweep needs optuna 4 or newer, and this environment has {optuna.__version__}: pip install "enn-ppo[sweep]"'
        )
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def prepare_folder(folder: Path, config: SweepConfig, arguments: list[str], *, overwrite: bool) -> None:
    """Make the sweep's folder, or check that the sweep in it is the same one, which then goes on.

    Args:
        folder: of the sweep.
        config: of the sweep.
        arguments: of training that hold for every trial.
        overwrite: remove the sweep that is there.

    Raises:
        ValueError: the folder holds another sweep, or something else, or cannot be written.
    """
    settings = {**asdict(config), "train": arguments}
    file = folder / SETTINGS
    try:
        if file.exists() and overwrite:
            for name in (TRIALS, "experiment"):
                shutil.rmtree(folder / name, ignore_errors=True)
            for name in (STUDY, REPORT, SETTINGS):
                (folder / name).unlink(missing_ok=True)
        elif file.exists():
            _check_same(yaml.safe_load(file.read_text("utf-8")), settings, folder)
        elif folder.exists() and any(entry.name != LOCK for entry in folder.iterdir()):
            raise ValueError(f"run_dir {folder} holds something that is no sweep: give another run_dir")
        folder.mkdir(parents=True, exist_ok=True)
        file.write_text(yaml.safe_dump(settings, sort_keys=False), "utf-8")
    except (OSError, yaml.YAMLError) as error:
        raise ValueError(f"run_dir {folder} cannot be used for the sweep: {error}") from error


def _check_same(before: Any, now: dict[str, Any], folder: Path) -> None:
    before = before if isinstance(before, dict) else {}
    for name in now:
        if name not in _MAY_CHANGE and before.get(name) != now[name]:
            label = "the arguments of training" if name == "train" else f"sweep.{name}"
            raise ValueError(
                f"{folder} holds a sweep with other settings: {label} {before.get(name)!r}, now {now[name]!r}; "
                "give another run_dir, or overwrite=true to remove that sweep"
            )


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[int]:
    """Hold the folder against a second sweep; trials hold it, too, so that those of a killed sweep are waited for.

    Yields:
        The file descriptor of the lock, for the trials to inherit.

    Raises:
        ValueError: another process works on this sweep.
    """
    import fcntl  # POSIX

    folder.mkdir(parents=True, exist_ok=True)
    file = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT)
    try:
        deadline = time.monotonic() + GRACE + 10
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                holder = os.pread(file, 32, 0).decode()
                if _is_alive(holder) or time.monotonic() > deadline:
                    raise ValueError(f"{folder}: process {holder} is working on this sweep") from None
                time.sleep(0.5)  # the process is gone, and its trials are ending
        os.ftruncate(file, 0)
        os.pwrite(file, str(os.getpid()).encode(), 0)
        yield file
    finally:
        os.close(file)


def _is_alive(process: str) -> bool:
    try:
        os.kill(int(process), 0)
    except (ValueError, ProcessLookupError):
        return False
    except PermissionError:
        pass
    return True


def open_study(folder: Path, config: SweepConfig) -> optuna.Study:
    """Open the study in the folder, or begin it."""
    library = import_optuna()
    samplers = {
        "random": lambda seed: library.samplers.RandomSampler(seed),
        "tpe": lambda seed: library.samplers.TPESampler(
            seed=seed, n_startup_trials=config.startup_trials, constant_liar=True
        ),
    }
    warmup = math.ceil(config.prune_after * POINTS)
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
    # A sweep that goes on must not draw once more what it drew at its beginning.
    study.sampler = samplers[config.sampler](config.sampler_seed + _STRIDE * len(study.get_trials(deepcopy=False)))
    return study


def trials_in(study: optuna.Study, *states: str) -> list[optuna.trial.FrozenTrial]:
    """The trials in any of the states `complete`, `pruned`, `fail` and `running`, in their order."""
    return [trial for trial in study.get_trials(deepcopy=False) if trial.state.name.lower() in states]


def best_of(study: optuna.Study) -> optuna.trial.FrozenTrial | None:
    """The complete trial with the best score; None if there is none."""
    complete = trials_in(study, "complete")
    sign = 1 if study.direction.name == "MAXIMIZE" else -1
    return max(complete, key=lambda trial: sign * (trial.value or 0.0), default=None)
