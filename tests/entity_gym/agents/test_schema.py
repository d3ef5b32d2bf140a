"""Dataclasses of numbers become entity types, and Enums and dataclasses of Enums become actions."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, NewType

import numpy as np
import pytest
from numpy.typing import NDArray

from entity_gym import CategoricalActionSpace, Entity
from entity_gym.agents.schema import choices_of, entity_type
from entity_gym.spaces import Flag

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
    rank: Annotated[Rank, "for somebody else"]
    _log: list[str] = field(default_factory=list)
    kind: ClassVar[str] = "head"


@dataclass
class Wall:
    pass


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


def test_an_object_in_a_field_may_be_of_a_subclass() -> None:
    @dataclass
    class Marked(Pos):
        mark: int = 0

    assert entity_type(Head).row(head(pos=Marked(1, 2, 3)))[:2] == [1, 2]


def one(annotation: Any, name: str = "value") -> type:
    """A dataclass of one field."""
    return dataclass(type("Thing", (), {"__annotations__": {name: annotation}}))


@pytest.mark.parametrize(
    "annotation",
    [
        str, list[float], tuple[float, float], Any, object, complex, None, Pos | None, np.ndarray, NDArray[np.float32],
        Annotated[list[float], 3], Annotated[np.ndarray, (2, 3)],
    ],
    ids=str,
)  # fmt: skip
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
        (one(Perks), r"Thing\.value is of the Enum Perks, which is a Flag, whose members combine"),
        (one(Nothing), r"Thing\.value is of the Enum Nothing, which has no members"),
        (Endless, r"Endless\.inner holds itself"),
        (Unknown, r"annotations of Unknown cannot be looked up.*NotThere"),
        (int, "it must be a dataclass"),
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
        ({"facing": Rank.LOW}, r"Head\.facing is <Rank.LOW: 3>; it must be one of"),
        ({"rank": 3}, r"Head\.rank is 3; it must be one of"),
    ],
)
def test_a_value_of_another_type_than_its_field_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        entity_type(Head).row(head(**changes))


# --- Actions


class Move(enum.Enum):
    LEFT = -1
    STAY = 0
    RIGHT = 1


class Fire(enum.Enum):
    NO = False
    YES = True


@dataclass
class Command:
    move: Move
    fire: Fire


@dataclass
class Turn:
    first: Command
    then: Fire


@dataclass
class Hidden:
    _move: Move


@dataclass
class Fixed:
    move: Move = field(default=Move.STAY, init=False)


Wide = enum.Enum("Wide", [f"W{k}" for k in range(101)])


@dataclass
class Huge:
    a: Wide
    b: Wide


def test_the_choices_of_an_enum_are_its_members() -> None:
    choices = choices_of(Move)
    assert (choices.name, choices.space) == ("Move", CategoricalActionSpace(("LEFT", "STAY", "RIGHT")))
    assert [choices.pick(k) for k in range(3)] == [Move.LEFT, Move.STAY, Move.RIGHT]
    assert [choices.index(move) for move in Move] == [0, 1, 2]


def test_every_combination_of_a_dataclass_of_enums_is_a_choice_and_the_last_field_varies_fastest() -> None:
    assert choices_of(Command).labels[:3] == ("move=LEFT,fire=NO", "move=LEFT,fire=YES", "move=STAY,fire=NO")
    choices = choices_of(Turn)
    assert len(choices.labels) == 12
    assert choices.labels[9] == "first.move=RIGHT,first.fire=NO,then=YES"
    assert choices.pick(9) == Turn(Command(Move.RIGHT, Fire.NO), Fire.YES)
    assert [choices.index(choices.pick(index)) for index in range(12)] == list(range(12))
    choices.pick(9).then = Fire.NO
    assert choices.pick(9).then is Fire.YES, "each object is a new one"


def test_what_is_no_choice_is_refused() -> None:
    with pytest.raises(ValueError, match="'LEFT' is no Move; allowed: 'LEFT', 'STAY', 'RIGHT'; did you mean 'LEFT'"):
        choices_of(Move).index("LEFT")  # type: ignore[arg-type]
    for wrong in (Move.LEFT, None, []):
        with pytest.raises(ValueError, match=r"Command\(.*\) is no Command; allowed: 'move=LEFT,fire=NO'"):
            choices_of(Command).index(Command(Move.LEFT, wrong))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (one(str), r"Thing\.value is <class 'str'>; it must be an Enum or a dataclass of Enums"),
        (Hidden, r"Hidden\._move begins with an underscore; every field of an action is chosen"),
        (Fixed, r"Fixed\.move is not given to its constructor"),
        (Wall, "Wall has no fields"),
        (Perks, "the Enum Perks, which is a Flag"),
        (Nothing, "which has no members"),
        (Huge, "101 times 101 combinations are 10201 choices; at most 10000"),
        (int, "int is <class 'int'>; an action is an Enum"),
        (["LEFT"], r"an action is an Enum"),
        (Move.LEFT, r"an action is an Enum"),
    ],
)
def test_what_is_no_action_is_refused_by_the_name_of_the_field(given: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        choices_of(given)
