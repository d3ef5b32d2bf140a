"""Positions as seen from one entity; the numbers are computed by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from entity_gym import CategoricalActionSpace, Entity, Observation, ObsSpace
from entity_gym.batch.batching import batch_observations
from entity_gym.spaces import Angle, Category
from rogue_net import ObsBatch
from rogue_net.config import TranslationConfig
from rogue_net.inputs.translation import Translation

ACTIONS = {"wait": CategoricalActionSpace(["wait"])}
SPACE = ObsSpace(
    {
        "Mine": Entity(["y", "size", "x"]),  # coordinates in another order, and something between them
        "Base": Entity(["x", "y", "heading", "dx", "dy"]),
        "Robot": Entity(["x", "y", "heading"]),
        "Score": Entity(["points", "x"]),  # not both coordinates
    },
    global_features=["x", "y"],
)
XY = {"reference_entity": "Base", "position_features": ["x", "y"]}


def translation(obs_space: ObsSpace = SPACE, **settings: Any) -> Translation:
    return Translation(TranslationConfig(**(XY | settings)), obs_space)


def to_batch(*observations: Observation, obs_space: ObsSpace = SPACE) -> ObsBatch:
    return ObsBatch.from_vec_obs(batch_observations(observations, obs_space, ACTIONS))


def frame(features: Mapping[str, Sequence[Sequence[float]]], **given_others: Any) -> Observation:
    return Observation(features=features, global_features=[100, 200], **given_others)


def rows(batch: ObsBatch, name: str) -> list[list[float]]:
    return [[round(value, 4) for value in row] for row in batch.features[name].values.tolist()]


BASE = [1.0, 2.0, math.pi / 2, 0.0, 3.0]  # at (1, 2), looking along the second axis


# --- What is moved ---


def test_everything_with_coordinates_is_moved_so_that_the_reference_is_the_origin() -> None:
    batch = to_batch(
        frame({"Mine": [[5, 9, 4], [2, 8, 1]], "Base": [BASE], "Robot": [[0, 0, 0.5]]}),
        frame({"Mine": [[5, 9, 4]], "Base": [[4, 5, 0, 1, 0]]}),
    )
    moved = translation()(batch)
    assert rows(moved, "Mine") == [[3, 9, 3], [0, 8, 0], [0, 9, 0]]  # [y, size, x]
    assert rows(moved, "Robot") == [[-1, -2, 0.5]]


@pytest.mark.parametrize("how", [{"rotation_angle_feature": "heading"}, {"rotation_vec_features": ["dx", "dy"]}])
def test_a_rotation_turns_the_reference_to_the_first_axis(how: dict[str, Any]) -> None:
    # seen from (1, 2) along the second axis: what is above is ahead, what is to the left on the map is on the left
    batch = to_batch(frame({"Mine": [[6, 9, 1], [2, 8, -2]], "Base": [BASE], "Robot": [[2, 4, 0.5]]}))
    moved = translation(**how)(batch)
    assert rows(moved, "Mine") == [[0, 9, 4], [3, 8, 0]]
    assert rows(moved, "Robot") == [[2, -1, 0.5]]  # orientations of others stay as they are


def test_the_length_of_an_orientation_does_not_matter_and_none_does_not_rotate() -> None:
    def seen_from(dx: float, dy: float) -> list[list[float]]:
        batch = to_batch(frame({"Base": [[0, 0, 9, dx, dy]], "Robot": [[1, 2, 0]]}))
        return rows(translation(rotation_vec_features=["dx", "dy"])(batch), "Robot")

    assert seen_from(0.6, 0.8) == seen_from(6, 8) == seen_from(6e-20, 8e-20) == [[2.2, 0.4, 0]]
    assert seen_from(0, 0) == [[1, 2, 0]]


def test_a_frame_without_a_reference_is_not_moved() -> None:
    robot = [3.25, -1.5, 0.5]
    batch = to_batch(frame({"Robot": [robot]}), frame({"Robot": [robot], "Base": [BASE]}), frame({"Robot": [robot]}))
    for how in ({}, {"rotation_angle_feature": "heading"}, {"rotation_vec_features": ["dx", "dy"]}):
        moved = rows(translation(**how)(batch), "Robot")
        assert moved[0] == moved[2] == robot != moved[1]
    nowhere = to_batch(frame({"Robot": [robot]}))
    assert rows(translation(rotation_angle_feature="heading", add_distance=True)(nowhere), "Robot") == [
        [*robot, pytest.approx(math.hypot(3.25, 1.5), abs=1e-4)]
    ]


def test_the_distance_is_the_last_feature_of_what_is_moved() -> None:
    batch = to_batch(frame({"Mine": [[6, 9, 4]], "Base": [BASE], "Robot": [[1, 2, 0]]}))
    made = translation(add_distance=True, rotation_angle_feature="heading")
    moved = made(batch)
    assert rows(moved, "Mine") == [[-3, 9, 4, 5]]
    assert rows(moved, "Robot") == [[0, 0, 0, 0]]
    assert made.obs_space.entities["Mine"].features == ("y", "size", "x", "distance to Base")
    for name, entity in made.obs_space.entities.items():
        assert moved.features[name].values.shape[1] == len(entity.features)
    assert made.obs_space.global_features == ("x", "y")


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**20), angle=st.floats(-10, 10))
def test_moving_and_turning_the_whole_frame_changes_nothing_that_is_seen(seed: int, angle: float) -> None:
    rng = np.random.default_rng(seed)
    space = ObsSpace({"Base": Entity(["x", "y", Angle("heading")]), "Mine": Entity(["x", "y"])})
    base, mines, heading = rng.normal(size=2), rng.normal(size=(4, 2)), rng.uniform(-4, 4)
    turn = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    shift = rng.normal(size=2) * 3

    def seen(base: np.ndarray, heading: float, mines: np.ndarray) -> torch.Tensor:
        batch = to_batch(Observation(features={"Base": [[*base, heading]], "Mine": mines}), obs_space=space)
        made = translation(space, rotation_angle_feature="heading", add_distance=True)
        return made(batch).features["Mine"].values

    before = seen(base, heading, mines)
    after = seen(turn @ base + shift, heading + angle, mines @ turn.T + shift)
    torch.testing.assert_close(after, before, atol=1e-4, rtol=1e-4)


# --- Who the reference is ---


def test_a_hidden_reference_moves_nobody() -> None:
    robot = [3.0, 4.0, 0.0]
    hidden = frame({"Base": [BASE], "Robot": [robot]}, visible={"Base": [False]})
    shown = frame({"Base": [BASE], "Robot": [robot]}, visible={"Base": [True]})
    moved = translation(rotation_angle_feature="heading")(to_batch(hidden, shown))
    assert rows(moved, "Robot") == [robot, [2, -2, 0]]
    elsewhere = frame({"Base": [[-7, 5, 1, 1, 1]], "Robot": [robot]}, visible={"Base": [False]})
    assert rows(translation(rotation_vec_features=["dx", "dy"])(to_batch(elsewhere)), "Robot") == [robot]


def test_two_references_in_a_frame_are_refused() -> None:
    batch = to_batch(frame({"Base": [BASE]}), frame({"Base": [BASE, BASE], "Robot": [[0, 0, 0]]}))
    with pytest.raises(ValueError, match=r"net\.translation\.reference_entity is 'Base', of which frame 1 shows 2"):
        translation()(batch)


# --- Mistakes ---


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"reference_entity": "base"}, r"reference_entity is 'base'; .*did you mean 'Base'"),
        (
            {"position_features": ["x", "Y"]},
            r"position_features names 'Y', which is no feature of \['Base'\]; .*did you mean 'y'",
        ),
        (
            {"rotation_angle_feature": "headin"},
            r"rotation_angle_feature names 'headin', .*did you mean 'heading'",
        ),
        ({"rotation_vec_features": ["dx", "dz"]}, r"rotation_vec_features names 'dz', which is no feature"),
        (
            {"reference_entity": "Score", "position_features": ["points"]},
            r"position_features are \['points'\], which no type but the reference 'Score' has",
        ),
    ],
)
def test_a_wrong_name_is_told_with_the_nearest(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=r"net\.translation\." + message):
        translation(**settings)


def test_coordinates_are_plain_numbers_and_orientations_may_be_angles() -> None:
    kinds = ObsSpace(
        {"Base": Entity(["x", "y", Angle("heading"), Category("kind", 3)]), "Mine": Entity(["x", Angle("y")])}
    )
    with pytest.raises(
        ValueError, match=r"position_features names 'y', which is Angle\(name='y'\) in 'Mine'; it must be"
    ):
        translation(kinds)
    with pytest.raises(ValueError, match=r"rotation_angle_feature names 'kind', which is Category.* or an Angle"):
        translation(kinds, rotation_angle_feature="kind")


def test_a_rotation_needs_coordinates() -> None:
    with pytest.raises(ValueError, match=r"net\.translation\.position_features is empty"):
        TranslationConfig(rotation_angle_feature="heading")
