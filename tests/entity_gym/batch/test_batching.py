"""Observations of many environments become one batch, exactly, whichever of them show what."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from entity_gym import (
    GLOBAL_ENTITY,
    ActionMask,
    ActionSpace,
    CategoricalActionMask,
    CategoricalActionSpace,
    Entity,
    GlobalCategoricalActionMask,
    GlobalCategoricalActionSpace,
    Observation,
    ObsSpace,
    SelectEntityActionMask,
    SelectEntityActionSpace,
)
from entity_gym.batch.batching import batch_observations
from entity_gym.batch.vec_obs import Metric, VecObs
from tests.entity_gym.envs.minesweeper_python import PythonMineSweeper
from tests.worlds import Zoo, frame, frames, random_content

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "minesweeper_internals.json").read_text())

# Lava and HighGround come before the only type that acts, and have no ids.
FLOOR = ObsSpace({"Lava": Entity(["x"]), "HighGround": Entity(["x"]), "Player": Entity(["x"])})
ACTIONS: dict[str, ActionSpace] = {
    "jump": CategoricalActionSpace(["stay", "left", "right"]),
    "point": SelectEntityActionSpace(),
}
WEATHER: dict[str, ActionSpace] = {"weather": GlobalCategoricalActionSpace(["sun", "rain"])}
T, F = True, False


def players(*names: str, actions: dict[str, ActionMask] | None = None, **features: list[list[float]]) -> Observation:
    rows = [[float(i)] for i in range(len(names))]
    return Observation(features={**features, "Player": rows}, ids={"Player": list(names)}, actions=actions or {})


def jumps(*names: str, mask: Any = None) -> Observation:
    return players(*names, actions={"jump": CategoricalActionMask(actor_types=["Player"], mask=mask)})


def batch(*observations: Observation, space: ObsSpace = FLOOR, actions: dict[str, ActionSpace] = ACTIONS) -> VecObs:
    return batch_observations(observations, space, actions)


# --- The seed's example


def golden_batch() -> VecObs:
    observations = []
    for state in GOLDEN["states"]:
        env = PythonMineSweeper(num_mines=1, num_robots=1, **GOLDEN["env_kwargs"])
        observations.append(env.golden(state))
    return batch_observations(observations, env.obs_space(), env.action_space(), "MineSweeper")


def test_the_golden_states_give_the_golden_batch() -> None:
    obs, expected = golden_batch(), GOLDEN["vec_obs"]
    assert {name: buffer.to_list() for name, buffer in obs.features.items()} == expected["features"]
    assert list(obs.features) == GOLDEN["entity_order"]

    move, fire = obs.action_masks["Move"], obs.action_masks["Fire Orbital Cannon"]
    assert move.actors.to_list() == expected["action_masks"]["Move"]["actors"]
    assert move.mask.to_list() == expected["action_masks"]["Move"]["mask"]
    assert fire.actors.to_list() == expected["action_masks"]["Fire Orbital Cannon"]["actors"]
    assert fire.actees.to_list() == expected["action_masks"]["Fire Orbital Cannon"]["actees"]
    assert fire.mask is None

    assert {buffer.values.dtype for buffer in obs.features.values()} == {np.dtype(np.float32)}
    assert (move.actors.values.dtype, move.mask.values.dtype, obs.reward.dtype) == (np.int64, np.bool_, np.float32)
    assert obs.reward.tolist() == expected["reward"]
    assert obs.done.tolist() == expected["done"]
    assert obs.truncated.tolist() == [False, False, False]
    assert obs.end_of_episode_info == expected["end_of_episode_info"]
    assert (obs.visible, obs.final, obs.env_id.tolist()) == ({}, None, [0, 1, 2])


# --- Indices


def test_types_without_ids_advance_the_index() -> None:
    # 6 Lava and 1 HighGround come first: the player is entity 7, where the ancestor said 0, a Lava
    obs = batch(
        players("me", actions={"jump": CategoricalActionMask(actor_ids=["me"])}, Lava=[[0.0]] * 6, HighGround=[[1.0]])
    )
    assert obs.action_masks["jump"].actors.to_list() == [[[7]]]


def test_neither_ids_nor_types_means_everybody_and_an_empty_list_nobody() -> None:
    obs = Observation(
        features={"Lava": [[0.0]], "Player": [[0.0], [1.0]]},
        ids={"Lava": ["lava"], "Player": ["a", "b"]},
        actions={"jump": CategoricalActionMask(), "point": SelectEntityActionMask(actor_ids=["a"], actee_ids=[])},
    )
    masks = batch(obs).action_masks
    assert masks["jump"].actors.to_list() == [[[0], [1], [2]]]
    assert (masks["point"].actors.to_list(), masks["point"].actees.to_list()) == ([[[1]]], [[]])
    assert batch(jumps()).action_masks["jump"].actors.to_list() == [[]]


def test_with_no_actors_there_are_no_actees() -> None:
    mask = SelectEntityActionMask(actor_ids=[], actee_types=["Player"])
    point = batch(players("a", "b", actions={"point": mask})).action_masks["point"]
    assert (point.actors.to_list(), point.actees.to_list()) == ([[]], [[]])


# --- What only some environments show


@pytest.mark.parametrize("late", [0, 1, 2])
def test_a_mask_in_one_environment_leaves_the_others_open(late: int) -> None:
    # the ancestor filled earlier environments with masks of length 0, and later ones not at all
    masks: list[Any] = [None, None, None]
    masks[late] = [[T, F, T], [F, F, T]]
    jump = batch(*(jumps("a", "b", mask=mask) for mask in masks)).action_masks["jump"]
    open_ = [[T, T, T], [T, T, T]]
    assert jump.mask.to_list() == [masks[late] if i == late else open_ for i in range(3)]
    assert jump.mask.size1().tolist() == jump.actors.size1().tolist()


def test_a_visibility_list_in_some_environments_leaves_the_others_visible() -> None:
    hidden = Observation(features={"Lava": [[0.0], [1.0]]}, visible={"Lava": [F, T]})
    shown = Observation(features={"Lava": [[2.0]]})
    assert batch(hidden, shown, Observation()).visible["Lava"].to_list() == [[[F], [T]], [[T]], []]
    assert batch(shown, Observation(), hidden).visible["Lava"].to_list() == [[[T]], [], [[F], [T]]]
    assert list(batch(hidden, shown).visible) == ["Lava"]
    assert batch(Observation(features={"Lava": [[0.0]]}, visible={"Lava": [T]})).visible == {}


def test_pair_masks_are_honoured_and_open_where_a_frame_has_none() -> None:
    masked = SelectEntityActionMask(
        actor_types=["Player"], actee_types=["Player"], mask=[[F, T, F], [T, F, T], [T, T, F]]
    )
    open_ = SelectEntityActionMask(actor_ids=["b"], actee_ids=["a", "b"])
    point = batch(
        players("a", "b", actions={"point": open_}),
        players("a", "b", "c", actions={"point": masked}),
        players("a"),
    ).action_masks["point"]
    flat = [F, T, F, T, F, T, T, T, F]  # actor by actor
    assert point.mask.to_list() == [[[T], [T]], [[value] for value in flat], []]


# --- The whole frame


def test_global_features_are_one_row_of_a_global_entity_in_every_frame() -> None:
    space = ObsSpace({"Cat": Entity(["x"])}, global_features=["time", "wind"])
    obs = batch(Observation(global_features=[1, 2]), Observation(global_features=np.array([3.5, 4])), space=space)
    assert list(obs.features) == ["Cat", GLOBAL_ENTITY]
    assert obs.features[GLOBAL_ENTITY].to_list() == [[[1, 2]], [[3.5, 4]]]


def test_a_global_action_brings_a_global_entity_without_features_that_stands_last() -> None:
    cats = ObsSpace({"Cat": Entity(["x"])})
    offer: dict[str, ActionMask] = {"weather": GlobalCategoricalActionMask()}
    obs = batch(
        Observation(features={"Cat": [[0.0]] * 3}, actions=offer),
        Observation(actions=offer),
        space=cats,
        actions=WEATHER,
    )
    assert obs.features[GLOBAL_ENTITY].to_list() == [[[]], [[]]]
    assert obs.action_masks["weather"].actors.to_list() == [[[3]], [[0]]]


def test_a_global_action_may_be_left_out_and_its_mask_have_one_dimension_or_two() -> None:
    masks: list[Any] = [[F, T], np.array([T, F]), np.array([[T, F]]), None]
    offers = (Observation(actions={"weather": GlobalCategoricalActionMask(mask=mask)}) for mask in masks)
    obs = batch(Observation(), *offers, space=ObsSpace(), actions=WEATHER)
    assert obs.action_masks["weather"].actors.to_list() == [[], [[0]], [[0]], [[0]], [[0]]]
    assert obs.action_masks["weather"].mask.to_list() == [[], [[F, T]], [[T, F]], [[T, F]], [[T, T]]]
    assert obs.features[GLOBAL_ENTITY].size1().tolist() == [1] * 5


# --- Kinds of numbers


@pytest.mark.parametrize(
    "rows",
    [
        [[1, 2], [3, 4]],
        [(1.0, 2.0), (3.0, 4.0)],
        [np.array([1, 2]), np.array([3, 4])],
        *(np.array([[1, 2], [3, 4]], dtype) for dtype in (np.float64, np.float32, np.float16, np.int64, np.uint8)),
    ],
    ids=str,
)
def test_features_may_be_any_rows_of_numbers(rows: Any) -> None:
    # the ancestor refused float64, NumPy's own default
    obs = batch(Observation(features={"Cat": rows}), space=ObsSpace({"Cat": Entity(["x", "y"])}), actions={})
    assert obs.features["Cat"].values.dtype == np.float32
    assert obs.features["Cat"].to_list() == [[[1, 2], [3, 4]]]


def test_scalars_of_numpy_2_are_accepted() -> None:
    # the ancestor named types that NumPy 2 no longer has
    obs = batch(
        Observation(reward=np.float32(0.5), done=np.bool_(True), truncated=np.bool_(True), metrics={"n": np.int64(2)}),
        Observation(reward=np.float64(1), done=np.True_, metrics={"n": np.float16(4)}),
    )
    assert (obs.reward.tolist(), obs.done.tolist(), obs.truncated.tolist()) == ([0.5, 1.0], [T, T], [T, F])
    assert obs.metrics == {"n": Metric(count=2, sum=6.0, min=2.0, max=4.0)}


def test_arrays_may_lie_in_memory_in_any_order() -> None:
    # x and y kept apart and stacked as columns: Fortran order, as in `np.array([xs, ys]).T`
    cats = ObsSpace({"Cat": Entity(["x", "y"])})
    rows, mask = np.array([[1.0, 3.0], [2.0, 4.0]], np.float32).T, np.array([[T, F], [F, T], [T, T]]).T
    for order in (rows, np.repeat(rows, 2, axis=1)[:, ::2], rows[::-1][::-1]):
        offer = {"jump": CategoricalActionMask(mask=mask), "point": SelectEntityActionMask(mask=mask[:, :2])}
        cat = Observation(features={"Cat": order}, ids={"Cat": ["a", "b"]}, actions=offer)
        obs = batch(cat, space=cats)
        assert obs.features["Cat"].to_list() == [[[1, 2], [3, 4]]]
        assert obs.action_masks["jump"].mask.to_list() == [[[T, F, T], [F, T, T]]]
        assert obs.action_masks["point"].mask.to_list() == [[[T], [F], [F], [T]]]


@pytest.mark.parametrize("nothing", [[], (), np.zeros((0, 1)), np.zeros(0), None], ids=repr)
def test_no_rows_may_be_written_in_any_way(nothing: Any) -> None:
    assert batch(Observation(features={"Lava": nothing})).features["Lava"].values.shape == (0, 1)


def test_a_batch_of_empty_observations_and_of_none() -> None:
    for count in (0, 2):
        obs = batch(*[Observation()] * count)
        assert (len(obs), obs.num_entities) == (count, 0)
        assert obs.action_masks["jump"].actors.size1().tolist() == [0] * count


def test_a_batch_shares_no_memory_with_the_observations() -> None:
    rows, mask, visible = np.zeros((1, 1), np.float32), np.ones((1, 3), np.bool_), np.zeros(1, np.bool_)
    obs = batch(
        Observation(
            features={"Player": rows},
            ids={"Player": ["a"]},
            visible={"Player": visible},
            actions={"jump": CategoricalActionMask(mask=mask)},
        )
    )
    before = frames(obs)
    rows[:], mask[:], visible[:] = 9, False, True
    assert frames(obs) == before


# --- Metrics and info


def test_metrics_are_counted_over_the_environments_that_report_them() -> None:
    obs = batch(Observation(metrics={"hp": 3}), Observation(), Observation(metrics={"hp": -1, "mana": 2}))
    assert obs.metrics == {"hp": Metric(2, 2.0, -1.0, 3.0), "mana": Metric(1, 2.0, 2.0, 2.0)}
    assert obs.metrics["hp"].mean == 1.0
    assert Metric().mean is None


def test_the_info_of_an_episode_is_read_only_when_it_ends() -> None:
    obs = batch(
        Observation(end_of_episode_info={"won": 0}),
        Observation(done=True),
        Observation(done=True, end_of_episode_info={"won": 1}),
    )
    assert obs.end_of_episode_info == {2: {"won": 1}}


# --- Properties


@given(seed=st.integers(0, 2**32), count=st.integers(1, 6), max_entities=st.integers(0, 4))
def test_a_frame_of_a_batch_is_what_it_is_alone(seed: int, count: int, max_entities: int) -> None:
    rng = np.random.default_rng(seed)
    observations = [
        Observation(**random_content(rng, max_entities), global_features=[i], reward=float(i)) for i in range(count)
    ]
    obs_space, action_space = Zoo().obs_space(), Zoo().action_space()
    together = batch_observations(observations, obs_space, action_space)
    for i, obs in enumerate(observations):
        assert frame(together, i) == frame(batch_observations([obs], obs_space, action_space), 0)


@given(seed=st.integers(0, 2**32))
def test_an_actor_index_leads_to_the_row_of_that_actor(seed: int) -> None:
    # Each row holds its own entity's number, so that reading the frame back by index must find it.
    rng = np.random.default_rng(seed)
    counts = dict(zip(FLOOR.entities, rng.integers(0, 4, 3).tolist(), strict=True))
    rows = {name: [[float(100 * k + i)] for i in range(counts[name])] for k, name in enumerate(counts)}
    ids = {name: [row[0] for row in rows[name]] for name in counts}
    everybody = [id_ for name in counts for id_ in ids[name]]
    chosen = [everybody[i] for i in rng.permutation(len(everybody))]
    obs = batch(Observation(features=rows, ids=ids, actions={"jump": CategoricalActionMask(actor_ids=chosen)}))
    in_frame = np.concatenate([buffer[0].values for buffer in obs.features.values()])[:, 0]
    assert in_frame[obs.action_masks["jump"].actors.values[:, 0]].tolist() == chosen
