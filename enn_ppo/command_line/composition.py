"""Hydra composes the settings of every job from the command line, and nothing more.

Its task collects what was composed, and the jobs run after Hydra has returned: a mistake in the last job of a sweep is
found before the first starts, and an error inside a run has a traceback without Hydra in it. (`plugin_sweep` is for
sweepers that must see the result of one job before they choose the next.)
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import hydra
import yaml
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

C = TypeVar("C")

_OPEN = r"(?:env\.kwargs|env\.info|eval\.env_kwargs|env_kwargs|policies)"  # mappings that take any name
_EXAMPLES = {
    "env.id": "env.id=my_pkg.my_env:MyEnv",
    "checkpoint": "checkpoint=<run directory or one of its checkpoints>",
    "data": "data=<recorded file>",
}


class Composed(NamedTuple):
    """What Hydra made of the command line, for one job."""

    config: DictConfig
    typed: tuple[str, ...]  # this job's overrides
    opened: frozenset[str]  # the names under what takes any (`_OPEN`) that were typed without a plus sign
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
    package = Path(__file__).resolve().parents[1]
    candidates = (package / "configs", package.parent / "configs")
    for candidate in candidates:
        if (candidate / "train.yaml").is_file():
            return candidate
    raise ValueError(f"train.yaml is missing: looked in {' and '.join(map(str, candidates))}; reinstall enn-ppo")


def compose(name: str, arguments: Sequence[str], make: Callable[[Composed], Job[C]]) -> list[Job[C]]:
    """Let Hydra compose every job. Without jobs, Hydra has done what was asked for: `--cfg job`, shell completion."""
    jobs: list[Job[C]] = []
    errors: list[Exception] = []
    opened = opened_names(arguments)

    def collect(config: DictConfig) -> None:
        composed = composed_job(config, opened)
        try:
            jobs.append(make(composed))
        except Exception as error:  # Hydra would add lines of its own to what it sees
            errors.append(noted(error, composed))

    with tempfile.TemporaryDirectory(prefix="enn_ppo_") as scratch:
        enter_hydra(name, arguments, collect, scratch)
    if errors:
        raise errors[0]
    return jobs


def enter_hydra(name: str, arguments: Sequence[str], task: Callable[[DictConfig], object], scratch: str) -> None:
    """Let Hydra call `task` with what it composes: once, for every job of a sweep, or not at all (`--cfg job`).

    Args:
        name: the primary config: `train`, `eval` and so on.
        arguments: of the command line.
        task: what Hydra calls.
        scratch: a folder for the files that Hydra's sweepers write whether or not anyone wants them.
    """
    entry = hydra.main(version_base="1.3", config_path=str(config_directory()), config_name=name)(task)
    with _hydra_settings(_prepare(arguments), scratch):
        try:
            entry()
        except (ValueError, yaml.YAMLError) as error:  # Hydra's own, and files that are no YAML
            raise ValueError(f"the settings {' '.join(arguments)} cannot be composed: {error}") from error


def composed_job(config: DictConfig, opened: frozenset[str]) -> Composed:
    """What Hydra's task is about: to be called inside it."""
    settings = HydraConfig.get()
    number = settings.job.num if settings.mode == RunMode.MULTIRUN else None
    overrides = OmegaConf.to_container(settings.overrides.task, resolve=False)
    assert isinstance(overrides, list)
    return Composed(config, tuple(_closed(str(override), opened) for override in overrides), opened, number)


def noted(error: Exception, composed: Composed) -> Exception:
    """The error, with a note that says which job of a sweep it ended."""
    if composed.job is not None:
        error.add_note(f"(job {composed.job + 1} of the sweep: {' '.join(composed.typed)})")
    return error


def opened_names(arguments: Sequence[str]) -> frozenset[str]:
    """The names under mappings that take any name, such as `env.kwargs.size`, that were typed without a plus sign."""
    return frozenset(found[1] for argument in arguments if (found := _open_name(argument)))


def _open_name(argument: str) -> re.Match[str] | None:
    return re.match(rf"({_OPEN}(?:\.[^.=]+)?)[^=]*=", argument)


def _prepare(arguments: Sequence[str]) -> list[str]:
    """Open what takes any name, quote schedules, and put flags first: Hydra's parser loses what follows a flag otherwise."""
    overrides, flags = [], []
    for argument in arguments:
        if "=" in argument and not argument.startswith("-"):
            overrides.append(("++" if _open_name(argument) else "") + _quoted(argument))
        else:
            flags.append(argument)
    return flags + overrides


def _quoted(argument: str) -> str:
    """The argument with quotes around the schedules in it: Hydra's grammar does not know `>`.

    Raises:
        ValueError: a shell took `->` for a redirection.
    """
    key, _, value = argument.partition("=")
    if re.search(r"@\s*[\d.]+\s*-$", value):
        raise ValueError(
            f"{argument} breaks off at '->', where a shell writes into a file: quote it, '{key}=... -> ...'"
        )
    if "'" in value or '"' in value:
        return argument  # whoever quotes does it all
    return f"{key}=" + re.sub(r"[^\s,:{}\[\]()][^,:{}\[\]()]*->[^,:{}\[\]()]*[^\s,:{}\[\]()]", r"'\g<0>'", value)


def _closed(override: str, opened: frozenset[str]) -> str:
    """The override as it was typed."""
    name = re.match(rf"\+\+({_OPEN}(?:\.[^.=]+)?)", override)
    return override[2:] if name and name[1] in opened else override


@contextmanager
def _hydra_settings(arguments: Sequence[str], scratch: str) -> Iterator[None]:
    """Hydra reads the process's arguments, and ends it at errors unless told not to."""
    argv, full_error = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
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


def plain_values(config: DictConfig, *, allow_missing: bool = False) -> dict[str, Any]:
    """A composed config as nested dictionaries, its interpolations resolved.

    Raises:
        ValueError: a setting without a default has no value, unless those may be missing (`???`).
    """
    if not allow_missing:
        missing = sorted(OmegaConf.missing_keys(config))
        if missing:
            example = _EXAMPLES.get(missing[0], f"{missing[0]}=<value>")
            raise ValueError(f"{missing[0]} has no value, and no default: add {example} to the command")
    values = OmegaConf.to_container(config, resolve=True, throw_on_missing=not allow_missing)
    assert isinstance(values, dict)
    return {str(name): value for name, value in values.items()}


def load_choice(path: str) -> Any:
    """The first file on Hydra's search path for `group/choice`, with its header, or None."""
    for source in GlobalHydra.instance().config_loader().get_sources():
        if source.available() and source.is_config(path):
            return source.load_config(path)
    return None
