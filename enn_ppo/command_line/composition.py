"""Composing the settings of every job from the command line, with Hydra.

All jobs of a sweep are composed and checked before the first one starts.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any, Generic, NamedTuple, NoReturn, TypeVar

import yaml
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf, open_dict

from enn_ppo.command_line.defaults import store_defaults

C = TypeVar("C")

_OPEN = r"(?:env\.kwargs|env\.info|eval\.env_kwargs|env_kwargs|policies)"  # mappings that take any name
_EXAMPLES = {
    "env.id": "env.id=my_pkg.my_env:MyEnv",
    "checkpoint": "checkpoint=<run directory or one of its checkpoints>",
    "data": "data=<recorded file>",
}


class Arguments(NamedTuple):
    """The arguments of a command."""

    overrides: list[str]  # `name=value`
    multirun: bool = False  # whether there is a job for every combination of values
    jobs: int = 1  # number that runs at a time
    config_dir: Path | None = None  # with config files of the user
    show: bool = False  # only print the settings
    help: bool = False  # only print the help page


class Composed(NamedTuple):
    """The settings of one job."""

    config: DictConfig
    typed: tuple[str, ...]  # this job's overrides
    opened: frozenset[str]  # names below `_OPEN` that were typed without a plus sign
    job: int | None  # number within a sweep, None outside
    choices: Mapping[str, str]  # group -> choice


class Job(NamedTuple, Generic[C]):
    """One job, ready to run."""

    config: C
    typed: tuple[str, ...]
    job: int | None
    note: str  # printed before it starts, or empty


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message}; settings are written name=value, and --help shows them all")


def parse(arguments: Sequence[str]) -> Arguments:
    """Parse the arguments: flags, `jobs=n`, and overrides.

    Raises:
        ValueError: a flag is unknown, `jobs` is no positive number, or is given without `--multirun`.
    """
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("-h", "--help", action="store_true")
    parser.add_argument("-m", "--multirun", action="store_true")
    parser.add_argument("--cfg", choices=["job"])
    parser.add_argument("--config-dir", "-cd", type=Path)
    parser.add_argument("--version", action="version", version=version("enn-ppo"))
    parser.add_argument("overrides", nargs="*")
    given = parser.parse_intermixed_args(list(arguments))
    numbers = [argument.removeprefix("jobs=") for argument in given.overrides if argument.startswith("jobs=")]
    for number in numbers:
        if not re.fullmatch(r"[1-9]\d*", number):
            raise ValueError(f"jobs must be how many jobs of a sweep run at a time, at least 1, got {number!r}")
        if not given.multirun:
            raise ValueError(f"jobs={number} is about the jobs of a sweep: add --multirun")
    overrides = [argument for argument in given.overrides if not argument.startswith("jobs=")]
    for override in overrides:
        if re.match(r"[+~]*hydra[./]", override):
            raise ValueError(f"{override} is a setting of Hydra, which only composes the settings here")
    if given.config_dir is not None and not given.config_dir.is_dir():
        raise ValueError(f"--config-dir: folder '{given.config_dir}' not found")
    jobs = int(numbers[-1]) if numbers else 1
    return Arguments(overrides, given.multirun, jobs, given.config_dir, bool(given.cfg), given.help)


def config_directory() -> Path:
    """The folder `configs`: inside the installed package, or at the top of a checkout.

    Raises:
        ValueError: neither exists.
    """
    package = Path(__file__).resolve().parents[1]
    candidates = (package / "configs", package.parent / "configs")
    for candidate in candidates:
        if (candidate / "env").is_dir():
            return candidate
    raise ValueError(f"configs/env is missing: looked in {' and '.join(map(str, candidates))}; reinstall enn-ppo")


def compose(name: str, arguments: Arguments, make: Callable[[Composed], Job[C]]) -> list[Job[C]]:
    """Compose and check every job.

    Args:
        name: of the command: `train`, `eval` and so on.
        arguments: of the command line; with `show`, the settings are printed and no job is returned.
        make: checks the composed settings of a job. Hydra's search path is set while it runs.

    Raises:
        ValueError: a setting is not allowed; and errors of Hydra, see `mistakes.explain`.
    """
    store_defaults()
    overrides = [_opened(_quoted(override)) for override in arguments.overrides]
    opened = frozenset(found[1] for override in arguments.overrides if (found := _open_name(override)))
    jobs: list[Job[C]] = []
    with initialize_config_dir(version_base="1.3", config_dir=str(config_directory())):
        combinations = _combinations(overrides) if arguments.multirun else [overrides]
        for number, combination in enumerate(combinations):
            composed = _composed(name, combination, arguments.config_dir, opened)
            if arguments.show:
                print(OmegaConf.to_yaml(composed.config).rstrip())
                continue
            composed = composed._replace(job=number if arguments.multirun else None)
            try:
                jobs.append(make(composed))
            except Exception as error:
                if arguments.multirun:
                    error.add_note(f"(job {number + 1} of the sweep: {' '.join(composed.typed)})")
                raise
    return jobs


def _composed(name: str, overrides: Sequence[str], config_dir: Path | None, opened: frozenset[str]) -> Composed:
    searched = [f"hydra.searchpath=[file://{config_dir.resolve()}]"] if config_dir else []
    try:
        config = hydra_compose(config_name=name, overrides=[*overrides, *searched], return_hydra_config=True)
    except (ValueError, yaml.YAMLError) as error:  # errors of Hydra, and files that are not YAML
        raise ValueError(f"the settings {' '.join(overrides)} cannot be composed: {error}") from error
    choices = {group: str(choice) for group, choice in config.hydra.runtime.choices.items()}
    with open_dict(config):
        del config.hydra
    typed = tuple(_closed(override, opened) for override in overrides)
    return Composed(config, typed, opened, None, choices)


def _combinations(overrides: Sequence[str]) -> list[list[str]]:
    """The overrides of each job of a sweep: every combination of the listed values; the last one varies fastest."""
    parser = OverridesParser.create(GlobalHydra.instance().config_loader())
    values = []
    for override in parser.parse_overrides(list(overrides)):
        if override.is_sweep_override() and not override.is_discrete_sweep():
            raise ValueError(f"{override.input_line} has no end of values: list them, as in seed=1,2,3")
        key = override.get_key_element()
        swept = override.sweep_string_iterator() if override.is_sweep_override() else None
        values.append([str(override.input_line)] if swept is None else [f"{key}={value}" for value in swept])
    return [list(combination) for combination in product(*values)]


def _open_name(argument: str) -> re.Match[str] | None:
    return re.match(rf"({_OPEN}(?:\.[^.=]+)?)[^=]*=", argument)


def _opened(argument: str) -> str:
    """Put `++` before an override of a mapping that takes any name."""
    return f"++{argument}" if _open_name(argument) else argument


def _closed(override: str, opened: frozenset[str]) -> str:
    """The override as it was typed."""
    name = re.match(rf"\+\+({_OPEN}(?:\.[^.=]+)?)", override)
    return override[2:] if name and name[1] in opened else override


def _quoted(argument: str) -> str:
    """Quote the schedules in an argument: Hydra's grammar has no `>`.

    Raises:
        ValueError: the shell has read `->` as a redirection.
    """
    key, _, value = argument.partition("=")
    if re.search(r"@\s*[\d.]+\s*-$", value):
        raise ValueError(
            f"{argument} breaks off at '->', where a shell writes into a file: quote it, '{key}=... -> ...'"
        )
    if "'" in value or '"' in value:
        return argument  # the user has quoted it
    return f"{key}=" * ("=" in argument) + re.sub(
        r"[^\s,:{}\[\]()][^,:{}\[\]()]*->[^,:{}\[\]()]*[^\s,:{}\[\]()]", r"'\g<0>'", value if "=" in argument else key
    )


def plain_values(config: DictConfig, *, allow_missing: bool = False) -> dict[str, Any]:
    """Convert a composed config to nested dictionaries, and resolve its interpolations.

    Raises:
        ValueError: a required setting (`???`) has no value, unless these may be missing.
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
