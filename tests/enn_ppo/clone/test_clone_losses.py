"""What cloning minimizes, by hand."""

from __future__ import annotations

from math import log

import pytest
import torch
from torch import Tensor

from enn_ppo.clone.losses import choices_kl, cross_entropy, log_prob_error, numbers_kl, value_error

NEVER = float("-inf")


def logs(*probabilities: float) -> Tensor:
    return torch.tensor(probabilities).log()


def test_cross_entropy_is_minus_the_weighted_log_probability_of_what_was_done() -> None:
    # a quarter of log 2 and three quarters of log 4: 1.75 log 2
    assert cross_entropy(logs(0.5, 0.25), torch.tensor([0.25, 0.75])).item() == pytest.approx(1.75 * log(2))


def test_the_log_prob_error_is_a_squared_difference() -> None:
    loss = log_prob_error(logs(0.5, 0.125), logs(0.25, 0.125), torch.tensor([0.5, 0.5]))
    assert loss.item() == pytest.approx(0.5 * log(2) ** 2)


def test_the_divergence_of_choices() -> None:
    # half of log(1/2 : 1/4) and half of log(1/2 : 3/4), together half of log(4/3); the same policies have none
    recorded, clone = torch.stack([logs(0.5, 0.5)] * 2), torch.stack([logs(0.25, 0.75), logs(0.5, 0.5)])
    assert choices_kl(clone, recorded, torch.tensor([1.0, 0.0])).item() == pytest.approx(0.5 * log(4 / 3))
    assert choices_kl(clone, recorded, torch.tensor([0.0, 1.0])).item() == pytest.approx(0, abs=1e-7)


def test_the_divergence_of_one_actor_may_be_spread_over_rows() -> None:
    recorded, clone = logs(0.5, 0.5), logs(0.25, 0.75)
    rows = choices_kl(clone.unsqueeze(1), recorded.unsqueeze(1), torch.tensor([2.0, 2.0]))
    assert rows.item() == pytest.approx(log(4 / 3))


def test_what_was_never_done_counts_nothing_and_has_a_finite_gradient() -> None:
    recorded = torch.tensor([[log(0.5), log(0.5), NEVER]])
    for last in (NEVER, -200.0, log(0.2)):
        logits = torch.tensor([[0.3, 0.1, last]], requires_grad=True)
        clone = logits.log_softmax(dim=1)
        loss = choices_kl(clone, recorded, torch.ones(1))
        loss.backward()
        by_hand = sum(0.5 * (log(0.5) - clone[0, c].item()) for c in range(2))
        assert loss.item() == pytest.approx(by_hand)
        assert bool(logits.grad.isfinite().all())  # type: ignore[union-attr]


def test_an_actor_with_nothing_open_has_no_divergence() -> None:
    logits = torch.full((2, 1), NEVER, requires_grad=True)
    loss = choices_kl(logits, torch.full((2, 1), NEVER), torch.ones(2))
    loss.backward()
    assert loss.item() == 0
    assert bool(logits.grad.isfinite().all())  # type: ignore[union-attr]


def test_the_divergence_of_numbers() -> None:
    # two numbers: N(1, 1) from N(0, 4): log 2 + (1 + 1) / 8 - 1/2, and N(3, 1) from itself: 0
    recorded = torch.tensor([[1.0, 3.0, 0.0, 0.0]])
    clone = torch.tensor([[0.0, 3.0, log(2), 0.0]])
    assert numbers_kl(clone, recorded, torch.tensor([2.0])).item() == pytest.approx(2 * (log(2) + 0.25 - 0.5))


def test_values_are_compared_in_deviations_where_the_return_is_known() -> None:
    values, returns = torch.tensor([1.0, 5.0, 2.0], requires_grad=True), torch.tensor([3.0, torch.nan, 2.5])
    loss = value_error(values, returns, torch.tensor([0.5, 0.0, 0.5]), torch.tensor(2.0))
    assert loss.item() == pytest.approx(0.5 * (0.5 * 1 + 0.5 * 0.0625))
    loss.backward()
    assert values.grad.tolist() == [-0.25, 0, -0.0625]  # type: ignore[union-attr]
