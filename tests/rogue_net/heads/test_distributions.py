"""Distributions over choices and over actees, against softmax written out and against counted samples."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from rogue_net.heads.distributions import ActionDistribution, Categorical, RaggedCategorical

LOGITS = [1.0, -0.5, 0.0, 2.0]
MASK = [True, False, True, True]
INF = float("inf")


def dense(logits: list[float], mask: list[bool]) -> list[float]:
    """Probabilities, in Python's floats."""
    weights = [math.exp(x) if is_open else 0.0 for x, is_open in zip(logits, mask, strict=True)]
    return [weight / sum(weights) for weight in weights]


def entropy_of(probabilities: list[float]) -> float:
    return -sum(p * math.log(p) for p in probabilities if p > 0)


def categorical(logits: Tensor, mask: Tensor | None) -> ActionDistribution:
    return Categorical(logits, mask)


def ragged(logits: Tensor, mask: Tensor | None) -> ActionDistribution:
    """The same choices as entities 0, 1, ... of the frames of as many actors."""
    actors, choices = logits.shape
    entities = torch.arange(choices).repeat(actors)
    pairs = None if mask is None else mask.flatten()
    return RaggedCategorical(logits.flatten(), torch.arange(actors).repeat_interleave(choices), entities, actors, pairs)


BOTH = pytest.mark.parametrize("make", [categorical, ragged], ids=["categorical", "ragged"])
Make = Callable[[Tensor, Tensor | None], ActionDistribution]


@BOTH
def test_log_probs_and_entropy_are_those_of_the_softmax_over_the_open_choices(make: Make) -> None:
    distribution = make(torch.tensor([LOGITS, LOGITS]), torch.tensor([MASK, [True] * 4]))
    expected = [dense(LOGITS, MASK), dense(LOGITS, [True] * 4)]
    for choice in range(4):
        log_probs = distribution.log_prob(torch.tensor([[choice], [choice]]))
        assert log_probs.exp().tolist() == pytest.approx([row[choice] for row in expected], abs=1e-6)
    assert distribution.entropy().tolist() == pytest.approx([entropy_of(row) for row in expected], abs=1e-6)


@BOTH
@given(
    rows=st.lists(
        st.lists(st.tuples(st.floats(-50, 50, width=32), st.booleans()), min_size=3, max_size=3).filter(
            lambda row: any(is_open for _, is_open in row)
        ),
        min_size=1,
        max_size=4,
    )
)
def test_the_open_choices_hold_all_of_the_probability(make: Make, rows: list[list[tuple[float, bool]]]) -> None:
    logits = torch.tensor([[x for x, _ in row] for row in rows])
    mask = torch.tensor([[is_open for _, is_open in row] for row in rows])
    distribution = make(logits, mask)
    probabilities = torch.stack([distribution.log_prob(torch.full((len(rows), 1), c)).exp() for c in range(3)], dim=1)
    torch.testing.assert_close(probabilities.sum(1), torch.ones(len(rows)))
    assert (probabilities[~mask] == 0).all()
    assert (distribution.entropy() >= -1e-6).all()
    assert (distribution.entropy() <= mask.sum(1).log() + 1e-5).all()


@BOTH
def test_samples_are_as_frequent_as_they_are_probable(make: Make) -> None:
    count = 20_000
    distribution = make(torch.tensor([LOGITS] * count), torch.tensor([MASK] * count))
    samples = distribution.sample(torch.Generator().manual_seed(0))
    seen = torch.bincount(samples[:, 0], minlength=4).tolist()
    expected = [count * p for p in dense(LOGITS, MASK)]
    assert seen[1] == 0
    chi_square = sum((s - e) ** 2 / e for s, e in zip(seen, expected, strict=True) if e)
    assert chi_square < 13.8  # 2 degrees of freedom: 1 in 1000


@BOTH
def test_the_mode_is_the_most_probable_open_choice(make: Make) -> None:
    distribution = make(torch.tensor([LOGITS, LOGITS]), torch.tensor([MASK, [True, True, True, False]]))
    assert distribution.mode().tolist() == [[3], [0]]


@BOTH
@pytest.mark.parametrize("mask", [None, MASK, [False, True, False, False]], ids=["open", "masked", "all but one"])
def test_gradients_are_finite_and_those_of_the_softmax(make: Make, mask: list[bool] | None) -> None:
    logits = torch.tensor([LOGITS, [30.0, -30.0, 0.0, 5.0]], requires_grad=True)
    choices = torch.tensor([[1], [1]]) if mask and mask[1] else torch.tensor([[0], [3]])
    distribution = make(logits, None if mask is None else torch.tensor([mask, mask]))
    (distribution.log_prob(choices).sum() + 2 * distribution.entropy().sum()).backward()
    assert logits.grad is not None and torch.isfinite(logits.grad).all()

    open_columns = [c for c in range(4) if mask is None or mask[c]]
    expected_logits = logits.detach()[:, open_columns].clone().requires_grad_()
    log_p = expected_logits.log_softmax(1)
    chosen = torch.tensor([open_columns.index(int(c)) for c in choices])
    (log_p[torch.arange(2), chosen].sum() - 2 * (log_p.exp() * log_p).sum()).backward()
    expected = torch.zeros(2, 4)
    expected[:, open_columns] = expected_logits.grad
    torch.testing.assert_close(logits.grad, expected, atol=1e-6, rtol=1e-5)


def mixed() -> RaggedCategorical:
    """Four actors: 0 may select entity 7 or 2, 1 nobody, 2 only entity 4 of 4, 3 and 9, 3 entity 5."""
    return RaggedCategorical(
        torch.tensor([0.0, math.log(3), 1.0, 2.0, 3.0, -1.0]),
        torch.tensor([0, 0, 2, 2, 2, 3]),
        torch.tensor([7, 2, 4, 3, 9, 5]),
        4,
        torch.tensor([True, True, True, False, False, True]),
    )


def test_actors_have_as_many_choices_as_their_frame_has_actees() -> None:
    distribution = mixed()
    assert distribution.mode().tolist() == [[2], [-1], [4], [5]]
    assert distribution.log_prob(torch.tensor([[7], [-1], [4], [5]])).exp().tolist() == pytest.approx([0.25, 1, 1, 1])
    assert distribution.logits.tolist() == pytest.approx([math.log(0.25), math.log(0.75), 0.0, -INF, -INF, 0.0])


def test_an_actor_without_actees_selects_nobody_for_certain() -> None:
    distribution = mixed()
    for seed in range(20):
        assert distribution.sample(torch.Generator().manual_seed(seed))[1, 0] == -1
    assert distribution.log_prob(torch.tensor([[2], [-1], [4], [5]]))[1] == 0.0
    assert distribution.entropy()[1] == 0.0
