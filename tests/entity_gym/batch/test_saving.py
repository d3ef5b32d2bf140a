"""Observations and spaces as plain values, and back."""

import json
import re
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from enn_ppo.checkpoints.trainer_state import decode, encode
from entity_gym import (
    CategoricalActionMask,
    CategoricalActionSpace,
    Entity,
    GlobalCategoricalActionSpace,
    Observation,
    ObsSpace,
    SelectEntityActionSpace,
)
from entity_gym.batch.batching import batch_observations
from entity_gym.batch.saving import (
    observation_from_state,
    observation_to_state,
    spaces_difference,
    spaces_to_dict,
)
from tests.worlds import Zoo, frames, random_content


def stored_and_read(state: Any) -> Any:
    """Return a state as a checkpoint gives it back."""
    tensors: list[Tensor] = []
    stored = json.dumps(encode(state, "observation", tensors))
    return decode(json.loads(stored), dict(enumerate(tensors)))


OBS_SPACE = ObsSpace({"Cat": Entity(["x", "y"]), "Stone": Entity([])}, ["time"])
ACTION_SPACE = {
    "walk": CategoricalActionSpace(["stay", "go"]),
    "chase": SelectEntityActionSpace(),
    "weather": GlobalCategoricalActionSpace(["sun", "rain"]),
}


@given(seed=st.integers(0, 2**32), stored=st.booleans())
def test_an_observation_comes_back_as_it_was(seed: int, stored: bool) -> None:
    rng = np.random.default_rng(seed)
    obs = Observation(
        **random_content(rng), global_features=[1], reward=2.5, done=True, truncated=True, metrics={"hp": 3}
    )
    state: Any = observation_to_state(obs)
    back = observation_from_state(stored_and_read(state) if stored else state)
    expected, got = (batch_observations([o], Zoo().obs_space(), Zoo().action_space()) for o in (obs, back))
    assert frames(got) == frames(expected)
    assert got.metrics == expected.metrics
    assert back.ids == obs.ids


def test_any_sequence_that_an_observation_may_hold_can_be_stored() -> None:
    units = OrderedDict(a=1.0, b=2.0)
    obs = Observation(
        features={"Cat": [(x, 0) for x in units.values()]},
        ids={"Cat": units.keys(), "Dog": range(2)},  # type: ignore[dict-item]
        actions={"walk": CategoricalActionMask(actor_ids=range(1), mask=((True, False),))},
    )
    back = observation_from_state(stored_and_read(observation_to_state(obs)))
    assert {name: list(ids) for name, ids in back.ids.items()} == {"Cat": ["a", "b"], "Dog": [0, 1]}
    assert list(back.actions["walk"].actor_ids) == [0]  # type: ignore[union-attr, arg-type]
    assert back.features == obs.features


def test_a_saved_observation_shares_no_memory_with_the_observation() -> None:
    rows, ids = np.zeros((1, 1)), ["a"]
    state = observation_to_state(Observation(features={"Cat": rows}, ids={"Cat": ids}))
    rows[:] = 9
    ids[0] = "b"
    assert (state["features"]["Cat"].tolist(), state["ids"]["Cat"]) == ([[0.0]], ["a"])


@pytest.mark.parametrize(
    ("obs_space", "action_space", "message"),
    [
        (ObsSpace({"Cat": Entity(["x"]), "Stone": Entity([])}, ["time"]), ACTION_SPACE, r"entities\['Cat'\] was .*'y'"),
        (
            ObsSpace({"Stone": Entity([]), "Cat": Entity(["x", "y"])}, ["time"]),
            ACTION_SPACE,
            r"the order of entities was \['Cat', 'Stone'\] and is \['Stone', 'Cat'\]",
        ),
        (ObsSpace(OBS_SPACE.entities, ["wind"]), ACTION_SPACE, r"global_features were \['time'\] and are \['wind'\]"),
        (
            OBS_SPACE,
            {**ACTION_SPACE, "chase": CategoricalActionSpace(["on"])},
            r"actions\['chase'\] was .*SelectEntity",
        ),
        (OBS_SPACE, dict(reversed(ACTION_SPACE.items())), r"the order of actions was"),
    ],
)
def test_the_first_difference_of_spaces_is_said(obs_space: ObsSpace, action_space: dict, message: str) -> None:
    difference = spaces_difference(spaces_to_dict(OBS_SPACE, ACTION_SPACE), spaces_to_dict(obs_space, action_space))
    assert difference is not None
    assert re.search(message, difference)
