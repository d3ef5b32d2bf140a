"""Actions from Enums, and from dataclasses of Enums: every combination is one choice.

    class Move(Enum):   # 3 choices: "LEFT", "STAY", "RIGHT"
        LEFT, STAY, RIGHT = range(3)

    @dataclass
    class Command:      # 6 choices: "move=LEFT,fire=NO", "move=LEFT,fire=YES", "move=STAY,fire=NO", ...
        move: Move
        fire: Fire

The fields of a dataclass in a dataclass are called "outer.inner"; the last field varies fastest.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import itertools
from typing import Any, Generic, TypeVar, cast

from entity_gym.actions import CategoricalActionSpace
from entity_gym.agents.features import field_types
from entity_gym.errors import nearest

A = TypeVar("A")

#: More combinations than this can hardly be meant, and hardly be learned.
MOST_CHOICES = 10_000


class Choices(Generic[A]):
    """A class of actions as choices; `choices_of(action)` makes each only once.

    Attributes:
        action: the class.
        name: of the action: the class's.
        labels: of the choices, in order.

    Raises:
        ValueError: it is neither an Enum nor a dataclass of such classes, or has too many combinations.
    """

    def __init__(self, action: type[A]) -> None:
        self.action = action
        self.name: str = getattr(action, "__name__", repr(action))
        self._fields = _fields(action, self.name)
        self.labels = _labels(self._fields)
        self._index_of = {label: index for index, label in enumerate(self.labels)}
        self._members = {path: list(kind) for path, kind in reversed(self._fields.items())}

    @property
    def space(self) -> CategoricalActionSpace:
        """One of these for each actor."""
        return CategoricalActionSpace(self.labels)

    def pick(self, index: int) -> A:
        """The choice at `index`; of a dataclass a new object each time."""
        members: dict[str, Any] = {}
        for path, all_members in self._members.items():  # the last field first: it varies fastest
            index, k = divmod(index, len(all_members))
            members[path] = all_members[k]
        if "" in members:
            return cast(A, members[""])
        return cast(A, _built(self.action, members, ""))

    def index(self, choice: A) -> int:
        """The place of a choice.

        Raises:
            ValueError: it is none.
        """
        if not isinstance(choice, self.action):
            raise ValueError(f"{choice!r:.200} is no {self.name}; {nearest(choice, self.labels[:20])}")
        return self._index_of[_label({path: _at(choice, path) for path in self._fields})]


def choices_of(action: type[A]) -> Choices[A]:
    """The choices that a class of actions is."""
    given: Any = action  # whatever the annotation says, a user may give anything
    return cast(Choices[A], _choices_of(given) if isinstance(given, type) else Choices(given))


@functools.cache
def _choices_of(action: Any) -> Choices[Any]:
    return Choices(action)


def _fields(action: Any, where: str) -> dict[str, type[enum.Enum]]:
    """Path of each field -> its Enum; of an Enum itself the path is empty."""
    if isinstance(action, type) and issubclass(action, enum.Enum):
        if not list(action) or issubclass(action, enum.Flag):
            problem = "is a Flag, whose members combine" if list(action) else "has no members"
            raise ValueError(
                f"{where} is the Enum {action.__name__}, which {problem}; an action needs some to choose from"
            )
        return {"": action}
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
    fields = {}
    for name, kind in field_types(action, where).items():
        for path, member in _fields(kind, f"{where}.{name}").items():
            fields[f"{name}.{path}".rstrip(".")] = member
    return fields


def _labels(fields: dict[str, type[enum.Enum]]) -> tuple[str, ...]:
    num = 1
    for kind in fields.values():
        num *= len(kind)
    if num > MOST_CHOICES:
        raise ValueError(
            f"{' times '.join(str(len(kind)) for kind in fields.values())} combinations are {num} choices; at most "
            f"{MOST_CHOICES} can be: make several actions of it"
        )
    combinations = itertools.product(*(list(kind) for kind in fields.values()))
    return tuple(_label(dict(zip(fields, members, strict=True))) for members in combinations)


def _label(members: dict[str, enum.Enum]) -> str:
    return ",".join(f"{path}={member.name}" if path else member.name for path, member in members.items())


def _at(value: Any, path: str) -> Any:
    for name in path.split(".") if path else ():
        value = getattr(value, name)
    return value


@functools.cache
def _kinds(action: Any) -> dict[str, Any]:
    return field_types(action, action.__name__)


def _built(action: Any, members: dict[str, Any], path: str) -> Any:
    """A dataclass from the members of its Enums, and of those of the dataclasses in it."""
    values = {}
    for name, kind in _kinds(action).items():
        own = f"{path}{name}"
        values[name] = members[own] if own in members else _built(kind, members, f"{own}.")
    return action(**values)
