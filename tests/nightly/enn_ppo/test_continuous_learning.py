"""Actors learn to say numbers, alone and beside choices."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from enn_ppo import PPOConfig, train
from tests.enn_ppo.rows import rows_of
from tests.enn_ppo.training.test_continuous_actions import Echo, EchoAndJudge, config_for


@pytest.mark.learning
@pytest.mark.parametrize("ratio", ["per_actor", "joint"])
def test_every_actor_learns_to_say_the_number_that_it_hears(ratio: str, tmp_path: Path) -> None:
    ppo = PPOConfig(ent_coef=0.0, ratio=ratio)  # type: ignore[arg-type]
    train(config_for(tmp_path / "a", ppo=ppo, total_timesteps=12_288), env=Echo)
    rows = rows_of(tmp_path / "a")
    assert rows[0]["episodic_reward"] < 0.5
    assert np.mean([row["episodic_reward"] for row in rows[-5:]]) > 0.85  # the best that hears nothing has 0.6


@pytest.mark.learning
def test_an_actor_learns_a_number_and_a_choice_at_once(tmp_path: Path) -> None:
    train(config_for(tmp_path / "a", total_timesteps=12_288), env=EchoAndJudge)
    assert np.mean([row["episodic_reward"] for row in rows_of(tmp_path / "a")[-5:]]) > 0.85  # hearing nothing: 0.55
