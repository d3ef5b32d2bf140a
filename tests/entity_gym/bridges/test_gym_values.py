"""Values that a space does not hold, which the bridge refuses rather than to show something else."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

spaces = pytest.importorskip("gymnasium.spaces")

from entity_gym.bridges.gymnasium.actions import MOST_CHOICES, GymActions  # noqa: E402
from entity_gym.bridges.gymnasium.observations import FixedFeatures, GymObservations  # noqa: E402
from tests.entity_gym.bridges.test_gym_spaces import box, refusal, rows  # noqa: E402

ENEMIES = spaces.Dict(
    {"enemies": spaces.Sequence(spaces.Dict({"a": spaces.Discrete(3), "b": spaces.Box(0, 1, (2,))}), stack=True)}
)
POINTS = spaces.Dict({"s": spaces.Sequence(box(2))})


@pytest.mark.parametrize(
    ("space", "value", "message"),
    [
        (ENEMIES, {"enemies": {"a": 1, "b": np.zeros(2)}}, "enemies.a is 1, one alone; expected a sequence of such"),
        (ENEMIES, {"enemies": {"x": 1}}, "enemies has the keys ['x']; expected ['a', 'b']"),
        (ENEMIES, {"enemies": {"a": [], "x": []}}, "enemies has the keys ['a', 'x']; expected ['a', 'b']"),
        (ENEMIES, {"enemies": {"a": np.array([]), "b": np.zeros((3, 2))}}, "enemies.a has shape (0,); expected (3,)"),
        (ENEMIES, {"enemies": {"a": np.zeros(3, int), "b": np.zeros((0, 2))}}, "b has shape (0, 2); expected (3, 2)"),
        (POINTS, {"s": {"a": 1}}, "s is {'a': 1}; it must be numbers"),
        (POINTS, {"s": np.array(3.0)}, "s is array(3.), one alone; expected a sequence of such"),
        (POINTS, {"s": 3.0}, "s is 3.0; expected a sequence of values"),
        (POINTS, {"s": np.zeros(2)}, "s has shape (2,); expected (2, 2)"),
    ],
)
def test_what_is_no_sequence_of_values_is_refused_and_never_none_of_them(space: Any, value: Any, message: str) -> None:
    assert message in refusal(space, value)


@pytest.mark.parametrize(
    ("space", "value"),
    [
        (ENEMIES, {"enemies": ()}),
        (ENEMIES, {"enemies": {"a": [], "b": []}}),
        (ENEMIES, {"enemies": {"a": np.zeros(0, int), "b": np.zeros((0, 2))}}),
        (POINTS, {"s": []}),
        (POINTS, {"s": np.array([])}),
        (POINTS, {"s": np.zeros((0, 2))}),
    ],
)
def test_nothing_can_be_shown_in_every_form(space: Any, value: Any) -> None:
    shown = rows(space, value)
    assert [of_type for name, of_type in shown.items() if name != "Agent"] == [[]]


@pytest.mark.parametrize(
    ("space", "value", "message"),
    [
        (spaces.Discrete(3, start=2), 1, "the observation is 1; expected a whole number from 2 to 4"),
        (spaces.Discrete(3, start=2), 5, "the observation is 5; expected a whole number from 2 to 4"),
        (spaces.Discrete(3, start=2), 2.5, "the observation is 2.5; expected a whole number from 2 to 4"),
        (
            spaces.MultiDiscrete([2, 3], start=[0, 7]),
            [1, 6],
            "the observation is 6; expected a whole number from 7 to 9",
        ),
        (
            spaces.Dict({"s": spaces.Sequence(spaces.MultiDiscrete([2, 3], start=[0, 7]))}),
            {"s": [[1, 7], [2, 7]]},
            "s is 2; expected a whole number from 0 to 1",
        ),
        (box(2), np.array([0.0, -1e300]), "the observation is -1e+300, more than float32 can hold"),
    ],
)
def test_numbers_that_cannot_be_are_called_as_they_were_shown(space: Any, value: Any, message: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert message in refusal(space, value)


def test_infinity_is_left_to_whoever_says_where_it_was_shown() -> None:
    assert rows(box(1), np.array([np.inf])) == {"Agent": [[np.inf]]}


@pytest.mark.parametrize("value", ["no", 1, None])
def test_global_features_are_wanted_or_not(value: Any) -> None:
    with pytest.raises(ValueError, match=rf"global_features is {value!r}; it must be true or false"):
        GymObservations(box(2), global_features=value)


def test_an_image_is_advised_to_have_a_view_only_where_it_has_rows() -> None:
    image = box(64, 65)
    with pytest.raises(ValueError, match=r"4,160 numbers .*in a wrapper, or say in a view what of it is an entity$"):
        GymObservations(image)
    for without in (lambda: FixedFeatures(image), lambda: GymObservations(box(5000))):
        with pytest.raises(ValueError, match=r"at most 4,096 can be features: make fewer of them in a wrapper$"):
            without()


def test_as_many_choices_as_there_can_be_are_made_without_waiting() -> None:
    space = GymActions(spaces.Discrete(MOST_CHOICES)).action_space["action"]
    assert space.choices[-1] == "65535"  # type: ignore[union-attr]
