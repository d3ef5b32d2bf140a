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
from collections.abc import Iterator
from operator import attrgetter
from typing import Any, Generic, TypeVar

import numpy as np

from entity_gym.actions import CategoricalActionSpace
from entity_gym.errors import nearest
from entity_gym.spaces import Entity, Feature, Flag

A = TypeVar("A")

NUMBERS: tuple[Any, ...] = (bool, int, float, np.integer, np.floating, np.bool_)

#: An action with more choices is a mistake: it could hardly be learned.
MOST_CHOICES = 10_000


#: Field -> its type, which takes long to look up: of every class once.
_kinds_of = functools.cache(typing.get_type_hints)


def _leaves(cls: Any, where: str, *, is_action: bool = False, outer: tuple[Any, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Yield the path and the type of every field of a dataclass, those of dataclasses in it included.

    Args:
        cls: the dataclass.
        where: its name in messages.
        is_action: every field must be one that the constructor takes; otherwise those that begin with an underscore are left out.
        outer: the dataclasses that hold it.

    Raises:
        ValueError: `cls` is no dataclass or holds itself, or an annotation cannot be evaluated.
    """
    if not isinstance(cls, type) or not dataclasses.is_dataclass(cls):
        needed = "an action is an Enum, or a dataclass of which every field is one"
        raise ValueError(f"{where} is {cls!r:.200}; {needed if is_action else 'it must be a dataclass'}")
    if cls in outer:
        raise ValueError(f"{where} holds itself: {cls.__name__} would have fields without end")
    try:
        kinds = _kinds_of(cls)
    except Exception as error:  # evaluating an annotation can raise anything
        raise ValueError(f"the annotations of {where} cannot be looked up from its module: {error}") from error
    for field in dataclasses.fields(cls):
        name, kind = field.name, kinds[field.name]
        if is_action and (name.startswith("_") or not field.init):
            problem = "begins with an underscore" if field.init else "is not given to its constructor"
            raise ValueError(f"{where}.{name} {problem}; every field of an action is chosen")
        if name.startswith("_"):
            continue
        if dataclasses.is_dataclass(kind):
            for path, inner in _leaves(kind, f"{where}.{name}", is_action=is_action, outer=(*outer, cls)):
                yield f"{name}.{path}", inner
        else:
            yield name, kind


def _is_enum(kind: Any, where: str) -> bool:
    """Return whether a type is an Enum; raises a ValueError for one that has not one value at a time."""
    if not isinstance(kind, type) or not issubclass(kind, enum.Enum):
        return False
    if not list(kind) or issubclass(kind, enum.Flag):
        problem = "is a Flag, whose members combine" if list(kind) else "has no members"
        raise ValueError(f"{where} is of the Enum {kind.__name__}, which {problem}")
    return True


# ---- entity types


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
        features: list[Feature] = []
        # of each field: its path, its getter, and the flags of each member of an Enum
        self._fields: list[tuple[str, attrgetter[Any], dict[Any, list[float]] | None]] = []
        for path, kind in _leaves(cls, self.name):
            one_hot = None
            if _is_enum(kind, f"{self.name}.{path}"):
                features += [Flag(f"{path}.is_{member.name}") for member in kind]
                one_hot = {member: [float(member is other) for other in kind] for member in kind}
            else:
                features.append(_number(kind, path, f"{self.name}.{path}"))
            self._fields.append((path, attrgetter(path), one_hot))
        self.entity = Entity(features)

    def row(self, each: object) -> list[Any]:
        """Return the F features of an object. Numbers are checked where the observation is read.

        Raises:
            ValueError: a field is missing, or holds no member of its Enum; names the field.
        """
        row: list[Any] = []
        for path, get, one_hot in self._fields:
            try:
                value = get(each)
            except AttributeError as error:
                raise ValueError(f"{self.name}.{path} cannot be read: {error}") from None
            if one_hot is None:
                row.append(value)
            elif isinstance(value, enum.Enum) and value in one_hot:
                row += one_hot[value]
            else:
                raise ValueError(
                    f"{self.name}.{path} is {value!r:.200}; it must be one of {', '.join(map(str, one_hot))}"
                )
        return row


@functools.cache
def entity_type(cls: Any) -> EntityType:
    """Return the entity type of a dataclass; see `EntityType`."""
    return EntityType(cls)


def _number(kind: Any, path: str, where: str) -> Feature:
    """Return the feature of a field with a number."""
    kind = getattr(kind, "__supertype__", kind)  # of typing.NewType
    if isinstance(kind, type) and issubclass(kind, NUMBERS):
        return Flag(path) if issubclass(kind, bool | np.bool_) else path
    title = kind.__name__ if isinstance(kind, type) else repr(kind).removeprefix("typing.")
    raise ValueError(f"{where} is of type {title}; allowed: bool, int, float, an Enum, or a dataclass of these")


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
        is_enum = _is_enum(action, self.name)
        enums: dict[str, Any] = {"": action} if is_enum else dict(_leaves(action, self.name, is_action=True))
        if not enums:
            raise ValueError(f"{self.name} has no fields; an action needs something to choose")
        for path, kind in enums.items():
            if not _is_enum(kind, f"{self.name}.{path}"):
                raise ValueError(f"{self.name}.{path} is {kind!r:.200}; it must be an Enum or a dataclass of Enums")
        sizes = [len(kind) for kind in enums.values()]
        if math.prod(sizes) > MOST_CHOICES:
            raise ValueError(
                f"{' times '.join(map(str, sizes))} combinations are {math.prod(sizes)} choices; at most {MOST_CHOICES} can "
                "be: make several actions of it"
            )
        self._getters = [attrgetter(path) for path in enums if path]
        self._combinations = list(itertools.product(*enums.values()))
        self._index_of = {members: k for k, members in enumerate(self._combinations)}
        self.labels = tuple(
            ",".join(
                f"{path}={member.name}" if path else member.name for path, member in zip(enums, members, strict=True)
            )
            for members in self._combinations
        )

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
        if isinstance(choice, self._action):
            members: Any = tuple(get(choice) for get in self._getters) or (choice,)
            if all(isinstance(member, enum.Enum) for member in members) and members in self._index_of:
                return self._index_of[members]
        raise ValueError(f"{choice!r:.200} is no {self.name}; {nearest(choice, self.labels[:20])}")


def choices_of(action: type[A]) -> Choices[A]:
    """Return the choices of an action class; see `Choices`."""
    given: Any = action  # a user may give anything, which may not be hashable
    return _choices_of(given) if isinstance(given, type) else Choices(given)


@functools.cache
def _choices_of(action: Any) -> Choices[Any]:
    return Choices(action)


def _build(kind: Any, members: Iterator[enum.Enum]) -> Any:
    """Return a value of an action class from the members of its Enums, in their order."""
    if issubclass(kind, enum.Enum):
        return next(members)
    kinds = _kinds_of(kind)
    return kind(**{field.name: _build(kinds[field.name], members) for field in dataclasses.fields(kind)})
