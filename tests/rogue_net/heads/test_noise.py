"""Keyed noise: what an actor draws depends on its frame's key, the action's name and its place, and is as good as independent."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from entity_gym import (
    ActionSpace,
    CategoricalActionMask,
    CategoricalActionSpace,
    Entity,
    Observation,
    ObsSpace,
    SelectEntityActionMask,
    SelectEntityActionSpace,
)
from entity_gym.batch.batching import batch_observations
from rogue_net import ActResult, ObsBatch, RaggedTensor, RogueNet, RogueNetConfig
from rogue_net.config import Backend
from rogue_net.heads.noise import ActorKeys, FrameKeys, _draw, _mix, exponential, keyed, name_key, normal

MANY = 200_000


def actor_keys(number: int, seed: int = 0) -> ActorKeys:
    return ActorKeys(keyed(seed, torch.arange(number)))


def moments(values: Tensor) -> tuple[float, float]:
    return float(values.double().mean()), float(values.double().var())


# --- Keys ---


def test_keys_are_those_of_splitmix64() -> None:
    """The first numbers that SplitMix64 draws from the seed 1234567, as its author publishes them."""
    drawn = keyed(1234567, torch.arange(3)).tolist()
    assert [number % 2**64 for number in drawn] == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@given(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**63), 2**63 - 1))
def test_every_bit_of_key_and_number_changes_half_of_the_bits(key: int, number: int) -> None:
    def bits(key: int, number: int) -> Tensor:
        return keyed(torch.tensor([key]), torch.tensor([number])) >> torch.arange(64) & 1

    for k in (0, 17, 40, 63):
        flipped = torch.tensor(1) << k
        for other in (bits(key ^ int(flipped), number), bits(key, number ^ int(flipped))):
            assert 8 <= int((other != bits(key, number)).sum()) <= 56


# --- Draws ---


def test_uniform_numbers_are_uniform_and_never_0_or_1() -> None:
    drawn = actor_keys(MANY).uniform(torch.arange(5), None)
    assert drawn.shape == (MANY, 5) and drawn.dtype == torch.float32
    assert drawn.min() > 0 and drawn.max() < 1
    counts = torch.histc(drawn, bins=100, min=0, max=1)
    expected = MANY * 5 / 100
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert chi_square < 99 + 5 * math.sqrt(2 * 99)


def test_an_actors_draws_and_those_of_neighbours_are_not_correlated() -> None:
    drawn = actor_keys(MANY).uniform(torch.arange(6), None).double()
    table = torch.cat([drawn[:-1], drawn[1:]], dim=1).t()
    correlations = torch.corrcoef(table) - torch.eye(12)
    assert correlations.abs().max() < 5 / math.sqrt(MANY)


def test_exponential_and_normal_numbers_have_their_moments() -> None:
    like = torch.empty(MANY, 3)
    mean, variance = moments(exponential(actor_keys(MANY), like))
    assert mean == pytest.approx(1, abs=0.01) and variance == pytest.approx(1, abs=0.02)
    gaussian = normal(actor_keys(MANY), like)
    mean, variance = moments(gaussian)
    assert mean == pytest.approx(0, abs=0.01) and variance == pytest.approx(1, abs=0.01)
    assert float((gaussian.abs() < 1.96).double().mean()) == pytest.approx(0.95, abs=0.002)
    assert gaussian.isfinite().all()


# --- Whose they are ---


def ragged(lengths: list[int]) -> RaggedTensor:
    offsets = torch.tensor([0, *torch.tensor(lengths, dtype=torch.int64).cumsum(0).tolist()])
    return RaggedTensor(torch.cat([torch.arange(n) for n in lengths])[:, None], offsets)


@settings(max_examples=50)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=6), st.data())
def test_a_frames_draws_do_not_depend_on_the_other_frames(lengths: list[int], data: st.DataObject) -> None:
    frame = data.draw(st.integers(0, len(lengths) - 1))
    keys = keyed(3, torch.arange(len(lengths)))
    actors = ragged(lengths)
    together = FrameKeys(keys).of_actors("move", actors)
    alone = FrameKeys(keys[frame : frame + 1]).of_actors("move", ragged([lengths[frame]]))
    begin, end = actors.offsets[frame : frame + 2].tolist()
    assert torch.equal(together.keys[begin:end], alone.keys)


def test_a_names_key_is_the_same_in_every_process() -> None:
    """What `printf a | b2sum -l 64` prints, the first byte being the highest, as a signed number."""
    assert name_key("a") == 0x40F89E395B66422F
    assert name_key("lässt") == 0x0FE155F1371294E6
    assert name_key("b") == 0x8472C2E34D854F75 - 2**64
    tensor = FrameKeys(torch.zeros(1, dtype=torch.int64)).of_actors("a", ragged([1])).keys
    assert tensor.tolist() == [name_key("a")]


UNITS = ObsSpace({"Unit": Entity(["x"])})
SAY, FOLLOW = CategoricalActionSpace([str(number) for number in range(30)]), SelectEntityActionSpace()


def act(actions: Mapping[str, ActionSpace], weights: RogueNet | None, backend: Backend) -> tuple[RogueNet, ActResult]:
    """What all units of 20 frames do, 6 in each, and the network; `weights` is the one whose actions decide as they do there."""
    torch.manual_seed(0)
    net = RogueNet(RogueNetConfig(d_model=16, backend=backend), UNITS, actions)
    if weights is not None:
        net.embedding.load_state_dict(weights.embedding.state_dict())
        net.transformer.load_state_dict(weights.transformer.state_dict())
        heads = dict(zip(weights.action_space, weights.heads, strict=True))
        for name, head in zip(actions, net.heads, strict=True):
            if name in heads:
                head.load_state_dict(heads[name].state_dict())
    rng, ids = np.random.default_rng(0), range(6)
    masks = {
        name: CategoricalActionMask(actor_ids=ids)
        if space is SAY
        else SelectEntityActionMask(actor_ids=ids, actee_ids=ids)
        for name, space in actions.items()
    }
    units = [rng.normal(size=(6, 1)).astype(np.float32) for _ in range(20)]
    frames = [Observation(features={"Unit": each}, ids={"Unit": ids}, actions=masks) for each in units]
    batch = ObsBatch.from_vec_obs(batch_observations(frames, UNITS, actions))
    return net, net.act(batch, generator=FrameKeys(keyed(5, torch.arange(len(frames)))))


@pytest.mark.parametrize("backend", ["fused", "reference"])
def test_an_actions_draws_depend_neither_on_the_other_actions_nor_on_their_order(backend: Backend) -> None:
    net, before = act({"a": SAY, "b": FOLLOW}, None, backend)
    for actions in ({"new": SAY, "a": SAY, "b": FOLLOW}, {"b": FOLLOW, "a": SAY}, {"b": FOLLOW}):
        _, after = act(actions, net, backend)
        for name in before.actions.keys() & actions:
            assert torch.equal(after.actions[name].values, before.actions[name].values), name
            torch.testing.assert_close(after.log_probs[name].values, before.log_probs[name].values)
    _, both = act({"a": SAY, "a.": SAY}, net, backend)
    assert (both.actions["a"].values == both.actions["a."].values).float().mean() < 0.2


def test_numbers_are_the_same_bits_computed_by_torch_as_by_numpy() -> None:
    bits = keyed(5, torch.arange(10_000))
    for how in (_mix, _draw):
        by_numpy, by_torch = bits.clone(), bits.clone()
        how(by_numpy.numpy())
        how(by_torch)
        assert torch.equal(by_numpy, by_torch) and not torch.equal(by_numpy, bits)
