"""Dataclasses of numbers and Enums become entity types, and Enums become actions."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pytest

from entity_gym import CategoricalActionSpace, Entity, SelectEntitiesActionSpace
from entity_gym.agents.agent import action_space_of, entity_of, row_of
from entity_gym.spaces import Flag
from tests.entity_gym.agents.programs import Move, Visit, Wall


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
class Head:
    x: float
    facing: Facing
    alive: bool
    half: np.float32
    rank: Rank
    _log: list[str] = field(default_factory=list)
    kind: ClassVar[str] = "head"


def head(**changes: Any) -> Head:
    return Head(**{"x": 0.5, "facing": Facing.LEFT, "alive": True, "half": 0.25, "rank": Rank.HIGH} | changes)


def test_every_field_has_its_features_in_the_order_of_the_fields() -> None:
    names = ["x", Flag("facing.is_LEFT"), Flag("facing.is_RIGHT"), Flag("alive"), "half"]
    assert entity_of(Head) == Entity([*names, Flag("rank.is_LOW"), Flag("rank.is_HIGH")])
    assert row_of(head(_log=["no feature"])) == [0.5, 1, 0, 1, 0.25, 0, 1]
    assert row_of(head(x=-1, facing=Facing.RIGHT, rank=Rank.LOW)) == [-1, 0, 1, 1, 0.25, 1, 0]
    assert (entity_of(Wall), row_of(Wall())) == (Entity([]), [])


def one(annotation: Any) -> type:
    """A dataclass of one field."""
    return dataclass(type("Thing", (), {"__annotations__": {"value": annotation}}))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        *(
            (one(kind), r"Thing\.value is of type .*; allowed: bool, int, float, or an Enum")
            for kind in (str, tuple[float, float], Any, None, Wall, np.ndarray)
        ),
        (one(Perks), r"Thing\.value is <flag 'Perks'>; it must be an Enum with members, and no Flag"),
        (Facing, "is no dataclass"),
    ],
)
def test_what_is_no_entity_type_is_refused(given: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        entity_of(given)


@pytest.mark.parametrize("changes", [{"facing": "LEFT"}, {"facing": []}, {"facing": None}, {"rank": 3}])
def test_a_value_that_is_no_member_of_its_enum_is_named(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"Head\.(facing is .*; it must be one of Facing\.LEFT, |rank is 3; .* 3, 7)"):
        row_of(head(**changes))


def test_every_member_of_an_enum_is_a_choice() -> None:
    assert action_space_of(Move) == CategoricalActionSpace(("LEFT", "STAY", "RIGHT"))
    assert action_space_of(Visit) == SelectEntitiesActionSpace(max=2, ordered=True)
    for wrong in (Perks, Nothing, int, "LEFT", Move.LEFT, Wall):
        with pytest.raises(ValueError, match="the action is .*; it must be an Enum with members, and no Flag"):
            action_space_of(wrong)
