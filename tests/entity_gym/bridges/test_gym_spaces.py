"""Spaces become entities, features and actions; every row is written out by hand."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

spaces = pytest.importorskip("gymnasium.spaces")

from entity_gym import CategoricalActionSpace, Category, ContinuousActionSpace, Flag  # noqa: E402
from entity_gym.bridges.gymnasium.actions import MOST_CHOICES, GymActions  # noqa: E402
from entity_gym.bridges.gymnasium.observations import FixedFeatures  # noqa: E402
from entity_gym.bridges.views.reading import ViewReader  # noqa: E402

Box, Dict, Discrete, Tuple = spaces.Box, spaces.Dict, spaces.Discrete, spaces.Tuple
REAL = Box(-np.inf, np.inf, ())


def box(*shape: int) -> Any:
    return Box(-np.inf, np.inf, shape)


def features(space: Any) -> dict[str, list[Any]]:
    """Type -> names and kinds of its features."""
    entities = ViewReader(None, space).obs_space.entities
    return {name: [each.kinds.get(feature, feature) for feature in each.features] for name, each in entities.items()}


def entities(space: Any, *values: Any) -> list[dict[str, list[list[float]]]]:
    """Return the entities of each value."""
    reader = ViewReader(None, space)
    rows = np.zeros((len(values), reader.size), np.float32)
    seen = reader.read(rows, [reader.write(value, row) for value, row in zip(values, rows, strict=True)])
    shown = [{name: [] for name in seen} for _ in values]
    for name, each in seen.items():
        assert each.values.dtype == np.float32 and each.values.ndim == 2
        for of_value, part in zip(shown, np.split(each.values, np.cumsum(each.counts)[:-1]), strict=True):
            of_value[name] = part.tolist()
    return shown


def refusal(space: Any, value: Any) -> str:
    with pytest.raises(ValueError) as error:
        entities(space, value)
    return str(error.value)


ELEMENT = Dict({"kind": Discrete(3, start=1), "pos": Dict({"x": REAL, "y": REAL})})


@pytest.mark.parametrize(
    ("space", "value", "named", "shown"),
    [
        (box(3), np.array([1.5, -2, 3]), {"Agent": ["0", "1", "2"]}, {"Agent": [[1.5, -2, 3]]}),
        (Discrete(4, start=-1), np.int64(2), {"Agent": [Category("value", 4)]}, {"Agent": [[3]]}),
        (spaces.MultiDiscrete([3, 5], start=[10, 0]), np.array([12, 4]),
         {"Agent": [Category("0", 3), Category("1", 5)]}, {"Agent": [[2, 4]]}),
        (spaces.MultiBinary([2, 1]), np.array([[0], [1]], np.int8), {"Agent": [Flag("0.0"), Flag("1.0")]}, {"Agent": [[0, 1]]}),
        (Dict({"speed": REAL, "gear": Discrete(5), "at": box(2)}), {"at": [1, 2], "speed": 3.5, "gear": 4},
         {"Agent": ["at.0", "at.1", Category("gear", 5), "speed"]}, {"Agent": [[1, 2, 4, 3.5]]}),
        (Tuple([box(2), Discrete(3)]), (np.array([7, 8]), 2),
         {"Agent": ["0.0", "0.1", Category("1", 3)]}, {"Agent": [[7, 8, 2]]}),
        # A Dict or Tuple inside is a type, unless it holds only such.
        (Dict({"robot": Dict({"arm": Tuple([REAL, REAL]), "heat": REAL}), "time": REAL}),
         {"robot": {"arm": (1, 2), "heat": 3}, "time": 4},
         {"Agent": ["time"], "robot": ["heat"], "robot.arm": ["0", "1"]},
         {"Agent": [[4]], "robot": [[3]], "robot.arm": [[1, 2]]}),
        # Elements of a Sequence, in any form, and of nothing.
        (Dict({"hp": REAL, "foes": spaces.Sequence(box(2))}), {"hp": 9, "foes": (np.array([1, 2]), np.array([3, 4]))},
         {"Agent": ["hp"], "foes": ["0", "1"]}, {"Agent": [[9]], "foes": [[1, 2], [3, 4]]}),
        (spaces.Sequence(ELEMENT), ({"kind": 1, "pos": {"x": 2, "y": 3}}, {"kind": 3, "pos": {"x": 4, "y": 5}}),
         {"Agent": [], "Item": [Category("kind", 3), "pos.x", "pos.y"]}, {"Agent": [[]], "Item": [[0, 2, 3], [2, 4, 5]]}),
        (box(1), np.array([np.inf]), {"Agent": ["0"]}, {"Agent": [[np.inf]]}),  # whoever packs it says where it was shown
    ],
)  # fmt: skip
def test_spaces_become_entities_and_values_their_rows(space: Any, value: Any, named: Any, shown: Any) -> None:
    assert features(space) == named
    assert entities(space, value) == [shown]
    assert entities(space, value, value) == [shown, shown]


def test_nothing_can_be_shown_in_every_form() -> None:
    for nothing in ((), [], np.array([]), np.zeros((0, 2))):
        assert entities(Dict({"s": spaces.Sequence(box(2))}), {"s": nothing}) == [{"Agent": [[]], "s": []}]


def test_fixed_features_are_one_row_however_nested_the_space() -> None:
    fixed = FixedFeatures(Dict({"Agent": Dict({"angle": REAL}), "grip": Discrete(2)}))
    assert fixed.features == ("Agent.angle", Category("grip", 2))
    row = np.zeros(2, np.float32)
    fixed.write({"Agent": {"angle": 0.5}, "grip": 1}, row)
    assert row.tolist() == [0.5, 1]


# ---- what is refused


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (Dict({"name": spaces.Text(5)}), r"space at 'name' is a Text, which has no form as entities: leave it out.*wrapper"),
        (spaces.Graph(box(2), None), r"the observation space is a Graph, which has no form"),
        (box(5000), r"is 5,000 numbers; at most 4,096 can be features: leave it out, or make it fewer numbers, in a wrapper"),
        (Dict({"a.0": REAL, "a": box(1)}), r"the observation space as features of 'Agent': .*'a\.0'"),
        (Dict({"Agent": Dict({"x": REAL})}), r"two things that would be the entity type 'Agent': rename"),
    ],
)  # fmt: skip
def test_a_space_without_a_form_is_refused_with_its_path_and_what_to_do(space: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ViewReader(None, space)


POINTS = Dict({"s": spaces.Sequence(box(2))})


@pytest.mark.parametrize(
    ("space", "value", "message"),
    [
        (box(2), np.zeros(3), "the observation has shape (3,); expected (2,)"),
        (box(2), [[1], [1, 2]], "the observation is [[1], [1, 2]]; it must be numbers"),
        (box(2), ["a", "b"], "the observation is ['a', 'b']; it must be numbers"),
        (Dict({"x": REAL}), {"x": 1, "y": 1}, "the observation is {'x': 1, 'y': 1}; expected the keys ['x']"),
        (Dict({"r": Dict({"x": box(2)})}), {"r": {"x": 5}}, "r.x has shape (); expected (2,)"),
        (Tuple([REAL, REAL]), (1, 2, 3), "expected a tuple of 2"),
        (POINTS, {"s": {"a": 1}}, "s is {'a': 1}; expected a sequence of values"),
        (POINTS, {"s": (np.zeros(3),)}, "s has shape (1, 3); expected (1, 2)"),
    ],
)  # fmt: skip
def test_a_value_outside_the_space_is_refused_with_its_path(space: Any, value: Any, message: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert message in refusal(space, value)


# ---- actions


@pytest.mark.parametrize(
    ("space", "named", "chosen", "value"),
    [
        (Discrete(3, start=5), {"action": 3}, {"action": 2}, 7),
        (spaces.MultiDiscrete([2, 3], start=[0, 10]), {"action.0": 2, "action.1": 3}, {"action.0": 1, "action.1": 2}, [1, 12]),
        (spaces.MultiBinary(2), {"action.0": 2, "action.1": 2}, {"action.0": 0, "action.1": 1}, [0, 1]),
        (Box(-1, 2, (2,), np.int32), {"action.0": 4, "action.1": 4}, {"action.0": 0, "action.1": 3}, [-1, 2]),
        (Dict({"arm": Tuple([Discrete(2)]), "fire": Discrete(3)}), {"arm.0": 2, "fire": 3}, {"arm.0": 1, "fire": 2},
         {"arm": (1,), "fire": 2}),
    ],
)  # fmt: skip
def test_choices_are_categorical_actions_and_come_back_as_the_space_has_them(
    space: Any, named: dict[str, int], chosen: dict[str, int], value: Any
) -> None:
    actions = GymActions(space)
    kinds = {name: CategoricalActionSpace([str(k) for k in range(count)]) for name, count in named.items()}
    assert actions.action_space == kinds
    decoded = actions.decode({name: np.array([0, choice]) for name, choice in chosen.items()}, 2)
    assert all(each in space for each in decoded)
    assert (decoded[1].tolist() if isinstance(decoded[1], np.ndarray) else decoded[1]) == value


@pytest.mark.parametrize(
    "space", [Discrete(2), Box(0, 1, (), np.int64), spaces.MultiDiscrete([2, 3]), Box(-1, 0, (2,), np.int8)]
)
def test_numbers_other_than_a_row_of_0_and_1_are_choices_even_where_they_select(space: Any) -> None:
    assert all(isinstance(each, CategoricalActionSpace) for each in GymActions(space, {"action"}).action_space.values())


def test_a_mask_of_a_set_has_a_flag_for_each_row() -> None:
    actions = GymActions(Dict({"go": Discrete(2), "pack": spaces.MultiBinary(3)}), {"pack"})
    masks = {name: mask.tolist() for name, mask in actions.masks([1, 0, 0, 1, 1]).items()}
    assert masks == {"go": [True, False], "pack": [False, True, True]}
    with pytest.raises(ValueError, match=r"expected 5 flags, 1 where a choice is open: \{'go': 2, 'pack': 3\}"):
        actions.masks([1] * 8)


def test_a_box_of_real_numbers_is_one_continuous_action_within_its_bounds() -> None:
    space = Dict({"a": Box(np.array([[-2.0, 0.0]]), np.array([[2.0, np.inf]]), dtype=np.float64)})
    actions = GymActions(space)
    assert actions.action_space == {"a": ContinuousActionSpace([-2, 0], [2, np.inf])}
    (value,) = actions.decode({"a": np.array([[1.5, 3.0]], np.float32)}, 1)
    assert value in space and value["a"].dtype == np.float64 and value["a"].tolist() == [[1.5, 3.0]]
    narrow = GymActions(Box(-0.1, 0.1, (1,), np.float64))
    low, high = narrow.action_space["action"].bounds()  # type: ignore[union-attr]
    assert float(high[0]) > 0.1, "the test is about a bound that float32 has not"
    assert [value.tolist() for value in narrow.decode({"action": np.array([low, high])}, 2)] == [[-0.1], [0.1]]


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Text(3), r"action space at 'action' is a Text, which no actor can take: make it of Discrete.*wrapper"),
        (Dict({"who": spaces.Sequence(Discrete(3))}), r"action space at 'who' is a Sequence"),
        (Discrete(MOST_CHOICES + 1), r"'action' is a Discrete of 65,537 choices; from 1 to 65,536 can be .*: make it a MultiD"),
        (Box(np.array([0.0, 1.0]), np.array([1.0, 1.0])), r"low\[1\] is 1\.0 and high\[1\] 1\.0"),
        (Dict({}), r"the action space holds no action"),
        (Dict({"a.0": Discrete(2), "a": Tuple([Discrete(2)])}), r"two things that would be the action 'a\.0'"),
    ],
)  # fmt: skip
def test_an_action_space_without_a_form_is_refused_with_its_path_and_what_to_do(space: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GymActions(space)
