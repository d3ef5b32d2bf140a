"""Checks of single settings: each raises a ValueError with the field, what was given, and what is allowed."""

from __future__ import annotations

import math
from collections.abc import Sequence

from entity_gym.errors import nearest


def check_int(field: str, value: object, minimum: int, *, optional: bool = False) -> None:
    """Check a whole number.

    Args:
        field: the dotted name of the setting, for the message.
        value: what was given.
        minimum: the smallest value allowed.
        optional: whether None is allowed too.

    Raises:
        ValueError: with the field, the value and what is allowed.
    """
    if optional and value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        allowed = f"an integer of at least {minimum}" + (" or null" if optional else "")
        raise ValueError(f"{field} must be {allowed}, got {value!r}")


def check_float(
    field: str, value: object, low: float, high: float = math.inf, *, open_low: bool = False, open_high: bool = False
) -> None:
    """Check a finite number between `low` and `high`; an open end is itself not allowed.

    Raises:
        ValueError: with the field, the value and what is allowed.
    """
    if not isinstance(value, bool) and isinstance(value, int | float) and math.isfinite(value):
        above = value > low if open_low else value >= low
        below = value < high if open_high else value <= high
        if above and below:
            return
    left = f"greater than {low:g}" if open_low else f"at least {low:g}"
    right = "" if math.isinf(high) else f" and {'less than' if open_high else 'at most'} {high:g}"
    raise ValueError(f"{field} must be a number {left}{right}, got {value!r}")


def check_bool(field: str, value: object) -> None:
    """Check a truth value; 0 and 1 are not.

    Raises:
        ValueError: with the field and the value.
    """
    if not isinstance(value, bool):
        raise ValueError(f"{field} must be true or false, got {value!r}")


def check_choice(field: str, value: object, choices: Sequence[str]) -> None:
    """Check that `value` is one of `choices`.

    Raises:
        ValueError: with the field, the value, the choices and the nearest of them.
    """
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{field} is {value!r}; {nearest(value, choices)}")


def check_text(field: str, value: object, *, optional: bool = False) -> None:
    """Check a text that is not empty.

    Raises:
        ValueError: with the field, the value and what is allowed.
    """
    if optional and value is None:
        return
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{field} must be a text{' or null' if optional else ''}, got {value!r}")


def check_names(field: str, value: object) -> tuple[str, ...]:
    """Check a list of texts, without repetitions; returns it as a tuple.

    Raises:
        ValueError: with the field and the value.
    """
    if isinstance(value, str) or not isinstance(value, Sequence) or not all(isinstance(name, str) for name in value):
        raise ValueError(f"{field} must be a list of names, got {value!r}")
    if len(set(value)) < len(value):
        raise ValueError(f"{field} must not name anything twice, got {list(value)!r}")
    return tuple(value)
