"""The example game can be learned."""

from __future__ import annotations

from pathlib import Path

import pytest

from enn_ppo import train
from enn_ppo.settings.config import EnvConfig, PPOConfig, TrainConfig
from tests.processes import run


@pytest.mark.slow
@pytest.mark.learning
def test_it_is_trained_and_then_played(tmp_path: Path) -> None:
    config = TrainConfig(
        env=EnvConfig(id="examples.snake:env"),
        ppo=PPOConfig(gamma=0.97),
        total_timesteps=32_768,
        device="cpu",
        run_dir=str(tmp_path / "run"),
    )
    train(config)
    done = run("-m", "examples.snake", tmp_path / "run", "--headless", "--games", "20")
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.split()[0]) >= 5, done.stdout
