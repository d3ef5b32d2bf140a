"""Chained actions learn what no independent ones can: to differ from a twin, and to repeat a choice that nothing else shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from enn_ppo import OptimConfig, PPOConfig, RogueNetConfig, RolloutConfig, TrainConfig, train
from entity_gym import Environment
from tests.chain_worlds import AloneAtGates, ForgetfulRepeat, Gates, Repeat
from tests.enn_ppo.rows import rows_of

pytestmark = pytest.mark.learning


def learned(env: type[Environment], run_dir: Path, seed: int) -> float:
    """The mean reward of the last ten rollouts, 2,560 episodes."""
    config = TrainConfig(
        rollout=RolloutConfig(num_envs=32, steps=8),
        net=RogueNetConfig(d_model=16, n_layer=1, n_head=2),
        optim=OptimConfig(batch_size=128, lr="5e-3@0 -> 0@1"),
        ppo=PPOConfig(ent_coef="0.02@0 -> 0@1"),
        total_timesteps=16_384,
        num_threads=1,
        device="cpu",
        seed=seed,
        run_dir=str(run_dir),
    )
    train(config, env=env)
    rewards = [row["episodic_reward"] for row in rows_of(run_dir)[-10:]]
    return float(sum(rewards) / len(rewards))


@pytest.mark.parametrize("seed", [0, 1])
def test_robots_that_decide_in_turn_learn_to_take_different_gates(seed: int, tmp_path: Path) -> None:
    assert learned(Gates, tmp_path / "a", seed) > 0.95


def test_robots_that_decide_alone_take_different_gates_half_of_the_time(tmp_path: Path) -> None:
    assert learned(AloneAtGates, tmp_path / "a", 0) < 0.55  # at most 1/2, and 0.02 of sampling error of 2,560 episodes


@pytest.mark.parametrize("seed", [0, 1])
def test_a_second_action_learns_to_repeat_the_first(seed: int, tmp_path: Path) -> None:
    assert learned(Repeat, tmp_path / "a", seed) > 0.95


def test_a_second_action_that_does_not_see_the_first_stays_at_chance(tmp_path: Path) -> None:
    assert learned(ForgetfulRepeat, tmp_path / "a", 0) < 0.30  # 1/4
