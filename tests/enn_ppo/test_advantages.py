"""The numbers below are computed by hand, so that they say what the function must do."""

import pytest
import torch

from enn_ppo.ppo import gae

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
