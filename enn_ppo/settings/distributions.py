"""Distributions of an environment's parameters, as the setting `env.info` writes them.

- `num_mines: 3@0 -> 8@0.5`: the value of a schedule over progress (rounded if all values of the schedule are whole numbers).
- `width: [5, 6, 8]`: a uniform choice.
- `speed: {low: 0.5, high: 1@0 -> 2@1}`: uniform, both ends included (a whole number if both ends are).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from enn_ppo.settings.schedule import Schedule, parse_schedule


@dataclass(frozen=True)
class Distribution:
    """The distribution of one parameter.

    Attributes:
        choices: values to choose from; empty: `low` and `high` are used.
        low: the smallest value.
        high: the largest value; None: `low` is the only value.
    """

    choices: Sequence[Any] = ()
    low: Schedule = Schedule(())
    high: Schedule | None = None

    def draw(self, progress: float, num_envs: int, rng: np.random.Generator) -> list[Any]:
        """Draw a value for each of `num_envs` environments, at training progress 0 to 1."""
        if self.choices:
            return [self.choices[i] for i in rng.integers(len(self.choices), size=num_envs)]
        smallest, whole = self.low(progress), _is_whole(self.low)
        if self.high is None:
            return [round(smallest) if whole else smallest] * num_envs
        largest = max(smallest, self.high(progress))
        if whole and _is_whole(self.high):
            values: list[Any] = rng.integers(round(smallest), round(largest) + 1, size=num_envs).tolist()
        else:
            values = rng.uniform(smallest, largest, size=num_envs).tolist()
        return values


def parse_distributions(where: str, given: Mapping[str, Any]) -> dict[str, Distribution]:
    """Parse a mapping of parameters to distributions.

    Raises:
        ValueError: a distribution is invalid; the message has the parameter, the value and what is allowed.
    """
    return {name: _parse(f"{where}.{name}", value) for name, value in given.items()}


def _parse(field: str, given: Any) -> Distribution:
    if isinstance(given, list):
        if not given:
            raise ValueError(f"{field} must list at least one value to draw from, got []")
        return Distribution(choices=given)
    if not isinstance(given, dict):
        return Distribution(low=parse_schedule(field, given))
    if set(given) != {"low", "high"}:
        raise ValueError(f"{field} must be a mapping of low and high, got {given!r}")
    low, high = (parse_schedule(f"{field}.{end}", given[end]) for end in ("low", "high"))
    if any(low(time) > high(time) for time in _times(low, high)):
        raise ValueError(f"{field} must have low at most high at all times, got {given!r}")
    return Distribution(low=low, high=high)


def _times(*schedules: Schedule) -> list[float]:
    """Progress values at which to compare schedules: a thousand, and just before and at every point, where steps jump."""
    points = [time for schedule in schedules for time, _ in schedule.points]
    return [*np.linspace(0, 1, 1001).tolist(), *points, *(math.nextafter(time, 0) for time in points)]


def _is_whole(schedule: Schedule) -> bool:
    return all(value == int(value) for _, value in schedule.points)
