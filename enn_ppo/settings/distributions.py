"""Distributions of an environment's parameters, as the setting `env.info` writes them.

- `num_mines: 3@0 -> 8@0.5`: the value of a schedule over progress (a whole number where all its values are).
- `width: [5, 6, 8]`: one of them.
- `speed: {low: 0.5, high: 1@0 -> 2@1}`: uniform, both ends included (a whole number where both ends are).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from enn_ppo.settings.schedule import Schedule, parse_schedule
from enn_ppo.settings.schema import plain

Distribution = float | str | list[Any] | dict[str, float | str]


def check_distributions(where: str, distributions: object) -> dict[str, Distribution]:
    """A plain copy of what `env.info` says.

    Raises:
        ValueError: naming the parameter, what was given and what is allowed.
    """
    if not isinstance(distributions, Mapping):
        raise ValueError(f"{where} must be a mapping of parameters to distributions, got {distributions!r}")
    checked: dict[str, Distribution] = plain(distributions, where)
    for name, given in checked.items():
        field = f"{where}.{name}"
        if isinstance(given, list):
            if not given:
                raise ValueError(f"{field} must list at least one value to draw from, got []")
        elif isinstance(given, dict):
            if set(given) != {"low", "high"}:
                raise ValueError(f"{field} must be a mapping of low and high, got {given!r}")
            low, high = (parse_schedule(f"{field}.{end}", given[end]) for end in ("low", "high"))
            if any(low(time) > high(time) for time in _times(low, high)):
                raise ValueError(f"{field} must have low at most high at all times, got {given!r}")
        else:
            parse_schedule(field, given)
    return checked


def draw_parameters(
    distributions: Mapping[str, Distribution], progress: float, num_envs: int, rng: np.random.Generator
) -> dict[str, list[Any]]:
    """Draw each environment's parameters.

    Args:
        distributions: as `check_distributions` returned them.
        progress: of the training, 0 to 1.
        num_envs: N.
        rng: source of the draws.

    Returns:
        Parameter -> N values, as `VecEnv.configure` takes them.
    """
    return {name: _draw(given, progress, num_envs, rng) for name, given in distributions.items()}


def _draw(given: Distribution, progress: float, num_envs: int, rng: np.random.Generator) -> list[Any]:
    if isinstance(given, list):
        return [given[i] for i in rng.integers(len(given), size=num_envs)]
    if isinstance(given, dict):
        low, high = (parse_schedule(end, given[end]) for end in ("low", "high"))
        smallest, largest = low(progress), max(low(progress), high(progress))
        if _is_whole(low) and _is_whole(high):
            values: list[Any] = rng.integers(round(smallest), round(largest) + 1, size=num_envs).tolist()
        else:
            values = rng.uniform(smallest, largest, size=num_envs).tolist()
        return values
    schedule = parse_schedule("value", given)
    value = schedule(progress)
    return [round(value) if _is_whole(schedule) else value] * num_envs


def _times(*schedules: Schedule) -> list[float]:
    """Where to compare schedules: at a thousand times, and just before and at every point, where steps jump."""
    points = [time for schedule in schedules for time, _ in schedule.points]
    return [*np.linspace(0, 1, 1001).tolist(), *points, *(math.nextafter(time, 0) for time in points)]


def _is_whole(schedule: Schedule) -> bool:
    return all(value == int(value) for _, value in schedule.points)
