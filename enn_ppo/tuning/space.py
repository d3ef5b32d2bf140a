"""What a sweep varies: settings of training, each with the values that it may take."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

from enn_ppo.config import TrainConfig
from enn_ppo.settings.schema import setting_names, unknown_setting
from entity_gym.errors import nearest

Scale = Literal["linear", "log", "integer", "power_of_two", "one_minus", "choice"]

_FIXED = ("run_dir", "resume", "overwrite", "seed", "debug")  # the sweep's own business, trial by trial
_OPEN = ("env.kwargs.", "env.info.", "eval.env_kwargs.")  # take any name
_EXAMPLES = "{scale: log, low: 1e-4, high: 1e-2} or a list of choices"


class Suggests(Protocol):
    """The part of an Optuna trial that is used here."""

    def suggest_float(self, name: str, low: float, high: float, *, log: bool = False) -> float: ...

    def suggest_int(self, name: str, low: int, high: int) -> int: ...

    def suggest_categorical(self, name: str, choices: Sequence[str]) -> Any: ...


@dataclass(frozen=True)
class Parameter:
    """One setting that is varied.

    Attributes:
        name: dotted name of a setting of training, or a group such as `value_net`.
        scale: how values are drawn between `low` and `high`, both included.
            `linear`: x uniform.
            `log`: ln x uniform.
            `integer`: whole numbers.
            `power_of_two`: 2^k, k a whole number.
            `one_minus`: ln (1 - x) uniform, for what is close to 1, as discounts are.
            `choice`: one of `choices`.
        low: smallest value.
        high: largest value.
        choices: as texts of the command line.
    """

    name: str
    scale: Scale
    low: float = 0.0
    high: float = 0.0
    choices: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """What is drawn, and under which name the study holds it."""
        return {"power_of_two": f"log2 {self.name}", "one_minus": f"1 - {self.name}"}.get(self.scale, self.name)

    def suggest(self, trial: Suggests) -> str:
        """Let a trial draw a value; the argument of the command line that sets it, for example `optim.lr=0.001`."""
        return f"{self.name}={self._text(trial)}"

    def _text(self, trial: Suggests) -> str:
        match self.scale:
            case "choice":
                return str(trial.suggest_categorical(self.label, self.choices))
            case "integer":
                return str(trial.suggest_int(self.label, int(self.low), int(self.high)))
            case "power_of_two":
                return str(2 ** trial.suggest_int(self.label, round(math.log2(self.low)), round(math.log2(self.high))))
            case "one_minus":
                drawn = trial.suggest_float(self.label, 1 - self.high, 1 - self.low, log=True)
                return f"{1 - float(f'{drawn:.6g}'):.12g}"
            case _:  # six digits are as good as sixteen, and can be read
                return f"{trial.suggest_float(self.label, self.low, self.high, log=self.scale == 'log'):.6g}"


def parse_space(space: Mapping[str, Any]) -> list[Parameter]:
    """The parameters that a sweep's file writes as `setting: {scale: ..., low: ..., high: ...}` or `setting: [a, b]`.

    Raises:
        ValueError: naming the parameter, what was given and what is allowed.
    """
    if not isinstance(space, Mapping) or not space:
        raise ValueError(f"sweep.space must say which settings are varied, each as {_EXAMPLES}, got {space!r}")
    return [_parameter(str(name), value) for name, value in space.items()]


def check_names(parameters: Sequence[Parameter], groups: Sequence[str]) -> None:
    """Check that every parameter is a setting of training.

    Args:
        parameters: of the sweep.
        groups: of Hydra, whose choices may be varied, too.

    Raises:
        ValueError: with the nearest setting.
    """
    names = setting_names(TrainConfig)
    sections = {name.rpartition(".")[0] for name in names}
    for name in (parameter.name for parameter in parameters):
        if name in _FIXED:
            raise ValueError(f"{name} cannot stand in sweep.space: the sweep sets it for each run (seeds: sweep.seeds)")
        if name not in names and name not in groups and not name.startswith(_OPEN):
            raise ValueError(f"sweep.space: {unknown_setting(name, [*names, *groups])}")
        if name in sections and name not in groups:
            raise ValueError(f"sweep.space: {name} is a section; vary its settings, such as {_first_of(name, names)}")


def _first_of(section: str, names: Sequence[str]) -> str:
    return next(name for name in names if name.startswith(f"{section}."))


def _parameter(name: str, given: object) -> Parameter:
    field = f"sweep.space: {name}"
    if isinstance(given, Mapping) and set(given) == {"choices"}:
        given = given["choices"]
    if isinstance(given, list | tuple):
        choices = tuple(_choice(field, choice) for choice in given)
        if len(set(choices)) < 2 or len(set(choices)) < len(choices):
            raise ValueError(f"{field} needs two or more choices that differ, got {list(given)!r}")
        return Parameter(name, "choice", choices=choices)
    if not isinstance(given, Mapping) or not {"low", "high"} <= set(given):
        raise ValueError(f"{field} must be {_EXAMPLES}, got {given!r}")
    if unknown := sorted(set(given) - {"scale", "low", "high"}):
        raise ValueError(
            f"{field}.{unknown[0]} is not known; {nearest(unknown[0], ['scale', 'low', 'high', 'choices'])}"
        )
    scales = [scale for scale in get_args(Scale) if scale != "choice"]
    scale = given.get("scale", "linear")
    if scale not in scales:
        raise ValueError(f"{field}.scale is {scale!r}; {nearest(scale, scales)}")
    low, high = _number(f"{field}.low", given["low"]), _number(f"{field}.high", given["high"])
    _check_range(field, scale, low, high)
    return Parameter(name, scale, low, high)


def _check_range(field: str, scale: str, low: float, high: float) -> None:
    problem = "" if low < high else "low must be less than high"
    if scale == "log" and low <= 0:
        problem = "a log scale needs low > 0"
    elif scale == "one_minus" and high >= 1:
        problem = "the scale one_minus needs high < 1"
    elif scale == "integer" and not (low.is_integer() and high.is_integer()):
        problem = "the scale integer needs whole numbers"
    elif scale == "power_of_two" and not (_is_power_of_two(low) and _is_power_of_two(high)):
        problem = "the scale power_of_two needs powers of two, 1 or more"
    if problem:
        raise ValueError(f"{field}: {problem}, got low={low:g}, high={high:g}")


def _is_power_of_two(value: float) -> bool:
    return value >= 1 and math.frexp(value)[0] == 0.5


def _number(field: str, value: object) -> float:
    """A number, also where YAML 1.1 reads `1e-4` as a text."""
    try:
        number = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else math.nan
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{field} must be a number, got {value!r}")
    return number


def _choice(field: str, value: object) -> str:
    """A value as the command line writes it."""
    if value is None or isinstance(value, bool | int | float):
        return json.dumps(value)
    if isinstance(value, str) and re.fullmatch(r"[\w.@/:+-]+", value):
        return value
    if isinstance(value, str):
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    if isinstance(value, list):
        return "[" + ",".join(_choice(field, item) for item in value) + "]"
    raise ValueError(f"{field}: a choice must be a number, a text, true, false, null or a list, got {value!r}")
