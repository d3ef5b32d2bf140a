"""The search space of a sweep: settings of training and their ranges."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from enn_ppo.settings.config import TrainConfig
from enn_ppo.settings.schema import setting_names, unknown_setting
from entity_gym.errors import nearest

if TYPE_CHECKING:
    import optuna

Scale = Literal["linear", "log", "integer", "power_of_two", "one_minus", "choice"]

_FIXED = ("run_dir", "resume", "overwrite", "trust", "seed", "debug")  # the sweep sets them, trial by trial
_OPEN = ("env.kwargs.", "env.info.", "eval.env_kwargs.")  # accept any name
_EXAMPLES = "{scale: log, low: 1e-4, high: 1e-2} or a list of choices"


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
            `one_minus`: ln (1 - x) uniform, for values close to 1, such as discounts.
            `choice`: one of `choices`.
        low: smallest value.
        high: largest value.
        choices: values as written on the command line.
    """

    name: str
    scale: Scale
    low: float = 0.0
    high: float = 0.0
    choices: tuple[str, ...] = ()

    def suggest(self, trial: optuna.Trial) -> str:
        """Let a trial draw a value. Returns the command line argument that sets it, for example `optim.lr=0.001`."""
        return f"{self.name}={self._draw(trial)}"

    def _draw(self, trial: optuna.Trial) -> str:
        match self.scale:
            case "choice":
                return str(trial.suggest_categorical(self.name, self.choices))
            case "integer":
                return str(trial.suggest_int(self.name, int(self.low), int(self.high)))
            case "power_of_two":
                power = trial.suggest_int(f"log2 {self.name}", round(math.log2(self.low)), round(math.log2(self.high)))
                return str(2**power)
            case "one_minus":
                distance = trial.suggest_float(f"1 - {self.name}", 1 - self.high, 1 - self.low, log=True)
                return f"{1 - float(f'{distance:.6g}'):.12g}"
            case _:  # six digits are precise enough, and readable
                return f"{trial.suggest_float(self.name, self.low, self.high, log=self.scale == 'log'):.6g}"


def parse_space(space: Mapping[str, Any]) -> list[Parameter]:
    """Parse a search space, written as `setting: {scale: ..., low: ..., high: ...}` or `setting: [a, b]`.

    Raises:
        ValueError: a parameter is invalid; the message names it, the value and the allowed values.
    """
    if not isinstance(space, Mapping) or not space:
        raise ValueError(f"sweep.space must say which settings are varied, each as {_EXAMPLES}, got {space!r}")
    return [_parameter(str(name), value) for name, value in space.items()]


def check_names(parameters: Sequence[Parameter], groups: Sequence[str]) -> None:
    """Check that every parameter is a setting of training.

    Args:
        parameters: of the sweep.
        groups: Hydra's groups, which are allowed as well.

    Raises:
        ValueError: a parameter is no setting; the message names the nearest one.
    """
    names = setting_names(TrainConfig)
    for name in (parameter.name for parameter in parameters):
        if name in _FIXED:
            raise ValueError(f"{name} cannot stand in sweep.space: the sweep sets it for each run (seeds: sweep.seeds)")
        if name in groups or name.startswith(_OPEN):
            continue
        if name not in names:
            raise ValueError(f"sweep.space: {unknown_setting(name, [*names, *groups])}")
        inside = [setting for setting in names if setting.startswith(f"{name}.")]
        if inside:
            raise ValueError(f"sweep.space: {name} is a section; vary its settings, such as {inside[0]}")


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
    needs = {
        "log": (low > 0, "a log scale needs low > 0"),
        "one_minus": (high < 1, "the scale one_minus needs high < 1"),
        "integer": (low.is_integer() and high.is_integer(), "the scale integer needs whole numbers"),
        "power_of_two": (
            all(end >= 1 and math.frexp(end)[0] == 0.5 for end in (low, high)),
            "the scale power_of_two needs powers of two, 1 or more",
        ),
    }
    for fits, problem in (needs.get(scale, (True, "")), (low < high, "low must be less than high")):
        if not fits:
            raise ValueError(f"{field}: {problem}, got low={low:g}, high={high:g}")
    return Parameter(name, scale, low, high)


def _number(field: str, value: object) -> float:
    """Convert to a number, also from a text such as `1e-4`, which YAML 1.1 does not read as a number."""
    try:
        number = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else math.nan
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{field} must be a number, got {value!r}")
    return number


def _choice(field: str, value: object) -> str:
    """Format a value for the command line."""
    if value is None or isinstance(value, bool | int | float):
        return json.dumps(value)
    if isinstance(value, str):
        plain = re.fullmatch(r"[\w.@/:+-]+", value)
        return value if plain else "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    if isinstance(value, list):
        return "[" + ",".join(_choice(field, item) for item in value) + "]"
    raise ValueError(f"{field}: a choice must be a number, a text, true, false, null or a list, got {value!r}")
