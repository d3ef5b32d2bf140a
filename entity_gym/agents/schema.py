"""Entity types from dataclasses, and actions from Enums.

    @dataclass
    class Head:
        pos: Pos                # a dataclass with the fields x and y: features "pos.x", "pos.y"
        facing: Facing          # an Enum with the members LEFT and RIGHT: Flag("facing.is_LEFT"), Flag("facing.is_RIGHT")
        alive: bool             # Flag("alive")
        cells: tuple[int, int]  # features "cells.0", "cells.1"
        _log: list[str]         # no feature: its name begins with an underscore

    class Move(Enum):           # an action with 3 choices: "LEFT", "STAY", "RIGHT"
        LEFT, STAY, RIGHT = range(3)

    @dataclass
    class Command:              # an action with 6 choices: "move=LEFT,fire=NO", "move=LEFT,fire=YES", "move=STAY,fire=NO", ...
        move: Move
        fire: Fire

Fields of nested dataclasses are called "outer.inner". Every combination of a dataclass of Enums is one choice; the last field
varies fastest.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import itertools
import math
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from types import EllipsisType
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions import CategoricalActionSpace
from entity_gym.errors import nearest
from entity_gym.spaces import LARGEST_FLOAT32, Entity, Feature, Flag

A = TypeVar("A")

ALLOWED = (
    "allowed: bool, int, float, an Enum, a dataclass of these, a tuple of a fixed number of these such as "
    "tuple[float, float], and Annotated[list[float], 3] or Annotated[numpy.ndarray, (2, 3)], which say their length"
)
NUMBERS: tuple[Any, ...] = (bool, int, float, np.number, np.bool_)

#: An action with more choices is a mistake: it could hardly be learned.
MOST_CHOICES = 10_000

#: The values of one object, flattened; each must turn out to be a number.
Row = list[Any]


@functools.cache
def field_types(cls: Any, where: str) -> dict[str, Any]:
    """Return the annotations of a dataclass's fields by name, without fields that begin with an underscore.

    Raises:
        ValueError: `cls` is no dataclass, or an annotation cannot be evaluated.
    """
    if not isinstance(cls, type) or not dataclasses.is_dataclass(cls):
        raise ValueError(f"{where} is {cls!r}; it must be a dataclass")
    try:
        hints = typing.get_type_hints(cls, include_extras=True)
    except Exception as error:  # evaluating an annotation can raise anything
        raise ValueError(f"the annotations of {where} cannot be looked up from its module: {error}") from error
    return {field.name: hints[field.name] for field in dataclasses.fields(cls) if not field.name.startswith("_")}


# ---- entity types


class EntityType:
    """An entity type whose features are the fields of a dataclass. `entity_type(cls)` makes one per class.

    Attributes:
        name: the class's name.
        entity: the features.

    Raises:
        ValueError: `cls` is no dataclass, or the type of a field has no fixed number of features; names the field.
    """

    def __init__(self, cls: type) -> None:
        self.name: str = getattr(cls, "__name__", repr(cls))
        features, self._append = _dataclass_encoder(cls, self.name)
        self.entity = Entity(features)

    def rows(self, objects: Sequence[Any]) -> NDArray[np.float32]:
        """Return the features of the objects, shape (number of objects, F).

        Raises:
            ValueError: a value is not of its field's type, or not a number that float32 can hold; names the field.
        """
        width = len(self.entity.features)
        table: list[Row] = [[] for _ in objects]
        for each, row in zip(objects, table, strict=True):
            self._append(each, row)
        if not table or not width:
            return np.zeros((len(table), width), np.float32)
        values: NDArray[Any]
        try:
            values = np.array(table)
        except ValueError:  # some values are lists
            values = np.array(None)
        is_table = values.shape == (len(table), width) and values.dtype.kind in "biuf"
        if not is_table or not (np.abs(values) <= LARGEST_FLOAT32).all():  # NaN fails this comparison, too
            for row in table:
                for name, value in zip(self.entity.features, row, strict=True):
                    if not isinstance(value, NUMBERS) or not abs(value) <= LARGEST_FLOAT32:
                        raise ValueError(
                            f"{self.name}.{name} is {value!r:.200}; it must be a number that float32 can hold"
                        )
            values = np.array(table, np.float64)  # integers beyond 64 bits
        return values.astype(np.float32)


@functools.cache
def entity_type(cls: Any) -> EntityType:
    """Return the entity type of a dataclass; see `EntityType`."""
    return EntityType(cls)


class _Encoder(NamedTuple):
    """Turns values of one annotated type into numbers."""

    features: list[Feature]  # one per number
    append: Callable[[Any, Row], None]  # to a row the numbers of a value; raises ValueError for a value of another type


def _append_number(value: Any, row: Row) -> None:
    row.append(value)  # `EntityType.rows` checks numbers


def _one_hot_encoder(kind: type[enum.Enum], where: str) -> _Encoder:
    """Return the encoder of an Enum: one flag per member."""
    members = list(kind)
    if not members or issubclass(kind, enum.Flag):
        problem = "is a Flag, whose members combine: use a bool for each" if members else "has no members"
        raise ValueError(f"{where} is of the Enum {kind.__name__}, which {problem}")
    one_hot = {member: [float(member is other) for other in members] for member in members}

    def append(value: Any, row: Row) -> None:
        if type(value) is not kind:
            raise ValueError(f"{where} is {value!r:.200}; it must be a member of {kind.__name__}")
        row.extend(one_hot[value])

    return _Encoder([Flag(f"{_feature(where)}.is_{member.name}") for member in members], append)


def _array_encoder(shape: tuple[int, ...], where: str) -> _Encoder:
    def append(value: Any, row: Row) -> None:
        if not isinstance(value, np.ndarray) or value.shape != shape:
            raise ValueError(f"{where} is {value!r:.200}; it must be an array of shape {shape}")
        row.extend(value.ravel().tolist())

    return _Encoder([f"{_feature(where)}.{'.'.join(map(str, index))}" for index in np.ndindex(shape)], append)


def _items_encoder(kinds: Mapping[Any, Any], where: str, outer: tuple[type, ...]) -> _Encoder:
    """Return the encoder of sequences, which it does not check; `kinds` are the annotated types of the items by name."""
    encoders = [_encoder(kind, f"{where}.{name}", outer) for name, kind in kinds.items()]
    features = [feature for encoder in encoders for feature in encoder.features]
    if all(encoder.append is _append_number for encoder in encoders):
        return _Encoder(features, lambda values, row: row.extend(values))

    def append(values: Any, row: Row) -> None:
        for encoder, value in zip(encoders, values, strict=True):
            encoder.append(value, row)

    return _Encoder(features, append)


def _sequence_encoder(kinds: Sequence[Any], where: str, outer: tuple[type, ...]) -> _Encoder:
    """Return the encoder of a list or tuple whose items have these types."""
    features, append_items = _items_encoder(dict(enumerate(kinds)), where, outer)

    def append(value: Any, row: Row) -> None:
        if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != len(kinds):
            raise ValueError(f"{where} is {value!r:.200}; it must have {len(kinds)} items")
        append_items(value, row)

    return _Encoder(features, append)


def _dataclass_encoder(cls: type, where: str, outer: tuple[type, ...] = ()) -> _Encoder:
    """Return the encoder of a dataclass; `outer` are the dataclasses that hold it."""
    if cls in outer:
        raise ValueError(f"{where} holds itself: {cls.__name__} would have features without end")
    kinds = field_types(cls, where)
    features, append_items = _items_encoder(kinds, where, (*outer, cls))
    names = list(kinds)
    # Several times as fast as getattr, but it returns no tuple for a single name.
    values_of = attrgetter(*names) if len(names) > 1 else lambda value: [getattr(value, name) for name in names]

    def append(value: Any, row: Row) -> None:
        if not isinstance(value, cls):
            raise ValueError(f"{where} is {value!r:.200}; it must be a {cls.__name__}")
        append_items(values_of(value), row)

    return _Encoder(features, append)


def _encoder(kind: Any, where: str, outer: tuple[type, ...]) -> _Encoder:
    """Return the encoder of values that are annotated with `kind`."""
    while hasattr(kind, "__supertype__"):  # typing.NewType
        kind = kind.__supertype__
    if isinstance(kind, type):
        if issubclass(kind, enum.Enum):
            return _one_hot_encoder(kind, where)
        if issubclass(kind, bool | np.bool_):
            return _Encoder([Flag(_feature(where))], _append_number)
        if issubclass(kind, int | float | np.integer | np.floating):
            return _Encoder([_feature(where)], _append_number)
        if dataclasses.is_dataclass(kind):
            return _dataclass_encoder(kind, where, outer)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple and arguments and not any(isinstance(each, EllipsisType) for each in arguments):
        return _sequence_encoder(arguments, where, outer)
    if origin is typing.Annotated:
        return _annotated_encoder(arguments[0], arguments[1:], where, outer)
    title = getattr(kind, "__name__", repr(kind)) if isinstance(kind, type) else repr(kind).removeprefix("typing.")
    raise ValueError(f"{where} is of type {title}, which has no fixed number of features; {ALLOWED}")


def _annotated_encoder(kind: Any, metadata: Sequence[Any], where: str, outer: tuple[type, ...]) -> _Encoder:
    """Return the encoder of `Annotated[list[T], length]` or `Annotated[numpy.ndarray, shape]`."""
    shape = next((each for each in metadata if _is_shape(each)), None)
    origin = typing.get_origin(kind) or kind
    if shape is None:
        for length in metadata:
            if type(length) is int:
                raise ValueError(
                    f"{where} is of type {kind!r} with the length {length}; it must be at least 1; {ALLOWED}"
                )
        return _encoder(kind, where, outer)  # the annotation is for somebody else
    if origin is np.ndarray:
        return _array_encoder((shape,) if isinstance(shape, int) else tuple(shape), where)
    if origin in (list, tuple, Sequence) and isinstance(shape, int):
        item, *_ = typing.get_args(kind) or (float,)
        return _sequence_encoder([item] * shape, where, outer)
    raise ValueError(f"{where} is of type {kind!r} with the length {shape!r}; {ALLOWED}")


def _is_shape(given: Any) -> bool:
    sizes = given if isinstance(given, tuple) else (given,)
    return bool(sizes) and all(isinstance(n, int) and not isinstance(n, bool) and n >= 1 for n in sizes)


def _feature(where: str) -> str:
    """Return the name of a feature: its path without the name of the outermost class."""
    return where.partition(".")[2]


# ---- actions


class Choices(Generic[A]):
    """The choices of an action, which is an Enum or a dataclass of Enums. `choices_of(action)` makes one per class.

    Attributes:
        name: the class's name.
        labels: one per choice.

    Raises:
        ValueError: `action` is neither, or has too many combinations.
    """

    def __init__(self, action: type[A]) -> None:
        self._action = action
        self.name: str = getattr(action, "__name__", repr(action))
        enums = list(_enums(action, self.name, ""))
        sizes = [len(kind) for _, kind in enums]
        if math.prod(sizes) > MOST_CHOICES:
            raise ValueError(
                f"{' times '.join(map(str, sizes))} combinations are {math.prod(sizes)} choices; at most {MOST_CHOICES} can "
                "be: make several actions of it"
            )
        paths = [path for path, _ in enums]
        self._combinations = list(itertools.product(*(kind for _, kind in enums)))
        self.labels = tuple(
            ",".join(
                f"{path}={member.name}" if path else member.name for path, member in zip(paths, members, strict=True)
            )
            for members in self._combinations
        )
        self._index_of = {tuple(member.name for member in members): k for k, members in enumerate(self._combinations)}

    @property
    def space(self) -> CategoricalActionSpace:
        """The action space of the choices."""
        return CategoricalActionSpace(self.labels)

    def pick(self, index: int) -> A:
        """Return the choice at `index`: a member of the Enum, or a new object of the dataclass."""
        choice: A = _build(self._action, iter(self._combinations[index]))
        return choice

    def index(self, choice: A) -> int:
        """Return the index of a choice.

        Raises:
            ValueError: it is no choice of this action.
        """
        return self._index_of[tuple(_names(choice, self._action, self))]


def choices_of(action: type[A]) -> Choices[A]:
    """Return the choices of an action class; see `Choices`."""
    given: Any = action  # a user may give anything, which may not be hashable
    return _choices_of(given) if isinstance(given, type) else Choices(given)


@functools.cache
def _choices_of(action: Any) -> Choices[Any]:
    return Choices(action)


def _enums(action: Any, where: str, path: str) -> Iterator[tuple[str, type[enum.Enum]]]:
    """Yield path and type of every Enum in an action; the path of an Enum that is the action itself is empty."""
    if isinstance(action, type) and issubclass(action, enum.Enum):
        if not list(action) or issubclass(action, enum.Flag):
            problem = "is a Flag, whose members combine" if list(action) else "has no members"
            raise ValueError(
                f"{where} is the Enum {action.__name__}, which {problem}; an action needs some to choose from"
            )
        yield path, action
        return
    if not isinstance(action, type) or not dataclasses.is_dataclass(action):
        raise ValueError(
            f"{where} is {action!r:.200}; an action is an Enum, or a dataclass of which every field is one"
        )
    if not dataclasses.fields(action):
        raise ValueError(f"{where} has no fields; an action needs something to choose")
    for field in dataclasses.fields(action):
        if field.name.startswith("_") or not field.init:
            problem = "is not given to its constructor" if not field.init else "begins with an underscore"
            raise ValueError(f"{where}.{field.name} {problem}; every field of an action is chosen")
    for name, kind in field_types(action, where).items():
        yield from _enums(kind, f"{where}.{name}", f"{path}.{name}" if path else name)


def _build(kind: Any, members: Iterator[enum.Enum]) -> Any:
    """Return a value of an action class from the members of its Enums, in their order."""
    if issubclass(kind, enum.Enum):
        return next(members)
    return kind(**{name: _build(inner, members) for name, inner in field_types(kind, kind.__name__).items()})


def _names(choice: Any, kind: Any, choices: Choices[Any]) -> Iterator[str]:
    """Yield the names of the Enum members in a value of an action class, in the order of `_enums`."""
    if not isinstance(choice, kind):
        raise ValueError(f"{choice!r:.200} is no {kind.__name__}; {nearest(choice, choices.labels[:20])}")
    if isinstance(choice, enum.Enum):
        yield choice.name
        return
    for name, inner in field_types(kind, kind.__name__).items():
        yield from _names(getattr(choice, name), inner, choices)
