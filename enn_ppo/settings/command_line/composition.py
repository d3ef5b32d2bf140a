"""Settings from the command line, composed by Hydra."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from types import NoneType
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import MISSING, DictConfig, OmegaConf

from enn_ppo.settings.cloning import CloningConfig
from enn_ppo.settings.config import EvalConfig, TrainConfig
from enn_ppo.settings.evaluation import WatchConfig
from enn_ppo.settings.schema import fields_of, quoted, to_dict
from enn_ppo.settings.serving import ServeConfig
from enn_ppo.settings.sweeping import SweepConfig
from rogue_net.checks import alternatives
from rogue_net.config import RogueNetConfig

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
_OPEN = r"(env\.kwargs|env\.info|eval\.env_kwargs|env_kwargs|policies)[.=]"  # mappings that accept any name
_SCHEDULE = re.compile(r"[^\s,:{}\[\]()][^,:{}\[\]()]*->[^,:{}\[\]()]*[^\s,:{}\[\]()]")
#: In configs: `${given:${env.view},1,0}` is 1 if there is a view, and otherwise 0.
OmegaConf.register_new_resolver("given", lambda value, then, other: other if value is None else then, replace=True)


def compose(name: str, overrides: Sequence[str], config_dir: Path | None = None) -> DictConfig:
    """Compose the settings of the command `name` with overrides as `prepare` returns them.

    Raises:
        ValueError: a value or a file is not allowed. Errors of Hydra and YAML are raised as well; see `mistakes.told`.
    """
    store_defaults()
    searched = [f"hydra.searchpath=[{quoted(f'file://{config_dir.resolve()}')}]"] if config_dir else []
    with initialize_config_dir(version_base="1.3", config_dir=str(CONFIGS)):
        try:
            return hydra_compose(name, [*overrides, *searched])
        except (ValueError, RecursionError) as error:
            why = "they are nested too deeply" if isinstance(error, RecursionError) else error
            raise ValueError(f"the settings {' '.join(overrides)} cannot be composed: {why}") from None


def prepare(argument: str, schema: type[Any], *, lists: bool = False) -> str:
    """Turn an argument into an override of Hydra: `+` is not needed where any name is accepted, and quotes only for the shell.

    Texts, such as folders, are quoted as a whole; of other values, schedules and what Hydra's grammar cannot read.

    With `lists`, as for `--multirun`, commas separate the values of several jobs.
    """
    key, equals, value = argument.partition("=")
    if argument.startswith("-") or not equals:
        return argument
    if re.match(_OPEN, argument):
        key = f"++{key}"
    is_list = lists and "," in value
    if value in ("", "null") or re.fullmatch(r"""'.*'|".*\"""", value):
        return f"{key}={value}"
    if set(alternatives(fields_of(schema).get(key.lstrip("+")))) <= {str, NoneType} and not is_list:
        return f"{key}={quoted(value, always=True)}"
    if "->" in value and not {"'", '"'} & set(value):
        value = _SCHEDULE.sub(lambda match: f"'{match[0]}'", value)
    try:
        OverridesParser.create().parse_override(f"{key}={value}")
    except (HydraException, RecursionError):
        if not is_list and value[0] not in "[{(":
            value = quoted(value, always=True)
    return f"{key}={value}"


def plain_values(config: DictConfig, *, allow_missing: bool = False) -> dict[str, Any]:
    """Convert a composed config to nested dictionaries, and resolve its interpolations.

    Raises:
        ValueError: a required setting (`???`) has no value, unless `allow_missing`.
    """
    for name in [] if allow_missing else sorted(OmegaConf.missing_keys(config)):
        raise ValueError(f"{name} has no value, and no default: add {name}=... to the command")
    values: Any = OmegaConf.to_container(config, resolve=True, throw_on_missing=not allow_missing)
    return {str(name): value for name, value in values.items()}


def escaped(value: Any) -> Any:
    """Settings in which OmegaConf takes `${...}` as text, so that a checkpoint's settings read no environment variables."""
    if isinstance(value, dict):
        return {name: escaped(item) for name, item in value.items()}
    if isinstance(value, list):
        return [escaped(item) for item in value]
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", value) if isinstance(value, str) else value


def store_defaults() -> None:
    """Register the defaults of every command in Hydra's ConfigStore; configs/ holds only presets."""
    store = ConfigStore.instance().store
    train = to_dict(TrainConfig())
    store(group="value_net", name="default", node=to_dict(RogueNetConfig()))
    store(group="value_net", name="none", node={"value_net": train.pop("value_net")}, package="_global_")
    distributed = train.pop("distributed")
    for mode in ("none", "ray", "ddp"):
        store(group="distributed", name=mode, node=distributed | {"mode": mode})
    groups = {"value_net": "none", "distributed": "none", "env": "MineSweeper", "experiment": None}
    train["defaults"] = ["_self_", *({group: choice} for group, choice in groups.items())]
    # the rest comes from the preset, so that nothing of MineSweeper is left in another world
    train["env"] = {name: train["env"][name] for name in ("api", "view", "wrappers")}
    # the folder of each job of `--multirun` is `run_dir` inside this one
    train["hydra"] = {"sweep": {"dir": "${given:${run_dir},${run_dir},multirun/${now:%Y-%m-%d}/${now:%H-%M-%S}}"}}
    clone = {"data": MISSING, "clone": to_dict(CloningConfig())}
    sweep = {each.name: each.default for each in fields(SweepConfig)} | {"space": {}}
    of_sweep = {"defaults": ["train", "_self_", {"sweep": "ppo"}], "run_dir": "outputs/sweep_${env.id}", "sweep": sweep}
    store(name="train", node=train)
    store(name="clone", node={"defaults": ["train", "_self_"], **clone})
    store(name="sweep", node=of_sweep)
    store(name="eval", node=to_dict(EvalConfig(checkpoint=MISSING)))
    store(name="serve", node=to_dict(ServeConfig(checkpoint=MISSING)))
    store(name="watch", node=to_dict(WatchConfig(run=MISSING)))
