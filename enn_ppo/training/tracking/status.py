"""How far a training is, and its numbers as text."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Status", "clock_text", "number_text"]


class Status(NamedTuple):
    """How far the training is.

    Attributes:
        step: environment steps trained.
        total: environment steps when the training is done, at least `step`.
        rate: steps per second since the run was started or resumed; None: not known yet.
        left: seconds until the training is done; None: not known yet.
        fraction: part of the training that is done, in [0, 1], by steps or by the limit of time, whichever is nearer to its end.
        played: part of a long rollout that is played, in [0, 1]; None between rollouts, and in short ones.
    """

    step: int
    total: int
    rate: float | None
    left: float | None
    fraction: float
    played: float | None = None


def number_text(value: float | None, form: str) -> str:
    """Format a number; None is "-"."""
    return "-" if value is None else format(value, form)


def clock_text(seconds: float | None) -> str:
    """Format a duration as "mm:ss", "h:mm:ss", or "1d 02:03:04"; None is "-"."""
    if seconds is None:
        return "-"
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days}d {hour:02}:{minute:02}:{second:02}"
    return f"{hour}:{minute:02}:{second:02}" if hour else f"{minute:02}:{second:02}"
