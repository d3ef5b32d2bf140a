"""The preset for Gymnasium's worlds learns."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from enn_ppo import evaluate, train  # noqa: E402
from enn_ppo.settings.command_line.cli import run_eval, run_train  # noqa: E402


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.learning
@pytest.mark.slow
@pytest.mark.parametrize(("env_id", "steps", "enough"), [("CartPole-v1", 49152, 475), ("Pendulum-v1", 131072, -250)])
def test_the_preset_solves_both_kinds_of_control(env_id: str, steps: int, enough: float) -> None:
    """In a quarter of the preset's steps at most: these two worlds are easy."""
    arguments = ["env=gymnasium", f"env.id={env_id}", f"total_timesteps={steps}", "run_dir=a", "device=cpu"]
    assert run_train(train, arguments) == 0
    assert run_eval(evaluate, ["checkpoint=a", "episodes=100", "greedy=true", "output=result.json"]) == 0
    assert json.loads(Path("result.json").read_text())["episodic_reward"]["mean"] >= enough
