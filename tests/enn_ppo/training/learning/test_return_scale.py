"""Returns brought to about 1, by hand."""

from __future__ import annotations

import pytest
import torch

from enn_ppo.training.learning.return_scale import MIN_DEVIATION, ReturnScale
from rogue_net.heads.heads import ValueHead


def head_of(seed: int) -> ValueHead:
    head = ValueHead(4)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        torch.nn.init.normal_(head.project.weight)
        torch.nn.init.normal_(head.project.bias)
    return head


def test_rescaling_a_value_head_changes_no_value() -> None:
    head, means = head_of(1), torch.randn(10, 4)
    before = head(means)
    head.rescale(torch.tensor(100.0), torch.tensor(20.0))
    torch.testing.assert_close(head(means), before)
    head.rescale(torch.tensor(-3.0), torch.tensor(0.5))
    torch.testing.assert_close(head(means), before)


def test_a_head_gets_the_mean_and_deviation_of_the_returns() -> None:
    scale, head = ReturnScale(decay=0.5), head_of(1)
    scale(torch.tensor([[90.0], [110.0]]), head)
    assert (float(head.mean), float(head.deviation)) == pytest.approx((100, 10))
    # the first rollout weighs 1/4, the second 1/2: first moments 100 and 200, second ones 10,100 and 40,000
    scale(torch.tensor([[200.0], [200.0]]), head)
    mean = (100 / 4 + 200 / 2) / 0.75
    second = (10_100 / 4 + 40_000 / 2) / 0.75
    assert (float(head.mean), float(head.deviation)) == pytest.approx((mean, (second - mean**2) ** 0.5))


def test_returns_that_are_all_the_same_are_not_blown_up() -> None:
    scale, head = ReturnScale(), head_of(1)
    scale(torch.zeros(3, 2), head)
    assert float(head.deviation) == pytest.approx(MIN_DEVIATION)
