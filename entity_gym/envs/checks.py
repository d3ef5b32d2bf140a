"""Refusing parameters in the same words everywhere."""

from __future__ import annotations

from typing import Any


def check_range(env: str, p: Any, name: str, least: float, most: float | None = None) -> None:
    """Check one parameter of an environment.

    Args:
        env: the environment's name, for the message.
        p: holds the parameters as attributes.
        name: which parameter.
        least: its smallest value.
        most: its largest value; None for no limit.

    Raises:
        ValueError: if it lies outside.
    """
    value = getattr(p, name)
    if value < least or (most is not None and value > most):
        kind = "a whole number" if isinstance(least, int) else "a number"
        allowed = f"from {least} to {most}" if most is not None else f">= {least}"
        raise ValueError(f"{env}: {name}={value!r}; it must be {kind} {allowed}")
