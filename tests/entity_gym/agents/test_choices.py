"""Actions are Enums, or dataclasses of Enums of which every combination is a choice."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any

import pytest

from entity_gym.actions import CategoricalActionSpace
from entity_gym.agents.schema import choices_of


class Move(enum.Enum):
    LEFT = -1
    STAY = 0
    RIGHT = 1


class Fire(enum.Enum):
    NO = False
    YES = True


class Perks(enum.Flag):
    FAST = 1


@dataclass
class Command:
    move: Move
    fire: Fire


@dataclass
class Turn:
    first: Command
    then: Fire


@dataclass
class Named:
    name: str


@dataclass
class Hidden:
    _move: Move


@dataclass
class Fixed:
    move: Move = field(default=Move.STAY, init=False)


@dataclass
class Empty:
    pass


Wide = enum.Enum("Wide", [f"W{k}" for k in range(101)])


@dataclass
class Huge:
    a: Wide
    b: Wide


def test_the_choices_of_an_enum_are_its_members() -> None:
    choices = choices_of(Move)
    assert (choices.name, choices.space) == ("Move", CategoricalActionSpace(("LEFT", "STAY", "RIGHT")))
    assert [choices.pick(k) for k in range(3)] == [Move.LEFT, Move.STAY, Move.RIGHT]


def test_the_last_field_of_a_dataclass_varies_fastest() -> None:
    choices = choices_of(Command)
    assert choices.labels == (
        "move=LEFT,fire=NO",
        "move=LEFT,fire=YES",
        "move=STAY,fire=NO",
        "move=STAY,fire=YES",
        "move=RIGHT,fire=NO",
        "move=RIGHT,fire=YES",
    )
    assert choices.pick(3) == Command(Move.STAY, Fire.YES)


def test_dataclasses_nest() -> None:
    choices = choices_of(Turn)
    assert len(choices.labels) == 12
    assert choices.labels[9] == "first.move=RIGHT,first.fire=NO,then=YES"
    assert choices.pick(9) == Turn(Command(Move.RIGHT, Fire.NO), Fire.YES)


def test_every_choice_is_found_again() -> None:
    choices = choices_of(Turn)
    assert [choices.index(choices.pick(index)) for index in range(12)] == list(range(12))


def test_each_object_is_a_new_one() -> None:
    first = choices_of(Command).pick(0)
    first.fire = Fire.YES
    assert choices_of(Command).pick(0).fire is Fire.NO


def test_what_is_no_choice_is_refused() -> None:
    with pytest.raises(ValueError, match="'LEFT' is no Move; allowed: 'LEFT', 'STAY', 'RIGHT'; did you mean 'LEFT'"):
        choices_of(Move).index("LEFT")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="<Move.LEFT: -1> is no Fire; allowed: 'move=LEFT,fire=NO'"):
        choices_of(Command).index(Command(Move.LEFT, Move.LEFT))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (Named, r"Named\.name is <class 'str'>; an action is an Enum, or a dataclass of which every field is one"),
        (Hidden, r"Hidden\._move begins with an underscore"),
        (Fixed, r"Fixed\.move is not given to its constructor"),
        (Empty, "Empty has no fields"),
        (Perks, "the Enum Perks, which is a Flag"),
        (enum.Enum("None", []), "which has no members"),
        (Huge, "101 times 101 combinations are 10201 choices; at most 10000"),
        (int, "int is <class 'int'>; an action is an Enum"),
        (["LEFT"], r"an action is an Enum"),
        (Move.LEFT, r"an action is an Enum"),
    ],
)
def test_what_is_no_action_is_refused_by_the_name_of_the_field(given: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        choices_of(given)
