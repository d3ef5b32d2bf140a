"""Which entities, features and actions spaces become; every row is written out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

spaces = pytest.importorskip("gymnasium.spaces")

from entity_gym import CategoricalActionSpace, Category, ContinuousActionSpace, Entity, Flag, ObsSpace  # noqa: E402
from entity_gym.bridges.gymnasium.actions import GymActions  # noqa: E402
from entity_gym.bridges.gymnasium.observations import (  # noqa: E402
    FixedFeatures,
    GymObservations,  # noqa: E402
    PlainSpace,
    infer_space,
)

Box, Dict, Discrete, Tuple = spaces.Box, spaces.Dict, spaces.Discrete, spaces.Tuple
REAL = Box(-np.inf, np.inf, ())


def box(*shape: int) -> Any:
    return Box(-np.inf, np.inf, shape)


def rows(space: Any, value: Any, **options: Any) -> dict[str, list[list[float]]]:
    """What a value becomes."""
    bridge = GymObservations(space, **options)
    to = bridge.empty()
    bridge.write(value, to)
    assert all(array.dtype == np.float32 for array in to.values())
    return {
        name: np.atleast_2d(array).tolist() if array.size else [[]] * (array.ndim == 1) for name, array in to.items()
    }


def refusal(space: Any, value: Any, **options: Any) -> str:
    bridge = GymObservations(space, **options)
    with pytest.raises(ValueError) as error:
        bridge.write(value, bridge.empty())
    return str(error.value)


# ---- fixed leaves: the features of the agent


def test_the_numbers_of_a_box_are_features_named_by_their_place() -> None:
    assert GymObservations(box(3)).obs_space == ObsSpace({"Agent": Entity(["0", "1", "2"])})
    assert rows(box(3), np.array([1.5, -2, 3])) == {"Agent": [[1.5, -2, 3]]}


def test_a_box_of_two_dimensions_is_flattened_row_by_row() -> None:
    assert GymObservations(box(2, 2)).obs_space.entities["Agent"].features == ("0.0", "0.1", "1.0", "1.1")
    assert rows(box(2, 2), [[1, 2], [3, 4]]) == {"Agent": [[1, 2, 3, 4]]}


def test_a_discrete_is_a_category_that_counts_from_its_start() -> None:
    space = Discrete(4, start=-1)
    assert GymObservations(space).obs_space.entities["Agent"] == Entity([Category("value", 4)])
    assert rows(space, np.int64(2)) == {"Agent": [[3]]}


def test_a_multi_discrete_is_a_category_for_each_number() -> None:
    space = spaces.MultiDiscrete([3, 5], start=[10, 0])
    assert GymObservations(space).obs_space.entities["Agent"] == Entity([Category("0", 3), Category("1", 5)])
    assert rows(space, np.array([12, 4])) == {"Agent": [[2, 4]]}


def test_a_multi_binary_is_a_flag_for_each_number() -> None:
    space = spaces.MultiBinary([2, 2])
    names = ["0.0", "0.1", "1.0", "1.1"]
    assert GymObservations(space).obs_space.entities["Agent"] == Entity([Flag(name) for name in names])
    assert rows(space, np.array([[0, 1], [1, 0]], np.int8)) == {"Agent": [[0, 1, 1, 0]]}


def test_leaves_of_a_dictionary_are_named_by_their_keys() -> None:
    space = Dict({"position": box(2), "speed": REAL, "gear": Discrete(5)})
    features = GymObservations(space).obs_space.entities["Agent"]
    # Gymnasium sorts the keys of a plain dictionary
    assert set(features.features) == {"position.0", "position.1", "speed", "gear"}
    assert features.kinds == {"gear": Category("gear", 5)}
    value = {"position": np.array([1, 2]), "speed": 3.5, "gear": 4}
    (row,) = rows(space, value)["Agent"]
    assert dict(zip(features.features, row, strict=True)) == {"position.0": 1, "position.1": 2, "speed": 3.5, "gear": 4}


def test_leaves_of_a_tuple_are_named_by_their_places() -> None:
    space = Tuple([box(2), Discrete(3)])
    assert GymObservations(space).obs_space.entities["Agent"].features == ("0.0", "0.1", "1")
    assert rows(space, (np.array([7, 8]), 2)) == {"Agent": [[7, 8, 2]]}


def test_outermost_leaves_can_be_global_features_and_the_agent_then_has_none() -> None:
    space = Dict({"a": REAL, "arm": Dict({"angle": REAL})})
    bridge = GymObservations(space, global_features=True)
    assert bridge.obs_space == ObsSpace({"Agent": Entity(), "arm": Entity(["angle"])}, ["a"])
    shown = rows(space, {"a": 1, "arm": {"angle": 2}}, global_features=True)
    assert shown == {"Agent": [[]], "__global__": [[1]], "arm": [[2]]}


def test_global_features_of_a_space_without_outer_leaves_are_none() -> None:
    bridge = GymObservations(spaces.Sequence(box(2)), global_features=True)
    assert bridge.obs_space == ObsSpace({"Agent": Entity(), "Item": Entity(["0", "1"])})
    assert "__global__" not in bridge.counts


# ---- nested groups: types of their own


def test_nested_dictionaries_and_tuples_are_types_named_by_their_paths() -> None:
    space = Dict({"robot": Dict({"arm": Tuple([REAL, REAL]), "heat": REAL}), "time": REAL})
    entities = GymObservations(space).obs_space.entities
    assert {name: entity.features for name, entity in entities.items()} == {
        "Agent": ("time",),
        "robot": ("heat",),
        "robot.arm": ("0", "1"),
    }
    assert rows(space, {"robot": {"arm": (1, 2), "heat": 3}, "time": 4}) == {
        "Agent": [[4]],
        "robot": [[3]],
        "robot.arm": [[1, 2]],
    }


def test_a_group_of_nothing_but_groups_is_no_type() -> None:
    space = Dict({"arms": Dict({"left": Dict({"a": REAL}), "right": Dict({"a": REAL})})})
    assert list(GymObservations(space).obs_space.entities) == ["Agent", "arms.left", "arms.right"]


# ---- numbers of things that vary


@pytest.mark.parametrize("stack", [False, True])
def test_elements_of_a_sequence_are_entities(stack: bool) -> None:
    space = Dict({"hp": REAL, "foes": spaces.Sequence(box(2), stack=stack)})
    bridge = GymObservations(space)
    assert bridge.counts == {"Agent": 1, "foes": None}
    two = np.array([[1, 2], [3, 4]]) if stack else (np.array([1, 2]), np.array([3, 4]))
    assert rows(space, {"hp": 9, "foes": two}) == {"Agent": [[9]], "foes": [[1, 2], [3, 4]]}
    none = np.zeros((0, 2)) if stack else ()
    assert rows(space, {"hp": 9, "foes": none}) == {"Agent": [[9]], "foes": []}


@pytest.mark.parametrize("stack", [False, True])
def test_elements_of_a_sequence_may_be_dictionaries(stack: bool) -> None:
    element = Dict({"kind": Discrete(3, start=1), "pos": Dict({"x": REAL, "y": REAL})})
    space = spaces.Sequence(element, stack=stack)
    assert GymObservations(space).obs_space.entities["Item"] == Entity([Category("kind", 3), "pos.x", "pos.y"])
    each = ({"kind": 1, "pos": {"x": 2, "y": 3}}, {"kind": 3, "pos": {"x": 4, "y": 5}})
    stacked = {"kind": np.array([1, 3]), "pos": {"x": np.array([2, 4]), "y": np.array([3, 5])}}
    assert rows(space, stacked if stack else each)["Item"] == [[0, 2, 3], [2, 4, 5]]


@pytest.mark.parametrize("stack", [False, True])
def test_elements_of_a_sequence_may_be_tuples(stack: bool) -> None:
    space = spaces.Sequence(Tuple([Discrete(3), box(2)]), stack=stack)
    value = (np.array([1, 2]), np.array([[3, 4], [5, 6]])) if stack else ((1, [3, 4]), (2, [5, 6]))
    assert rows(space, value)["Item"] == [[1, 3, 4], [2, 5, 6]]


@settings(max_examples=40, deadline=None)
@given(st.booleans(), st.integers(0, 3), st.integers(0, 2**31 - 1))
def test_whatever_a_sequence_holds_every_sample_has_a_row_for_each_element(stack: bool, kind: int, seed: int) -> None:
    element = [box(2, 2), Discrete(3), Tuple([box(1), Discrete(2)]), Dict({"a": box(2), "b": Tuple([REAL])})][kind]
    space = spaces.Sequence(element, stack=stack, seed=seed)
    value = space.sample()
    flat = [spaces.flatten(element, each) for each in list(iterated(space, value))]
    got = rows(space, value)["Item"]
    assert len(got) == len(flat)
    if kind in (0,):
        np.testing.assert_array_equal(np.array(got).reshape(-1), np.array(flat, np.float32).reshape(-1))


def iterated(space: Any, value: Any) -> Any:
    from gymnasium.vector.utils import iterate

    return iterate(space.stacked_feature_space, value) if space.stack else value


def test_nodes_and_edges_of_a_graph_are_entities_and_an_edge_shows_both_its_ends() -> None:
    space = spaces.Graph(box(2), Discrete(3))
    entities = GymObservations(space).obs_space.entities
    assert entities["Node"] == Entity(["0", "1"])
    assert entities["Node.edge"] == Entity([Category("value", 3), "from.0", "from.1", "to.0", "to.1"])
    nodes, links = np.array([[1, 2], [3, 4], [5, 6]]), np.array([[0, 2], [1, 0]])
    shown = rows(space, spaces.GraphInstance(nodes, np.array([2, 0]), links))
    assert shown["Node"] == [[1, 2], [3, 4], [5, 6]]
    assert shown["Node.edge"] == [[2, 1, 2, 5, 6], [0, 3, 4, 1, 2]]


def test_a_graph_may_have_no_edges_now_or_ever() -> None:
    nodes = np.array([2, 0])
    space = Dict({"net": spaces.Graph(Discrete(3), box(1))})
    assert rows(space, {"net": spaces.GraphInstance(nodes, None, None)}) == {
        "Agent": [[]],
        "net": [[2], [0]],
        "net.edge": [],
    }
    assert rows(spaces.Graph(Discrete(3), None), spaces.GraphInstance(nodes, None, None)) == {
        "Agent": [[]],
        "Node": [[2], [0]],
    }


# ---- spaces of no library, and of an old one


def test_a_space_is_known_by_the_name_of_its_class_or_of_one_above_it() -> None:
    class Box:  # as the older gym has it
        shape = (2,)

    class Angles(Box):
        pass

    assert rows(Angles(), [1, 2]) == {"Agent": [[1, 2]]}


def test_the_space_of_one_observation_holds_others_of_the_same_form() -> None:
    space = infer_space({"x": 1.0, "seen": np.zeros((2,), bool), "pair": (np.zeros(1), {"a": 2})})
    assert {name: entity.features for name, entity in GymObservations(space).obs_space.entities.items()} == {
        "Agent": ("x", "seen.0", "seen.1"),
        "pair": ("0.0",),
        "pair.1": ("a",),
    }
    value = {"x": 3, "seen": np.array([True, False]), "pair": (np.array([4]), {"a": 5})}
    assert rows(space, value) == {"Agent": [[3, 1, 0]], "pair": [[4]], "pair.1": [[5]]}


def test_fixed_features_are_one_row_however_nested_the_space() -> None:
    features = FixedFeatures(Dict({"arm": Dict({"angle": REAL}), "grip": Discrete(2)}))
    assert features.features == ("arm.angle", Category("grip", 2))
    row = np.zeros(2, np.float32)
    features.write({"arm": {"angle": 0.5}, "grip": 1}, row)
    assert row.tolist() == [0.5, 1]


# ---- what is refused


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (
            Dict({"name": spaces.Text(5)}),
            r"space at 'name' is a Text, which has no form as entities: leave it out.*wrapper",
        ),
        (spaces.OneOf([REAL, Discrete(2)]), r"the observation space is a OneOf, which has no form"),
        (spaces.Sequence(spaces.Sequence(REAL)), r"is a Sequence, inside of something that has a row of features"),
        (
            Dict({"a": spaces.Sequence(Dict({"b": spaces.Graph(REAL, None)}))}),
            r"'a\.b' is a Graph, inside of something",
        ),
        (
            Dict({"camera": Box(0, 255, (64, 64, 3), np.uint8)}),
            r"'camera' is 12,288 numbers \(64, 64, 3\); at most 4,096",
        ),
        (Dict({"card": Discrete(2**25)}), r"'card' has 33,554,432 values; at most 16,777,216"),
        (Dict({"Agent": Dict({"x": REAL})}), r"two things that would be the entity type 'Agent': rename"),
        (Dict({"a.0": REAL, "a": box(1)}), r"features of 'Agent': .*'a\.0'.* more than once; rename a key"),
    ],
)
def test_a_space_without_a_form_is_refused_with_its_path_and_what_to_do(space: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GymObservations(space)


@pytest.mark.parametrize(
    ("space", "value", "message"),
    [
        (box(2), None, "the observation is None; where there is nothing to show, show zeros"),
        (box(2), np.zeros(3), "the observation has shape (3,); expected (2,)"),
        (box(2), ["a", "b"], "the observation is ['a', 'b']; it must be numbers"),
        (box(2), [[1], [2, 3]], "it must be numbers"),
        (Dict({"x": REAL}), np.zeros(1), "the observation is array([0.]); expected a dictionary with the keys ['x']"),
        (Dict({"x": REAL}), {"y": 1}, "the observation has the keys ['y']; expected ['x']"),
        (Dict({"x": REAL}), {"x": 1, "y": 1}, "the observation has the keys ['x', 'y']; expected ['x']"),
        (Dict({"x": REAL}), {"x": None}, "x is None"),
        (Dict({"r": Dict({"x": box(2)})}), {"r": {"x": 5}}, "r.x has shape (); expected (2,)"),
        (Tuple([REAL, REAL]), (1, 2, 3), "expected a tuple of 2"),
        (Dict({"s": spaces.Sequence(box(2))}), {"s": None}, "s is None; expected a sequence"),
        (Dict({"s": spaces.Sequence(box(2))}), {"s": (np.zeros(2), np.zeros(3))}, "s has shape (3,); expected (2,)"),
        (Dict({"s": spaces.Sequence(box(2))}), {"s": (np.zeros(3),)}, "s has shape (1, 3); expected (1, 2)"),
        (spaces.Graph(box(1), None), np.zeros(3), "expected a GraphInstance"),
        (spaces.Graph(box(1), None), spaces.GraphInstance(None, None, None), "the observation has the nodes None"),
        (
            Dict({"g": spaces.Graph(box(1), box(1))}),
            {"g": spaces.GraphInstance(np.zeros((2, 1)), np.zeros((1, 1)), np.array([[0, 2]]))},
            "g.edge: edge_links are [[0, 2]]; expected two of the 2 nodes for each of the 1 edges",
        ),
    ],
)
def test_an_observation_outside_the_declared_shape_is_refused_with_its_path(
    space: Any, value: Any, message: str
) -> None:
    assert message in refusal(space, value)


# ---- actions


def decoded(space: Any, **chosen: Any) -> list[Any]:
    columns = {name.replace("_", "."): np.array(values) for name, values in chosen.items()}
    values = GymActions(space).decode(columns, len(next(iter(columns.values()))))
    assert all(value in space for value in values)
    return values


def test_a_discrete_action_is_a_choice_and_its_start_is_honoured() -> None:
    space = Discrete(3, start=5)
    assert GymActions(space).action_space == {"action": CategoricalActionSpace(["0", "1", "2"])}
    assert decoded(space, action=[0, 2]) == [5, 7]


def test_a_multi_discrete_action_is_a_choice_for_each_number() -> None:
    space = spaces.MultiDiscrete([2, 3], start=[0, 10])
    two, three = CategoricalActionSpace(["0", "1"]), CategoricalActionSpace(["0", "1", "2"])
    assert GymActions(space).action_space == {"action.0": two, "action.1": three}
    assert [value.tolist() for value in decoded(space, action_0=[0, 1], action_1=[2, 0])] == [[0, 12], [1, 10]]


def test_a_multi_binary_action_is_a_choice_of_two_for_each_number() -> None:
    space = spaces.MultiBinary(2)
    assert list(GymActions(space).action_space) == ["action.0", "action.1"]
    assert [value.tolist() for value in decoded(space, action_0=[0, 1], action_1=[1, 1])] == [[0, 1], [1, 1]]


def test_a_box_of_real_numbers_is_one_continuous_action_with_its_bounds() -> None:
    space = Box(np.array([[-2.0, 0.0]]), np.array([[2.0, np.inf]]), dtype=np.float64)
    assert GymActions(space).action_space == {"action": ContinuousActionSpace([-2, 0], [2, np.inf])}
    (value,) = decoded(space, action=np.array([[1.5, 3.0]], np.float32))
    assert value.shape == (1, 2) and value.dtype == np.float64 and value.tolist() == [[1.5, 3.0]]


def test_bounds_that_float32_rounds_outwards_are_kept() -> None:
    space = Box(-0.1, 0.1, (1,), np.float64)
    low, high = GymActions(space).action_space["action"].bounds()  # type: ignore[union-attr]
    assert float(high[0]) > 0.1, "the test is about a bound that float32 has not"
    assert [value.tolist() for value in decoded(space, action=np.array([low, high]))] == [[-0.1], [0.1]]


def test_a_box_of_few_whole_numbers_is_a_choice_for_each() -> None:
    space = Box(-1, 2, (2,), np.int32)
    assert [len(each.choices) for each in GymActions(space).action_space.values()] == [4, 4]  # type: ignore[union-attr]
    (value,) = decoded(space, action_0=[0], action_1=[3])
    assert value.tolist() == [-1, 2] and value.dtype == np.int32


def test_actions_in_dictionaries_and_tuples_are_named_by_their_paths() -> None:
    space = Dict({"arm": Tuple([Discrete(2), Box(-1, 1, (1,))]), "fire": Discrete(2)})
    bridge = GymActions(space)
    assert list(bridge.action_space) == ["arm.0", "arm.1", "fire"]
    chosen = {"arm.0": np.array([1]), "arm.1": np.array([[0.5]]), "fire": np.array([0])}
    assert bridge.decode(chosen, 1) == [{"arm": (1, np.array([0.5], np.float32)), "fire": 0}]
    assert list(GymActions(Tuple([Discrete(2), Discrete(3)])).action_space) == ["action.0", "action.1"]


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Text(3), r"action space at 'action' is a Text, which no actor can take: make it of Discrete.*wrapper"),
        (Dict({"who": spaces.Sequence(Discrete(3))}), r"action space at 'who' is a Sequence"),
        (Discrete(2**16 + 1), r"'action' has 65,537 choices; at most 65,536 can be .*: make it a MultiDiscrete"),
        (
            Box(0, 10_000, (2,), np.int64),
            r"'action' is a Box of whole numbers of which one has 10,001 values; at most 1,024",
        ),
        (
            Box(np.array([0.0, 1.0]), np.array([1.0, 1.0])),
            r"'action': .*low\[1\] is 1\.0 and high\[1\] 1\.0.*in a wrapper",
        ),
        (Dict({}), r"the action space holds no action"),
        (Dict({"a.0": Discrete(2), "a": Tuple([Discrete(2)])}), r"two things that would be the action 'a\.0'"),
    ],
)
def test_an_action_space_without_a_form_is_refused_with_its_path_and_what_to_do(space: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GymActions(space)


# ---- masks of actions


def masked(space: Any, given: Any) -> dict[str, list[bool]]:
    return {name: mask.tolist() for name, mask in GymActions(space).masks(given).items()}


def test_masks_have_the_form_that_gymnasium_samples_with() -> None:
    assert masked(Discrete(3), np.array([1, 0, 1], np.int8)) == {"action": [True, False, True]}
    assert masked(Discrete(2), None) == {}
    two = spaces.MultiDiscrete([2, 3])
    assert masked(two, ([0, 1], [1, 1, 0])) == {"action.0": [False, True], "action.1": [True, True, False]}
    nested = Dict({"go": Discrete(2), "push": Box(-1, 1, (1,))})
    assert masked(nested, {"go": np.array([True, False]), "push": None}) == {"go": [True, False]}
    assert masked(Tuple([Discrete(2), Discrete(2)]), (None, [0, 1])) == {"action.1": [False, True]}


@pytest.mark.parametrize(
    ("space", "given", "message"),
    [
        (Discrete(3), [1, 0], r"mask of 'action' is \[1, 0\]; expected 3 flags"),
        (Discrete(2), [2, 0], r"mask of 'action' is \[2, 0\]; expected 2 flags"),
        (Discrete(2), [0.5, 1], r"expected 2 flags"),
        (Box(-1, 1, (1,)), [1], r"mask of 'action' is \[1\]; real numbers have none"),
        (Dict({"go": Discrete(2)}), {"went": [1, 1]}, r"expected one for each of \['go'\]"),
        (spaces.MultiDiscrete([2, 2]), [[1, 1]], r"expected one mask for each of 2 numbers"),
    ],
)
def test_a_mask_that_does_not_fit_is_refused(space: Any, given: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GymActions(space).masks(given)


def test_a_plain_space_is_as_good_as_a_librarys() -> None:
    space = PlainSpace(
        "Dict", spaces={"go": PlainSpace("Discrete", n=3), "push": PlainSpace("Box", (1,), np.float32, -1, 1)}
    )
    assert GymActions(space).action_space == {
        "go": CategoricalActionSpace(["0", "1", "2"]),
        "push": ContinuousActionSpace([-1], [1]),
    }
