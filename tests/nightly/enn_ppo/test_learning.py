"""Whether it learns at all: small worlds, small budgets, thresholds well below what was seen and well above chance."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from enn_ppo import EnvConfig, OptimConfig, PPOConfig, RogueNetConfig, RolloutConfig, TrainConfig, train
from tests.enn_ppo.worlds import Copycat

pytestmark = pytest.mark.learning


def last_rewards(run_dir: Path, count: int = 10) -> float:
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    rewards = [row["episodic_reward"] for row in rows[-count:] if row["episodic_reward"] is not None]
    return sum(rewards) / len(rewards)


@pytest.mark.parametrize("ratio", ["per_actor", "joint"])
def test_every_actor_learns_its_own_choice(ratio: str, tmp_path: Path) -> None:
    config = TrainConfig(
        rollout=RolloutConfig(num_envs=32, steps=8),
        net=RogueNetConfig(d_model=16, n_layer=1, n_head=2),
        optim=OptimConfig(batch_size=128, lr=3e-3),
        ppo=PPOConfig(ent_coef=0.02, ratio=ratio),  # type: ignore[arg-type]
        total_timesteps=8192,
        device="cpu",
        run_dir=str(tmp_path / "a"),
    )
    train(config, env=Copycat)
    assert last_rewards(tmp_path / "a") >= 0.9  # chance is 1 / 3


def test_robots_learn_to_clear_a_small_minefield(tmp_path: Path) -> None:
    config = TrainConfig(
        env=EnvConfig(kwargs={"width": 4, "height": 4, "num_mines": 2, "num_robots": 2, "max_steps": 30}),
        rollout=RolloutConfig(num_envs=64, steps=8),
        net=RogueNetConfig(d_model=32, n_layer=1, n_head=2),
        optim=OptimConfig(batch_size=256, lr=3e-3),
        ppo=PPOConfig(ent_coef=0.1),
        total_timesteps=40_960,
        device="cpu",
        run_dir=str(tmp_path / "a"),
    )
    train(config)
    rows = (tmp_path / "a/metrics.jsonl").read_text().splitlines()
    assert json.loads(rows[0])["episodic_reward"] < 0.7  # where it starts
    assert last_rewards(tmp_path / "a") >= 0.9
