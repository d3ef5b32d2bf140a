"""Several policies, each with a learner of its own, in environments that they play together."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from enn_ppo import (
    Callback,
    EnvConfig,
    Interrupted,
    PPOConfig,
    RogueNetConfig,
    RolloutConfig,
    TrainConfig,
    train,
)
from enn_ppo.checkpoints import CheckpointError, load_common, runs_in, step_file
from enn_ppo.eval.episodes import play_episodes
from enn_ppo.eval.policy import Policy
from enn_ppo.settings.config import DistributedConfig, TrainEvalConfig
from enn_ppo.settings.evaluation import EpisodesConfig
from enn_ppo.training.callbacks import Update
from enn_ppo.training.players import Cast
from entity_gym.pools.pool import ThreadedVecEnv
from rogue_net import fit
from tests.enn_ppo.players_worlds import DOWN, SNAKES, UP, always
from tests.enn_ppo.rows import assert_same_end
from tests.enn_ppo.training.on_ray.runs import learned_rows, on_ray
from tests.enn_ppo.training.test_players import mapping_of
from tests.enn_ppo.worlds import PressCtrlC, tiny_config

TWO = {"red": [0], "blue": [1]}
FOUR = {"red": [2, 0], "blue": [3, 1]}


def snakes(num_players: int) -> EnvConfig:
    board = {"board_size": 5, "num_snakes": num_players, "num_players": num_players, "max_snake_length": 3}
    return EnvConfig(id="MultiSnake", kwargs={**board, "max_steps": 8})


def together(
    run_dir: Path, num_env_runners: int, changes: dict[str, Any] | None = None, resume: str | None = None, **ray: Any
) -> TrainConfig:
    """Two policies with two players each, with everything that remembers something from update to update."""
    settings: dict[str, Any] = {
        "env": snakes(4),
        "policies": FOUR,
        "rollout": RolloutConfig(num_envs=4, steps=8, block=2),
        "ppo": PPOConfig(normalize="returns"),
        "value_net": RogueNetConfig(d_model=8, n_layer=1, n_head=1),
        "eval": TrainEvalConfig(interval=64, episodes=4, num_envs=4),
        "total_timesteps": 96,
        "checkpoint_interval": 1,
        "keep_last": 9,
        "resume": resume,
    }
    return on_ray(run_dir, num_env_runners, settings | (changes or {}), **ray)


class Watch(Callback):
    """Keeps what each policy has told."""

    def __init__(self) -> None:
        self.updates: list[tuple[int, str | None]] = []
        self.episodes: list[tuple[str, int]] = []
        self.asked = 0

    def on_update(self, update: Update) -> None:
        self.updates.append((update.step, update.policy_name))

    def on_episode(self, episode: Any) -> None:
        self.episodes.append((episode.info["policy"], episode.env_id))

    def env_info(self, progress: float, num_envs: int, rng: np.random.Generator) -> Mapping[str, Sequence[Any]]:
        self.asked += 1
        return {"max_snake_length": rng.integers(2, 4, size=num_envs).tolist()}


# --- Without Ray ---


def test_the_newest_step_that_all_have_whole_is_found(tmp_path: Path) -> None:
    runs = [tmp_path / "a" / name for name in TWO]
    for run in runs:
        train(tiny_config(run, checkpoint_interval=1, keep_last=5))
    config = together(tmp_path / "a", 2, {"env": snakes(2), "policies": TWO})
    with pytest.raises(
        ValueError, match=r"already holds runs of blue, red: continue them with resume=.*/a, remove them with"
    ):
        train(config)
    with pytest.raises(ValueError, match="holds runs that are none of policies=.*: blue; give another run_dir"):
        train(replace(config, overwrite=True, policies={"red": [0], "green": [1]}))
    assert runs_in(tmp_path / "a") == sorted(runs) and runs_in(runs[0]) == [] and runs_in(tmp_path / "none") == []
    assert [checkpoint.step for checkpoint in load_common(runs)] == [160, 160]
    step_file(runs[1] / "checkpoints", 160).unlink()
    step_file(runs[0] / "checkpoints", 128).write_bytes(b"half")
    found = load_common(runs)
    assert [checkpoint.path for checkpoint in found] == [step_file(run / "checkpoints", 96) for run in runs]
    shutil.rmtree(runs[1] / "checkpoints")
    (runs[1] / "checkpoints").mkdir()
    with pytest.raises(
        CheckpointError,
        match="no step that all policies have saved: the newest are .*_000000000160.safetensors, nothing",
    ):
        load_common(runs)
    with pytest.raises(CheckpointError, match=r"there is no run of policy green in .*a$"):
        load_common([*runs, tmp_path / "a" / "green"])


@pytest.mark.usefixtures("in_line")
def test_several_policies_learn_in_one_process_and_a_resumed_run_is_the_uninterrupted_one(tmp_path: Path) -> None:
    def here(run_dir: Path, **changes: Any) -> TrainConfig:
        return replace(together(run_dir, 1), distributed=DistributedConfig(), total_timesteps=64, **changes)

    watch, steps = Watch(), [32, 64]
    whole = train(here(tmp_path / "whole"), callbacks=[watch])
    assert watch.updates == [(step, name) for step in steps for name in FOUR]
    assert watch.asked == 2 + len(steps)
    assert list(whole.policies) == list(FOUR) and whole.run_dir == tmp_path / "whole"
    with pytest.raises(
        Interrupted, match=rf"after 32 steps; saved .*red/.*, .*blue/.*; go on with resume={tmp_path}/parts$"
    ):
        train(here(tmp_path / "parts"), callbacks=[Watch(), PressCtrlC(32)])
    train(here(tmp_path / "parts", resume=str(tmp_path / "parts")), callbacks=[Watch()])
    for name in FOUR:
        rows = learned_rows(tmp_path / "parts" / name)
        assert rows == learned_rows(tmp_path / "whole" / name)
        assert [row["step"] for row in rows if "reward" in row] == steps
        assert_same_end(tmp_path / "parts" / name, tmp_path / "whole" / name)


def test_in_evaluations_every_policy_plays_its_own_players() -> None:
    pool, seen = ThreadedVecEnv(SNAKES, 3, seed=0, autoreset=False), []
    act = pool.act

    def spied(actions: Any, env_id: Any) -> Any:
        seen.append(actions["move"])
        return act(actions, env_id)

    pool.act = spied  # type: ignore[method-assign]
    policies = {}
    for name, choice in (("red", DOWN), ("blue", UP)):
        fitted = fit(always(choice), pool.obs_space(), pool.action_space())
        policies[name] = Policy(fitted, torch.Generator(), greedy=True)
    players = Cast({"blue": [1], "red": [0]}, mapping_of(SNAKES))
    episodes = play_episodes(policies, pool, EpisodesConfig(episodes=5, num_envs=3), players)
    assert seen and all(set(move.values[0::2, 0].tolist()) == {DOWN} for move in seen)  # player 0's snake is the first
    assert all(set(move.values[1::2, 0].tolist()) == {UP} for move in seen)
    assert [len(own) for own in episodes.values()] == [5, 5]
    assert {episode.info["policy"] for episode in episodes["blue"]} == {"blue"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"policies": {"red": [0], "blue": [2]}}, r"policies must have every player of 0 to 2 once, got"),
        ({"keep_last": 1}, "keep_last=1 must be at least 2 with policies="),
        (
            {"policies": {}, "eval": TrainEvalConfig(interval=64, opponent="policies")},
            "needs several policies: policies=",
        ),
        ({"env": EnvConfig()}, "and MineSweeper does not say which player owns what"),
        (
            {"eval": TrainEvalConfig(interval=64, env_kwargs={"num_players": 1})},
            r"each player of eval.env_kwargs: MultiSnake \(one player",
        ),
        ({"resume": "none"}, "there is no run of policy red in none"),
    ],
)
def test_nothing_is_started_or_written_where_policies_do_not_fit(
    tmp_path: Path, changes: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("enn_ppo.training.start.TrainState", lambda *args: pytest.fail("Ray was started"))
    with pytest.raises(ValueError, match=message):
        train(together(tmp_path / "a", 2, {"env": snakes(2), "policies": TWO} | changes))
    assert not (tmp_path / "a").exists()
