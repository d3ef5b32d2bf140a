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
import sys
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

    def check(self, field: str, value: object, kind: object = float, *, optional: bool = False) -> None:
        """Check a finite number of the range. `kind`: `int` or `float`; `optional`: whether the message allows null.

        Raises:
            ValueError: with the field, the value and the range.
        """
        number, largest = (int, LARGEST) if kind is int else (int | float, math.inf)
        if not isinstance(value, bool) and isinstance(value, number) and abs(value) <= sys.float_info.max:
            above = value > self.low if self.open_low else value >= self.low
            if above and (value < self.high if self.open_high else value <= min(self.high, largest)):
                return
        limit = f" and at most {largest:g}" if isinstance(value, int) and value > largest else ""
        what, null = "an integer" if kind is int else "a number", ", or null" if optional else ""
        raise ValueError(f"{field} must be {what}, {self}{limit}{null}, got {value!r}")


PositiveInt = Annotated[int, Range(1)]
NonNegativeInt = Annotated[int, Range(0)]
NumWorkers = Annotated[int, Range(1, 1024)]  # threads or processes
PositiveFloat = Annotated[float, Range(0, open_low=True)]
NonNegativeFloat = Annotated[float, Range(0)]
UnitInterval = Annotated[float, Range(0, 1)]
HalfOpenUnitInterval = Annotated[float, Range(0, 1, open_high=True)]


def check_fields(settings: Any, section: str = "") -> None:
    """Check every field of a dataclass by its type: a number with a `Range`, a text, true or false, a choice, a list, a section.

    NumPy's numbers become Python's, paths become texts, lists become tuples, and whole floats become integers where the type asks
    for these.

    Args:
        settings: the dataclass; fields of other types are left to it.
        section: its dotted name, with a dot at its end, for messages.
    """
    for name, hint in field_types(type(settings)).items():
        object.__setattr__(settings, name, checked(section + name, getattr(settings, name), hint))


def checked(field: str, value: Any, hint: object) -> Any:
    """Check a value by its type; returns it as plain Python, see `check_fields`.

    Raises:
        ValueError: with the field, the value and what is allowed.
    """
    value, kinds = as_plain(value), alternatives(hint)
    optional = NoneType in kinds
    if isinstance(value, float) and value.is_integer() and int in (split_range(kind)[0] for kind in kinds):
        value = int(value)
    kinds = [kind for kind in kinds if kind is not NoneType]
    if len(kinds) != 1 or (optional and value is None):
        return value
    kind, range_ = split_range(kinds[0])
    origin, choices = get_origin(kind), get_args(kind)
    null, problem = " or null" if optional else "", ""
    if range_ is not None:
        range_.check(field, value, kind, optional=optional)
    elif origin is Literal and not (isinstance(value, str) and value in choices):
        raise ValueError(f"{field} is {value!r}; {nearest(value, choices)}")
    elif kind is bool and not isinstance(value, bool):
        problem = "true or false"
    elif kind is str and not (isinstance(value, str) and value.strip()):
        problem = f"a text{null}"
    elif origin is dict and not isinstance(value, Mapping):
        problem = "a mapping"
    elif origin is Sequence:
        if not isinstance(value, list | tuple):
            problem = "a list"
        elif len(set(map(repr, value))) < len(value) and choices == (str,):
            problem = "a list without repetitions"
        else:
            return tuple(checked(field, each, *choices) for each in value)
    elif dataclasses.is_dataclass(kind) and isinstance(kind, type) and not isinstance(value, kind):
        problem = f"a {kind.__name__}"
    if problem:
        raise ValueError(f"{field} must be {problem}, got {value!r}")
    return value


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
