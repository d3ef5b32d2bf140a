"""Tests of what users' own code sees and may do during training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from enn_ppo import Callback, EnvConfig, Update, train
from entity_gym.pools.episodes import Episode
from tests.enn_ppo.worlds import SMALL_BOARD, Copycat, tiny_config


class Diary(Callback):
    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []

    def on_update(self, update: Update) -> None:
        assert update.row["step"] == update.step
        self.events.append(("update", update.step))

    def on_episode(self, episode: Episode) -> None:
        self.events.append(("episode", episode.length))

    def on_checkpoint(self, path: Path, step: int) -> None:
        assert path.is_file()
        self.events.append(("checkpoint", step))


def test_episodes_come_before_their_update_and_checkpoints_after_it(tmp_path: Path) -> None:
    diary = Diary()
    train(
        tiny_config(tmp_path / "a", env=EnvConfig(), total_timesteps=64, checkpoint_interval=1),
        env=Copycat,
        callbacks=[diary],
    )
    # an episode of Copycat is one step, so all 32 steps of an update end one
    played = [("episode", 1)] * 32
    expected = [*played, ("update", 32), ("checkpoint", 32), *played, ("update", 64), ("checkpoint", 64)]
    assert [event for event in diary.events if event != ("checkpoint", 0)] == expected


def test_what_is_no_callback_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must hold instances of enn_ppo.Callback, got <function"):
        train(tiny_config(tmp_path / "a", env=EnvConfig()), env=Copycat, callbacks=[lambda row: None])  # type: ignore[list-item]
    assert not (tmp_path / "a").exists()


class Curriculum(Callback):
    """More mines as training goes on."""

    def __init__(self) -> None:
        self.asked: list[float] = []

    def env_info(self, progress: float, num_envs: int, rng: np.random.Generator) -> Mapping[str, Sequence[Any]]:
        self.asked.append(progress)
        return {"num_mines": [1 if progress < 0.5 else 3] * num_envs}


def test_a_callback_chooses_parameters_by_progress_and_they_are_logged(tmp_path: Path) -> None:
    curriculum = Curriculum()
    result = train(tiny_config(tmp_path / "a", total_timesteps=128), callbacks=[curriculum])
    # first for the input statistics, then for the first episodes, then before every update
    assert curriculum.asked == [0.0, 0.0, 0.0, 0.25, 0.5, 0.75]
    assert result.metrics is not None and result.metrics["env_info/num_mines"] == 3


def test_parameters_drawn_as_the_config_says_are_logged_and_the_same_for_the_same_seed(tmp_path: Path) -> None:
    def run(name: str) -> list[Any]:
        env = EnvConfig(kwargs=SMALL_BOARD, info={"num_mines": {"low": 1, "high": "1@0 -> 4@1"}})
        seen: list[Any] = []

        class Watch(Callback):
            def on_update(self, update: Update) -> None:
                seen.append(update.row["env_info/num_mines"])

        train(tiny_config(tmp_path / name, env=env), callbacks=[Watch()])
        return seen

    seen = run("a")
    assert seen == run("b")
    assert seen[0] == 1 and max(seen) > 1.5


def test_parameters_that_the_world_does_not_have_are_named(tmp_path: Path) -> None:
    env = EnvConfig(kwargs=SMALL_BOARD, info={"num_minse": [1, 2]})
    with pytest.raises(ValueError, match="num_minse.*num_mines"):
        train(tiny_config(tmp_path / "a", env=env))
