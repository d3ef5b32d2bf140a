"""Entity types from dataclasses, and actions from Enums.

    @dataclass
    class Head:
        pos: Pos                # a dataclass with the fields x and y: features "pos.x", "pos.y"
        facing: Facing          # an Enum with the members LEFT and RIGHT: Flag("facing.is_LEFT"), Flag("facing.is_RIGHT")
        alive: bool             # Flag("alive")
        _log: list[str]         # no feature: its name begins with an underscore

    class Move(Enum):           # an action with 3 choices: "LEFT", "STAY", "RIGHT"
        LEFT, STAY, RIGHT = range(3)

    @dataclass
    class Command:              # an action with 6 choices: "move=LEFT,fire=NO", "move=LEFT,fire=YES", "move=STAY,fire=NO", ...
        move: Move
        fire: Fire

Every combination of a dataclass of Enums is one choice; the last field varies fastest.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import itertools
import math
import typing
from operator import attrgetter
from typing import Any, Generic, TypeVar

import numpy as np

from entity_gym.actions import CategoricalActionSpace
from entity_gym.errors import nearest
from entity_gym.spaces import Entity, Feature, Flag

A = TypeVar("A")

#: An action with more choices is a mistake: it could hardly be learned.
MOST_CHOICES = 10_000


def _fields_of(cls: Any, where: str) -> dict[str, Any]:
    """Return the types of a dataclass's fields by name, without those that begin with an underscore.

    Raises:
        ValueError: `cls` is no dataclass, or an annotation cannot be evaluated; `where` names it.
    """
    if not isinstance(cls, type) or not dataclasses.is_dataclass(cls):
        raise ValueError(f"{where} is {cls!r:.200}; it must be a dataclass, of which entities are objects")
    try:
        types = typing.get_type_hints(cls)
    except Exception as error:  # evaluating an annotation can raise anything
        raise ValueError(f"the annotations of {where} cannot be looked up from its module: {error}") from error
    return {field.name: types[field.name] for field in dataclasses.fields(cls) if not field.name.startswith("_")}


def _is_enum(kind: Any, where: str) -> bool:
    """Return whether a type is an Enum; raises a ValueError for one without members, or whose members combine."""
    if not isinstance(kind, type) or not issubclass(kind, enum.Enum):
        return False
    if not list(kind) or issubclass(kind, enum.Flag):
        raise ValueError(
            f"{where} is the Enum {kind.__name__}; it must have members, and not be a Flag, whose members combine"
        )
    return True


class EntityType:
    """An entity type whose features are the fields of a dataclass. `entity_type(cls)` makes one per class.

    Attributes:
        name: the class's name.
        entity: the features.

    Raises:
        ValueError: `cls` is no dataclass, or a field is no number, Enum or dataclass of these; names the field.
    """

    def __init__(self, cls: type) -> None:
        self.name: str = getattr(cls, "__name__", repr(cls))
        self._features: list[Feature] = []
        # of each field: its path, its getter, and the flags of each member of an Enum
        self._fields: list[tuple[str, attrgetter[Any], dict[Any, list[float]] | None]] = []
        self._add(cls, "", ())
        self.entity = Entity(self._features)

    def _add(self, cls: Any, prefix: str, outer: tuple[Any, ...]) -> None:
        """Add the fields of a dataclass, which the dataclasses `outer` hold under names that begin with `prefix`."""
        if cls in outer:
            raise ValueError(f"{self.name}.{prefix[:-1]} holds itself: {cls.__name__} would have fields without end")
        for name, kind in _fields_of(cls, f"{self.name}.{prefix}"[:-1] if prefix else self.name).items():
            path = prefix + name
            kind = getattr(kind, "__supertype__", kind)  # of typing.NewType
            if dataclasses.is_dataclass(kind):
                self._add(kind, f"{path}.", (*outer, cls))
                continue
            flags = None
            if _is_enum(kind, f"{self.name}.{path}"):
                self._features += [Flag(f"{path}.is_{member.name}") for member in kind]
                flags = {member: [float(member is other) for other in kind] for member in kind}
            elif isinstance(kind, type) and issubclass(kind, bool | int | float | np.integer | np.floating | np.bool_):
                self._features.append(Flag(path) if issubclass(kind, bool | np.bool_) else path)
            else:
                title = kind.__name__ if isinstance(kind, type) else repr(kind).removeprefix("typing.")
                allowed = "allowed: bool, int, float, an Enum, or a dataclass of these"
                raise ValueError(f"{self.name}.{path} is of type {title}; {allowed}")
            self._fields.append((path, attrgetter(path), flags))

    def row(self, each: object) -> list[Any]:
        """Return the F features of an object. Numbers are checked where the observation is read.

        Raises:
            ValueError: a field is missing, or holds no member of its Enum; names the field.
        """
        row: list[Any] = []
        for path, get, flags in self._fields:
            try:
                value = get(each)
            except AttributeError as error:
                raise ValueError(f"{self.name}.{path} cannot be read: {error}") from None
            if flags is None:
                row.append(value)
            elif isinstance(value, enum.Enum) and value in flags:
                row += flags[value]
            else:
                raise ValueError(
                    f"{self.name}.{path} is {value!r:.200}; it must be one of {', '.join(map(str, flags))}"
                )
        return row


class Choices(Generic[A]):
    """The choices of an action, which is an Enum or a dataclass of Enums. `choices_of(action)` makes one per class.

    Attributes:
        name: the class's name.
        labels: one per choice.
        space: the action space.

    Raises:
        ValueError: `action` is neither, or has too many combinations.
    """

    def __init__(self, action: type[A]) -> None:
        self._action = action
        self.name = action.__name__
        self._is_enum = _is_enum(action, self.name)
        enums: dict[str, Any] = {"": action} if self._is_enum else _fields_of(action, self.name)
        for name, kind in enums.items():
            if not _is_enum(kind, f"{self.name}.{name}"):
                raise ValueError(f"{self.name}.{name} is {kind!r:.200}; it must be an Enum")
        num_choices = math.prod(map(len, enums.values())) if enums else 0
        if not 0 < num_choices <= MOST_CHOICES:
            raise ValueError(f"{self.name} has {num_choices} choices; it must have 1 to {MOST_CHOICES}")
        self._names = list(enums)
        self._combinations = list(itertools.product(*enums.values()))
        self._index_of = {members: k for k, members in enumerate(self._combinations)}
        pairs = [zip(enums, members, strict=True) for members in self._combinations]
        self.labels = tuple(
            ",".join(f"{name}={member.name}" if name else member.name for name, member in each) for each in pairs
        )
        self.space = CategoricalActionSpace(self.labels)
        try:
            self.pick(0)
        except TypeError as error:
            raise ValueError(f"{self.name} cannot be made of its fields {self._names}: {error}") from None

    def pick(self, index: int) -> A:
        """Return the choice at `index`: a member of the Enum, or a new object of the dataclass."""
        members: Any = self._combinations[index]
        return members[0] if self._is_enum else self._action(**dict(zip(self._names, members, strict=True)))

    def index(self, choice: A) -> int:
        """Return the index of a choice.

        Raises:
            ValueError: it is no choice of this action.
        """
        if isinstance(choice, self._action):
            members: Any = (choice,) if self._is_enum else tuple(getattr(choice, name) for name in self._names)
            if all(isinstance(member, enum.Enum) for member in members) and members in self._index_of:
                return self._index_of[members]
        raise ValueError(f"{choice!r:.200} is no {self.name}; {nearest(choice, self.labels[:20])}")


@functools.cache
def entity_type(cls: Any) -> EntityType:
    """Return the entity type of a dataclass; see `EntityType`."""
    return EntityType(cls)


def choices_of(action: type[A]) -> Choices[A]:
    """Return the choices of an action class; see `Choices`."""
    if not isinstance(action, type) or not (issubclass(action, enum.Enum) or dataclasses.is_dataclass(action)):
        raise ValueError(
            f"{action!r:.200} is no action; an action is an Enum, or a dataclass of which every field is one"
        )
    return _choices_of(action)


@functools.cache
def _choices_of(action: Any) -> Choices[Any]:
    return Choices(action)
