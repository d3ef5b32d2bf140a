"""Every field's docstring: that it is there, that its default and its range are those of the class, and how it is read."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import Any, Literal

import pytest
import yaml

from enn_ppo.config import (
    EnvConfig,
    EvalConfig,
    LoggerConfig,
    OptimConfig,
    PPOConfig,
    RolloutConfig,
    SelfPlayConfig,
    TrainConfig,
    TrainEvalConfig,
    ValueOptimConfig,
)
from enn_ppo.options import Option, field_docstrings, help_text, sections_of
from enn_ppo.schedule import Scheduled
from enn_ppo.settings import to_dict
from rogue_net.config import RelposConfig, RogueNetConfig, TranslationConfig

SECTIONS: dict[str, Any] = {
    "env": EnvConfig(),
    "rollout": RolloutConfig(num_envs=4),
    "net": RogueNetConfig(),
    "net.relpos": RelposConfig(),
    "net.translation": TranslationConfig(),
    "optim": OptimConfig(),
    "value_optim": ValueOptimConfig(),
    "ppo": PPOConfig(advantages="n_step"),
    "eval": TrainEvalConfig(),
    "self_play": SelfPlayConfig(),
    "logger": LoggerConfig(),
    "": TrainConfig(),
}
EVALUATION = EvalConfig(checkpoint="a")


def options_of(cls: type[Any]) -> dict[str, Option]:
    return {option.name: option for section in sections_of(cls) for option in section.options}


TRAIN = {name: option for name, option in options_of(TrainConfig).items() if not name.startswith("value_net.")}
EVAL = options_of(EvalConfig)


# --- Truth ---


def test_no_section_is_left_out_here() -> None:
    assert {s.path for s in sections_of(TrainConfig) if not s.path.startswith("value_net")} == SECTIONS.keys()


@pytest.mark.parametrize("config", [*SECTIONS.values(), EVALUATION], ids=lambda config: type(config).__name__)
def test_every_docstring_ends_with_the_true_default(config: Any) -> None:
    docs = field_docstrings(type(config))
    for field in dataclasses.fields(config):
        if dataclasses.is_dataclass(getattr(config, field.name)):
            continue
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            assert docs[field.name].endswith(" Required."), field.name
            continue
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        told = re.search(r"(?:^|\. )Default:? ([^:]+?)(?:: .+)?\.$", docs[field.name])
        assert told, f"{field.name}: {docs[field.name]}"
        assert value_told(told[1]) == (list(default) if isinstance(default, tuple) else default), docs[field.name]


def value_told(text: str) -> object:
    """What `500,000`, `2e-3`, `none` (an empty mapping) or a word in backticks stands for."""
    if text.startswith("`"):
        return text.strip("`")
    if text == "none":
        return {}
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return yaml.safe_load(text)


@pytest.mark.parametrize("name", [name for name, option in (TRAIN | EVAL).items() if is_a_number(option)] if False else [
    name for name, option in (TRAIN | EVAL).items() if re.search(r"\b(integer|number)\b", option.type)
])
def test_what_a_docstring_calls_out_of_range_is_refused_and_the_end_of_the_range_is_not(name: str) -> None:
    option = TRAIN[name] if name in TRAIN else EVAL[name]
    section, _, field = name.rpartition(".")
    config = SECTIONS[section] if name in TRAIN else EVALUATION
    allowed, refused = ends(option)
    assert refused, f"{name} says no range: {option}"
    for value in refused:
        with pytest.raises(ValueError, match=rf"^{re.escape(name)} must be an? (integer|number)"):
            dataclasses.replace(config, **{field: value})
    for value in allowed:
        assert accepted(config, field, value), f"{name}={value}"


def ends(option: Option) -> tuple[list[float], list[float]]:
    """The last values inside of the range that an option names, and the first outside."""
    step = 1 if option.type.startswith("integer") else 1e-6
    allowed, refused = [], []
    if low := re.match(r"(at least|greater than) ([\d.]+)", option.range):
        inside = low[1] == "at least"
        allowed.append(float(low[2]) + (0 if inside else step))
        refused.append(float(low[2]) - (step if inside else 0))
    if high := re.search(r"below ([\d.]+)", option.range):
        allowed.append(float(high[1]) - step)
        refused.append(float(high[1]))
    if both := re.match(r"in ([\[(])(\d+), (\d+)([\])])", option.range):
        allowed += [float(both[2]) + (0 if both[1] == "[" else step), float(both[3]) - (0 if both[4] == "]" else step)]
        refused += [float(both[2]) - (step if both[1] == "[" else 0), float(both[3]) + (step if both[4] == "]" else 0)]
    if not refused and option.range == "at least `rollout.num_envs`":
        allowed, refused = [SECTIONS[""].rollout.num_envs], [0]
    whole = option.type.startswith("integer")
    return ([int(v) for v in allowed], [int(v) for v in refused]) if whole else (allowed, refused)


def accepted(config: Any, field: str, value: float) -> bool:
    """Whether the value itself is; another setting may still be against it (`net.d_model=1` with two heads)."""
    try:
        dataclasses.replace(config, **{field: value})
    except ValueError as error:
        return not re.search(rf"{field} must be an? (integer|number)", str(error))
    return True


def test_lists_of_whole_numbers_say_what_each_must_be() -> None:
    assert TRAIN["net.relpos.extent"].range == "each at least 1"
    with pytest.raises(ValueError, match=r"net\.relpos\.extent must be an integer of at least 1, got 0"):
        RelposConfig(extent=[0])


# --- Reading ---


@dataclass(frozen=True, kw_only=True)
class Wheels:
    """What it rolls on. Nothing else."""

    count: int = 4
    """How many. At least 2, typically 4; more is dearer. Default 4."""
    kind: Literal["steel", "wood"] = "wood"
    """What they are made of: `steel` | `wood`. Default `wood`: it is cheap."""
    sizes: tuple[float, ...] | None = None if False else None
    """Centimetres. Default null."""


@dataclass(frozen=True, kw_only=True)
class Cart:
    """A cart."""

    wheels: Wheels = dataclasses.field(default_factory=Wheels)
    """Its wheels."""
    spare: Wheels | None = None
    """Wheels to change to; null: none. Default null."""
    speed: Scheduled = 1e-3
    """Speed, in metres per second; 0: it stands. In [0, 30). Default 1e-3."""
    load: dict[str, Any] = dataclasses.field(default_factory=dict)
    """What it carries. Default: none."""
    owner: str
    """Whose it is. Required."""
