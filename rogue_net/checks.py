"""Checks of settings: each raises a ValueError with the field, the value, and the values that are allowed.

A class of settings states the range of a number in its type, and `check_fields` checks all of its fields by their types:

    @dataclass(frozen=True, kw_only=True)
    class OptimConfig:
        epochs: PositiveInt = 3
        max_grad_norm: PositiveFloat | None = None

        def __post_init__(self) -> None:
            check_fields(self, "optim.")
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

from entity_gym.errors import nearest

LARGEST = 2**63 - 1  # of whole numbers


@dataclass(frozen=True)
class Range:
    """The range of a number in a field's type: `Annotated[int, Range(1)]`. An open end is itself not allowed."""

    low: float
    high: float = math.inf
    open_low: bool = False
    open_high: bool = False

    def __str__(self) -> str:
        if math.isinf(self.high):
            return f"{'greater than' if self.open_low else 'at least'} {self.low:,g}"
        return f"in {'(' if self.open_low else '['}{self.low:g}, {self.high:g}{')' if self.open_high else ']'}"

    def check(self, field: str, value: object, kind: object, *, optional: bool) -> None:
        """Check a number. `kind` is `int` or `float`."""
        if kind is int:
            check_int(field, value, int(self.low), self.high, optional=optional)
        else:
            check_float(field, value, self.low, self.high, open_low=self.open_low, open_high=self.open_high)


PositiveInt = Annotated[int, Range(1)]
NonNegativeInt = Annotated[int, Range(0)]
NumWorkers = Annotated[int, Range(1, 1024)]  # threads or processes
PositiveFloat = Annotated[float, Range(0, open_low=True)]
NonNegativeFloat = Annotated[float, Range(0)]
UnitInterval = Annotated[float, Range(0, 1)]
HalfOpenUnitInterval = Annotated[float, Range(0, 1, open_high=True)]


def check_fields(settings: Any, section: str = "") -> None:
    """Check every field of a dataclass by its type: a number with a `Range`, a text, a truth value, a choice, or a section.

    NumPy's numbers become Python's, paths become texts, and whole floats become integers where the type asks for these.

    Args:
        settings: the dataclass; fields of other types are left to it.
        section: its dotted name, with a dot at its end, for messages.
    """
    for name, hint in field_types(type(settings)).items():
        value = as_plain(getattr(settings, name))
        if (
            isinstance(value, float)
            and value.is_integer()
            and int in (split_range(kind)[0] for kind in alternatives(hint))
        ):
            value = int(value)
        _check(section + name, value, hint)
        object.__setattr__(settings, name, value)


def as_plain(value: Any) -> Any:
    """NumPy's numbers and arrays as Python's, and paths as texts, also inside lists, tuples and mappings."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, list | tuple):
        return type(value)(map(as_plain, value))
    return {name: as_plain(item) for name, item in value.items()} if isinstance(value, Mapping) else value


def field_types(cls: type[Any]) -> dict[str, Any]:
    """The type of every field, with its `Range`."""
    hints = get_type_hints(cls, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def alternatives(hint: object) -> list[Any]:
    """The types of a union, or the type itself."""
    return list(get_args(hint)) if get_origin(hint) in (Union, UnionType) else [hint]


def split_range(kind: object) -> tuple[Any, Range | None]:
    """A type and its range, which is None where it has none."""
    return get_args(kind)[:2] if get_origin(kind) is Annotated else (kind, None)


def _check(field: str, value: object, hint: object) -> None:
    kinds = alternatives(hint)
    optional = NoneType in kinds
    kinds = [kind for kind in kinds if kind is not NoneType]
    if len(kinds) != 1 or (optional and value is None):
        return
    kind, range_ = split_range(kinds[0])
    if range_ is not None:
        range_.check(field, value, kind, optional=optional)
    elif get_origin(kind) is Literal:
        check_choice(field, value, get_args(kind))
    elif kind is bool:
        check_bool(field, value)
    elif kind is str:
        check_text(field, value, optional=optional)
    elif get_origin(kind) is dict and not isinstance(value, Mapping):
        raise ValueError(f"{field} must be a mapping, got {value!r}")
    elif dataclasses.is_dataclass(kind) and isinstance(kind, type) and not isinstance(value, kind):
        raise ValueError(f"{field} must be a {kind.__name__}, got {value!r}")


def check_int(field: str, value: object, low: int, high: float = math.inf, *, optional: bool = False) -> None:
    """Check a whole number between `low` and `high`, at most `LARGEST`, or None if it is optional.

    Raises:
        ValueError: with the field, the value and the range.
    """
    if optional and value is None:
        return
    high = min(high, LARGEST)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        is_usual = high == LARGEST and not (isinstance(value, int) and value > high)
        allowed = f"an integer of at least {low}" + ("" if is_usual else f" and at most {high:g}")
        raise ValueError(f"{field} must be {allowed}{' or null' if optional else ''}, got {value!r}")


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
