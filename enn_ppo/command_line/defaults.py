"""Defaults of the settings classes, as configs for Hydra."""

from __future__ import annotations

import dataclasses
from typing import Any, get_type_hints

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING

from enn_ppo.cloning.config import CloneConfig
from enn_ppo.config import EvalConfig, TrainConfig
from enn_ppo.settings.schema import plain, section_of
from enn_ppo.settings.serving import ServeConfig
from enn_ppo.tuning.config import SweepConfig
from rogue_net.config import RogueNetConfig

#: Sections of training with a group each, which has the choice `default` and those of configs/<section>, of which there are
#: none so far, and of the user's own folder.
_SECTIONS = ("rollout", "net", "optim", "value_optim", "ppo", "eval", "self_play", "logger")


def store_defaults() -> None:
    """Register the defaults of every command in Hydra's ConfigStore; the folder configs/ holds presets only."""
    store = ConfigStore.instance().store
    train = defaults_of(TrainConfig)
    for section in _SECTIONS:
        store(group=section, name="default", node=train.pop(section))
    store(group="value_net", name="default", node=defaults_of(RogueNetConfig))
    store(group="value_net", name="none", node={"value_net": train.pop("value_net")}, package="_global_")
    distributed = train.pop("distributed")
    for mode in ("none", "ray", "ddp"):
        store(group="distributed", name=mode, node=distributed | {"mode": mode})
    groups: list[Any] = [{section: "default"} for section in _SECTIONS]
    groups += [{"value_net": "none"}, {"distributed": "none"}, "_self_", {"env": "MineSweeper"}, {"experiment": None}]
    store(name="train", node={"defaults": groups, **train, "env": {"api": train["env"]["api"]}})
    own = {field.name for field in dataclasses.fields(CloneConfig)} - {f.name for f in dataclasses.fields(TrainConfig)}
    clone = {name: value for name, value in defaults_of(CloneConfig).items() if name in own}
    store(name="clone", node={"defaults": ["train", "_self_"], **clone})
    store(name="eval", node=defaults_of(EvalConfig))
    store(name="serve", node=defaults_of(ServeConfig))
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
