"""The command line: Hydra composes the settings, mistakes become one paragraph, and everything has an exit code.

This is the only file that knows Hydra and OmegaConf, and Hydra only composes: its task collects the settings of every
job, and the jobs run after Hydra has returned. So a mistake in the last job of a sweep is found before the first job
starts, and an error inside a run has a traceback without Hydra in it.

Exit codes: 0 done, 1 an unexpected error (with its traceback), 2 a mistake of the user, 130 interrupted.
"""

from __future__ import annotations

import copy
import dataclasses
import os
import re
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import hydra
import yaml
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException, OverrideParseException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from enn_ppo.config import EvalConfig, Interrupted, TrainConfig, default_run_dir
from enn_ppo.settings import flatten, from_dict, setting_names, to_dict, unknown_setting
from enn_ppo.sweep import RunSummary, check_run_dirs, format_table, summarize_run
from entity_gym.errors import nearest
from entity_gym.process_handle import WorkerDied

C = TypeVar("C", TrainConfig, EvalConfig)

USER_ERROR, INTERRUPTED = 2, 130
_SEPARATE = ("run_dir", "resume", "overwrite")  # say how to resume, and are not settings of the run that is resumed
_EXAMPLES = {
    "env.id": "env.id=my_pkg.my_env:MyEnv",
    "checkpoint": "checkpoint=<run directory or one of its checkpoints>",
}


class Composed(NamedTuple):
    """What Hydra made of the command line, for one job."""

    config: DictConfig
    typed: tuple[str, ...]  # this job's overrides
    opened: frozenset[str]  # the names under env.kwargs that were typed without a plus sign
    job: int | None  # number within a sweep, None outside


class Job(NamedTuple, Generic[C]):
    """One job, ready to run."""

    config: C
    typed: tuple[str, ...]
    job: int | None
    note: str  # printed before it starts, or empty


def config_directory() -> Path:
    """The folder of `train.yaml`: inside the installed package, or at the top of a checkout.

    Raises:
        ValueError: there is neither.
    """
    package = Path(__file__).resolve().parent
    candidates = (package / "configs", package.parent / "configs")
    for candidate in candidates:
        if (candidate / "train.yaml").is_file():
            return candidate
    raise ValueError(f"train.yaml is missing: looked in {' and '.join(map(str, candidates))}; reinstall enn-ppo")


def run_train(run: Callable[[TrainConfig], object], argv: Sequence[str] | None = None) -> int:
    """Compose the settings, train once, or for every job of `--multirun`, and return the exit code.

    Args:
        run: trains with one config, whose `run_dir` is set.
        argv: arguments without the program's name; None takes the process's own.
    """
    started = datetime.now()
    return _main("train", lambda composed: _train_job(composed, started), run, argv, table=True)


def run_eval(run: Callable[[EvalConfig], object], argv: Sequence[str] | None = None) -> int:
    """Compose the settings, evaluate, and return the exit code. As `run_train`."""
    return _main("eval", _eval_job, run, argv, table=False)


def _main(
    name: str,
    make: Callable[[Composed], Job[C]],
    run: Callable[[C], object],
    argv: Sequence[str] | None,
    *,
    table: bool,
) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = any(re.fullmatch(r"\+{0,2}debug=true", argument, re.IGNORECASE) for argument in arguments)
    finished: list[RunSummary] = []
    code = 0
    try:
        jobs = _compose(name, arguments, make)
        debug = debug or any(job.config.debug for job in jobs)
        check_run_dirs([str(job.config.run_dir) for job in jobs if isinstance(job.config, TrainConfig)])
        for job in jobs:
            if job.job is not None:
                print(f"job {job.job + 1} of {len(jobs)}: {' '.join(job.typed)}", file=sys.stderr, flush=True)
            if job.note:
                print(job.note, file=sys.stderr, flush=True)
            run(job.config)
            if table and job.job is not None and isinstance(job.config, TrainConfig):
                finished.append(summarize_run(job.typed, str(job.config.run_dir)))
    except SystemExit as exit_:  # --help, --version, and flags that Hydra's parser refuses
        code = exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
    except Interrupted as interrupted:
        print(interrupted, file=sys.stderr)
        code = INTERRUPTED
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        code = INTERRUPTED
    except Exception as error:
        code = _report(error, EvalConfig if name == "eval" else TrainConfig, debug)
    if finished:
        print(format_table(finished), flush=True)
    return code


