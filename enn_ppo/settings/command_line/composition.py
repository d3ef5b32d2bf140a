"""Composing settings from the command line, with Hydra."""

from __future__ import annotations

import argparse
import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar, get_type_hints

import yaml
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import MISSING, DictConfig, OmegaConf, open_dict

import enn_ppo
from enn_ppo.clone.config import CloneConfig
from enn_ppo.settings.config import EvalConfig, TrainConfig
from enn_ppo.settings.evaluation import WatchConfig
from enn_ppo.settings.schema import plain, quoted, section_of, text_settings
from enn_ppo.settings.serving import ServeConfig
from enn_ppo.sweep.config import SweepCommand
from rogue_net.config import RogueNetConfig

T = TypeVar("T")

_OPEN = r"(?:env\.kwargs|env\.info|eval\.env_kwargs|env_kwargs|policies)"  # mappings that accept any name
#: In configs: `${given:${env.view},1,0}` is 1 if there is a view, and otherwise 0.
OmegaConf.register_new_resolver(
    "given", lambda value, then, otherwise: otherwise if value is None else then, replace=True
)
_SCHEDULE = re.compile(r"[^\s,:{}\[\]()][^,:{}\[\]()]*->[^,:{}\[\]()]*[^\s,:{}\[\]()]")
_EXAMPLES = {
    "env.id": "env.id=my_pkg.my_env:MyEnv",
    "checkpoint": "checkpoint=<run directory or one of its checkpoints>",
    "data": "data=<recording>",
    "run": "the run directory, or one of its checkpoints",
}


LONGEST, DEEPEST = 10_000, 30  # characters of an argument; nested brackets, or parts of a name


class Arguments(NamedTuple):
    """The arguments of a command."""

    overrides: list[str]  # `name=value`
    multirun: bool = False  # whether there is a job for every combination of values
    config_dir: Path | None = None  # folder with the user's config files
    show: bool = False  # only print the settings
    help: bool = False  # only print the help page


class Composed(NamedTuple):
    """The settings of a command, or of one job of `--multirun`."""

    config: DictConfig
    typed: tuple[str, ...]  # overrides
    choices: Mapping[str, str]  # group -> choice
    config_dir: Path | None
    output_dir: str | None = None  # folder that Hydra has made for a job of `--multirun`


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message}; settings are written name=value, and --help shows them all")


def parse(arguments: Sequence[str]) -> Arguments:
    """Parse the arguments: flags and overrides.

    Raises:
        ValueError: a flag is unknown, an override has no name, or sets Hydra without `--multirun`.
    """
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("-h", "--help", action="store_true")
    parser.add_argument("-m", "--multirun", action="store_true")
    parser.add_argument("--cfg", choices=["job"])
    parser.add_argument("--config-dir", "-cd", type=Path)
    parser.add_argument("--version", action="version", version=enn_ppo.__version__)
    parser.add_argument("overrides", nargs="*")
    for argument in arguments:
        depth = max(accumulate((c in "[{(") - (c in "]})") for c in argument), default=0)
        if len(argument) > LONGEST or max(depth, argument.partition("=")[0].count(".")) > DEEPEST:
            raise ValueError(
                f"the argument {argument[:40]}... is too long or nested too deeply; at most {LONGEST} characters and "
                f"{DEEPEST} brackets or parts of a name are read"
            )
    given = parser.parse_intermixed_args(list(arguments))
    for override in given.overrides:
        if re.match(r"[+~]*=", override):
            raise ValueError(f"the argument {override!r} has no name; settings are written name=value")
        if re.match(r"[+~]*hydra[./]", override) and not given.multirun:
            raise ValueError(f"{override} is a setting of Hydra about the jobs of a sweep: add --multirun")
    if given.config_dir is not None and not given.config_dir.is_dir():
        raise ValueError(f"--config-dir: folder '{given.config_dir}' not found")
    return Arguments(given.overrides, given.multirun, given.config_dir, bool(given.cfg), given.help)


def compose(name: str, schema: type[Any], arguments: Arguments, make: Callable[[Composed], T]) -> T | None:
    """Compose the settings of a command, and return the result of `make`.

    Args:
        name: of the command: `train`, `eval` and so on.
        schema: class of its settings.
        arguments: of the command line; with `show`, the settings are printed and the result is None.
        make: called while Hydra's search path is set.

    Raises:
        ValueError: a setting is not allowed. Errors of Hydra are raised as well; see `mistakes.told`.
    """
    _store_defaults()
    with initialize_config_dir(version_base="1.3", config_dir=str(config_directory())):
        typed = [quote(override, schema) for override in arguments.overrides]
        composed = compose_one(name, typed, arguments.config_dir)
        if arguments.show:
            print(OmegaConf.to_yaml(composed.config).rstrip())
            return None
        return make(composed)


