"""Composing the settings of every job from the command line, with Hydra.

All jobs of `--multirun` are composed and checked before the first one starts.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import islice, product
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar, get_type_hints

import yaml
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser import overrides_parser
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.overrides_visitor import HydraOverrideVisitor
from hydra.errors import HydraException
from omegaconf import MISSING, DictConfig, OmegaConf, open_dict

import enn_ppo
from enn_ppo.clone.config import CloneConfig
from enn_ppo.settings.config import EvalConfig, TrainConfig
from enn_ppo.settings.evaluation import WatchConfig
from enn_ppo.settings.schema import plain, section_of
from enn_ppo.settings.serving import ServeConfig
from enn_ppo.sweep.config import SweepConfig
from rogue_net.config import RogueNetConfig

T = TypeVar("T")

#: Sections of training that are Hydra groups, with the choice `default` and the files of configs/<section> (none so far) and of
#: the user's --config-dir.
SECTIONS = ("rollout", "net", "optim", "value_optim", "ppo", "eval", "self_play", "logger")
_OPEN = r"(?:env\.kwargs|env\.info|eval\.env_kwargs|env_kwargs|policies)"  # mappings that accept any name
#: In configs: `${given:${env.view},1,0}` is 1 if there is a view, and otherwise 0.
OmegaConf.register_new_resolver(
    "given", lambda value, then, otherwise: otherwise if value is None else then, replace=True
)
_EXAMPLES = {
    "env.id": "env.id=my_pkg.my_env:MyEnv",
    "checkpoint": "checkpoint=<run directory or one of its checkpoints>",
    "data": "data=<recorded file>",
    "run": "the run directory, one of its checkpoints, or a recording",
}


#: Limits of a command: characters of a setting's name, jobs of a sweep, and jobs at a time.
MAX_NAME, MAX_JOBS, MAX_PARALLEL = 200, 10_000, 1024


class _OverrideVisitor(HydraOverrideVisitor):
    def visitDictContainer(self, ctx: Any) -> Any:  # noqa: N802 - Hydra's name
        keys = [str(self.visitDictKey(pair.dictKey())) for pair in ctx.dictKeyValuePair()]
        if twice := sorted({key for key in keys if keys.count(key) > 1}):
            raise HydraException(f"the mapping has the key {twice[0]!r} twice")
        return super().visitDictContainer(ctx)


vars(overrides_parser)["HydraOverrideVisitor"] = _OverrideVisitor  # Hydra itself takes the last of equal keys


class Arguments(NamedTuple):
    """The arguments of a command."""

    overrides: list[str]  # `name=value`
    multirun: bool = False  # whether there is a job for every combination of values
    jobs: int = 1  # number of parallel jobs
    config_dir: Path | None = None  # folder with the user's config files
    show: bool = False  # only print the settings
    help: bool = False  # only print the help page


class Composed(NamedTuple):
    """The settings of one job."""

    config: DictConfig
    typed: tuple[str, ...]  # overrides of this job
    job: int | None  # number of a job of `--multirun`
    choices: Mapping[str, str]  # group -> choice
    config_dir: Path | None


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message}; settings are written name=value, and --help shows them all")


def parse(arguments: Sequence[str]) -> Arguments:
    """Parse the arguments: flags, `jobs=n`, and overrides.

    Raises:
        ValueError: a flag is unknown, or `jobs` is no positive number or is given without `--multirun`.
    """
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("-h", "--help", action="store_true")
    parser.add_argument("-m", "--multirun", action="store_true")
    parser.add_argument("--cfg", choices=["job"])
    parser.add_argument("--config-dir", "-cd", type=Path)
    parser.add_argument("--version", action="version", version=enn_ppo.__version__)
    parser.add_argument("overrides", nargs="*")
    given = parser.parse_intermixed_args(list(arguments))
    numbers = [argument.removeprefix("jobs=") for argument in given.overrides if argument.startswith("jobs=")]
    for number in numbers:
        if not re.fullmatch(r"[1-9]\d{0,3}", number) or int(number) > MAX_PARALLEL:
            raise ValueError(
                f"jobs must be how many jobs of a sweep run at a time, 1 to {MAX_PARALLEL}, got {number!r}"
            )
        if not given.multirun:
            raise ValueError(f"jobs={number} is about the jobs of a sweep: add --multirun")
    overrides = [argument for argument in given.overrides if not argument.startswith("jobs=")]
    for override in overrides:
        if re.match(r"[+~]*=", override):
            raise ValueError(f"the argument {override!r} has no name; settings are written name=value")
        if re.match(r"[+~]*hydra[./]", override):
            raise ValueError(f"{override} is a setting of Hydra, which only composes the settings here")
        if len(name := override.partition("=")[0]) > MAX_NAME:
            raise ValueError(
                f"the name {name[:40]}... of a setting has {len(name)} characters; at most {MAX_NAME} are read"
            )
    if given.config_dir is not None and not given.config_dir.is_dir():
        raise ValueError(f"--config-dir: folder '{given.config_dir}' not found")
    jobs = int(numbers[-1]) if numbers else 1
    return Arguments(overrides, given.multirun, jobs, given.config_dir, bool(given.cfg), given.help)


def compose(name: str, arguments: Arguments, make: Callable[[Composed], T]) -> list[T]:
    """Compose the settings of every job, and return the results of `make`.

    Args:
        name: of the command: `train`, `eval` and so on.
        arguments: of the command line; with `show`, the settings are printed and nothing is returned.
        make: called for every job while Hydra's search path is set.

    Raises:
        ValueError: a setting is not allowed, or is nested too deeply. Errors of Hydra are raised as well; see `mistakes.told`.
    """
    try:
        return _compose(name, arguments, make)
    except RecursionError:
        deepest = max(arguments.overrides, key=lambda each: len(re.findall(r"[\[{(.]", each)), default="the settings")
        raise ValueError(f"{deepest[:60]}... nests too many lists, mappings or names") from None


def _compose(name: str, arguments: Arguments, make: Callable[[Composed], T]) -> list[T]:
    _store_defaults()
    overrides = [_quoted(override) for override in arguments.overrides]
    made: list[T] = []
    with initialize_config_dir(version_base="1.3", config_dir=str(config_directory())):
        combinations = _combinations(overrides) if arguments.multirun else [overrides]
        for number, typed in enumerate(combinations):
            composed = compose_one(name, typed, arguments.config_dir, number if arguments.multirun else None)
            if arguments.show:
                print(OmegaConf.to_yaml(composed.config).rstrip())
                continue
            try:
                made.append(make(composed))
            except Exception as error:
                if arguments.multirun:
                    error.add_note(f"(job {number + 1} of the sweep: {' '.join(typed)})")
                raise
    return made


def compose_one(name: str, typed: Sequence[str], config_dir: Path | None, job: int | None = None) -> Composed:
    """Compose the settings of one job, while Hydra is initialized.

    Raises:
        ValueError: a group is given a list, or the settings cannot be composed.
    """
    groups = GlobalHydra.instance().config_loader().list_groups("")
    for override in typed:
        if (given := re.match(r"\+*(\w+)=\s*\[", override)) and given[1] in groups:
            raise ValueError(f"{override}: {given[1]} takes the name of one file, not a list")
    searched = [f"hydra.searchpath=[file://{config_dir.resolve()}]"] if config_dir else []
    overrides = [f"++{override}" if open_name(override) else override for override in typed]
    try:
        config = hydra_compose(config_name=name, overrides=[*overrides, *searched], return_hydra_config=True)
    except (ValueError, yaml.YAMLError) as error:  # errors of Hydra, and invalid YAML files
        raise ValueError(f"the settings {' '.join(typed)} cannot be composed: {error}") from error
    choices = {group: str(choice) for group, choice in config.hydra.runtime.choices.items()}
    with open_dict(config):
        del config.hydra
    named = {override.partition("=")[0].lstrip("+") for override in typed}
    if "rollout.steps" in named and "rollout.max_seconds" not in named:
        config.rollout.max_seconds = None  # who names the steps gets them
    return Composed(config, tuple(typed), job, choices, config_dir)


def config_directory() -> Path:
    """The folder `enn_ppo/configs`."""
    return Path(__file__).resolve().parents[2] / "configs"


def open_name(override: str) -> str | None:
    """The name that an override sets in a mapping that accepts any name, or the mapping itself; None for other overrides."""
    name = re.match(rf"({_OPEN}(?:\.[^.=]+)?)[^=]*=", override)
    return name and name[1]


def plain_values(config: DictConfig, *, allow_missing: bool = False) -> dict[str, Any]:
    """Convert a composed config to nested dictionaries, and resolve its interpolations.

    Raises:
        ValueError: a required setting (`???`) has no value, unless `allow_missing`.
    """
    if not allow_missing:
        missing = sorted(OmegaConf.missing_keys(config))
        if missing:
            example = _EXAMPLES.get(missing[0], f"{missing[0]}=<value>")
            raise ValueError(f"{missing[0]} has no value, and no default: add {example} to the command")
    values = OmegaConf.to_container(config, resolve=True, throw_on_missing=not allow_missing)
    assert isinstance(values, dict)
    return {str(name): value for name, value in values.items()}


def escaped(value: Any) -> Any:
    """Settings in which OmegaConf takes `${...}` as text, so that a checkpoint's settings read no environment variables."""
    if isinstance(value, dict):
        return {name: escaped(item) for name, item in value.items()}
    if isinstance(value, list):
        return [escaped(item) for item in value]
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", value) if isinstance(value, str) else value


