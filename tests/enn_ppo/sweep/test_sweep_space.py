"""What a sweep may vary, and how a file writes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from enn_ppo.sweep.config import SweepConfig
from enn_ppo.sweep.space import check_space, suggest


class Draws:
    """A trial that draws the lowest or the highest, and remembers between what."""

    def __init__(self, *, highest: bool = False) -> None:
        self.asked: dict[str, tuple[Any, ...]] = {}
        self._highest = highest

    def suggest_float(self, name: str, low: float, high: float, *, log: bool = False) -> float:
        self.asked[name] = (low, high, log)
        return high if self._highest else low

    def suggest_int(self, name: str, low: int, high: int) -> int:
        self.asked[name] = (low, high)
        return high if self._highest else low

    def suggest_categorical(self, name: str, choices: Sequence[str]) -> str:
        self.asked[name] = tuple(choices)
        return choices[-1 if self._highest else 0]


@pytest.mark.parametrize(
    ("given", "low", "high", "asked"),
    [
        ({"low": 0.25, "high": 1}, "0.25", "1", {"optim.lr": (0.25, 1.0, False)}),
        ({"scale": "log", "low": "1e-4", "high": 0.01}, "0.0001", "0.01", {"optim.lr": (1e-4, 0.01, True)}),
        ({"scale": "integer", "low": 1, "high": 6}, "1", "6", {"optim.lr": (1, 6)}),
        ({"scale": "power_of_two", "low": 32, "high": 512}, "32", "512", {"log2 optim.lr": (5, 9)}),
        ([None, True, 3, 0.5, "default"], "null", "default", {"optim.lr": ("null", "true", "3", "0.5", "default")}),
        ([[5, 5], {"a": 7}], "[5,5]", "{a:7}", {"optim.lr": ("[5,5]", "{a:7}")}),
        (["0.1@0 -> 0@1", "it's"], "'0.1@0 -> 0@1'", r"'it\'s'", {"optim.lr": ("'0.1@0 -> 0@1'", r"'it\'s'")}),
    ],
)
def test_each_scale_draws_what_it_says(given: object, low: str, high: str, asked: dict[str, Any]) -> None:
    check_space({"optim.lr": given})
    lowest, highest = Draws(), Draws(highest=True)
    assert suggest(lowest, "optim.lr", given) == f"optim.lr={low}"  # type: ignore[arg-type]
    assert suggest(highest, "optim.lr", given) == f"optim.lr={high}"  # type: ignore[arg-type]
    assert lowest.asked == asked


def test_one_minus_draws_the_distance_to_one_on_a_log_scale() -> None:
    trial = Draws(highest=True)  # 0.9 to 0.999 is a distance of 0.1 to 0.001
    assert suggest(trial, "ppo.gamma", {"scale": "one_minus", "low": 0.9, "high": 0.999}) == "ppo.gamma=0.9"  # type: ignore[arg-type]
    assert trial.asked == {"1 - ppo.gamma": (pytest.approx(0.001), pytest.approx(0.1), True)}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (3, r"optim\.lr must be \{scale: log.*or a list of choices, got 3"),
        ({"low": 1}, r"optim\.lr must be \{scale"),
        ({"low": 1, "high": 2, "sclae": "log"}, r"optim\.lr must be \{scale.*sclae"),
        ({"low": 1, "high": 2, "scale": "lgo"}, r"optim\.lr\.scale is 'lgo'; allowed: 'linear'.*did you mean 'log'\?"),
        (
            {"low": 2, "high": 1},
            r"optim\.lr: the scale linear needs finite numbers, low less than high, got \{'low': 2",
        ),
        ({"low": 0, "high": 1, "scale": "log"}, r"log needs numbers above 0"),
        ({"low": 0, "high": 1, "scale": "one_minus"}, r"one_minus needs numbers below 1"),
        ({"low": 0.5, "high": 2, "scale": "integer"}, r"integer needs whole numbers"),
        ({"low": 3, "high": 8, "scale": "power_of_two"}, r"power_of_two needs powers of two"),
        ({"low": "much", "high": 8}, r"needs finite numbers.*'much'"),
        ([1], r"optim\.lr needs two or more choices that differ, got \[1\]"),
        ([1, 1], r"optim\.lr needs two or more choices that differ"),
    ],
)
def test_a_mistake_in_a_space_names_the_parameter(given: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_space({"optim.lr": given})


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("optim.lrr", r"optim\.lrr is not a setting.*did you mean 'optim\.lr'\?"),
        ("lr", r"lr is not a setting.*did you mean 'optim\.lr'\?"),
        ("seed", r"seed cannot stand in sweep\.space.*sweep\.seeds"),
        ("run_dir", r"run_dir cannot stand"),
    ],
)
def test_what_cannot_be_varied_is_named(name: str, message: str) -> None:
    check_space({name: [1, 2] for name in ("optim.lr", "value_net", "env.kwargs.size", "experiment")})
    with pytest.raises(ValueError, match=message):
        check_space({name: [1, 2]})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"space": {}}, r"sweep\.space must say which settings are varied"),
        ({"pruner": "medain"}, r"sweep\.pruner is 'medain'.*did you mean 'median'\?"),
    ],
)
def test_a_mistake_in_a_setting_of_the_sweep_names_it(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SweepConfig(**{"space": {"optim.lr": [1, 2]}, **changes})
