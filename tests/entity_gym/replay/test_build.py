"""The JSON of a replay: what docs/replays.md says, number for number."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pytest

from entity_gym import (
    Angle,
    CategoricalActionMask,
    CategoricalActionSpace,
    Category,
    ContinuousActionMask,
    ContinuousActionSpace,
    Entity,
    Flag,
    GlobalCategoricalActionMask,
    GlobalCategoricalActionSpace,
    Observation,
    ObsSpace,
    SelectEntitiesActionMask,
    SelectEntitiesActionSpace,
    SelectEntityActionMask,
    SelectEntityActionSpace,
)
from entity_gym.batch.batching import batch_observations
from entity_gym.batch.ragged import RaggedBuffer
from entity_gym.batch.vec_obs import VecAction
from entity_gym.replay.build import (
    build_attention,
    build_decisions,
    build_replay,
    build_view,
    number,
    plain,
    to_decimals,
)

SPACE = ObsSpace({"Ship": Entity(["x", Angle("turn")]), "Card": Entity([Category("kind", 52), Flag("open")])}, ["time"])
ACTIONS = {
    "move": CategoricalActionSpace(["stay", "go"]),
    "aim": SelectEntityActionSpace(nobody=True),
    "push": ContinuousActionSpace([-1, 0], [1, float("inf")], ["force", "time"]),
    "mode": GlobalCategoricalActionSpace(["war", "peace"]),
    "idle": CategoricalActionSpace(["a"]),
}
#: Frame 0 is another one, so that a row is not simply the whole batch.
FRAMES = [
    Observation(features={"Ship": [[9, 9]]}, ids={"Ship": ["z"]}, global_features=[7]),
    Observation(
        features={"Ship": [[0.1, 2], [3, 4]], "Card": [[51, 1]]},
        ids={"Ship": ["a", ("b", 1)]},
        visible={"Ship": [True, False]},
        global_features=[2.5],
        actions={
            "move": CategoricalActionMask(actor_types=["Ship"], mask=[[True, True], [False, True]]),
            "aim": SelectEntityActionMask(actor_ids=["a"], actee_ids=["a", ("b", 1)], mask=[[False, True]]),
            "push": ContinuousActionMask(actor_ids=[("b", 1)]),
            "mode": GlobalCategoricalActionMask(),
            "idle": CategoricalActionMask(actor_ids=[]),
        },
    ),
]
OBS = batch_observations(FRAMES, SPACE, ACTIONS)


def acted(**choices: list[list[float]]) -> dict[str, VecAction]:
    """The actions of frame 1; nobody acts in frame 0, but the frame itself."""
    actions: dict[str, VecAction] = {}
    for name, space in ACTIONS.items():
        rows = choices.get(name, [])
        values = np.array(rows, space.dtype).reshape(len(rows), space.width)
        actions[name] = RaggedBuffer.from_flattened(values, [0, len(rows)])
    return actions


CHOSEN = acted(move=[[0], [1]], aim=[[1]], push=[[0.1, 3.0]], mode=[[1]])


def test_actions_that_nobody_takes_in_a_frame_have_no_decisions_whatever_is_masked_in_others() -> None:
    assert build_decisions(OBS, 0, ACTIONS, CHOSEN) == {}


def test_spaces_are_in_the_order_of_the_frame_with_kinds_and_choices() -> None:
    replay = build_replay(
        title="t",
        world="w",
        settings={"size": np.int64(3)},
        obs_space=SPACE,
        action_space=ACTIONS,
        players=[""],
        network=None,
        episodes=[],
    )
    assert replay["format"] == "enn-ppo replay" and replay["version"] == 1
    assert list(replay["entities"]) == ["Ship", "Card"]
    assert replay["entities"] == {
        "Ship": {"features": ["x", "turn"], "kinds": {"turn": {"kind": "angle"}}},
        "Card": {
            "features": ["kind", "open"],
            "kinds": {"kind": {"kind": "category", "num": 52}, "open": {"kind": "flag"}},
        },
    }
    assert replay["actions"] == {
        "move": {"kind": "categorical", "choices": ["stay", "go"]},
        "aim": {"kind": "select_entity", "nobody": True},
        "push": {"kind": "continuous", "names": ["force", "time"], "low": [-1.0, 0.0], "high": [1.0, None]},
        "mode": {"kind": "global_categorical", "choices": ["war", "peace"]},
        "idle": {"kind": "categorical", "choices": ["a"]},
    }
    assert replay["settings"] == {"size": 3} and replay["global_features"] == ["time"]


def test_a_view_has_the_numbers_of_the_world_its_ids_and_what_is_hidden() -> None:
    ids = ["a", ("b", 1), None, None]
    assert build_view(OBS, 1, SPACE, ids) == {
        "features": {"Ship": [[0.1, 2.0], [3.0, 4.0]], "Card": [[51, 1]]},
        "ids": {"Ship": ["a", "('b', 1)"]},
        "hidden": {"Ship": [0, 1]},
        "globals": [2.5],
        "value": None,
        "actions": {},
        "attention": None,
    }
    assert build_view(OBS, 0, SPACE) == {
        "features": {"Ship": [[9, 9]], "Card": []},
        "ids": {"Ship": ["0"]},
        "globals": [7],
        "value": None,
        "actions": {},
        "attention": None,
    }


def test_without_a_network_decisions_are_what_was_chosen_and_what_was_open() -> None:
    assert build_decisions(OBS, 1, ACTIONS, CHOSEN) == {
        "move": {"actors": [0, 1], "probs": None, "mask": [[1, 1], [0, 1]], "chosen": [0, 1]},
        "aim": {"actors": [0], "actees": [0, 1], "probs": None, "mask": [[0, 1, 1]], "chosen": [1]},
        "push": {"actors": [1], "probs": None, "chosen": [[0.1, 3.0]]},
        "mode": {"actors": [3], "probs": None, "chosen": [1]},  # two ships, a card, and then the frame itself
    }


def test_nobody_is_the_last_column_and_minus_one_where_there_is_none() -> None:
    (decision,) = build_decisions(OBS, 1, {"aim": ACTIONS["aim"]}, acted(aim=[[-1]])).values()
    assert decision["chosen"] == [2]
    (decision,) = build_decisions(OBS, 1, {"aim": SelectEntityActionSpace()}, acted(aim=[[-1]])).values()
    assert decision["chosen"] == [-1] and decision["mask"] == [[0, 1]]


def test_a_network_adds_probabilities_means_deviations_and_entropies() -> None:
    logits = {
        "move": np.log(
            np.array([[0.25, 0.75], [0, 1]], np.float32),
            where=[[True, True], [False, True]],
            out=np.full((2, 2), -np.inf, np.float32),
        ),
        "aim": np.log(np.array([[1e-30], [0.4], [0.6]], np.float32)),
        "push": np.array([[0.5, -1.5, 0.0, np.log(2)]], np.float32),
        "mode": np.log(np.array([[0.5, 0.5]], np.float32)),
    }
    entropies = {
        name: np.array([0.5] * len(rows), np.float32)
        for name, rows in (("move", "ab"), ("aim", "a"), ("push", "a"), ("mode", "a"))
    }
    found = build_decisions(OBS, 1, ACTIONS, CHOSEN, logits, entropies)
    assert found["move"]["probs"] == [[pytest.approx(0.25), pytest.approx(0.75)], [0, 1]]
    assert found["move"]["entropy"] == [0.5, 0.5]
    assert found["aim"]["probs"] == [[0, pytest.approx(0.4), pytest.approx(0.6)]]
    assert found["push"] == {
        "actors": [1],
        "chosen": [[0.1, 3.0]],
        "mean": [[0.5, -1.5]],
        "std": [[1.0, 2.0]],
        "entropy": [0.5],
    }


# ---- Sets

#: Two ships, of which the second may not take "b", take goods: in any way, and in an order.
SETS = {"take": SelectEntitiesActionSpace(min=1), "rank": SelectEntitiesActionSpace(max=2, ordered=True)}
SHIPS = ObsSpace({"Ship": Entity([]), "Good": Entity(["x"])})
OFFER = SelectEntitiesActionMask(actor_types=["Ship"], actee_types=["Good"], mask=[[True, True], [True, False]])
MARKET = batch_observations(
    [
        Observation(features={}),
        Observation(
            features={"Ship": [[], []], "Good": [[1], [2]]},
            ids={"Ship": ["s", "t"], "Good": ["a", "b"]},
            actions={"take": OFFER, "rank": OFFER},
        ),
    ],
    SHIPS,
    SETS,
)


def places(**numbers: list[int]) -> dict[str, VecAction]:
    """The sets of frame 1: for each pair of a ship and a good its place, or 0."""
    return {name: RaggedBuffer.from_flattened(np.array(row)[:, None], [0, 4]) for name, row in numbers.items()}


def logs(*probabilities: float) -> Any:
    with np.errstate(divide="ignore"):
        return np.log(np.array(probabilities, np.float32))


def test_a_set_is_a_list_of_columns_in_the_order_of_an_ordered_one() -> None:
    assert build_replay(title="t", action_space=SETS)["actions"] == {
        "take": {"kind": "select_entities", "ordered": False, "min": 1, "max": None},
        "rank": {"kind": "select_entities", "ordered": True, "min": 0, "max": 2},
    }
    chosen = places(take=[1, 1, 1, 0], rank=[2, 1, 0, 0])
    offer = {"actors": [0, 1], "actees": [2, 3], "probs": None, "mask": [[1, 1], [1, 0]]}
    assert build_decisions(MARKET, 0, SETS, chosen) == {}
    assert build_decisions(MARKET, 1, SETS, chosen) == {
        "take": {**offer, "chosen": [[0, 1], [0]]},
        "rank": {**offer, "chosen": [[1, 0], []]},
    }


def test_a_set_shows_how_likely_each_entity_was_and_an_ordered_one_each_pick() -> None:
    logits = {
        "take": logs(0.25, 0.75, 0.5, 0.5, 0.0, 1.0, 1.0, 0.0).reshape(4, 2),
        # the first ship picks b, then a, then has to stop; the second one stops at once
        "rank": logs(0.25, 0.5, 0.25, 0.625, 0.0, 0.375, 0.0, 0.0, 1.0, 0.125, 0.0, 0.875).reshape(12, 1),
    }
    found = build_decisions(MARKET, 1, SETS, places(take=[1, 0, 1, 0], rank=[2, 1, 0, 0]), logits)
    assert found["take"]["probs"] == [[0.75, 0.5], [1, 0]]
    assert found["rank"]["probs"] == [[0.625, 0.5, 1], [0.125, 0, 0.875]]
    # only the first ship picks, and only a: for b and for stopping counts where it stopped
    logits["rank"] = logs(0.25, 0.5, 0.25, 0.0, 0.375, 0.625, 0.125, 0.0, 0.875).reshape(9, 1)
    found = build_decisions(MARKET, 1, SETS, places(take=[1, 0, 1, 0], rank=[1, 0, 0, 0]), logits)
    assert found["rank"]["probs"] == [[0.25, 0.375, 0.625], [0.125, 0, 0.875]]


def unpacked(text: str, *shape: int) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), "<u2").reshape(shape)


def test_weights_of_small_frames_are_all_there_and_unseen_entities_get_none() -> None:
    weights = np.random.default_rng(0).dirichlet(np.ones(3), size=(2, 4, 3))
    found = build_attention(weights, 4)
    assert found.keys() == {"dense"}
    levels = unpacked(found["dense"], 2, 4, 4, 4)
    np.testing.assert_allclose(levels[..., :3, :3] / 65535, weights, atol=0.51 / 65535)
    assert not levels[..., 3, :].any() and not levels[..., :, 3].any()


def test_large_frames_keep_the_largest_weights_of_each_row_in_order() -> None:
    weights = np.random.default_rng(0).dirichlet(np.full(70, 0.1), size=(1, 2, 70))
    found = build_attention(weights, 70)
    assert found["top"] == 16
    indices, kept = (unpacked(found[name], 1, 2, 70, 16) for name in ("indices", "weights"))
    levels = np.rint(weights * 65535)
    np.testing.assert_array_equal(kept, np.take_along_axis(levels, indices.astype(int), -1))
    np.testing.assert_array_equal(kept, -np.sort(-levels, axis=-1)[..., :16])


def test_numbers_are_the_shortest_that_float32_reads_back() -> None:
    values = np.array([[0.1, -2.5e-8], [16777217.0, 3e38]], np.float32)
    found = to_decimals(values)
    assert json.dumps(found[0]) == "[0.1, -2.5e-08]"
    np.testing.assert_array_equal(np.array(found, np.float32), values)
    assert json.dumps(to_decimals(np.array([1.0, -3.0], np.float32))) == "[1, -3]"
    assert to_decimals(np.zeros((0, 3), np.float32)) == [] and to_decimals(np.zeros((2, 0), np.float32)) == [[], []]
    assert to_decimals(np.array([np.nan, np.inf, 0.5], np.float32)) == [None, None, 0.5]
    assert number(0.1 + 0.2) == 0.3 and number(float("nan")) is None


def test_what_json_does_not_have_becomes_text_or_null() -> None:
    given: dict[Any, Any] = {
        1: {2},
        "a": (np.float32(0.5), np.bool_(True), None),
        "b": float("inf"),
        "c": object,
        "d": np.arange(2),
    }
    found = plain(given)
    assert found == {"1": [2], "a": [0.5, True, None], "b": None, "c": "<class 'object'>", "d": [0, 1]}
    json.dumps(found, allow_nan=False)
    assert plain("x" * 5000) == "x" * 1000
