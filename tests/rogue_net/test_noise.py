"""Keyed noise: what an actor draws depends on its frame's key and its place there, and is as good as independent."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rogue_net import RaggedTensor
from rogue_net.distributions import Categorical, RaggedCategorical
from rogue_net.noise import ActorKeys, FrameKeys, _draw, _mix, _shorten, exponential, keyed, normal

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


def test_choices_come_as_often_as_they_are_likely_and_never_where_masked() -> None:
    logits = torch.tensor([1.0, -2.0, 0.5, 3.0, 0.0]).expand(MANY, 5)
    mask = torch.tensor([True, True, True, False, True]).expand(MANY, 5)
    chosen = Categorical(logits, mask).sample(actor_keys(MANY))
    shares = torch.bincount(chosen[:, 0], minlength=5) / MANY
    expected = Categorical(logits[:1], mask[:1]).logits.exp()[0]
    assert (shares - expected).abs().max() < 0.005 and shares[3] == 0


def test_rare_choices_come_as_often_as_they_are_likely() -> None:
    rare = 1e-4
    logits = torch.tensor([math.log(rare), math.log1p(-rare)]).expand(20 * MANY, 2)
    often = float((Categorical(logits, None).sample(actor_keys(20 * MANY)) == 0).sum())
    assert abs(often - 20 * MANY * rare) < 5 * math.sqrt(20 * MANY * rare)


def test_selections_come_as_often_as_they_are_likely() -> None:
    num_pairs = 3 * MANY
    actors = torch.arange(MANY).repeat_interleave(3)
    values = torch.tensor([-1, 4, 7]).repeat(MANY)
    logits = torch.tensor([0.0, 1.0, -1.0]).repeat(MANY)
    distribution = RaggedCategorical(logits, actors, values, MANY, None)
    assert len(distribution.logits) == num_pairs
    chosen = distribution.sample(actor_keys(MANY))[:, 0]
    for value, probability in zip((-1, 4, 7), logits[:3].softmax(0).tolist(), strict=True):
        assert float((chosen == value).double().mean()) == pytest.approx(probability, abs=0.005)


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
    together = FrameKeys(keys).of_actors(1, actors)
    alone = FrameKeys(keys[frame : frame + 1]).of_actors(1, ragged([lengths[frame]]))
    begin, end = actors.offsets[frame : frame + 2].tolist()
    assert torch.equal(together.keys[begin:end], alone.keys)


def test_frames_actions_and_actors_draw_different_numbers() -> None:
    frames = FrameKeys(keyed(keyed(0, torch.arange(2)), torch.arange(3)[:, None]).flatten())
    keys = torch.cat([frames.of_actors(action, ragged([2] * 6)).keys for action in range(3)])
    assert len(keys.unique()) == 6 * 2 * 3


def test_a_seed_that_is_neither_drawn_nor_mixed_is_as_good_as_any() -> None:
    """Runs with seeds 0 and 1, and their environments 0 and 1, share nothing."""
    keys = torch.cat(
        [keyed(keyed(seed, torch.arange(1000)), torch.arange(100)[:, None]).flatten() for seed in range(4)]
    )
    assert len(keys.unique()) == len(keys)


def test_numbers_are_the_same_bits_computed_by_torch_as_by_numpy() -> None:
    bits = keyed(5, torch.arange(10_000))
    for how in (_mix, _draw):
        by_numpy, by_torch = bits.clone(), bits.clone()
        how(by_numpy.numpy())
        how(by_torch)
        assert torch.equal(by_numpy, by_torch) and not torch.equal(by_numpy, bits)


def test_the_largest_and_smallest_draws_are_above_0_and_below_1() -> None:
    bits = torch.arange(2**24)  # as many as float32 tells apart between 1/2 and 1
    for high in (bits << 40, (bits << 40) | (2**40 - 1)):
        _shorten(high)
        as_float = high.float().mul_(2.0**-40)
        assert as_float.min() > 0 and as_float.max() < 1
