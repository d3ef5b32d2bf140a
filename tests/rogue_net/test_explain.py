"""An explanation shows the numbers that the network decided with: no other ones, and of every layer, head and entity."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from entity_gym import Observation, ObsSpace
from rogue_net import ObsBatch, RogueNet, RogueNetConfig
from rogue_net.explain import Explanation, explain
from tests.rogue_net.test_visibility import CONFIGS, WORLD, scene
from tests.rogue_net.worlds import World, to_batch

ATTENDS = [name for name in CONFIGS if name not in ("no layers", "meanmax")]


def observations(first_seed: int, world: World = WORLD) -> list[Observation]:
    """An empty frame, and frames of which some entities are hidden."""
    frames = [Observation(), *map(scene, range(first_seed, first_seed + 4))]
    globals_ = [0.5] * len(world.obs_space.global_features)
    return [replace(frame, global_features=globals_) for frame in frames]


def make(name: str, world: World = WORLD, **settings: object) -> RogueNet:
    torch.manual_seed(7)
    given = {"d_model": 16, "n_layer": 2, "n_head": 2, "d_qk": 8, **CONFIGS[name], **settings}
    net = RogueNet(RogueNetConfig(**given), world.obs_space, world.action_space)  # type: ignore[arg-type]
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return net


def dense_weights(net: RogueNet, batch: ObsBatch) -> Tensor:
    """(layers, heads, e, e) of a batch of one frame, by the equation of Vaswani et al. and one loop over pairs."""
    batch = net.translation(batch)
    tokens, positions = net.embedding(batch), net.transformer.relative_positions
    count = len(tokens)
    places = torch.arange(count)[None]
    relative = None if positions is None else positions(batch, places)
    visible = torch.ones(count, dtype=torch.bool) if batch.frames.visible is None else batch.frames.visible
    found = []
    for block in net.transformer.blocks:
        heads = block.num_heads
        q, k, _ = block.query_key_value(block.attention_norm(tokens)).double().view(count, 3, heads, -1).unbind(1)
        scores = torch.full((heads, count, count), -torch.inf, dtype=torch.float64)
        for i in range(count):
            for j in range(count):
                if visible[j] or not visible[i]:
                    key = k[j] if relative is None else k[j] + relative.keys[0, i, j]
                    scores[:, i, j] = (q[i] * key).sum(1) / math.sqrt(q.shape[-1])
        found.append(scores.softmax(-1))
        tokens = block(tokens, batch.frames, relative, positions)
    return torch.stack(found)


@pytest.mark.parametrize("name", ATTENDS)
def test_weights_are_those_of_a_dense_computation_of_each_frame(name: str) -> None:
    net, frames = make(name), observations(3)
    attention = explain(net, to_batch(frames, WORLD)).attention
    assert attention is not None and len(attention) == len(frames)
    for observation, weights in zip(frames[1:], attention[1:], strict=True):
        count = sum(map(len, observation.features.values()))
        assert weights.shape == (2, 2, count, count)
        with torch.no_grad():
            expected = dense_weights(net, to_batch([observation], WORLD))
        torch.testing.assert_close(weights.double(), expected, atol=1e-6, rtol=0)
        assert torch.equal(weights == 0, expected == 0)  # a visible entity gives hidden ones nothing


def same_as_acting(net: RogueNet, batch: ObsBatch, found: Explanation) -> None:
    acted = net.act(batch, greedy=True, logits=True)
    assert acted.logits is not None
    for name, logits in acted.logits.items():
        torch.testing.assert_close(found.logits[name].values, logits.values, atol=1e-6, rtol=0)
        torch.testing.assert_close(found.logits[name].offsets, logits.offsets)
    torch.testing.assert_close(found.values, acted.values)
    judged = net.evaluate(batch, acted.actions)
    for name, entropies in judged.entropies.items():
        torch.testing.assert_close(found.entropies[name].values, entropies.values)


@pytest.mark.parametrize("name", CONFIGS)
def test_distributions_values_and_entropies_are_those_of_acting(name: str) -> None:
    net, batch = make(name), to_batch(observations(5), WORLD)
    same_as_acting(net, batch, explain(net, batch))


def test_the_global_entity_is_in_the_weights() -> None:
    world = World(ObsSpace(WORLD.obs_space.entities, ["time"]), WORLD.action_space)
    net, frames = make("attention", world), observations(6, world=world)
    batch = to_batch(frames, world)
    found = explain(net, batch)
    assert found.attention is not None
    counts = [sum(map(len, observation.features.values())) + 1 for observation in frames]
    assert [len(weights[0, 0]) for weights in found.attention] == counts
    same_as_acting(net, batch, found)
