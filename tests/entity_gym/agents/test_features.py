"""Objects of dataclasses become rows of numbers that are named after their fields."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, NewType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from entity_gym.agents.schema import entity_type
from entity_gym.spaces import Entity, Flag

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
    cells: tuple[int, float]
    _log: list[str] = field(default_factory=list)
    kind: ClassVar[str] = "head"


@dataclass
class Wall:
    pass


@dataclass
class Deep:
    ends: tuple[Pos, Pos]
    rank: Rank
    far: Meters
    board: Annotated[NDArray[np.float32], (2, 2)]
    last: Annotated[list[bool], 2]
    half: np.float32
    plain: Annotated[float, "metres"]


def test_every_kind_of_field_has_its_features_in_the_order_of_the_fields() -> None:
    expected = ["pos.x", "pos.y", Flag("facing.is_LEFT"), Flag("facing.is_RIGHT"), Flag("alive"), "cells.0", "cells.1"]
    assert entity_type(Head).entity == Entity(expected)
    assert entity_type(Head).name == "Head"


def test_objects_become_rows_in_their_order() -> None:
    heads = [
        Head(Pos(0.5, 2), Facing.LEFT, True, (3, 4.5), ["not a feature"]),
        Head(Pos(-1.0, 0), Facing.RIGHT, False, (0, 0.0)),
    ]
    rows = entity_type(Head).rows(heads)
    assert rows.dtype == np.float32
    assert rows.tolist() == [[0.5, 2, 1, 0, 1, 3, 4.5], [-1, 0, 0, 1, 0, 0, 0]]


def test_tuples_arrays_and_lists_of_a_fixed_length_nest() -> None:
    names = ["ends.0.x", "ends.0.y", "ends.1.x", "ends.1.y", Flag("rank.is_LOW"), Flag("rank.is_HIGH"), "far"]
    names += ["board.0.0", "board.0.1", "board.1.0", "board.1.1", Flag("last.0"), Flag("last.1"), "half", "plain"]
    assert entity_type(Deep).entity == Entity(names)
    deep = Deep(
        (Pos(1, 2), Pos(3, 4)), Rank.HIGH, Meters(5), np.float32([[6, 7], [8, 9]]), [True, False], np.float32(0.5), 1.5
    )
    assert entity_type(Deep).rows([deep]).tolist() == [[1, 2, 3, 4, 0, 1, 5, 6, 7, 8, 9, 1, 0, 0.5, 1.5]]


def test_a_type_without_fields_is_an_entity_without_features() -> None:
    assert entity_type(Wall).entity == Entity([])
    assert entity_type(Wall).rows([Wall(), Wall()]).shape == (2, 0)
    assert entity_type(Head).rows([]).shape == (0, 7)


def test_a_nested_object_may_be_of_a_subclass() -> None:
    @dataclass
    class Marked(Pos):
        mark: int = 0

    rows = entity_type(Head).rows([Head(Marked(1, 2, 3), Facing.LEFT, True, (0, 0))])
    assert rows[0, :2].tolist() == [1, 2]


@settings(max_examples=25)
@given(st.lists(st.tuples(st.floats(width=32, allow_nan=False, allow_infinity=False), st.integers(-(2**24), 2**24))))
def test_numbers_arrive_as_they_are(values: list[tuple[float, int]]) -> None:
    rows = entity_type(Pos).rows([Pos(x, y) for x, y in values])
    assert rows.tolist() == [[x, y] for x, y in values]


def one(annotation: Any, name: str = "value") -> type:
    """A dataclass of one field."""
    return dataclass(type("Thing", (), {"__annotations__": {name: annotation}}))


@pytest.mark.parametrize(
    "annotation",
    [
        str, list[float], dict[str, float], tuple[float, ...], tuple, Any, object, complex, bytes, None, Pos | None,
        np.ndarray, Sequence[float], set[int],
    ],
    ids=str,
)  # fmt: skip
def test_a_type_without_a_fixed_number_of_features_is_refused_by_the_name_of_the_field(annotation: Any) -> None:
    with pytest.raises(ValueError, match=r"Thing\.value is of type .*no fixed number of features; allowed: bool, int,"):
        entity_type(one(annotation))


def test_a_length_that_cannot_be_is_told() -> None:
    with pytest.raises(ValueError, match=r"Thing\.value is of type .* with the length 0; it must be at least 1"):
        entity_type(one(Annotated[list[float], 0]))


def test_a_refused_field_of_a_nested_dataclass_is_named_by_its_path() -> None:
    with pytest.raises(ValueError, match=r"Thing\.outer\.1\.value is of type str"):
        entity_type(one(tuple[float, one(str)], "outer"))


def test_enums_that_cannot_be_one_hot_are_refused() -> None:
    with pytest.raises(ValueError, match=r"Thing\.value is of the Enum Perks, which is a Flag, whose members combine"):
        entity_type(one(Perks))
    with pytest.raises(ValueError, match=r"Thing\.value is of the Enum Nothing, which has no members"):
        entity_type(one(Nothing))


@dataclass
class Endless:
    inner: Endless


@dataclass
class Unknown:
    value: NotThere  # type: ignore[name-defined]  # noqa: F821


def test_a_type_that_holds_itself_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Endless\.inner holds itself"):
        entity_type(Endless)


def test_an_annotation_that_cannot_be_looked_up_is_refused() -> None:
    with pytest.raises(ValueError, match=r"annotations of Unknown cannot be looked up.*NotThere"):
        entity_type(Unknown)


@pytest.mark.parametrize("given", [int, Facing, "Head"])
def test_what_is_no_dataclass_is_refused(given: Any) -> None:
    with pytest.raises(ValueError, match="it must be a dataclass"):
        entity_type(given)


@pytest.mark.parametrize("value", ["3", None, [1.0], float("nan"), float("inf"), 1e39, 2**2000, 1j], ids=str)
def test_a_value_that_is_no_number_is_named_by_its_field(value: Any) -> None:
    with pytest.raises(ValueError, match=r"Pos\.x is .*it must be a number that float32 can hold"):
        entity_type(Pos).rows([Pos(0, 0), Pos(value, 1)])


def head(**changes: Any) -> Head:
    given = {"pos": Pos(0, 0), "facing": Facing.LEFT, "alive": True, "cells": (0, 0), **changes}
    return Head(**given)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pos": None}, r"Head\.pos is None; it must be a Pos"),
        ({"facing": "LEFT"}, r"Head\.facing is 'LEFT'; it must be a member of Facing"),
        ({"facing": Rank.LOW}, r"Head\.facing is <Rank.LOW: 3>; it must be a member of Facing"),
        ({"cells": (1, 2, 3)}, r"Head\.cells is \(1, 2, 3\); it must have 2 items"),
        ({"cells": "ab"}, r"Head\.cells is 'ab'; it must have 2 items"),
        ({"cells": (1, None)}, r"Head\.cells\.1 is None; it must be a number"),
    ],
)
def test_a_value_of_another_type_than_its_field_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        entity_type(Head).rows([head(**changes)])


def test_an_array_of_another_shape_is_named() -> None:
    wrong = Deep(
        (Pos(1, 2), Pos(3, 4)), Rank.LOW, Meters(5), np.zeros((2, 3), np.float32), [True, False], np.float32(0), 0
    )
    with pytest.raises(ValueError, match=r"(?s)Deep\.board is .*must be an array of shape \(2, 2\)"):
        entity_type(Deep).rows([wrong])
