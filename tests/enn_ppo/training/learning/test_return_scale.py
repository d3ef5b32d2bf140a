"""Rewards and returns brought to about 1: by hand, and as exact as one pass over everything would be."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from enn_ppo.training.learning.return_scale import MIN_DEVIATION, ReturnScale, RewardScale
from rogue_net.heads.heads import ValueHead

NEVER = torch.zeros(2, 1, dtype=torch.bool)


def test_rewards_are_divided_by_the_deviation_of_their_discounted_sums() -> None:
    # sums: 4, then 2 + 4/2 = 4, then 10 + 4/2 = 12, then 0 + 12/2 = 6
    scale = RewardScale(1)
    scaled = scale(torch.tensor([[4.0], [2.0]]), NEVER, 0.5)
    assert scaled.flatten().tolist() == [4.0, 2.0]  # all sums are the same so far: nothing to divide by
    scaled = scale(torch.tensor([[10.0], [0.0]]), NEVER, 0.5)
    deviation = torch.tensor([4.0, 4.0, 12.0, 6.0]).std(correction=0)
    torch.testing.assert_close(scaled.flatten(), torch.tensor([10.0, 0.0]) / deviation)


def test_a_sum_starts_anew_with_every_episode() -> None:
    # sums: 4, then 2 alone
    scaled = RewardScale(1)(torch.tensor([[4.0], [2.0]]), torch.tensor([[True], [False]]), 0.5)
    torch.testing.assert_close(scaled.flatten(), torch.tensor([4.0, 2.0]))  # their deviation is 1


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.floats(0, 1), st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_the_statistics_do_not_depend_on_how_steps_are_cut_into_rollouts(
    cuts: list[int], gamma: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    rewards = torch.randn(sum(cuts), 3, generator=generator) * 100 + 50
    ended = torch.rand(sum(cuts), 3, generator=generator) < 0.3
    whole, pieces = RewardScale(3), RewardScale(3)
    expected = whole(rewards, ended, gamma)
    for part, ends in zip(rewards.split(cuts), ended.split(cuts), strict=True):
        last = pieces(part, ends, gamma)
    torch.testing.assert_close(last, expected[-len(last) :])


def test_an_environment_that_was_started_again_begins_with_nothing_summed_up() -> None:
    # sums: 4 and 8 first; then 2 alone where an episode begins, and 2 + 8/2 where one goes on
    scale, by_hand = RewardScale(2), RewardScale(1)
    scale(torch.tensor([[4.0, 8.0]]), NEVER[:1].expand(1, 2), 0.5)
    scaled = scale(torch.tensor([[2.0, 2.0]]), NEVER[:1].expand(1, 2), 0.5, torch.tensor([True, False]))
    by_hand(torch.tensor([[4.0], [8.0], [2.0], [6.0]]), torch.ones(4, 1, dtype=torch.bool), 0.5)
    torch.testing.assert_close(scaled.flatten(), torch.tensor([2.0, 2.0]) / by_hand.deviation)


def test_rollouts_count_for_the_environments_that_have_played_them_some_missing_and_some_there_twice() -> None:
    rewards, ended = torch.randn(6, 3), torch.rand(6, 3) < 0.3
    in_turn, at_once = RewardScale(3), RewardScale(3)
    for scale in (in_turn, at_once):  # environment 0 is missing
        scale(rewards[:2, 1:], ended[:2, 1:], 0.9, env_id=torch.tensor([1, 2]))
    in_turn(rewards[2:4], ended[2:4], 0.9)
    in_turn(rewards[4:, [2]], ended[4:, [2]], 0.9, env_id=torch.tensor([2]))
    columns = torch.cat([rewards[2:4], rewards[4:, [2]]], dim=1), torch.cat([ended[2:4], ended[4:, [2]]], dim=1)
    at_once(*columns, 0.9, env_id=torch.tensor([0, 1, 2, 2]))
    one, other = in_turn.state(), at_once.state()
    assert torch.equal(one.pop("running"), other.pop("running"))
    assert one == pytest.approx(other)


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
