"""Dataclasses of numbers become entity types, and Enums and dataclasses of Enums become actions."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any, ClassVar, NewType

import numpy as np
import pytest

from entity_gym import CategoricalActionSpace, Entity
from entity_gym.agents.schema import choices_of, entity_type
from entity_gym.spaces import Flag
from tests.entity_gym.agents.programs import Move, Wall

Meters = NewType("Meters", float)


class Facing(enum.Enum):
    LEFT = "l"
    RIGHT = "r"
    WEST = "l"  # another name of LEFT


class Rank(enum.IntEnum):
    LOW = 3
    HIGH = 7


class Perks(enum.Flag):
    FAST = 1
    STRONG = 2


class Nothing(enum.Enum):
    pass


@dataclass
class Pos:
    x: float
    y: int


@dataclass
class Head:
    pos: Pos
    facing: Facing
    alive: bool
    far: Meters
    half: np.float32
    rank: Rank
    _log: list[str] = field(default_factory=list)
    kind: ClassVar[str] = "head"


def head(**changes: Any) -> Head:
    given = {"pos": Pos(0.5, 2), "facing": Facing.LEFT, "alive": True, "far": 5, "half": 0.25, "rank": Rank.HIGH}
    return Head(**(given | changes))


def test_every_field_has_its_features_in_the_order_of_the_fields() -> None:
    names = ["pos.x", "pos.y", Flag("facing.is_LEFT"), Flag("facing.is_RIGHT"), Flag("alive"), "far", "half"]
    known = entity_type(Head)
    assert (known.name, known.entity) == ("Head", Entity([*names, Flag("rank.is_LOW"), Flag("rank.is_HIGH")]))
    assert known.row(head(_log=["no feature"])) == [0.5, 2, 1, 0, 1, 5, 0.25, 0, 1]
    assert known.row(head(pos=Pos(-1, 0), facing=Facing.RIGHT, rank=Rank.LOW)) == [-1, 0, 0, 1, 1, 5, 0.25, 1, 0]
    assert (entity_type(Wall).entity, entity_type(Wall).row(Wall())) == (Entity([]), [])


def one(annotation: Any, name: str = "value") -> type:
    """A dataclass of one field."""
    return dataclass(type("Thing", (), {"__annotations__": {name: annotation}}))


@pytest.mark.parametrize("annotation", [str, tuple[float, float], Any, None, Pos | None, np.ndarray], ids=str)
def test_a_field_that_is_no_number_is_refused_by_its_name(annotation: Any) -> None:
    with pytest.raises(ValueError, match=r"Thing\.value is of type .*; allowed: bool, int, float, an Enum, or a data"):
        entity_type(one(annotation))
    with pytest.raises(ValueError, match=r"Thing\.outer\.value is of type "):
        entity_type(one(one(annotation), "outer"))


@dataclass
class Endless:
    inner: Endless


@dataclass
class Unknown:
    value: NotThere  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (one(Perks), r"Thing\.value is the Enum Perks; it must have members, and not be a Flag, whose members combine"),
        (one(Nothing), r"Thing\.value is the Enum Nothing; it must have members"),
        (Endless, r"Endless\.inner holds itself"),
        (Unknown, r"annotations of Unknown cannot be looked up.*NotThere"),
        (one(Unknown), r"annotations of Thing\.value cannot be looked up.*NotThere"),
        (int, "int is <class 'int'>; it must be a dataclass"),
        (Facing, "it must be a dataclass"),
        ("Head", "it must be a dataclass"),
    ],
)
def test_what_is_no_entity_type_is_refused(given: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        entity_type(given)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pos": None}, r"Head\.pos\.x cannot be read: 'NoneType' object has no attribute 'x'"),
        ({"facing": "LEFT"}, r"Head\.facing is 'LEFT'; it must be one of Facing\.LEFT, Facing\.RIGHT"),
        ({"facing": []}, r"Head\.facing is \[\]; it must be one of"),
        ({"rank": 3}, r"Head\.rank is 3; it must be one of"),
    ],
)
def test_a_value_of_another_type_than_its_field_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        entity_type(Head).row(head(**changes))


# --- Actions


class Fire(enum.Enum):
    NO = False
    YES = True


@dataclass
class Command:
    move: Move
    fire: Fire


@dataclass
class Hidden:
    _move: Move
    fire: Fire


@dataclass
class Fixed:
    move: Move = field(default=Move.STAY, init=False)


Wide = enum.Enum("Wide", [f"W{k}" for k in range(101)])


@dataclass
class Huge:
    a: Wide
    b: Wide


def test_every_combination_of_a_dataclass_of_enums_is_a_choice_and_the_last_field_varies_fastest() -> None:
    assert choices_of(Move).space == CategoricalActionSpace(("LEFT", "STAY", "RIGHT"))
    assert [choices_of(Move).index(choices_of(Move).pick(k)) for k in range(3)] == [0, 1, 2]
    choices = choices_of(Command)
    assert choices.labels[:3] == ("move=LEFT,fire=NO", "move=LEFT,fire=YES", "move=STAY,fire=NO")
    assert choices.pick(5) == Command(Move.RIGHT, Fire.YES)
    assert [choices.index(choices.pick(index)) for index in range(6)] == list(range(6))
    choices.pick(5).fire = Fire.NO
    assert choices.pick(5).fire is Fire.YES, "each object is a new one"


def test_what_is_no_choice_is_refused() -> None:
    with pytest.raises(ValueError, match="'LEFT' is no Move; allowed: 'LEFT', 'STAY', 'RIGHT'; did you mean 'LEFT'"):
        choices_of(Move).index("LEFT")  # type: ignore[arg-type]
    for wrong in (Move.LEFT, None, []):
        with pytest.raises(ValueError, match=r"Command\(.*\) is no Command; allowed: 'move=LEFT,fire=NO'"):
            choices_of(Command).index(Command(Move.LEFT, wrong))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (one(str), r"Thing\.value is <class 'str'>; it must be an Enum"),
        (one(Command), r"Thing\.value is <class '.*Command'>; it must be an Enum"),
        (Hidden, r"Hidden cannot be made of its fields \['fire'\]: .*_move"),
        (Fixed, r"Fixed cannot be made of its fields \['move'\]"),
        (Wall, "Wall has 0 choices; it must have 1 to 10000"),
        (Huge, "Huge has 10201 choices; it must have 1 to 10000"),
        (Perks, "the Enum Perks; it must have members, and not be a Flag"),
        (Nothing, "the Enum Nothing; it must have members"),
        (int, "<class 'int'> is no action; an action is an Enum, or a dataclass"),
        (["LEFT"], "an action is an Enum"),
        (Move.LEFT, "an action is an Enum"),
    ],
)
def test_what_is_no_action_is_refused_by_the_name_of_the_field(given: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        choices_of(given)
