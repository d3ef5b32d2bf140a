"""Evaluation in worlds with several players: who plays which side, against whom, and what is said of the outcome."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from enn_ppo import EnvConfig, EvalConfig, RolloutConfig, SelfPlayConfig, evaluate, train
from enn_ppo.eval.episodes import Estimate
from tests.enn_ppo.evaluation_worlds import Duel
from tests.enn_ppo.recordings import episodes_of
from tests.enn_ppo.worlds import tiny_config

SMALL_SNAKES = {"board_size": 5, "num_snakes": 2, "num_players": 2, "max_snake_length": 3}


@pytest.fixture(scope="module")
def duel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in `Duel` with checkpoints of steps 0, 32 and 64."""
    run_dir = tmp_path_factory.mktemp("duel")
    train(tiny_config(run_dir, env=EnvConfig(), total_timesteps=64, checkpoint_interval=1), env=Duel)
    return run_dir


@pytest.fixture(scope="module")
def snakes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in two-player MultiSnake."""
    run_dir = tmp_path_factory.mktemp("snakes")
    env = EnvConfig(id="MultiSnake", kwargs=SMALL_SNAKES)
    train(tiny_config(run_dir, env=env, rollout=RolloutConfig(num_envs=4, steps=8), total_timesteps=32))
    return run_dir


def config(run_dir: Path, **settings: Any) -> EvalConfig:
    return EvalConfig(checkpoint=str(run_dir), **settings)


# --- Seats ---


@pytest.mark.parametrize(("episodes", "num_envs"), [(20, 64), (20, 3), (20, 1), (21, 4)])
def test_the_policy_plays_both_sides_equally_often(episodes: int, num_envs: int, duel: Path) -> None:
    # player 0 always wins, so whoever sat there half of the time has won half of the games
    asked = config(duel, opponent="random", episodes=episodes, num_envs=num_envs, env_kwargs={"handicap": True})
    result = evaluate(asked, env=Duel)
    wins = [episode.info["win_rate"] for episode in result.episodes]
    assert len(wins) == episodes
    assert abs(wins.count(1.0) - wins.count(0.0)) == episodes % 2


# --- What is said ---


def test_the_win_rate_has_an_interval_and_rewards_are_those_of_the_policys_own_player(duel: Path) -> None:
    result = evaluate(config(duel, opponent="random", episodes=20, env_kwargs={"handicap": True}), env=Duel)
    # 10 wins and 10 losses: the deviation of the sample is sqrt(20 / 4 / 19)
    expected = Estimate(0.5, pytest.approx(1.96 * math.sqrt(5 / 19 / 20)), 20)
    assert result.estimates["win_rate"] == expected
    assert result.estimates["episodic_reward"] == expected
    assert result.estimates["opponent_reward"] == expected
    assert {episode.info["opponent"] for episode in result.episodes} == {"random"}
    assert all(episode.reward == episode.info["win_rate"] for episode in result.episodes)


def test_a_policy_ties_with_itself_where_both_take_the_likeliest_action(duel: Path) -> None:
    result = evaluate(config(duel, opponent=str(duel), greedy=True, episodes=10), env=Duel)
    assert result.estimates["win_rate"] == Estimate(0.5, 0.0, 10)
    assert {episode.info["opponent"] for episode in result.episodes} == {"step_000000000064"}


def test_without_an_opponent_the_policy_plays_all_sides_at_once(duel: Path) -> None:
    result = evaluate(config(duel, episodes=10), env=Duel)
    assert result.estimates["episodic_reward"] == Estimate(1.0, 0.0, 10)  # of both players together
    assert "win_rate" not in result.estimates


def test_what_is_recorded_is_the_policys_own_play(duel: Path, tmp_path: Path) -> None:
    file = tmp_path / "duel"
    played = evaluate(config(duel, opponent="random", episodes=12, num_envs=4, record=str(file)), env=Duel)
    recorded = episodes_of(file)
    assert [float(each.rewards.sum()) for each in recorded] == [each.reward for each in played.episodes]
    assert all(len(episode.actions["Pick"].values) == 1 for episode in recorded)


# --- Mistakes ---


def test_an_opponent_that_is_not_there_or_of_another_world_is_named(duel: Path, snakes: Path) -> None:
    with pytest.raises(ValueError, match="no checkpoint nowhere") as caught:
        evaluate(config(duel, opponent="nowhere"), env=Duel)
    assert caught.value.__notes__[0] == ("(an opponent is random, past, policies, or a run directory or checkpoint)")
    with pytest.raises(ValueError, match="the policy of checkpoint .* does not fit this environment"):
        evaluate(config(duel, opponent=str(snakes)), env=Duel)


def test_after_self_play_an_episode_is_played_once(tmp_path: Path) -> None:
    pytest.importorskip("openskill")
    duel = SelfPlayConfig(enabled=True)
    train(tiny_config(tmp_path / "a", env=EnvConfig(), total_timesteps=32, self_play=duel), env=Duel)
    with pytest.raises(
        ValueError, match=r"^best_of=2 is for a policy that plays alone; after self-play, this one plays"
    ):
        evaluate(config(tmp_path / "a", episodes=2, best_of=2), env=Duel)