def _combinations(overrides: Sequence[str]) -> list[list[str]]:
    """The overrides of each job: every combination of the listed values; the last override varies fastest.

    Raises:
        ValueError: an override lists no values or has no end of them, or there are more than `MAX_JOBS` combinations.
    """
    parser = OverridesParser.create(GlobalHydra.instance().config_loader())
    values = []
    for override in parser.parse_overrides(list(overrides)):
        if override.is_sweep_override() and not override.is_discrete_sweep():
            raise ValueError(f"{override.input_line} has no end of values: list them, as in seed=1,2,3")
        key = override.get_key_element()
        swept = islice(override.sweep_string_iterator(), MAX_JOBS + 1) if override.is_sweep_override() else None
        values.append([str(override.input_line)] if swept is None else [f"{key}={value}" for value in swept])
        if not values[-1]:
            raise ValueError(f"{override.input_line} lists no values, so there is no job to run")
        if math.prod(map(len, values)) > MAX_JOBS:
            raise ValueError(f"{override.input_line} makes more than {MAX_JOBS:,} jobs; list fewer values")
    return [list(combination) for combination in product(*values)]


def _quoted(argument: str) -> str:
    """Quote the schedules in an argument, since Hydra's grammar does not allow `>`.

    Raises:
        ValueError: the shell has read `->` as a redirection.
    """
    key, equals, value = argument.partition("=")
    if re.search(r"@\s*[\d.]+\s*-$", value):
        raise ValueError(
            f"{argument} breaks off at '->', where a shell writes into a file: quote it, '{key}=... -> ...'"
        )
    if "'" in value or '"' in value:
        return argument  # quoted by the user
    schedule = r"[^\s,:{}\[\]()][^,:{}\[\]()]*->[^,:{}\[\]()]*[^\s,:{}\[\]()]"
    return key + equals + re.sub(schedule, r"'\g<0>'", value)


