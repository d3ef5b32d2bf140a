"""The search space of a sweep: settings of training, and how their values are drawn."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from enn_ppo.settings.config import TrainConfig
from enn_ppo.settings.schema import quoted, setting_names, unknown_setting
from entity_gym.errors import nearest

if TYPE_CHECKING:
    import optuna

_SCALES = {
    "linear": "finite numbers",
    "log": "numbers above 0",
    "integer": "whole numbers",
    "power_of_two": "powers of two, 1 or more",
    "one_minus": "numbers below 1",
}
_FIXED = "run_dir resume overwrite trust seed total_timesteps max_train_seconds".split()  # all trials have the same
_OPEN = ("env.kwargs.", "env.info.", "eval.env_kwargs.")  # accept any name
_EXAMPLES = "{scale: log, low: 1e-4, high: 1e-2} or a list of choices"


def suggest(trial: optuna.Trial, name: str, given: Any) -> str:
    """Let a trial draw a value of one parameter. Returns the argument that sets it, for example `optim.lr=0.001`."""
    if isinstance(given, list):
        return f"{name}={trial.suggest_categorical(name, [quoted(choice, name) for choice in given])}"
    low, high = float(given["low"]), float(given["high"])
    match given.get("scale", "linear"):
        case "integer":
            return f"{name}={trial.suggest_int(name, int(low), int(high))}"
        case "power_of_two":
            return f"{name}={2 ** trial.suggest_int(f'log2 {name}', int(math.log2(low)), int(math.log2(high)))}"
        case "one_minus":  # uniform in ln (1 - x), for values close to 1, such as discounts
            distance = trial.suggest_float(f"1 - {name}", 1 - high, 1 - low, log=True)
            return f"{name}={1 - float(f'{distance:.6g}'):.12g}"
        case scale:  # six digits are precise enough, and readable
            return f"{name}={trial.suggest_float(name, low, high, log=scale == 'log'):.6g}"


def check_space(space: Mapping[str, Any]) -> None:
    """Check a search space, written as `setting: {scale: ..., low: ..., high: ...}` or `setting: [a, b]`.

    Raises:
        ValueError: a parameter is invalid; the message names it, the value and the allowed values.
    """
    if not isinstance(space, Mapping) or not space:
        raise ValueError(f"sweep.space must say which settings are varied, each as {_EXAMPLES}, got {space!r}")
    known = [*setting_names(TrainConfig), "experiment"]
    for name, given in space.items():
        if name in _FIXED:
            raise ValueError(f"{name} cannot stand in sweep.space: all trials have the same (seeds: sweep.seeds)")
        if name not in known and not name.startswith(_OPEN):
            raise ValueError(f"sweep.space: {unknown_setting(name, known)}")
        if isinstance(given, list):
            choices = {quoted(choice, f"sweep.space: {name}") for choice in given}
            if len(choices) < max(2, len(given)):
                raise ValueError(f"sweep.space: {name} needs two or more choices that differ, got {given!r}")
        elif not isinstance(given, Mapping) or not {"low", "high"} <= set(given) <= {"scale", "low", "high"}:
            raise ValueError(f"sweep.space: {name} must be {_EXAMPLES}, got {given!r}")
        else:
            _check_range(f"sweep.space: {name}", given)


def _check_range(field: str, given: Mapping[str, Any]) -> None:
    scale = given.get("scale", "linear")
    if scale not in _SCALES:
        raise ValueError(f"{field}.scale is {scale!r}; {nearest(scale, _SCALES)}")
    try:
        low, high = float(given["low"]), float(given["high"])  # YAML 1.1 reads 1e-4 as a text
    except (TypeError, ValueError):
        low = high = math.nan
    whole = low.is_integer() and high.is_integer()
    powers = low >= 1 and math.frexp(low)[0] == math.frexp(high)[0] == 0.5
    fits = {"log": low > 0, "integer": whole, "power_of_two": powers, "one_minus": high < 1}.get(scale, True)
    if not (fits and low < high and math.isfinite(high - low)):
        raise ValueError(f"{field}: the scale {scale} needs {_SCALES[scale]}, low less than high, got {given!r}")
