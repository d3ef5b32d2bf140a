"""Schedules of settings during training, and distributions. Schedules are written as values over progress: `0.001@0 -> 0@1`.

Progress is 0 at the start and 1 at the end of training: the larger fraction of `total_timesteps` and `max_train_seconds`. Between
two points the value moves linearly (`->`), along half a cosine (`cos`), or stays and then jumps (`step`); before the first point
and after the last it is constant.

On a command line, quote the argument, because shells interpret `>`: `'optim.lr=0.001@0 -> 0@1'`.

Distributions of an environment's parameters, `env.info`, are made of them:

- `num_mines: 3@0 -> 8@0.5`: the value of a schedule (rounded if all values of the schedule are whole numbers).
- `width: [5, 6, 8]`: a uniform choice.
- `speed: {low: 0.5, high: 1@0 -> 2@1}`: uniform, both ends included (a whole number if both ends are).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from rogue_net.checks import Range

Shape = Literal["->", "cos", "step"]
#: A constant number, or a schedule's text.
Scheduled = float | str

_GRAMMAR = "a schedule like `0.001@0 -> 0@1` (value@progress, joined by ->, cos or step)"


@dataclass(frozen=True)
class Schedule:
    """A piecewise function of progress.

    Attributes:
        points: (progress, value), progress ascending in [0, 1].
        shapes: interpolation from each point to the next, one fewer than the points.
    """

    points: tuple[tuple[float, float], ...]
    shapes: tuple[Shape, ...] = ()

    def __call__(self, progress: float) -> float:
        """The value at `progress`."""
        if progress <= self.points[0][0]:
            return self.points[0][1]
        for (start, low), (end, high), shape in zip(self.points, self.points[1:], self.shapes, strict=False):
            if progress < end:
                part = (progress - start) / (end - start)
                if shape == "step":
                    return low
                return low + (high - low) * (part if shape == "->" else (1 - math.cos(math.pi * part)) / 2)
        return self.points[-1][1]


def parse_schedule(field: str, value: object) -> Schedule:
    """Parse a schedule.

    Args:
        field: the setting's name, for messages.
        value: a number, which is constant, or a schedule's text.

    Raises:
        ValueError: the value is no schedule; the message has the field, the value and the syntax.
    """
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return Schedule(((0.0, float(value)),))
    if not isinstance(value, str):
        raise ValueError(f"{field} must be a number or {_GRAMMAR}, got {value!r}")
    parts = re.split(r"\s*(->|\bcos\b|\bstep\b)\s*", value.strip())
    points = []
    for text in parts[::2]:
        try:
            point, time = map(float, text.split("@"))
        except ValueError:
            point = time = math.nan
        if not math.isfinite(point + time):
            raise ValueError(f"{field} must be a number or {_GRAMMAR}, got {value!r}: {text!r} is no point")
        points.append((time, point))
    times = [time for time, _ in points]
    if not 0 <= times[0] <= times[-1] <= 1 or any(b <= a for a, b in zip(times, times[1:], strict=False)):
        raise ValueError(f"{field} must be {_GRAMMAR}, with progress rising within [0, 1], got {value!r}")
    return Schedule(tuple(points), tuple(parts[1::2]))  # type: ignore[arg-type]


@dataclass(frozen=True)
class ScheduleRange(Range):
    """The range of a number or of all values of a schedule: `Annotated[Scheduled, ScheduleRange(0, 1)]`."""

    def check(self, field: str, value: object, kind: object = float, *, optional: bool = False) -> None:
        """Check a number or a schedule.

        Raises:
            ValueError: a value is outside the range; the message has the field, the value and the range.
        """
        points = parse_schedule(field, value).points
        if not isinstance(value, str):
            return super().check(field, value, float, optional=optional)
        for _, point in points:
            try:
                super().check(field, point, float, optional=optional)
            except ValueError as error:
                raise ValueError(f"{error} (in {value!r})") from None


# ---- Distributions of an environment's parameters


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


def parse_distribution(field: str, given: Any) -> Distribution:
    """Parse a distribution.

    Raises:
        ValueError: it is invalid; the message has the field, the value and what is allowed.
    """
    if isinstance(given, list):
        if not given:
            raise ValueError(f"{field} must list at least one value to draw from, got []")
        return Distribution(choices=given)
    if not isinstance(given, dict):
        return Distribution(low=parse_schedule(field, given))
    if set(given) != {"low", "high"}:
        raise ValueError(f"{field} must be a mapping of low and high, got {given!r}")
    low, high = (parse_schedule(f"{field}.{end}", given[end]) for end in ("low", "high"))
    if any(low(time) > high(time) for schedule in (low, high) for time, _ in schedule.points):
        raise ValueError(f"{field} must have low at most high, got {given!r}")
    return Distribution(low=low, high=high)


def _is_whole(schedule: Schedule) -> bool:
    return all(value == int(value) for _, value in schedule.points)
