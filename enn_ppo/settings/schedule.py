"""Schedules of settings during training, written as values over progress: `0.001@0 -> 0@1`.

Progress is 0 at the start and 1 at the end of training: the larger fraction of `total_timesteps` and `max_train_seconds`. Between
two points the value moves linearly (`->`), along half a cosine (`cos`), or stays and then jumps (`step`); before the first point
and after the last it is constant.

On a command line, quote the argument, because shells interpret `>`: `'optim.lr=0.001@0 -> 0@1'`.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Annotated, Literal

from rogue_net.checks import Range

Shape = Literal["->", "cos", "step"]
#: A constant number, or a schedule's text.
Scheduled = float | str

_POINT = re.compile(r"([^\s@]+)\s*@\s*([^\s@]+)")
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


def parse_schedule(field: str, value: object, *, decays: bool = False) -> Schedule:
    """Parse a schedule.

    Args:
        field: the setting's name, for messages.
        value: a number, or a schedule's text.
        decays: whether a plain number falls linearly to 0 (settings named `anneal_...`) instead of being constant; has no effect
            on a schedule's text.

    Raises:
        ValueError: the value is no schedule; the message has the field, the value and the syntax.
    """
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        start = (0.0, float(value))
        return Schedule((start, (1.0, 0.0)), ("->",)) if decays else Schedule((start,))
    if not isinstance(value, str):
        raise ValueError(f"{field} must be a number or {_GRAMMAR}, got {value!r}")
    parts = re.split(r"\s*(->|\bcos\b|\bstep\b)\s*", value.strip())
    points = []
    for text in parts[::2]:
        point = _read_point(text)
        if point is None:
            raise ValueError(f"{field} must be a number or {_GRAMMAR}, got {value!r}: {text!r} is no point")
        points.append(point)
    times = [time for time, _ in points]
    if not all(0 <= time <= 1 for time in times) or any(b <= a for a, b in zip(times, times[1:], strict=False)):
        raise ValueError(f"{field} must be {_GRAMMAR}, with progress rising within [0, 1], got {value!r}")
    return Schedule(tuple(points), tuple(parts[1::2]))  # type: ignore[arg-type]


def _read_point(text: str) -> tuple[float, float] | None:
    """(progress, value) of `value@progress`, both finite; None if the text is no point."""
    parts = _POINT.fullmatch(text)
    if parts is None:
        return None
    try:
        value, progress = float(parts[1]), float(parts[2])
    except ValueError:
        return None
    return (progress, value) if math.isfinite(value) and math.isfinite(progress) else None


@dataclass(frozen=True)
class ScheduleRange(Range):
    """The range of a number or of all values of a schedule: `Annotated[Scheduled, ScheduleRange(0, 1)]`."""

    closed: bool = False  # whether a schedule's values may equal the open ends

    def check(self, field: str, value: object, kind: object = float, *, optional: bool = False) -> None:
        """Check a number or a schedule.

        Raises:
            ValueError: a value is outside the range; the message has the field, the value and the range.
        """
        points = parse_schedule(field, value).points
        if not isinstance(value, str):
            return super().check(field, value, float, optional=optional)
        range_ = Range(self.low, self.high) if self.closed else self
        for _, point in points:
            try:
                Range.check(range_, field, point, float, optional=optional)
            except ValueError as error:
                raise ValueError(f"{error} (in {value!r})") from None


#: Greater than 0; a schedule may reach 0.
LearningRate = Annotated[Scheduled, ScheduleRange(0, open_low=True, closed=True)]