# --- Composing ---


def _compose(name: str, arguments: Sequence[str], make: Callable[[Composed], Job[C]]) -> list[Job[C]]:
    """Let Hydra compose every job. Without jobs, Hydra has done what was asked for: `--cfg job`, shell completion."""
    jobs: list[Job[C]] = []
    errors: list[Exception] = []
    prepared, opened = _prepare(arguments)

    def collect(config: DictConfig) -> None:
        settings = HydraConfig.get()
        number = settings.job.num if settings.mode == RunMode.MULTIRUN else None
        overrides = OmegaConf.to_container(settings.overrides.task, resolve=False)
        assert isinstance(overrides, list)
        typed = tuple(_closed(str(override), opened) for override in overrides)
        try:
            jobs.append(make(Composed(config, typed, opened, number)))
        except Exception as error:  # Hydra would add lines of its own to what it sees
            if number is not None:
                error.add_note(f"(job {number + 1} of the sweep: {' '.join(typed)})")
            errors.append(error)

    entry = hydra.main(version_base="1.3", config_path=str(config_directory()), config_name=name)(collect)
    with _hydra_settings(prepared):
        try:
            entry()
        except (ValueError, yaml.YAMLError) as error:  # Hydra's own, and files that are no YAML
            raise ValueError(f"the settings {' '.join(arguments)} cannot be composed: {error}") from error
    if errors:
        raise errors[0]
    return jobs


def _prepare(arguments: Sequence[str]) -> tuple[list[str], frozenset[str]]:
    """Open `env.kwargs` to any name, and put flags first: Hydra's parser loses what follows a flag otherwise."""
    overrides, flags, opened = [], [], set()
    for argument in arguments:
        plugin = re.match(r"hydra/(launcher|sweeper)=(?!basic$)", argument)
        if plugin:
            raise ValueError(f"{argument} is not supported: a sweep runs its jobs one after another in this process")
        kwarg = re.match(r"env\.kwargs\.([^.=]+)[^=]*=", argument)
        if kwarg:
            opened.add(kwarg[1])
        if "=" in argument and not argument.startswith("-"):
            overrides.append("++" + argument if kwarg else argument)
        else:
            flags.append(argument)
    return flags + overrides, frozenset(opened)


def _closed(override: str, opened: frozenset[str]) -> str:
    """The override as it was typed."""
    kwarg = re.match(r"\+\+env\.kwargs\.([^.=]+)", override)
    return override[2:] if kwarg and kwarg[1] in opened else override


@contextmanager
def _hydra_settings(arguments: Sequence[str]) -> Iterator[None]:
    """Hydra reads the process's arguments, ends it at errors unless told not to, and writes a file for every sweep."""
    argv, full_error = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    with tempfile.TemporaryDirectory(prefix="enn_ppo_") as scratch:
        OmegaConf.register_new_resolver("scratch", lambda: scratch, replace=True)
        sys.argv = [argv[0], *arguments]
        os.environ["HYDRA_FULL_ERROR"] = "1"
        try:
            yield
        finally:
            sys.argv = argv
            if full_error is None:
                del os.environ["HYDRA_FULL_ERROR"]
            else:
                os.environ["HYDRA_FULL_ERROR"] = full_error


def _eval_job(composed: Composed) -> Job[EvalConfig]:
    return Job(from_dict(EvalConfig, _values(composed.config)), composed.typed, composed.job, note="")


