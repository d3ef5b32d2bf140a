"""The objective against numbers computed by hand.

One minibatch of three frames serves most tests: frame 0 has one actor, frame 1 two, frame 2 none.
Its probability ratios are 1.5; 0.5 and 1.0. Its advantages are 1, -2 and 4.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import Tensor

from enn_ppo.ppo import (
    Ratio,
    Stats,
    Weighting,
    explained_variance,
    normalize,
    policy_terms,
    unit_weights,
    value_loss,
)
from enn_ppo.training.learning.moments import moments_of_all
from enn_ppo.training.ranks import ALONE

NUM_ACTORS = torch.tensor([1, 2, 0])
FRAMES = torch.tensor([0, 1, 1])
RATIOS = torch.tensor([1.5, 0.5, 1.0])
ENTROPIES = torch.tensor([1.0, 2.0, 5.0])
ADVANTAGES = torch.tensor([1.0, -2.0, 4.0])
OLD = torch.tensor([-1.0, -2.0, -0.5])
ALL = [(ratio, weighting) for ratio in ("per_actor", "joint") for weighting in ("actor", "frame")]


class Terms(NamedTuple):
    loss: Tensor
    entropy: Tensor
    approx_kl: Tensor
    clip_fraction: Tensor


def named(result: tuple[Tensor, Stats]) -> Terms:
    loss, stats = result
    return Terms(loss, **stats)


def terms(ratio: Ratio, weighting: Weighting, *, log_probs: Tensor | None = None, clip: float = 0.2) -> Terms:
    weights = unit_weights(NUM_ACTORS, ratio=ratio, weighting=weighting)
    log_probs = OLD + RATIOS.log() if log_probs is None else log_probs
    return named(policy_terms(log_probs, OLD, ENTROPIES, FRAMES, ADVANTAGES, weights, clip=clip, ratio=ratio))


def near(*numbers: float) -> Any:
    return pytest.approx(numbers, abs=1e-6)


def values(terms: Terms) -> tuple[float, ...]:
    return tuple(term.item() for term in terms)


# --- Weights ---


def test_the_weights_by_hand() -> None:
    counts = torch.tensor([1, 2, 0, 3])
    expected = {
        ("per_actor", "actor"): [1 / 6, 1 / 6, 0, 1 / 6],  # of each of 6 actors
        ("per_actor", "frame"): [1 / 3, 1 / 6, 0, 1 / 9],  # a third for each frame that acts, split among its actors
        ("joint", "actor"): [1 / 6, 2 / 6, 0, 3 / 6],
        ("joint", "frame"): [1 / 3, 1 / 3, 0, 1 / 3],
    }
    for ratio, weighting in ALL:
        weights = unit_weights(counts, ratio=ratio, weighting=weighting)  # type: ignore[arg-type]
        # what an empty frame weighs per actor is multiplied by no actor
        assert (weights * (counts > 0)).tolist() == near(*expected[ratio, weighting])


@pytest.mark.parametrize(("ratio", "weighting"), ALL)
@given(counts=st.lists(st.integers(0, 5), min_size=1, max_size=20))
def test_the_weights_of_all_units_add_up_to_1_or_to_0_where_nobody_acts(
    ratio: Ratio, weighting: Weighting, counts: list[int]
) -> None:
    weights = unit_weights(torch.tensor(counts), ratio=ratio, weighting=weighting)
    units = torch.tensor(counts) if ratio == "per_actor" else torch.tensor(counts).clamp(max=1)
    assert (weights * units).sum().item() == pytest.approx(1.0 if any(counts) else 0.0, abs=1e-5)


# --- The policy's loss ---


def test_per_actor_ratios_weighted_by_actor() -> None:
    # surrogates: min(1.5 * 1, 1.2 * 1) = 1.2; min(0.5 * -2, 0.8 * -2) = -1.6; 1.0 * -2 = -2. A third each.
    # k3: 1.5 - 1 - log 1.5; 0.5 - 1 - log 0.5; 0. Clipped: the first two.
    kl = (0.5 - math.log(1.5) - 0.5 - math.log(0.5)) / 3
    assert values(terms("per_actor", "actor")) == near((-1.2 + 1.6 + 2) / 3, (1 + 2 + 5) / 3, kl, 2 / 3)


def test_per_actor_ratios_weighted_by_frame() -> None:
    # frame 0's actor has half, the two of frame 1 have a quarter each, the empty frame has nothing
    kl = (0.5 - math.log(1.5)) / 2 + (-0.5 - math.log(0.5)) / 4
    assert values(terms("per_actor", "frame")) == near(-1.2 / 2 + 1.6 / 4 + 2 / 4, 1 / 2 + 2 / 4 + 5 / 4, kl, 3 / 4)


def test_joint_ratios_weighted_by_frame() -> None:
    # the ratio of frame 1 is 0.5 * 1.0, its entropy 2 + 5: min(0.5 * -2, 0.8 * -2) = -1.6
    kl = (0.5 - math.log(1.5) - 0.5 - math.log(0.5)) / 2
    assert values(terms("joint", "frame")) == near((-1.2 + 1.6) / 2, (1 + 7) / 2, kl, 1.0)


def test_joint_ratios_weighted_by_actor() -> None:
    kl = (0.5 - math.log(1.5)) / 3 + (-0.5 - math.log(0.5)) * 2 / 3
    assert values(terms("joint", "actor")) == near(-1.2 / 3 + 1.6 * 2 / 3, 1 / 3 + 7 * 2 / 3, kl, 1.0)


def test_a_joint_ratio_is_clipped_after_the_actors_are_multiplied() -> None:
    # 1.15 and 1.15 are within 20 % each, and 1.3225 together is not
    log_probs = OLD + torch.tensor([1.0, 1.15, 1.15]).log()
    assert terms("per_actor", "frame", log_probs=log_probs).clip_fraction.item() == 0.0
    assert terms("joint", "frame", log_probs=log_probs).clip_fraction.item() == 0.5


def test_a_clipped_action_that_went_the_right_way_has_no_gradient_and_one_that_went_the_wrong_way_has() -> None:
    # ratio 1.5: with advantage 1 it has gained enough; ratio 0.5 with advantage -2: it has lost enough; ratio 1: goes on
    log_probs = (OLD + RATIOS.log()).requires_grad_()
    terms("per_actor", "actor", log_probs=log_probs).loss.backward()
    assert log_probs.grad is not None
    assert log_probs.grad.tolist() == near(0.0, 0.0, 2 / 3)

    wrong_way = (OLD + torch.tensor([0.5, 1.5, 1.0]).log()).requires_grad_()
    terms("per_actor", "actor", log_probs=wrong_way).loss.backward()
    assert wrong_way.grad is not None
    assert wrong_way.grad.tolist() == near(-0.5 / 3, 1.5 * 2 / 3, 2 / 3)


# --- The value's loss ---


def test_the_value_loss_is_half_the_weighted_squared_error() -> None:
    weights = torch.tensor([0.25, 0.75])
    loss = value_loss(torch.tensor([1.0, 5.0]), torch.tensor([9.0, 9.0]), torch.tensor([3.0, 4.0]), weights, clip=None)
    assert loss.item() == 0.5 * (4 * 0.25 + 1 * 0.75)


def test_a_value_that_moved_further_than_the_clip_is_judged_where_it_was_clipped() -> None:
    # all start at 0 with clip 0.5. 2 -> return 2: no error, but clipped to 0.5 the error is 1.5.
    # -2 -> return 2: 4, more than the clipped 2.5. 0.25 -> return 1: not clipped, 0.75.
    values, old, returns = torch.tensor([2.0, -2.0, 0.25]), torch.zeros(3), torch.tensor([2.0, 2.0, 1.0])
    expected = 0.5 * (1.5**2 + 4**2 + 0.75**2)
    assert value_loss(values, old, returns, torch.ones(3), clip=0.5).item() == pytest.approx(expected)


# --- Normalization and explained variance ---


def normalized(advantages: Tensor) -> Tensor:
    return normalize(advantages, moments_of_all(advantages, ALONE))


def test_advantages_get_mean_0_and_deviation_1() -> None:
    assert normalized(torch.tensor([1.0, 3.0, 5.0, 7.0])).tolist() == pytest.approx(
        [-3 / math.sqrt(5), -1 / math.sqrt(5), 1 / math.sqrt(5), 3 / math.sqrt(5)]
    )


@pytest.mark.parametrize("advantages", [[3.0], [2.0, 2.0, 2.0]])
def test_advantages_without_any_difference_become_0(advantages: list[float]) -> None:
    assert normalized(torch.tensor(advantages)).tolist() == [0.0] * len(advantages)


def test_explained_variance_by_hand() -> None:
    returns = torch.tensor([1.0, 2.0, 3.0, 4.0])  # variance 1.25
    assert explained_variance(returns, returns).item() == 1.0
    assert explained_variance(torch.full((4,), 9.0), returns).item() == 0.0
    # errors 0, 0, 0, 2: variance 0.75
    assert explained_variance(torch.tensor([1.0, 2.0, 3.0, 2.0]), returns).item() == pytest.approx(1 - 0.75 / 1.25)
    assert math.isnan(explained_variance(returns, torch.ones(4)).item())
