"""Compiled programs compute what the modules compute in float64, outputs and gradients, whatever the settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from rogue_net import FrameKeys, ObsBatch, RaggedTensor, RogueNet, RogueNetConfig, keyed
from rogue_net.config import RelposConfig
from rogue_net.kernels.cpu.calling import entry
from rogue_net.kernels.cpu.compiling import Count, Floats, Ints, kernel
from rogue_net.kernels.cpu.program import Program
from tests.rogue_net.backends import (
    ACTIONS,
    ALL_OF_RELPOS,
    Results,
    Scene,
    as_double,
    assert_near,
    away_from_edges,
    make_config,
    make_net,
    plain_configs,
    relative_configs,
    scenes,
    summands,
    twin,
)


@kernel
def weighted(
    settings: Floats,
    low: Count,
    high: Count,
    size: Count,
    columns: Floats,
    num_actors: Count,
    actor_frames: Ints,
    log_probs: Floats,
    old_log_probs: Floats,
    entropies: Floats,
    divergences: Floats,
    values: Floats,
    dlog_probs: Floats,
    dentropies: Floats,
    ddivergences: Floats,
    dvalues: Floats,
    stats: Floats,
) -> None:
    """The sum of everything that a policy gives for a frame, with weights of the frame: (4, M) columns."""
    for actor in range(num_actors):
        frame = low + actor_frames[actor]
        dlog_probs[actor], dentropies[actor] = columns[frame], columns[size + frame]
        ddivergences[actor] = columns[2 * size + frame]
        stats[0] += columns[frame] * log_probs[actor]
        stats[1] += columns[size + frame] * entropies[actor]
        stats[2] += columns[2 * size + frame] * divergences[actor]
    for frame in range(high - low):
        dvalues[frame] = columns[3 * size + low + frame]
        stats[3] += columns[3 * size + low + frame] * values[frame]


class Given(NamedTuple):
    batch: ObsBatch
    actions: dict[str, RaggedTensor]
    targets: dict[str, RaggedTensor]  # what another network would draw from
    weights: Tensor  # (4, B) positive, so that no gradient is what chance leaves of a difference


def given_for(net: RogueNet, batch: ObsBatch, seed: int) -> Given:
    generator = torch.Generator().manual_seed(seed)
    drawn = net.act(batch, generator=generator, logits=True, temperature=1.5)
    assert drawn.logits is not None
    return Given(batch, drawn.actions, drawn.logits, torch.rand(4, len(batch), generator=generator) + 0.5)


def by_modules(net: RogueNet, given: Given) -> Results:
    """In the precision of the network."""
    net.zero_grad()
    with summands(net) as least:
        found = net.evaluate(as_double(given.batch), as_actions(given.actions, torch.float64))
        of_log_prob, of_entropy, of_divergence, of_value = given.weights.double()
        parts = torch.zeros(4, dtype=torch.float64)
        for name, ragged in given.actions.items():
            frames = ragged.sequences
            divergence = divergences(net, name, found.logits[name], given.targets[name], given.batch)
            parts = parts + torch.stack(
                [
                    (of_log_prob[frames] * found.log_probs[name]).sum(),
                    (of_entropy[frames] * found.entropies[name]).sum(),
                    (of_divergence[frames] * divergence).sum(),
                    torch.zeros((), dtype=torch.float64),
                ]
            )
        parts = parts + torch.stack([*torch.zeros(3, dtype=torch.float64), (of_value * found.values).sum()])
        parts.sum().backward()
    outputs = {f"log-prob of {name}": each.detach() for name, each in found.log_probs.items()}
    outputs |= {"value": found.values.detach(), **sums_of(parts.detach())}
    named = {name: each.grad for name, each in net.named_parameters() if not name.startswith("regression")}
    return Results(outputs, {name: each for name, each in named.items() if each is not None}, least)


def sums_of(parts: Tensor) -> dict[str, Tensor]:
    """Sums that are not among the outputs yet; 100 is added, as those that nearly cancel are no measure of errors."""
    return {"entropies": parts[1] + 100, "divergences": parts[2] + 100}


def as_actions(actions: Mapping[str, RaggedTensor], dtype: torch.dtype) -> dict[str, RaggedTensor]:
    return {
        name: each._replace(values=each.values.to(dtype)) if each.values.is_floating_point() else each
        for name, each in actions.items()
    }


def divergences(net: RogueNet, name: str, logits: Tensor, target: RaggedTensor, batch: ObsBatch) -> Tensor:
    """(A,) KL(target || policy), from the definitions."""
    taught = target.values.double()
    if not net.action_space[name].discrete:
        size = logits.shape[1] // 2
        q = torch.distributions.Normal(logits[:, :size], logits[:, size:].exp())
        p = torch.distributions.Normal(taught[:, :size], taught[:, size:].exp())
        return torch.distributions.kl_divergence(p, q).sum(1)
    rows = logits.view_as(taught)
    terms = torch.where(taught.exp() > 0, taught.exp() * (taught - rows), 0.0)
    if terms.shape[1] > 1:
        return terms.sum(1)
    mask: Any = batch.action_masks[name]
    choices = torch.repeat_interleave(mask.actees.lengths, mask.actors.lengths)
    actors = torch.repeat_interleave(torch.arange(len(choices)), choices)
    return torch.zeros(len(choices), dtype=torch.float64).index_add(0, actors, terms[:, 0])


def by_program(net: RogueNet, given: Given) -> Results:
    program = Program(net)
    log_probs, values = program.evaluate(given.batch, given.actions)
    memory = {name: torch.zeros(len(each.values)) for name, each in given.actions.items()}
    columns = program.columns(given.batch, given.actions, memory, given.targets)
    frames, nothing = np.arange(len(given.batch)), np.zeros(1, np.float32)
    parts = program.gradient(columns, frames, entry(weighted), nothing, given.weights.numpy(), 4)
    outputs = {f"log-prob of {name}": each for name, each in log_probs.items()} | {"value": values} | sums_of(parts)
    names = {id(parameter): name for name, parameter in net.named_parameters()}
    places = program._parts(program.gradient_flat)
    gradients = {names[id(own)]: part for own, part in zip(program.parameters, places, strict=True)}
    return Results(outputs, gradients, {})


def assert_exact(config: RogueNetConfig, scene: Scene) -> None:
    batch = scene.batch
    net = make_net(config, batch, scene.seed)
    # frames in which much is masked leave little that differs
    given = given_for(twin(net, "reference"), batch, scene.seed)
    exact, found = by_modules(twin(net, "reference", torch.float64), given), by_program(net, given)
    assert set(found.gradients) == set(exact.gradients)
    assert_near(found, exact)


@settings(max_examples=40, deadline=None)
@given(config=plain_configs(), scene=scenes(many=True))
def test_networks(config: RogueNetConfig, scene: Scene) -> None:
    assert_exact(config, scene)


@settings(max_examples=60, deadline=None)
@given(config=relative_configs(), scene=scenes(many=True))
def test_networks_with_relative_positions(config: RogueNetConfig, scene: Scene) -> None:
    assume(away_from_edges(scene.batch, config.relpos))
    assert_exact(config, scene)


@settings(max_examples=30, deadline=None)
@given(
    pooling=st.sampled_from(["mean", "max", "meanmax"]),
    shape=st.sampled_from([(16, 2), (32, 2), (24, 3)]),
    n_layer=st.integers(1, 2),
    scene=scenes(many=True),
)
def test_networks_that_pool(pooling: str, shape: tuple[int, int], n_layer: int, scene: Scene) -> None:
    assert_exact(make_config(shape, n_layer=n_layer, pooling=pooling), scene)


@pytest.mark.parametrize("shape", [(32, 2), (64, 2), (80, 2)])
def test_relative_positions_in_heads_of_other_widths(shape: tuple[int, int]) -> None:
    config = make_config(shape, relpos=RelposConfig(**ALL_OF_RELPOS))
    assert_exact(config, Scene([(5, 6, 1), (0, 0, 0), (1, 0, 0), (17, 20, 0)], seed=1, hide=True))


@pytest.mark.parametrize("more", [{}, {"relpos": RelposConfig(**ALL_OF_RELPOS)}, {"pooling": "meanmax"}])
def test_a_crowd_of_500_among_frames_of_5_is_computed_as_if_alone(more: dict[str, Any]) -> None:
    batch = Scene([(2, 3, 0)] * 20 + [(200, 300, 0)] + [(2, 3, 0)] * 20, seed=2, hide=True).batch
    net = make_net(make_config((16, 2), **more), batch)
    together = net.act(batch, greedy=True).values
    for frame in (0, 20, 40):
        alone = net.act(batch[torch.tensor([frame])], greedy=True).values
        torch.testing.assert_close(together[frame : frame + 1], alone, atol=1e-6, rtol=1e-6)


@settings(max_examples=30, deadline=None)
@given(config=plain_configs(), scene=scenes(many=True), greedy=st.booleans())
def test_actions_and_their_log_probs(config: RogueNetConfig, scene: Scene, greedy: bool) -> None:
    batch = scene.batch
    net = make_net(config, batch, scene.seed)
    keys = FrameKeys(keyed(3, torch.arange(len(batch))))
    found = net.act(batch, greedy=greedy, generator=keys)
    expected = twin(net, "reference").act(batch, greedy=greedy, generator=keys)
    with torch.no_grad():  # of the actions that were found: near a bound, rounding decides
        evaluation = twin(net, "reference").evaluate(batch, found.actions)
    for name in ACTIONS:
        torch.testing.assert_close(found.actions[name].values, expected.actions[name].values, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(found.log_probs[name], evaluation.log_probs[name], atol=2e-5, rtol=1e-5)
    torch.testing.assert_close(found.values, expected.values, atol=1e-5, rtol=1e-5)
