"""Whether it learns at all: small worlds, small budgets, thresholds well below what was seen and well above chance."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from enn_ppo import (
    EnvConfig,
    EvalConfig,
    OptimConfig,
    PPOConfig,
    RogueNetConfig,
    RolloutConfig,
    TrainConfig,
    evaluate,
    preset,
    train,
)
from enn_ppo.settings.command_line.cli import run_eval, run_train
from tests.enn_ppo.rows import rows_of
from tests.enn_ppo.training.test_continuous_actions import Echo, EchoAndJudge, config_for
from tests.enn_ppo.worlds import Copycat

pytestmark = pytest.mark.learning


def last_rewards(run_dir: Path, count: int = 10) -> float:
    rewards = [row["episodic_reward"] for row in rows_of(run_dir)[-count:] if row["episodic_reward"] is not None]
    return sum(rewards) / len(rewards)


@pytest.mark.parametrize("ratio", ["per_actor", "joint"])
def test_every_actor_learns_its_own_choice(ratio: str, tmp_path: Path) -> None:
    config = TrainConfig(
        rollout=RolloutConfig(num_envs=32, steps=8),
        net=RogueNetConfig(d_model=16, n_layer=1, n_head=2),
        optim=OptimConfig(batch_size=128, lr="3e-3@0 -> 0@1"),
        ppo=PPOConfig(ent_coef="0.02@0 -> 0@1", ratio=ratio),  # type: ignore[arg-type]
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
        optim=OptimConfig(batch_size=256, lr="3e-3@0 -> 0@1"),
        ppo=PPOConfig(ent_coef="0.1@0 -> 0@1"),
        total_timesteps=40_960,
        device="cpu",
        run_dir=str(tmp_path / "a"),
    )
    train(config)
    assert rows_of(tmp_path / "a")[0]["episodic_reward"] < 0.7  # where it starts
    assert last_rewards(tmp_path / "a") >= 0.9


@pytest.mark.parametrize("ratio", ["per_actor", "joint"])
def test_every_actor_learns_to_say_the_number_that_it_hears(ratio: str, tmp_path: Path) -> None:
    ppo = PPOConfig(ent_coef=0.0, ratio=ratio)  # type: ignore[arg-type]
    train(config_for(tmp_path / "a", ppo=ppo, total_timesteps=12_288), env=Echo)
    rows = rows_of(tmp_path / "a")
    assert rows[0]["episodic_reward"] < 0.5
    assert np.mean([row["episodic_reward"] for row in rows[-5:]]) > 0.85  # the best that hears nothing has 0.6


def test_an_actor_learns_a_number_and_a_choice_at_once(tmp_path: Path) -> None:
    train(config_for(tmp_path / "a", total_timesteps=12_288), env=EchoAndJudge)
    assert np.mean([row["episodic_reward"] for row in rows_of(tmp_path / "a")[-5:]]) > 0.85  # hearing nothing: 0.55


@pytest.mark.parametrize("memory", [True, False])
@pytest.mark.parametrize(
    ("env", "kind", "chance"), [("Corridor", "frame", 1 / 2), ("Shells", "entity", 0.2375), ("custom", "entity", 1 / 7)]
)
def test_with_memory_it_is_solved_and_without_it_is_chance(
    env: str, kind: str, memory: bool, chance: float, tmp_path: Path
) -> None:
    """Chance is worked out in the docstrings of the worlds; `custom` is examples/matching_cards.py."""
    world = ["env.id=examples.matching_cards:MatchingCards"] if env == "custom" else []
    config = preset(
        env,
        *world,
        f"net.memory={kind if memory else 'none'}",
        total_timesteps=131_072,
        run_dir=str(tmp_path / "a"),
        device="cpu",
    )
    train(config)
    result = evaluate(EvalConfig(checkpoint=str(tmp_path / "a"), episodes=1000)).estimates["episodic_reward"]
    if memory:
        assert result.mean >= 0.95
    else:
        assert result.mean == pytest.approx(chance, abs=0.07)  # 4 standard errors of 1,000 coins


@pytest.mark.slow
@pytest.mark.parametrize(("env_id", "steps", "enough"), [("CartPole-v1", 49152, 475), ("Pendulum-v1", 131072, -250)])
def test_the_preset_solves_both_kinds_of_control(
    env_id: str, steps: int, enough: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a quarter of the preset's steps at most: these two worlds are easy."""
    monkeypatch.chdir(tmp_path)
    arguments = ["env=gymnasium", f"env.id={env_id}", f"total_timesteps={steps}", "run_dir=a", "device=cpu"]
    assert run_train(train, arguments) == 0
    assert run_eval(evaluate, ["checkpoint=a", "episodes=100", "greedy=true", "output=result.json"]) == 0
    assert json.loads(Path("result.json").read_text())["episodic_reward"]["mean"] >= enough
