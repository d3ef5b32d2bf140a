"""Relative positions: the buckets below are found by hand, and what must not matter does not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load, save
from torch import Tensor
from torch.nn import functional

import rogue_net.relative.relative_positions
from entity_gym import (
    ActionSpace,
    CategoricalActionSpace,
    Category,
    Entity,
    Observation,
    ObsSpace,
)
from entity_gym.batch.batching import batch_observations
from rogue_net import ObsBatch, RogueNet, RogueNetConfig
from rogue_net.attention import ragged_attention
from rogue_net.config import RelposConfig, TranslationConfig
from rogue_net.relative.relative_positions import RelativePositions

WAIT: dict[str, ActionSpace] = {"wait": CategoricalActionSpace(["wait"])}
LEADER = {"Leader": Entity(["x", "y", "heading", "dx", "dy"]), "Rock": Entity(["x", "y"])}
Points = Sequence[Sequence[float]]


def batch_of(space: ObsSpace, *frames: dict[str, Points], visible: dict[str, list[bool]] | None = None) -> ObsBatch:
    observations = [
        Observation(
            features={name: list(rows) for name, rows in frame.items()},
            visible=visible or {},
            global_features=[0.0] * len(space.global_features),
        )
        for frame in frames
    ]
    return ObsBatch.from_vec_obs(batch_observations(observations, space, WAIT))


def make(config: RelposConfig, space: ObsSpace, d_model: int, n_head: int = 1) -> RelativePositions:
    """With parameters that are not 0."""
    torch.manual_seed(0)
    module = RelativePositions(config, space, WAIT, d_model, n_head)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_()
    return module


def shares(config: RelposConfig, space: ObsSpace, frame: dict[str, Points]) -> Tensor:
    """(T, T, P): how much each pair of a frame takes of each bucket, read off keys that are unit vectors."""
    num_buckets = make(config, space, 1).num_buckets
    module = make(config, space, num_buckets)
    with torch.no_grad():
        module.keys.copy_(torch.eye(num_buckets))
    batch = batch_of(space, frame)
    keys = module(batch, batch.frames.rows.index).keys
    return keys[0].detach()


def shares_of(points: Points, **settings: Any) -> Tensor:
    """`shares` of entities that are nothing but points."""
    names = ["x", "y", "z"][: len(points[0])]
    config = RelposConfig(position_features=names, **settings)
    return shares(config, ObsSpace({"Point": Entity(names)}), {"Point": points})


def buckets_of(points: Points, **settings: Any) -> list[list[int]]:
    """The one bucket of each pair, query by key."""
    taken = shares_of(points, **settings)
    assert ((taken == 0) | (taken == 1)).all() and (taken.sum(-1) == 1).all()
    buckets: list[list[int]] = taken.argmax(-1).tolist()
    return buckets


def taken(points: Points, **settings: Any) -> dict[int, float]:
    """What the first of two points takes of the second: bucket -> share."""
    row = shares_of(points, interpolate=True, **settings)[0, 1]
    return {bucket: pytest.approx(float(row[bucket]), abs=1e-6) for bucket in row.nonzero()[:, 0].tolist()}


# --- Buckets


def test_a_grid_of_one_dimension_rounds_the_difference_to_buckets_of_one_scale() -> None:
    # query minus key over 2: 0 - 3.2 is -1.6, so bucket -2, the first of five; 0 + 50 is beyond the last
    assert buckets_of([[0.0], [3.2], [-50.0]], kind="grid", extent=[2], scale=2.0) == [[2, 0, 4], [4, 2, 4], [0, 0, 2]]


def test_a_grid_counts_the_first_dimension_fastest() -> None:
    # (0, 0) - (1, -2) = (-1, 2): the first of 3 columns, the last of 5 rows
    assert buckets_of([[0, 0], [1, -2]], kind="grid", extent=[1, 2]) == [[7, 0 + 3 * 4], [2 + 3 * 0, 7]]


def test_a_sector_begins_at_its_angle() -> None:
    # differences to the first: itself, (1, 0) at 0 degrees, (1, 1), (0, 1) at 90, (-1, 0) at 180, (0, -1) at 270, (1, -0.1)
    points = [[0, 0], [-1, 0], [-1, -1], [0, -1], [1, 0], [0, 1], [-1, 0.1]]
    assert buckets_of(points, kind="radial", extent=[4])[0] == [0, 0, 0, 1, 2, 3, 3]


def test_the_last_distance_is_open_ended() -> None:
    # distances over 2: 0, 0.5, 1 (the start of a bucket), 1.95, 2.5 (3-4-5), 50
    points = [[0, 0], [1, 0], [2, 0], [0, 3.9], [3, 4], [100, 0]]
    assert buckets_of(points, kind="distance", extent=[3], scale=2.0)[0] == [0, 0, 1, 1, 2, 2]


# --- Interpolation


def test_a_grid_shares_between_the_corners_around_a_difference() -> None:
    # (0.25, -1.5) over (1, 2): columns 1 and 2 at 3/4 and 1/4, rows 0 and 1 (of -2 to 2) at 1/2 each
    expected = {1: 3 / 8, 2: 1 / 8, 4: 3 / 8, 5: 1 / 8}
    assert taken([[0.25, -1.5], [0, 0]], kind="grid", extent=[1, 2]) == expected


def test_angles_share_between_the_starts_of_sectors() -> None:
    assert taken([[1, 1], [0, 0]], kind="radial", extent=[4]) == {0: 0.5, 1: 0.5}
    assert taken([[math.cos(math.pi / 8), -math.sin(math.pi / 8)], [0, 0]], kind="radial", extent=[4]) == {
        3: 0.25,
        0: 0.75,
    }


def test_distances_share_and_beyond_the_last_start_it_has_everything() -> None:
    assert taken([[2.5, 0], [0, 0]], kind="distance", extent=[4], scale=2.0) == {1: 0.75, 2: 0.25}
    assert taken([[700, 0], [0, 0]], kind="distance", extent=[4]) == {3: 1.0}


def test_polar_shares_are_products() -> None:
    half = math.sqrt(0.5) * 1.25
    expected = {0 + 4: 3 / 8, 1 + 4: 3 / 8, 0 + 8: 1 / 8, 1 + 8: 1 / 8}
    assert taken([[half, half], [0, 0]], kind="polar", extent=[4, 4]) == expected


KINDS: dict[str, dict[str, Any]] = {
    "grid": dict(kind="grid", extent=[2, 3], scale=0.7),
    "radial": dict(kind="radial", extent=[5]),
    "distance": dict(kind="distance", extent=[4], scale=0.8),
    "polar": dict(kind="polar", extent=[6, 3], scale=0.9),
}
kinds = st.sampled_from(list(KINDS))
coordinates = st.integers(-400, 400).map(lambda n: n / 100)
points = st.tuples(coordinates, coordinates)


# --- Invariances


def leaders(frame: Sequence[tuple[tuple[float, float], float]], turn: float = 0.0) -> list[list[float]]:
    """Points with headings, all turned about the origin. The heading is there twice, once as a vector of length 3."""
    cosine, sine = math.cos(turn), math.sin(turn)
    return [
        [cosine * x - sine * y, sine * x + cosine * y, heading + turn]
        + [3 * math.cos(heading + turn), 3 * math.sin(heading + turn)]
        for (x, y), heading in frame
    ]


ROTATIONS: list[dict[str, Any]] = [dict(rotation_angle_feature="heading"), dict(rotation_vec_features=["dx", "dy"])]


@given(
    kind=kinds,
    rotation=st.sampled_from(ROTATIONS),
    frame=st.lists(st.tuples(points, st.floats(-7, 7)), min_size=2, max_size=4, unique_by=lambda leader: leader[0]),
    turn=st.floats(-7, 7),
)
def test_turning_everything_does_not_matter_where_entities_have_orientations(
    kind: str, rotation: dict[str, Any], frame: list[tuple[tuple[float, float], float]], turn: float
) -> None:
    config = RelposConfig(position_features=["x", "y"], interpolate=True, **rotation, **KINDS[kind])
    space = ObsSpace({"Leader": LEADER["Leader"]})
    before, after = (shares(config, space, {"Leader": leaders(frame, angle)}) for angle in (0.0, turn))
    torch.testing.assert_close(before, after, atol=2e-3, rtol=0)  # a direction 0.01 away turns by float32's error


@pytest.mark.parametrize("rotation", ROTATIONS)
def test_differences_are_seen_from_the_orientation_of_the_query(rotation: dict[str, Any]) -> None:
    config = RelposConfig(kind="grid", extent=[2, 2], position_features=["x", "y"], **rotation)
    frame: dict[str, Points] = {"Leader": leaders([((0.0, 2.0), math.pi / 2)]), "Rock": [[0.0, 0.0]]}
    buckets = shares(config, ObsSpace(LEADER), frame).argmax(-1)
    # the leader looks along (0, 1), so its difference (0, 2) is (2, 0); the rock, without orientation, sees (0, -2)
    assert buckets.tolist() == [[12, 4 + 5 * 2], [2 + 5 * 0, 12]]


# --- What stands in one's own place


@pytest.mark.parametrize("rotation", ROTATIONS)
@pytest.mark.parametrize("heading", [0.0, math.pi / 2, math.pi, -3 * math.pi / 4])
def test_what_stands_in_ones_own_place_is_at_angle_0(rotation: dict[str, Any], heading: float) -> None:
    frame: dict[str, Points] = {"Leader": leaders([((3.0, 1.0), heading)]), "Rock": [[3.0, 1.0]]}
    for kind, extent in (("radial", [4]), ("polar", [4, 2])):  # the first distance: buckets of polar are sectors
        config = RelposConfig(kind=kind, extent=extent, position_features=["x", "y"], **rotation)  # type: ignore[arg-type]
        assert shares(config, ObsSpace(LEADER), frame).argmax(-1).tolist() == [[0, 0], [0, 0]]


def test_interpolated_an_angle_at_the_start_of_a_sector_is_that_sector() -> None:
    config = RelposConfig(kind="radial", extent=[4], position_features=["x", "y"], interpolate=True)
    # itself, and what lies along the axes: at 0, 90, 180 and 270 degrees; differences point here
    rocks: Points = [[0.0, 0.0], [-1.0, 0.0], [0.0, -1.0], [1.0, 0.0], [0.0, 1.0], [-1.0, -1e-3], [-1.0, 1e-3]]
    found = shares(config, ObsSpace({"Rock": LEADER["Rock"]}), {"Rock": rocks})[0]
    expected = functional.one_hot(torch.tensor([0, 0, 1, 2, 3]), 4).float()
    torch.testing.assert_close(found[:5], expected, atol=1e-6, rtol=0)
    # a thousandth beside it both are nearly all of the first sector
    torch.testing.assert_close(found[5:, 0], torch.full((2,), 1 - 2e-3 / math.pi), atol=1e-6, rtol=0)


# --- What attention makes of them

BOTH = ObsSpace({"A": Entity(["x", "y"]), "B": Entity(["y", "x", "hp"])})  # the columns of B are in another order
FRAME: dict[str, Points] = {"A": [[0.0, 0.0], [2.0, 1.0]], "B": [[3.0, -1.0, 9.0]]}


def packed(module: RelativePositions, batch: ObsBatch) -> tuple[Tensor, Tensor]:
    """(T, T, K) relative keys and values of the only row."""
    relative = module(batch, batch.frames.rows.index)
    return relative.keys[0].detach(), relative.values[0].detach()


def grid(**settings: Any) -> RelposConfig:
    return RelposConfig(kind="grid", extent=[3, 3], position_features=["x", "y"], **settings)


def test_attention_adds_relative_keys_to_keys_and_gated_relative_values_to_values() -> None:
    module = make(grid(), BOTH, d_model=8, n_head=2)
    batch = batch_of(BOTH, FRAME)
    frames = batch.frames
    q, k, v = torch.randn(3, 3, 2, 4).unbind(0)
    x = torch.randn(3, 8)
    relative = module(batch, frames.rows.index)._replace(gate=module.gate(x))
    keys, values = packed(module, batch)
    gates = torch.relu(x @ module.gate_projection.weight.T + module.gate_projection.bias)
    out = ragged_attention(torch.stack([q, k, v], 1), frames, relative)
    for i in range(3):
        for head in range(2):
            weights = ((k[:, head] + keys[i]) @ q[i, head] / math.sqrt(4)).softmax(0)
            torch.testing.assert_close(out[i, head], weights @ (v[:, head] + gates * values[i]))


def test_the_global_entity_is_excluded_unless_it_has_a_position() -> None:
    for names, counted in ((["time"], False), (["x", "y"], True)):
        space = ObsSpace({"A": Entity(["x", "y"])}, global_features=names)
        keys, _ = packed(make(grid(), space, d_model=4), batch_of(space, {"A": [[1.0, 2.0]]}))
        assert bool((keys[0, 1] != 0).all()) == counted


def test_a_projection_maps_the_normalized_difference_and_its_length() -> None:
    module = make(grid(key_projection=True, value_projection=True), BOTH, d_model=4)
    assert module.key_projection is not None and module.value_projection is not None
    with torch.no_grad():
        module.keys.zero_()
        module.values.zero_()
    module.norm.update(torch.tensor([[0.0, 0.0, 1.0], [2.0, 4.0, 3.0]]))  # means 1, 2, 2; deviations 1, 2, 1
    keys, values = packed(module, batch_of(BOTH, {"A": [[3.0, 4.0], [0.0, 0.0]], "B": []}))
    # (3, 4) of length 5, normalized
    torch.testing.assert_close(keys[0, 1], module.key_projection(torch.tensor([2.0, 1.0, 3.0])))
    torch.testing.assert_close(values[0, 1], module.value_projection(torch.tensor([2.0, 1.0, 3.0])))


# --- Statistics


def naive_components(rows: list[list[float]], seen: list[bool]) -> Tensor:
    pairs = []
    for i, (x, y) in enumerate(rows):
        for j, (u, w) in enumerate(rows):
            if seen[j] or not seen[i]:
                pairs.append([x - u, y - w, math.hypot(x - u, y - w)])
    return torch.tensor(pairs)


@pytest.mark.parametrize("pairs_at_once", [1, 7, 2**18])
def test_statistics_are_of_the_pairs_that_may_attend(pairs_at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rogue_net.relative.relative_positions, "PAIRS_AT_ONCE", pairs_at_once)
    space = ObsSpace({"A": Entity(["x", "y"]), "Tree": Entity(["age"])})
    module = make(grid(key_projection=True, exclude_entities=["Tree"]), space, d_model=4)
    first, second = torch.randn(2, 3, 2).tolist()
    frames: list[dict[str, Points]] = [{"A": first, "Tree": [[1.0]]}, {"A": [], "Tree": []}, {"A": second, "Tree": []}]
    seen = [True, True, False]
    observations = [Observation(features=frame, visible={"A": seen[: len(frame["A"])]}) for frame in frames]
    module.update_normalization(ObsBatch.from_vec_obs(batch_observations(observations, space, WAIT)))
    expected = torch.cat([naive_components(first, seen), naive_components(second, seen)]).double()
    assert module.norm.count == len(expected) == 2 * 7
    torch.testing.assert_close(module.norm.mean, expected.mean(0), atol=1e-6, rtol=0)
    torch.testing.assert_close(module.norm.squares / 14, expected.var(0, correction=0), atol=1e-6, rtol=1e-6)


def test_a_network_takes_statistics_of_positions_as_its_translation_leaves_them_and_saves_them() -> None:
    seen_by_leader = TranslationConfig(
        reference_entity="Leader", position_features=["x", "y"], rotation_angle_feature="heading"
    )
    # the reference of a translation stays where it is, so that it would be at odds with what is moved
    relpos = grid(key_projection=True, exclude_entities=["Leader"])
    config = RogueNetConfig(d_model=8, n_layer=1, n_head=1, translation=seen_by_leader, relpos=relpos)
    net, loaded = (RogueNet(config, ObsSpace(LEADER), WAIT) for _ in range(2))
    net.update_normalization(
        batch_of(ObsSpace(LEADER), {"Leader": leaders([((1.0, 1.0), math.pi / 2)]), "Rock": [[1.0, 3.0], [1.0, 5.0]]})
    )
    loaded.load_state_dict(load(save(net.state_dict())))
    for each in (net, loaded):
        assert each.transformer.relative_positions is not None
        norm = each.transformer.relative_positions.norm
        # the rocks are 2 and 4 ahead: pairs (0, 0, 0) twice, (-2, 0, 2), (2, 0, 2)
        assert int(norm.count) == 4
        torch.testing.assert_close(norm.mean, torch.tensor([0.0, 0.0, 1.0]).double(), atol=1e-6, rtol=0)
        torch.testing.assert_close(norm.squares, torch.tensor([8.0, 0.0, 4.0]).double(), atol=1e-5, rtol=0)
        torch.testing.assert_close(norm.offset, torch.tensor([0.0, 0.0, 1.0]), atol=1e-6, rtol=0)


# --- Mistakes


@pytest.mark.parametrize(
    ("settings", "entities", "message"),
    [
        (dict(position_features=["x", "yy"]), BOTH.entities, r"position_features names 'yy'.*did you mean 'y'"),
        (dict(exclude_entities=["Bee"]), BOTH.entities, r"exclude_entities names 'Bee'; allowed: 'A', 'B'; did you mean 'B'"),
        (dict(rotation_angle_feature="angel"), {"A": Entity(["x", "y", "angle"])}, "rotation_angle_feature.*'angle'"),
        (dict(rotation_vec_features=["x", "q"]), BOTH.entities, "rotation_vec_features names 'q'"),
        (dict(), {"A": Entity(["x", "y"]), "C": Entity(["y"]), "D": Entity([])}, "'C' lacks 'x'; 'D' lacks 'x', 'y'"),
        (dict(), {"A": Entity(["x", Category("y", 5)])}, r"position_features names 'y', which is Category.*plain number"),
        (dict(exclude_entities=["A", "B"]), BOTH.entities, "position_features names 'x'"),
    ],
)  # fmt: skip
def test_a_wrong_name_is_found_at_once(settings: dict[str, Any], entities: dict[str, Entity], message: str) -> None:
    config = RelposConfig(**{"kind": "grid", "extent": [3, 3], "position_features": ["x", "y"], **settings})
    with pytest.raises(ValueError, match=message):
        RelativePositions(config, ObsSpace(entities), WAIT, 8, 1)


@pytest.mark.parametrize(
    ("extent", "message"),
    [
        (None, r"net\.relpos\.extent must be a list, got None"),
        ([], r"net\.relpos\.extent must have 2 value\(s\) for kind=grid and 2 position features, got \[\]"),
    ],
)
def test_an_extent_must_fit_the_kind(extent: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RelposConfig(kind="grid", extent=extent, position_features=["x", "y"])
