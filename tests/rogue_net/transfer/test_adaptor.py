"""A trained network in an environment that shows more, less or in another order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
import torch

from entity_gym import (
    ActionSpace,
    CategoricalActionSpace,
    Entity,
    GlobalCategoricalActionSpace,
    Observation,
    ObsSpace,
    SelectEntityActionMask,
    SelectEntityActionSpace,
)
from entity_gym.batch.batching import batch_observations
from entity_gym.spaces import Angle, Category
from rogue_net import ObsBatch
from rogue_net.inputs.embedding import Embedding
from rogue_net.transfer.adaptor import ObsAdaptor

ACTIONS: Mapping[str, ActionSpace] = {"wait": CategoricalActionSpace(["wait"])}
GLOBAL_ACTIONS: Mapping[str, ActionSpace] = {"mode": GlobalCategoricalActionSpace(["a", "b"])}
TRAINED = ObsSpace(
    {"Ship": Entity(["x", "y", Category("card", 5)]), "Mine": Entity(["x"]), "Flag": Entity([])},
    global_features=["time", "wind"],
)
# another order of types and features, some more features, and no flags
OFFERED = ObsSpace(
    {"Mine": Entity(["size", "x"]), "Ship": Entity(["hp", Category("card", 5), "y", "x", "shield"])},
    global_features=["wind", "mood", "time"],
)
FRAMES = [
    Observation(features={"Ship": [[1, 2, 3, 4, 5]], "Mine": [[6, 7], [8, 9]]}, global_features=[10, 11, 12]),
    Observation(features={"Mine": [[16, 17]]}, global_features=[20, 21, 22]),
]


def to_batch(
    observations: Sequence[Observation], obs_space: ObsSpace, actions: Mapping[str, ActionSpace] = ACTIONS
) -> ObsBatch:
    return ObsBatch.from_vec_obs(batch_observations(observations, obs_space, actions))


def test_features_are_picked_by_their_names() -> None:
    batch = ObsAdaptor(TRAINED, OFFERED)(to_batch(FRAMES, OFFERED))
    values = {name: ragged.values.tolist() for name, ragged in batch.features.items()}
    assert values == {
        "Mine": [[7], [9], [17]],
        "Ship": [[4, 3, 2]],
        "__global__": [[12, 10], [22, 20]],
        "Flag": [],
    }
    assert batch.features["Flag"].values.shape == (0, 0)
    assert batch.features["Flag"].offsets.tolist() == [0, 0, 0]


def test_entities_keep_the_index_that_the_environment_knows_them_by() -> None:
    actions = {"aim": SelectEntityActionSpace()}
    observation = Observation(
        features=FRAMES[0].features,
        global_features=FRAMES[0].global_features,
        ids={"Ship": ["ship"], "Mine": ["m0", "m1"]},
        actions={"aim": SelectEntityActionMask(actor_ids=["ship"], actee_ids=["m1"])},
    )
    batch = ObsAdaptor(TRAINED, OFFERED, actions)(to_batch([observation], OFFERED, actions))
    mask = batch.action_masks["aim"]
    assert batch.frames.positions["Ship"].tolist() == mask.actors.values[:, 0].tolist() == [2]
    assert mask.actees.values[:, 0].tolist() == [1]


def test_hidden_entities_stay_hidden() -> None:
    observation = Observation(
        features={"Mine": [[0, 1], [0, 2]]}, global_features=[0, 0, 0], visible={"Mine": [False, True]}
    )
    batch = ObsAdaptor(TRAINED, OFFERED)(to_batch([observation], OFFERED))
    assert batch.frames.visible is not None
    assert batch.frames.visible.tolist() == [False, True, True]


def test_equal_spaces_need_nothing() -> None:
    adaptor, batch = ObsAdaptor(OFFERED, OFFERED), to_batch(FRAMES, OFFERED)
    assert adaptor.changes_nothing
    assert adaptor(batch) is batch
    assert adaptor.describe() == ""


def test_the_given_batch_stays_as_it_is() -> None:
    batch = to_batch(FRAMES, OFFERED)
    before = {name: ragged.values.clone() for name, ragged in batch.features.items()}
    ObsAdaptor(TRAINED, OFFERED)(batch)
    assert batch.features.keys() == before.keys()
    assert all(torch.equal(batch.features[name].values, values) for name, values in before.items())


def test_what_is_ignored_and_what_is_missing_is_told() -> None:
    assert ObsAdaptor(TRAINED, OFFERED).describe() == (
        "ignored: feature 'size' of 'Mine', features 'hp', 'shield' of 'Ship', global feature 'mood'; never there: 'Flag'"
    )


# --- Global features that the network never saw ---


def test_new_global_features_vanish_where_the_network_knows_no_world() -> None:
    trained, offered = ObsSpace({"A": Entity(["x"])}), ObsSpace({"A": Entity(["x"])}, global_features=["time"])
    batch = ObsAdaptor(trained, offered, ACTIONS)(
        to_batch([Observation(features={"A": [[1]]}, global_features=[5])], offered)
    )
    assert list(batch.features) == ["A"]
    assert batch.num_tokens == 1
    assert Embedding(trained, ACTIONS, 4)(batch).shape == (1, 4)


def test_the_world_that_takes_global_actions_stays_without_them() -> None:
    trained, offered = ObsSpace({"A": Entity(["x"])}), ObsSpace({"A": Entity(["x"])}, global_features=["time"])
    observation = Observation(features={"A": [[1]]}, global_features=[5])
    batch = ObsAdaptor(trained, offered, GLOBAL_ACTIONS)(to_batch([observation], offered, GLOBAL_ACTIONS))
    assert batch.features["__global__"].values.shape == (1, 0)
    assert Embedding(trained, GLOBAL_ACTIONS, 4)(batch).shape == (2, 4)


# --- What cannot be adapted ---


def test_a_missing_feature_is_told_with_what_there_is() -> None:
    with pytest.raises(
        ValueError, match=r"needs the feature 'x' of 'A', .*does not have; allowed: 'X', 'y'; did you mean 'X'"
    ):
        ObsAdaptor(ObsSpace({"A": Entity(["x"])}), ObsSpace({"A": Entity(["X", "y"])}))
    with pytest.raises(ValueError, match=r"needs the global feature 'time', .*allowed: 'tim'; did you mean 'tim'"):
        ObsAdaptor(ObsSpace({}, global_features=["time"]), ObsSpace({}, global_features=["tim"]))


def test_a_type_that_the_network_never_saw_is_told() -> None:
    with pytest.raises(
        ValueError, match=r"entities of type 'Mines', which the network never saw; .*did you mean 'Mine'"
    ):
        ObsAdaptor(TRAINED, ObsSpace({"Mines": Entity(["x"])}))


@pytest.mark.parametrize(
    ("before", "now", "told"),
    [
        ("x", Angle("x"), r"as a plain number, and in the environment it is Angle\(name='x'\)"),
        (Category("x", 5), Category("x", 6), r"as Category\(name='x', num=5\), and .* Category\(name='x', num=6\)"),
        (Angle("x"), "x", r"as Angle\(name='x'\), and in the environment it is a plain number"),
    ],
)
def test_a_feature_of_another_kind_is_told(before: object, now: object, told: str) -> None:
    with pytest.raises(ValueError, match=r"knows the feature 'x' of 'A' " + told):
        ObsAdaptor(ObsSpace({"A": Entity([before])}), ObsSpace({"A": Entity([now])}))
    with pytest.raises(ValueError, match=r"knows the global feature 'x' " + told):
        ObsAdaptor(ObsSpace({}, [before]), ObsSpace({}, [now]))
