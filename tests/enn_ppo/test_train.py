"""Whole runs from Python: what they write, that they repeat, and how many steps they take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from enn_ppo import EnvConfig, TrainConfig, TrainResult, train
from enn_ppo.checkpoints import load_checkpoint
from enn_ppo.settings.schema import from_dict
from enn_ppo.training.tracking.curves import plot_learning_curve
from tests.enn_ppo.rows import rows_of, rows_without_times
from tests.enn_ppo.worlds import Clock, Copycat, tiny_config


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TrainResult]:
    run_dir = tmp_path_factory.mktemp("runs") / "a"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("enn_ppo.training.tracking.run_output.plot_learning_curve", plot_learning_curve)
        return run_dir, train(tiny_config(run_dir))


# --- What a run leaves behind ---


def test_a_run_leaves_its_config_metrics_curve_and_checkpoints(finished: tuple[Path, TrainResult]) -> None:
    run_dir, result = finished
    assert {path.name for path in run_dir.iterdir()} == {
        "config.yaml",
        "metrics.jsonl",
        "learning_curve.png",
        "checkpoints",
    }
    assert from_dict(TrainConfig, yaml.safe_load((run_dir / "config.yaml").read_text())) == tiny_config(run_dir)
    assert (run_dir / "learning_curve.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in (run_dir / "checkpoints").iterdir()) == [
        "step_000000000000.safetensors",
        "step_000000000160.safetensors",
    ]
    assert (result.run_dir, result.step) == (run_dir, 160)


def test_every_update_has_a_row_whose_numbers_fit_together(finished: tuple[Path, TrainResult]) -> None:
    run_dir, result = finished
    rows = rows_of(run_dir)
    assert [row["step"] for row in rows] == [32, 64, 96, 128, 160]
    for row in rows:
        assert row["share_env"] + row["share_act"] + row["share_update"] == pytest.approx(1.0)
        assert row["steps_per_second"] > 0 and row["entities_per_second"] > row["steps_per_second"]
    assert [row["seconds"] for row in rows] == sorted(row["seconds"] for row in rows)
    assert result.metrics == rows[-1]


def test_the_last_checkpoint_holds_the_returned_policy(finished: tuple[Path, TrainResult]) -> None:
    run_dir, result = finished
    saved = load_checkpoint(run_dir).policy
    assert saved.keys() == result.policy.state_dict().keys()
    for name, value in result.policy.state_dict().items():
        assert torch.equal(saved[name], value), name


def test_the_first_checkpoint_is_on_disk_before_the_first_rollout_that_is_learned_from(tmp_path: Path) -> None:
    class Fragile(Copycat):
        acts = 0

        def act(self, actions: Any) -> Any:
            Fragile.acts += 1
            if Fragile.acts > 32:  # those of the rollout that only sets the normalization
                raise RuntimeError("broken")
            return super().act(actions)

    with pytest.raises(RuntimeError, match="broken"):
        train(tiny_config(tmp_path / "a", env=EnvConfig()), env=Fragile)
    assert load_checkpoint(tmp_path / "a/checkpoints/latest").step == 0
    assert (tmp_path / "a/checkpoints/step_000000000000.safetensors").is_file()


# --- Metrics ---


def test_an_update_without_a_finished_episode_has_null_rewards_and_lengths(tmp_path: Path) -> None:
    # rollouts of 8 steps, episodes of 12: one ends in the second, one in the third
    env = EnvConfig(kwargs={"short": 12, "long": 12})
    train(tiny_config(tmp_path / "a", env=env, total_timesteps=96), env=Clock)
    rows = rows_of(tmp_path / "a")
    assert [row["episodes"] for row in rows] == [0, 4, 4]
    assert [row["episodic_reward"] for row in rows] == [None, 1.0, 1.0]
    assert [row["episode_length"] for row in rows] == [None, 12.0, 12.0]


# --- The same again ---


def test_two_runs_of_the_same_seed_are_identical_and_another_seed_is_not(
    tmp_path: Path, finished: tuple[Path, TrainResult]
) -> None:
    first = rows_without_times(finished[0])
    torch.manual_seed(123)  # what happened before in the process does not matter
    train(tiny_config(tmp_path / "b"))
    assert rows_without_times(tmp_path / "b") == first
    train(tiny_config(tmp_path / "c", seed=2))
    assert rows_without_times(tmp_path / "c") != first


# --- How many steps ---


def test_the_last_rollout_is_shorter_so_that_the_total_is_not_exceeded(tmp_path: Path) -> None:
    result = train(
        tiny_config(tmp_path / "a", total_timesteps=79)
    )  # the other 3 are less than a step of 4 environments
    assert [row["step"] for row in rows_of(tmp_path / "a")] == [32, 64, 76]
    assert result.step == load_checkpoint(tmp_path / "a").step == 76


# --- Environments from Python ---


def test_the_settings_name_an_environment_that_was_given_so_that_it_is_found_again(tmp_path: Path) -> None:
    train(tiny_config(tmp_path / "a", env=EnvConfig(kwargs={"short": 2, "long": 3}), total_timesteps=32), env=Clock)
    saved = load_checkpoint(tmp_path / "a").config["env"]
    name = f"{Clock.__module__}:Clock"
    given = {"id": name, "api": "entity", "kwargs": {"short": 2, "long": 3}}
    assert saved == given | {"view": None, "wrappers": [], "info": {}}
    train(tiny_config(tmp_path / "b", env=from_dict(EnvConfig, saved), total_timesteps=32))
    assert rows_without_times(tmp_path / "b") == rows_without_times(tmp_path / "a")


def test_an_existing_run_is_refused_untouched_and_overwritten_if_asked(tmp_path: Path) -> None:
    train(tiny_config(tmp_path / "a", total_timesteps=64))
    before = (tmp_path / "a/metrics.jsonl").read_bytes()
    with pytest.raises(ValueError, match=r"already holds a run.*resume=.*overwrite=true"):
        train(tiny_config(tmp_path / "a", total_timesteps=32))
    assert (tmp_path / "a/metrics.jsonl").read_bytes() == before
    train(tiny_config(tmp_path / "a", total_timesteps=32, overwrite=True))
    assert [row["step"] for row in rows_of(tmp_path / "a")] == [32]
    assert load_checkpoint(tmp_path / "a").step == 32
