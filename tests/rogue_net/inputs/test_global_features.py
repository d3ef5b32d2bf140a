"""Global features that join every entity and are no entity of their own: `net.global_entity=false`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from entity_gym import Entity, Observation, ObsSpace
from entity_gym.spaces import Angle, Flag
from rogue_net import FrameKeys, ObsBatch, RogueNet, RogueNetConfig
from rogue_net.config import Backend
from tests.rogue_net.worlds import ENTITIES, GLOBAL, LOCAL_ACTIONS, World, batches, to_batch

GLOBALS = ("time", Angle("wind"), Flag("hp"))  # one has the name of an entity's feature
WORLD = World(ObsSpace(ENTITIES, global_features=GLOBALS), LOCAL_ACTIONS)
JOINED = ("global time", Angle("global wind"), Flag("global hp"))
BY_HAND = World(
    ObsSpace({name: Entity([*entity.features, *JOINED]) for name, entity in ENTITIES.items()}), LOCAL_ACTIONS
)


def make_net(world: World, backend: Backend = "auto") -> RogueNet:
    """Every weight counts; with the same weights for `WORLD` and `BY_HAND`."""
    config = RogueNetConfig(d_model=16, d_qk=8, global_entity=False, backend=backend)
    net = RogueNet(config, world.obs_space, world.action_space)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.normal_(std=0.3, generator=generator)
        for entity in net.embedding.entities:
            entity.norm.update(torch.randn(50, len(entity.norm.mean), generator=generator) * 2 + 1)
    return net


def joined_by_hand(frame: Observation) -> Observation:
    everywhere = np.asarray(frame.global_features, np.float32)
    features = {
        name: np.concatenate([rows, np.tile(everywhere, (len(rows), 1))], axis=1, dtype=np.float32)
        for name, rows in frame.features.items()
    }
    return replace(frame, features=features, global_features=[])


def flags(frame: Observation) -> Observation:
    """Flags are 0 or 1."""
    time, wind, flag = np.asarray(frame.global_features)
    return replace(frame, global_features=[time, wind, float(flag > 0)])


frames = batches(WORLD).map(lambda drawn: [flags(frame) for frame in drawn])
backends = st.sampled_from(["reference", "auto"])


@given(frames, backends)
def test_the_answers_are_those_to_entities_that_have_the_features_themselves(
    drawn: list[Observation], backend: Backend
) -> None:
    batch, by_hand = to_batch(drawn, WORLD), to_batch([joined_by_hand(frame) for frame in drawn], BY_HAND)
    net, other = make_net(WORLD, backend), make_net(BY_HAND, backend)
    keys = FrameKeys(torch.arange(len(batch)))
    for options in ({"greedy": True}, {"generator": keys}, {"generator": keys, "logits": True}):
        given_, expected = net.act(batch, **options), other.act(by_hand, **options)
        for name in LOCAL_ACTIONS:
            assert torch.equal(given_.actions[name].values, expected.actions[name].values)
        torch.testing.assert_close((given_.log_probs, given_.values), (expected.log_probs, expected.values))
    evaluated = [each.evaluate(own, given_.actions) for each, own in ((net, batch), (other, by_hand))]
    torch.testing.assert_close(*([each.log_probs, each.entropies, each.values] for each in evaluated))
    torch.testing.assert_close(net.value(batch), other.value(by_hand))


def statistics(net: RogueNet) -> list[Tensor]:
    return [tensor for name, tensor in net.state_dict().items() if ".norm." in name]


@given(frames)
def test_statistics_are_measured_of_the_joined_features(drawn: list[Observation]) -> None:
    net, other = make_net(WORLD), make_net(BY_HAND)
    net.update_normalization(to_batch(drawn, WORLD))
    other.update_normalization(to_batch([joined_by_hand(frame) for frame in drawn], BY_HAND))
    torch.testing.assert_close(statistics(net), statistics(other))


def test_with_a_global_action_the_entity_is_there_in_any_case() -> None:
    nets = [
        RogueNet(RogueNetConfig(global_entity=global_entity), GLOBAL.obs_space, GLOBAL.action_space)
        for global_entity in (False, True)
    ]
    assert nets[0].embedding.types == nets[1].embedding.types == [*ENTITIES, "__global__"]


def test_a_batch_without_the_global_features_is_refused() -> None:
    without = World(ObsSpace(ENTITIES), LOCAL_ACTIONS)
    batch: ObsBatch = to_batch([Observation(features={})], without)
    with pytest.raises(ValueError, match=r"'__global__' entity with 3 features; the batch of 1 frames has none"):
        make_net(WORLD).value(batch)