def multirun(name: str, schema: type[Any], arguments: Arguments, job: Callable[[Composed], object]) -> None:
    """Let Hydra's sweeper and launcher run a job for every combination of the listed values.

    Args:
        name: of the command.
        schema: class of its settings.
        arguments: of the command line, among them settings of Hydra such as `hydra/launcher=joblib`.
        job: runs one job, maybe in another process; what it returns goes to the sweeper.
    """
    _store_defaults()

    def task(config: DictConfig) -> object:
        hydra = HydraConfig.get()
        typed = tuple(re.sub(rf"^\+\+(?={_OPEN})", "", override) for override in hydra.overrides.task)
        return job(Composed(config, typed, hydra.runtime.choices, arguments.config_dir, hydra.runtime.output_dir))

    with initialize_config_dir(version_base="1.3", config_dir=str(config_directory()), job_name=name):
        hydra = GlobalHydra.instance().hydra
        assert hydra is not None
        typed = [quote(override, schema, lists=True) for override in arguments.overrides]
        hydra.multirun(name, task, _for_hydra(typed, arguments.config_dir))


def compose_one(name: str, typed: Sequence[str], config_dir: Path | None) -> Composed:
    """Compose settings, while Hydra is initialized.

    Raises:
        ValueError: a group is given a list, or the settings cannot be composed.
    """
    try:
        config = hydra_compose(name, _for_hydra(typed, config_dir), return_hydra_config=True)
    except (ValueError, yaml.YAMLError) as error:  # errors of Hydra, and invalid YAML files
        raise ValueError(f"the settings {' '.join(typed)} cannot be composed: {error}") from error
    choices = dict(config.hydra.runtime.choices)
    with open_dict(config):
        del config.hydra
    return Composed(config, tuple(typed), choices, config_dir)


def _for_hydra(typed: Sequence[str], config_dir: Path | None) -> list[str]:
    """Overrides as Hydra reads them: names in open mappings need no `+`, and the user's folder is searched.

    Raises:
        ValueError: a group is given a list.
    """
    groups = GlobalHydra.instance().config_loader().list_groups("")
    for override in typed:
        if (given := re.match(r"\+*(\w+)=\s*\[", override)) and given[1] in groups:
            raise ValueError(f"{override}: {given[1]} takes the name of one file, not a list")
    searched = [f"hydra.searchpath=[{quoted(f'file://{config_dir.resolve()}')}]"] if config_dir else []
    return [*(f"++{override}" if open_name(override) else override for override in typed), *searched]


def quote(argument: str, schema: type[Any], *, lists: bool = False) -> str:
    """Quote the value of an argument where Hydra's grammar would not take it as the user has typed it.

    Texts, such as folders, are quoted as a whole; of other values, schedules and what the grammar cannot read.

    Args:
        argument: `name=value`.
        schema: settings class that says which settings are texts.
        lists: whether a value with commas lists the values of several jobs.

    Raises:
        ValueError: the shell has read the `->` of a schedule as a redirection.
    """
    key, equals, value = argument.partition("=")
    if not equals:
        return argument
    if re.search(r"@\s*[\d.]+\s*-$", value):
        raise ValueError(
            f"{argument} breaks off at '->', where a shell writes into a file: quote it, '{key}=... -> ...'"
        )
    is_list = lists and "," in value
    if value in ("", "null") or re.fullmatch(r"""'.*'|".*\"""", value):
        return argument
    if key.lstrip("+") in text_settings(schema) and not is_list:
        return f"{key}={quoted(value, always=True)}"
    if not {"'", '"'} & set(value):  # Hydra's grammar does not allow `>`
        argument = f"{key}=" + _SCHEDULE.sub(lambda match: f"'{match[0]}'", value)
    if is_list:
        return argument
    try:
        OverridesParser.create().parse_override(argument)
    except ValueError as error:  # a number of thousands of digits
        raise ValueError(f"the argument {argument[:40]}... cannot be read: {error}") from error
    except HydraException:
        return argument if value[0] in "[{(" else f"{key}={quoted(value, always=True)}"
    return argument


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


# ---- Defaults


def _store_defaults() -> None:
    """Register the defaults of every command in Hydra's ConfigStore; configs/ holds only presets."""
    store = ConfigStore.instance().store
    train = defaults_of(TrainConfig)
    store(group="value_net", name="default", node=defaults_of(RogueNetConfig))
    store(group="value_net", name="none", node={"value_net": train.pop("value_net")}, package="_global_")
    distributed = train.pop("distributed")
    for mode in ("none", "ray", "ddp"):
        store(group="distributed", name=mode, node=distributed | {"mode": mode})
    groups = ["_self_", {"value_net": "none"}, {"distributed": "none"}, {"env": "MineSweeper"}, {"experiment": None}]
    store(
        name="train",
        node={
            "defaults": groups,
            **train,
            # of `--multirun`: each job's folder is `run_dir` inside this one
            "hydra": {"sweep": {"dir": "${given:${run_dir},${run_dir},multirun/${now:%Y-%m-%d}/${now:%H-%M-%S}}"}},
            "env": {name: train["env"][name] for name in ("api", "view", "wrappers", "timeout")},
        },
    )
    clone = defaults_of(CloneConfig)
    own = {name: value for name, value in clone.items() if name not in TrainConfig.__dataclass_fields__}
    store(name="clone", node={"defaults": ["train", "_self_"], **own})
    sweep = defaults_of(SweepCommand)["sweep"]
    store(
        name="sweep",
        node={"defaults": ["train", "_self_", {"sweep": "ppo"}], "run_dir": "outputs/sweep_${env.id}", "sweep": sweep},
    )
    store(name="eval", node=defaults_of(EvalConfig))
    store(name="serve", node=defaults_of(ServeConfig))
    store(name="watch", node=defaults_of(WatchConfig))


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