def _train_job(composed: Composed, started: datetime) -> Job[TrainConfig]:
    config, note = resolve_train_config(composed.config, composed.typed)
    _check_env_kwargs(config, composed.opened)
    run_dir = config.run_dir
    if composed.job is not None:
        sweep = Path(default_run_dir(config.env.id, started))
        if run_dir is None:
            run_dir = str(sweep.with_name(f"sweep_{sweep.name}") / str(composed.job))
        elif composed.config.run_dir is not None:  # given, and not where the resumed run is
            run_dir = str(Path(run_dir) / str(composed.job))
    elif run_dir is None:
        run_dir = default_run_dir(config.env.id, started)
    return Job(dataclasses.replace(config, run_dir=run_dir), composed.typed, composed.job, note)


def _values(config: DictConfig, *, allow_missing: bool = False) -> dict[str, Any]:
    if not allow_missing:
        missing = sorted(OmegaConf.missing_keys(config))
        if missing:
            example = _EXAMPLES.get(missing[0], f"{missing[0]}=<value>")
            raise ValueError(f"{missing[0]} has no value, and no default: add {example} to the command")
    values = OmegaConf.to_container(config, resolve=True, throw_on_missing=not allow_missing)
    assert isinstance(values, dict)
    return {str(name): value for name, value in values.items()}


def _check_env_kwargs(config: TrainConfig, opened: frozenset[str]) -> None:
    """Where a file of configs/env lists a world's arguments, a name typed without a plus sign must be among them."""
    loader = GlobalHydra.instance().config_loader()
    for choice in loader.get_group_options("env"):
        source = _load_choice(f"env/{choice}")
        if source is None:
            continue
        values = OmegaConf.to_container(source.config)
        if isinstance(values, dict) and values.get("id") == config.env.id and values.get("kwargs"):
            known = [f"env.kwargs.{name}" for name in values["kwargs"]]
            for name in sorted(opened):
                if f"env.kwargs.{name}" not in known:
                    message = unknown_setting(f"env.kwargs.{name}", known)
                    raise ValueError(f"{message} To pass it to {config.env.id} nevertheless: +env.kwargs.{name}=...")
            return


# --- Resuming ---


def resolve_train_config(config: DictConfig, typed: Sequence[str]) -> tuple[TrainConfig, str]:
    """Turn what Hydra composed into a `TrainConfig`.

    With `resume`, the settings are those saved in the checkpoint, and of the composed ones only what `typed` touches is
    taken: a key, every key that a group choice sets, and the whole of `env` where another environment is chosen. Where
    `run_dir` is not given, it is the directory that holds the checkpoint.

    Args:
        config: the composed config.
        typed: the overrides of the command line, for example `["resume=out/a", "total_timesteps=100000"]`.

    Returns:
        The config, and a line saying which saved settings it changes (empty where there are none).

    Raises:
        ValueError: a setting is not allowed, or there is no such checkpoint.
    """
    if config.get("resume") is None:
        return from_dict(TrainConfig, _values(config)), ""
    from enn_ppo.checkpoint import load_checkpoint  # here, because it loads torch

    checkpoint = load_checkpoint(Path(str(config.resume)))
    try:
        saved = to_dict(from_dict(TrainConfig, checkpoint.config))
    except ValueError as error:
        error.add_note(f"(in the config.yaml of checkpoint {checkpoint.path})")
        raise
    holds = checkpoint.path.absolute().parent
    run_dir = _relative(holds.parent) if holds.name == "checkpoints" else None
    values = {**copy.deepcopy(saved), "run_dir": run_dir, "resume": str(config.resume), "overwrite": False}
    _apply_typed(values, _values(config, allow_missing=True), typed)

    resolved = from_dict(TrainConfig, values)
    before, after = flatten(saved), flatten(to_dict(resolved))
    changes = [
        f"{name} {before.get(name, 'unset')} -> {after.get(name, 'unset')}"
        for name in {**before, **after}
        if name not in _SEPARATE and before.get(name, "unset") != after.get(name, "unset")
    ]
    return resolved, f"resuming {checkpoint.path} with other settings: {', '.join(changes)}" if changes else ""


