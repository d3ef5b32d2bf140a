"""Entities from dataclasses: of each object one row of numbers, named after its fields.

    @dataclass
    class Head:
        pos: Pos                # a dataclass of x and y: "pos.x", "pos.y"
        facing: Facing          # an Enum of LEFT and RIGHT: Flag("facing.is_LEFT"), Flag("facing.is_RIGHT")
        alive: bool             # Flag("alive")
        cells: tuple[int, int]  # "cells.0", "cells.1"
        _log: list[str]         # what begins with an underscore is no feature

`entity_type(Head)` is made once, when a type is first met, and turns objects into rows.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import typing
from collections.abc import Callable, Sequence
from operator import attrgetter
from types import EllipsisType
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from entity_gym.spaces import LARGEST_FLOAT32, Entity, Feature, Flag

ALLOWED = (
    "allowed: bool, int, float, an Enum, a dataclass of these, a tuple of a fixed number of these such as "
    "tuple[float, float], and Annotated[list[float], 3] or Annotated[numpy.ndarray, (2, 3)], which say their length"
)
NUMBERS: tuple[Any, ...] = (bool, int, float, np.number, np.bool_)

#: Values of an object's fields, each of which must turn out to be a number.
Row = list[Any]


class _Part(NamedTuple):
    """What one value becomes."""

    features: list[Feature]  # their names follow that of the field: "" for a plain number, ".x" of a nested one
    expand: Callable[[Any, Row], None] | None  # appends the value's numbers to a row; None: it is a number itself


class EntityType:
    """A dataclass as a type of entity; `entity_type(cls)` makes each only once.

    Attributes:
        name: of the type: the class's.
        entity: its features.

    Raises:
        ValueError: it is no dataclass, or a field is of a type that has no numbers; names the field.
    """

    def __init__(self, cls: type) -> None:
        self.name: str = getattr(cls, "__name__", repr(cls))
        part = _of_dataclass(cls, self.name, ())
        features = [_renamed(feature, _name(feature)[1:]) for feature in part.features]
        self.entity = Entity(features)
        assert part.expand is not None
        self._expand = part.expand

    def rows(self, objects: Sequence[Any]) -> NDArray[np.float32]:
        """(number of objects, F) their features.

        Raises:
            ValueError: a value is not of its field's type, or not finite; names the field.
        """
        width = len(self.entity.features)
        table: list[Row] = []
        for each in objects:
            row: Row = []
            self._expand(each, row)
            table.append(row)
        if not table or not width:
            return np.zeros((len(table), width), np.float32)
        values: NDArray[Any]
        try:
            values = np.array(table)
        except ValueError:  # lists among numbers
            values = np.array(None)
        fits = values.shape == (len(table), width) and values.dtype.kind in "biuf"
        if not fits or not (np.abs(values) <= LARGEST_FLOAT32).all():  # what is not a number is not smaller, either
            self._check_each(table)
            values = np.array(table, np.float64)  # of whole numbers that no integer of NumPy's holds
        return values.astype(np.float32)

    def _check_each(self, table: Sequence[Row]) -> None:
        for row in table:
            for name, value in zip(self.entity.features, row, strict=True):
                if not isinstance(value, NUMBERS) or not abs(value) <= LARGEST_FLOAT32:
                    raise ValueError(f"{self.name}.{name} is {value!r:.200}; it must be a number that float32 can hold")


def entity_type(cls: Any) -> EntityType:
    """The type of entity that a dataclass is."""
    return _entity_type(cls)


@functools.cache
def _entity_type(cls: Any) -> EntityType:
    return EntityType(cls)


def field_types(cls: type, where: str) -> dict[str, Any]:
    """The annotation of each field of a dataclass that does not begin with an underscore.

    Raises:
        ValueError: it is no dataclass, or an annotation cannot be looked up.
    """
    if not isinstance(cls, type) or not dataclasses.is_dataclass(cls):
        raise ValueError(f"{where} is {cls!r}; it must be a dataclass")
    try:
        hints = typing.get_type_hints(cls, include_extras=True)
    except Exception as error:  # whatever evaluating the annotations raises
        raise ValueError(f"the annotations of {where} cannot be looked up from its module: {error}") from error
    return {field.name: hints[field.name] for field in dataclasses.fields(cls) if not field.name.startswith("_")}


def _of_dataclass(cls: type, where: str, outer: tuple[type, ...]) -> _Part:
    if cls in outer:
        raise ValueError(f"{where} holds itself: {cls.__name__} would have features without end")
    parts = {name: _of(kind, f"{where}.{name}", (*outer, cls)) for name, kind in field_types(cls, where).items()}
    names = list(parts)
    features = [
        _renamed(feature, f".{name}{_name(feature)}") for name, part in parts.items() for feature in part.features
    ]
    if not names:
        return _Part(features, lambda value, row: _check_class(value, cls, where))
    get = attrgetter(*names) if len(names) > 1 else lambda value: (getattr(value, names[0]),)
    expanders = [part.expand for part in parts.values()]

    if not any(expanders):

        def expand_numbers(value: Any, row: Row) -> None:
            if type(value) is not cls:
                _check_class(value, cls, where)
            row.extend(get(value))

        return _Part(features, expand_numbers)

    def expand(value: Any, row: Row) -> None:
        if type(value) is not cls:
            _check_class(value, cls, where)
        for each, expander in zip(get(value), expanders, strict=True):
            if expander is None:
                row.append(each)
            else:
                expander(each, row)

    return _Part(features, expand)


def _check_class(value: Any, cls: type, where: str) -> None:
    if not isinstance(value, cls):
        raise ValueError(f"{where} is {value!r:.200}; it must be a {cls.__name__}")


def _of(kind: Any, where: str, outer: tuple[type, ...]) -> _Part:
    """What a value that is annotated with `kind` becomes."""
    while hasattr(kind, "__supertype__"):  # typing.NewType
        kind = kind.__supertype__
    if isinstance(kind, type):
        if issubclass(kind, enum.Enum):
            return _of_enum(kind, where)
        if issubclass(kind, bool | np.bool_):
            return _Part([Flag("_")], None)
        if issubclass(kind, int | float | np.integer | np.floating):
            return _Part([""], None)
        if dataclasses.is_dataclass(kind):
            return _of_dataclass(kind, where, outer)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple and arguments and not any(isinstance(each, EllipsisType) for each in arguments):
        parts = [_of(each, f"{where}.{k}", outer) for k, each in enumerate(arguments)]
        return _of_items(parts, where)
    if origin is typing.Annotated:
        return _of_annotated(arguments[0], arguments[1:], where, outer)
    title = getattr(kind, "__name__", repr(kind)) if isinstance(kind, type) else repr(kind).removeprefix("typing.")
    raise ValueError(f"{where} is of type {title}, which has no fixed number of features; {ALLOWED}")


def _of_enum(kind: type[enum.Enum], where: str) -> _Part:
    members = list(kind)
    if not members or issubclass(kind, enum.Flag):
        problem = "is a Flag, whose members combine: use a bool for each" if members else "has no members"
        raise ValueError(f"{where} is of the Enum {kind.__name__}, which {problem}")
    rows = {member: [float(member is other) for other in members] for member in members}

    def expand(value: Any, row: Row) -> None:
        if type(value) is not kind:
            raise ValueError(f"{where} is {value!r:.200}; it must be a member of {kind.__name__}")
        row.extend(rows[value])

    return _Part([Flag(f".is_{member.name}") for member in members], expand)


def _of_annotated(kind: Any, metadata: Sequence[Any], where: str, outer: tuple[type, ...]) -> _Part:
    """Of `Annotated[list[T], length]` and `Annotated[numpy.ndarray, shape]`."""
    shape = next((each for each in metadata if _is_shape(each)), None)
    origin = typing.get_origin(kind) or kind
    if origin is np.ndarray and shape is not None:
        return _of_array((shape,) if isinstance(shape, int) else tuple(shape), where)
    if origin in (list, tuple, Sequence) and isinstance(shape, int):
        arguments = typing.get_args(kind) or (float,)
        return _of_items([_of(arguments[0], f"{where}.{k}", outer) for k in range(shape)], where)
    lengths = [each for each in metadata if type(each) is int]
    if shape is None and lengths:
        raise ValueError(f"{where} is of type {kind!r} with the length {lengths[0]}; it must be at least 1; {ALLOWED}")
    if shape is None:  # annotated with something that is not about us
        return _of(kind, where, outer)
    raise ValueError(f"{where} is of type {kind!r} with the length {shape!r}; {ALLOWED}")


def _is_shape(given: Any) -> bool:
    sizes = given if isinstance(given, tuple) else (given,)
    return bool(sizes) and all(isinstance(n, int) and not isinstance(n, bool) and n >= 1 for n in sizes)


def _of_items(parts: Sequence[_Part], where: str) -> _Part:
    """Of a list or tuple of as many items as there are `parts`."""
    features = [_renamed(feature, f".{k}{_name(feature)}") for k, part in enumerate(parts) for feature in part.features]

    def expand(value: Any, row: Row) -> None:
        if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != len(parts):
            raise ValueError(f"{where} is {value!r:.200}; it must have {len(parts)} items")
        for part, each in zip(parts, value, strict=True):
            if part.expand is None:
                row.append(each)
            else:
                part.expand(each, row)

    return _Part(features, expand)


def _of_array(shape: tuple[int, ...], where: str) -> _Part:
    def expand(value: Any, row: Row) -> None:
        if not isinstance(value, np.ndarray) or value.shape != shape:
            raise ValueError(f"{where} is {value!r:.200}; it must be an array of shape {shape}")
        row.extend(value.ravel().tolist())

    return _Part(["." + ".".join(map(str, index)) for index in np.ndindex(shape)], expand)


def _name(feature: Feature) -> str:
    if isinstance(feature, str):
        return feature
    return "" if feature.name == "_" else feature.name


def _renamed(feature: Feature, name: str) -> Feature:
    return name if isinstance(feature, str) else cast(Feature, dataclasses.replace(feature, name=name))