# ---- Defaults


def _store_defaults() -> None:
    """Register the defaults of every command in Hydra's ConfigStore; configs/ holds only presets."""
    store = ConfigStore.instance().store
    train = defaults_of(TrainConfig)
    for section in SECTIONS:
        store(group=section, name="default", node=train.pop(section))
    store(group="value_net", name="default", node=defaults_of(RogueNetConfig))
    store(group="value_net", name="none", node={"value_net": train.pop("value_net")}, package="_global_")
    distributed = train.pop("distributed")
    for mode in ("none", "ray", "ddp"):
        store(group="distributed", name=mode, node=distributed | {"mode": mode})
    groups: list[Any] = [{section: "default"} for section in SECTIONS]
    groups += [{"value_net": "none"}, {"distributed": "none"}, "_self_", {"env": "MineSweeper"}, {"experiment": None}]
    store(
        name="train",
        node={
            "defaults": groups,
            **train,
            "env": {name: train["env"][name] for name in ("api", "view", "wrappers", "timeout")},
        },
    )
    clone = defaults_of(CloneConfig)
    own = {name: value for name, value in clone.items() if name not in TrainConfig.__dataclass_fields__}
    store(name="clone", node={"defaults": ["train", "_self_"], **own})
    store(name="eval", node=defaults_of(EvalConfig))
    store(name="serve", node=defaults_of(ServeConfig))
    store(name="watch", node=defaults_of(WatchConfig))
    store(group="sweep", name="default", node=defaults_of(SweepConfig))
    store(name="sweep", node={"defaults": ["sweep/default", {"sweep": "ppo"}, "_self_"], "debug": False})


def defaults_of(cls: type[Any]) -> dict[str, Any]:
    """The defaults of a settings class as nested mappings; `???` if a setting has none."""
    hints = get_type_hints(cls)
    values: dict[str, Any] = {}
    for field in dataclasses.fields(cls):
        if hints[field.name] == section_of(hints[field.name]):
            values[field.name] = defaults_of(hints[field.name])
        elif field.default is not dataclasses.MISSING:
            values[field.name] = plain(field.default, field.name)
        elif field.default_factory is not dataclasses.MISSING:
            values[field.name] = plain(field.default_factory(), field.name)
        else:
            values[field.name] = MISSING
    return values