def _apply_typed(values: dict[str, Any], composed: Mapping[str, Any], typed: Sequence[str]) -> None:
    """Copy into `values` what `typed` touches of `composed`."""
    saved_env = values["env"]["id"]
    overrides = OverridesParser.create().parse_overrides(list(typed))
    for override in overrides:
        for path in _touched(override):
            _copy(values, composed, path.split("."))
    if any(override.key_or_group == "env" for override in overrides) and values["env"]["id"] != saved_env:
        values["env"] = composed["env"]  # the arguments of one world mean nothing to another


def _touched(override: Override) -> list[str]:
    """The dotted keys that an override sets."""
    key = override.key_or_group
    if not GlobalHydra.instance().config_loader().get_group_options(key):
        value = override.value()
        return [f"{key}.{name}" for name in flatten(value)] if isinstance(value, dict) and value else [key]
    source = _load_choice(f"{key}/{override.value()}")
    if source is None:
        return []  # group=null
    package = (source.header or {}).get("package") or key.replace("/", ".")
    prefix = "" if package == "_global_" else f"{package}."
    return [prefix + name for name in flatten(_values(source.config, allow_missing=True)) if name != "defaults"]


def _load_choice(path: str) -> Any:
    """The first file on Hydra's search path for `group/choice`, with its header, or None."""
    for source in GlobalHydra.instance().config_loader().get_sources():
        if source.available() and source.is_config(path):
            return source.load_config(path)
    return None


def _copy(values: dict[str, Any], composed: Any, keys: Sequence[str]) -> None:
    """Set, or remove, one nested value. A value that is still missing (`???`) says nothing."""
    for key in keys[:-1]:
        composed = composed.get(key) if isinstance(composed, Mapping) else None
        if not isinstance(values.get(key), dict):
            values[key] = {}
        values = values[key]
    if not isinstance(composed, Mapping) or keys[-1] not in composed:
        values.pop(keys[-1], None)
    elif composed[keys[-1]] != "???":
        values[keys[-1]] = composed[keys[-1]]


def _relative(path: Path) -> str:
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


# --- Errors ---


def _report(error: Exception, schema: type[Any], debug: bool) -> int:
    """Print an error for whoever can mend it, and return the exit code."""
    message = _explain(error, schema)
    if message is None or debug:
        traceback.print_exception(error, file=sys.stderr)
    if message is None:
        return 1
    paragraph = re.sub(r"\s*\n\s*", " ", message).strip()
    print(f"error: {paragraph}", file=sys.stderr)
    return 1 if isinstance(error, WorkerDied) else USER_ERROR


def _explain(error: Exception, schema: type[Any]) -> str | None:
    """Say what was given, what is allowed and what is near; None if this is not a mistake of the user."""
    if isinstance(error, MissingConfigException) and error.missing_cfg_file and error.options is not None:
        group, _, choice = error.missing_cfg_file.rpartition("/")
        hint = "; for a world of your own: env=custom env.id=my_pkg.my_env:MyEnv" if group == "env" else ""
        return f"{group}={choice} is not a choice; {nearest(choice, error.options)}{hint}"
    if isinstance(error, OverrideParseException):
        lines = [line for line in error.message.split("\n") if not line.startswith(("See ", "Error parsing"))]
        reason = " ".join(lines)
        return (
            f"the argument {error.override!r} cannot be read: {reason}; arguments look like optim.lr=3e-4 or env=custom"
        )
    if isinstance(error, ConfigCompositionException):
        key = re.match(r"Could not override '([^']+)'", str(error))
        if key and key[1] not in setting_names(schema):
            groups = ["experiment"] if schema is TrainConfig else []
            return unknown_setting(key[1].split("@")[0], setting_names(schema) + groups)
    if isinstance(error, HydraException | OmegaConfBaseException):
        cause = f" ({error.__cause__})" if error.__cause__ is not None else ""
        return f"the settings cannot be composed: {error}{cause}"
    if isinstance(error, ValueError):
        notes = getattr(error, "__notes__", [])
        return str(error) + "".join(f" {note}" if note.startswith("(") else f"; {note}" for note in notes)
    if isinstance(error, WorkerDied):
        return f"{error}; go on from the last checkpoint with resume=<run directory>"
    return None
