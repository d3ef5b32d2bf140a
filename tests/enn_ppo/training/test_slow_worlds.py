"""Slow worlds: the progress of a rollout is shown, limits and interrupts hold within it, and one that hangs is named."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from enn_ppo import EnvConfig, Interrupted, RolloutConfig, TrainConfig, train
from enn_ppo.checkpoints import load_checkpoint
from enn_ppo.rollout import play
from enn_ppo.training import run as run_module
from entity_gym import Action, Observation
from tests.enn_ppo.recordings import collector_of
from tests.enn_ppo.worlds import Copycat, tiny_config


class Slow(Copycat):
    """Every step of an environment takes `seconds`; the step `signal_at` of all environments sends a signal first."""

    seconds = 0.0
    num_steps = 0
    signal_at: tuple[int, signal.Signals] | None = None

    def act(self, actions: Mapping[str, Action]) -> Observation:
        Slow.num_steps += 1
        if Slow.signal_at and Slow.num_steps == Slow.signal_at[0]:
            os.kill(os.getpid(), Slow.signal_at[1])
        time.sleep(Slow.seconds)
        return super().act(actions)


@pytest.fixture(autouse=True)
def fresh_and_impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    Slow.seconds, Slow.num_steps, Slow.signal_at = 0.0, 0, None
    monkeypatch.setattr(run_module, "PATIENCE", 0.1)


def slow(run_dir: Path, seconds: float = 0.01, **changes: Any) -> TrainConfig:
    """Rollouts of 100 steps of 4 environments: 4 seconds by default."""
    Slow.seconds = seconds
    settings: dict[str, Any] = {
        "env": EnvConfig(id="Slow"),
        "rollout": RolloutConfig(num_envs=4, steps=100),
        "total_timesteps": 4_000,
    }
    return tiny_config(run_dir, **(settings | changes))


# ---- limits and interrupts


def test_the_limit_of_time_holds_within_a_rollout(tmp_path: Path) -> None:
    result = train(slow(tmp_path / "a", max_train_seconds=0.5), env=Slow)
    assert 4 <= result.step < 300, "a whole rollout has 400 steps"
    assert load_checkpoint(tmp_path / "a").step == result.step


@pytest.mark.parametrize("pipeline", [1, 2])
def test_an_interrupt_ends_a_long_rollout_whose_steps_are_learned_from_and_saved(
    pipeline: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = slow(tmp_path / "a")
    config = replace(config, rollout=replace(config.rollout, pipeline=pipeline))
    Slow.seconds = 0.002
    Slow.signal_at = 400 + 41, signal.SIGINT
    with pytest.raises(Interrupted, match=r"interrupted after 4\d steps; saved") as raised:
        train(config, env=Slow)
    assert raised.value.exit_code == 130
    step = load_checkpoint(tmp_path / "a").step
    assert 40 <= step < 80
    assert "interrupted after 1" in capsys.readouterr().out  # 1.% of the rollout
    Slow.seconds, Slow.signal_at = 0.0, None
    resumed = replace(config, resume=str(tmp_path / "a"), run_dir=None, total_timesteps=800)
    assert train(resumed, env=Slow).step == 800


def test_a_rollout_that_is_nearly_over_is_played_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "PATIENCE", 60.0)
    Slow.signal_at = 400 + 41, signal.SIGINT
    with pytest.raises(Interrupted, match="interrupted after 400 steps"):
        train(slow(tmp_path / "a", seconds=0.0001), env=Slow)


def test_a_rollout_that_is_cut_has_as_many_steps_in_each_environment() -> None:
    collector = collector_of(Slow, 3)
    (rollout,) = (each[""] for each in play([collector], 50, 0, lambda played: played >= 0.1))
    assert rollout.by_step("rewards").shape == (5, 3)
    assert rollout.by_step("final_values").shape == (5, 3)


# ---- what is shown


def test_progress_within_rollouts_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "SHOWN_AFTER", 0.2)
    train(slow(tmp_path / "a", seconds=0.001, total_timesteps=400), env=Slow)
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if "/400 steps (" in line and not line.startswith("400/")]


class Stuck(Copycat):
    """Step number 99 of all environments in this process takes long: the third update's third."""

    num_steps = 0

    def act(self, actions: Mapping[str, Action]) -> Observation:
        Stuck.num_steps += 1
        if Stuck.num_steps == 99:
            time.sleep(1.5)
        return super().act(actions)


def test_a_world_that_takes_long_is_named_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("enn_ppo.training.watchdog.PATIENCE", 0.1)
    train(tiny_config(tmp_path / "run", env=EnvConfig()), env=Stuck)
    assert "waiting for Stuck (environment 2) for 0.1 seconds; two Ctrl-C end the run" in capsys.readouterr().err
