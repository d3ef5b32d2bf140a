"""The numbers below are computed by hand, so that they say what the function must do."""

from types import SimpleNamespace
from typing import Any, Literal

import pytest
import torch

from enn_ppo import OptimConfig, PPOConfig, RogueNetConfig
from enn_ppo.ppo import against_group, gae
from enn_ppo.rollout import Rollout, RolloutStats
from enn_ppo.settings.learning import PPOSettings
from enn_ppo.training.build import make_learner, make_model
from tests.enn_ppo.worlds import Copycat

NO = torch.zeros(3, 1, dtype=torch.bool)
ZERO = torch.zeros(3, 1)


def at(step: int) -> torch.Tensor:
    flags = NO.clone()
    flags[step] = True
    return flags


def run(*, terminated=NO, truncated=NO, final_values=ZERO, gamma=0.5, gae_lambda=1.0):
    rewards = torch.tensor([[1.0], [2.0], [4.0]])
    values = torch.tensor([[0.0], [10.0], [20.0]])
    return gae(
        rewards, values, terminated, truncated, final_values, torch.tensor([8.0]), gamma=gamma, gae_lambda=gae_lambda
    )


def test_a_rollout_border_bootstraps_from_the_last_value() -> None:
    # returns: 4 + 8/2 = 8, then 2 + 8/2 = 6, then 1 + 6/2 = 4
    assert run().returns.flatten().tolist() == [4.0, 6.0, 8.0]


def test_a_termination_bootstraps_from_nothing() -> None:
    assert run(terminated=at(1)).returns.flatten().tolist() == [2.0, 2.0, 8.0]


def test_a_truncation_bootstraps_from_its_own_final_observation() -> None:
    # step 1 ends with a final observation worth 6: 2 + 6/2 = 5, and not the next episode's 20
    assert run(truncated=at(1), final_values=torch.full((3, 1), 6.0)).returns.flatten().tolist() == [3.5, 5.0, 8.0]


def test_lambda_zero_is_the_one_step_error() -> None:
    assert run(gae_lambda=0.0).advantages.flatten().tolist() == [1 + 5 - 0, 2 + 10 - 10, 4 + 4 - 20]


def test_with_a_negative_discount_the_next_value_is_that_of_the_other_player() -> None:
    # returns: 4 - 8 = -4, then 2 - (-4) = 6, then 1 - 6 = -5; one step: 1 - 10 - 0, 2 - 20 - 10, 4 - 8 - 20
    assert run(gamma=-1.0).returns.flatten().tolist() == [-5.0, 6.0, -4.0]
    assert run(gamma=-1.0, gae_lambda=0.0).advantages.flatten().tolist() == [-9.0, -28.0, -24.0]


def test_an_episode_cannot_end_in_two_ways() -> None:
    with pytest.raises(ValueError, match="step 1 of environment 0 is both"):
        run(terminated=at(1), truncated=at(1))


def test_a_wrong_shape_is_named() -> None:
    with pytest.raises(ValueError, match=r"final_values has shape \(2, 1\), rewards \(3, 1\)"):
        run(final_values=torch.zeros(2, 1))


# --- Against a group ---


def numbers(*rows: list[float]) -> torch.Tensor:
    return torch.tensor(rows)


def whole(*rows: list[int]) -> torch.Tensor:
    return torch.tensor(rows)


def test_members_of_one_step_are_compared_with_the_mean_of_the_others() -> None:
    # group 7: 6 - (3 + 0)/2, 3 - (6 + 0)/2, 0 - (6 + 3)/2; group 8: 1 - 5, 5 - 1
    rewards, instances = numbers([6.0, 3.0, 0.0, 1.0, 5.0]), whole([7, 7, 7, 8, 8])
    found = against_group(rewards, instances, torch.zeros_like(instances), alone=torch.full_like(rewards, 99.0))
    assert found.tolist() == [[4.5, 0.0, -4.5, -4.0, 4.0]]


def test_frames_are_compared_at_the_same_step_of_the_same_episode_wherever_they_stand_in_the_rollout() -> None:
    # environment 0 is one step ahead of environment 1, and begins episode 8 when that one is still in 7
    returns = numbers([10.0, 1.0], [20.0, 2.0], [40.0, 4.0])
    instances, steps = whole([7, 5], [7, 7], [8, 7]), whole([0, 3], [1, 0], [0, 1])
    alone = numbers([-1.0, -2.0], [-3.0, -4.0], [-5.0, -6.0])
    found = against_group(returns, instances, steps, alone=alone)
    assert found.tolist() == [[10 - 2, -2], [20 - 4, 2 - 10], [-5, 4 - 20]]


def test_large_returns_keep_their_differences() -> None:
    returns, same = numbers([1e7 + 1, 1e7 - 1]), whole([0, 0])
    assert against_group(returns, same, same, alone=returns).tolist() == [[2.0, -2.0]]


REWARDS, VALUES = numbers([1.0, 5.0], [2.0, 8.0]), numbers([4.0, 6.0], [10.0, 20.0])


@pytest.mark.parametrize(
    ("advantages", "expected"),
    [
        # gamma 1/2, lambda 0; the value after the last step is 8, and the episodes of both are cut there
        ("gae", [[1 + 5 - 4, 5 + 10 - 6], [2 + 4 - 10, 8 + 4 - 20]]),
        # returns of lambda 1: 2 + 4 and 8 + 4, and before these 1 + 6/2 and 5 + 12/2
        ("group", [[4 - 11, 11 - 4], [6 - 12, 12 - 6]]),
        ("group+value", [[2 - 9, 9 - 2], [-4 - -8, -8 - -4]]),
    ],
)
def test_the_learner_compares_with_the_value_the_group_or_both_and_the_value_learns_the_same(
    advantages: Literal["gae", "group", "group+value"], expected: list[list[float]]
) -> None:
    flags, env = torch.zeros(4, dtype=torch.bool), Copycat()
    frames: Any = SimpleNamespace(
        rewards=REWARDS.flatten(), values=VALUES.flatten(), terminated=flags, truncated=flags,
        final_values=torch.zeros(4), instance=torch.tensor([7, 7, 7, 7]), step=torch.tensor([0, 0, 1, 1]),
    )  # fmt: skip
    rollout = Rollout(frames, torch.tensor([8.0, 8.0]), RolloutStats())
    ppo = PPOConfig(advantages=advantages, gamma=0.5, gae_lambda=0.0)
    model = make_model(RogueNetConfig(d_model=8, n_layer=0), None, (env.obs_space(), env.action_space()), 0)
    learner = make_learner(model, OptimConfig(), ppo, seed=0)
    found = learner.estimate_advantages(rollout, PPOSettings.at(ppo))
    assert found.advantages.tolist() == expected
    assert found.returns.tolist() == [[6.0, 15.0], [6.0, 12.0]]
