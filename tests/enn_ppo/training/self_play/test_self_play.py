"""The pool of past selves: who stays, who is drawn, what games say of them, and that all of it can be resumed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from enn_ppo import EnvConfig, SelfPlayConfig, train
from enn_ppo.checkpoints import load_checkpoint, step_file, step_files
from enn_ppo.training.self_play.opponents import LATEST
from enn_ppo.training.self_play.pool import SelfPlay, least_missed
from enn_ppo.training.self_play.ratings import DRIFT, SIGMA, Rating, Ratings
from entity_gym.envs.minesweeper import MineSweeper
from entity_gym.envs.multi_snake import MultiSnake
from entity_gym.pools.episodes import Episode
from rogue_net import RogueNet
from tests.enn_ppo.players_worlds import CPU, SNAKES, snake_net, snake_pool
from tests.enn_ppo.rollouts import Collector
from tests.enn_ppo.worlds import tiny_config


def self_play(net: RogueNet | None = None, seed: int = 0, **settings: Any) -> SelfPlay:
    config = SelfPlayConfig(**{"enabled": True, "snapshot_interval": 10, "pool_size": 3, **settings})
    return SelfPlay(config, net or snake_net(), seed)


def game(opponent: str, result: float) -> Episode:
    return Episode(0, 0.0, 1, False, {"opponent": opponent, "win_rate": result})


def name(step: int) -> str:
    return f"step_{step:012d}"


# --- Ratings


def test_the_win_rate_forgets_old_games_and_is_a_half_before_the_first() -> None:
    ratings = Ratings()
    ratings.add(0)
    record = ratings.snapshots[0]
    assert record.win_rate == 0.5
    ratings.play(0, 1.0)
    ratings.play(0, 0.0)
    assert record.win_rate == pytest.approx(0.99 / 1.99)
    for _ in range(1000):
        ratings.play(0, 0.0)
    assert record.win_rate < 0.001 and record.total_games == 1002


def test_a_policy_that_changes_is_known_less_well() -> None:
    ratings = Ratings()
    ratings.current = Rating(30.0, 1.0)
    ratings.drift()
    assert ratings.current == Rating(30.0, pytest.approx((1 + DRIFT**2) ** 0.5))
    ratings.current = Rating(30.0, SIGMA)
    ratings.drift()
    assert ratings.current.sigma == SIGMA  # never less than not at all


def test_a_stronger_player_ends_up_above_a_weaker_one_with_certainty() -> None:
    ratings = Ratings()
    ratings.add(0)
    ratings.add(1)
    rng = np.random.default_rng(0)
    for _ in range(300):
        ratings.play(0, float(rng.random() < 0.9))
        ratings.play(1, float(rng.random() < 0.6))
    weak, strong = ratings.snapshots[0].rating, ratings.snapshots[1].rating
    assert ratings.current.mu > strong.mu + 1 > weak.mu + 4
    assert max(ratings.current.sigma, weak.sigma, strong.sigma) < 2.5


# --- Who stays in the pool


def test_the_one_between_the_nearest_neighbours_leaves() -> None:
    assert least_missed([0, 10, 20, 100]) == 10  # it leaves a gap of 20, the other one of 90
    assert least_missed([0, 50, 90, 100]) == 90
    assert least_missed([0, 10, 20, 30]) == 10  # of equals the older
    assert least_missed([0, 10]) == 0 and least_missed([7]) == 7


@given(size=st.integers(2, 12), count=st.integers(1, 120))
def test_a_pool_stays_spread_over_the_run(size: int, count: int) -> None:
    pool: list[int] = []
    for step in range(count):
        pool.append(step)
        if len(pool) > size:
            pool.remove(least_missed(pool))
    assert pool[-1] == count - 1 and len(pool) == min(size, count)
    if size > 2:
        assert pool[0] == 0
        gaps = np.diff(pool)
        assert len(gaps) == 0 or gaps.max() <= max(1, 4 * count / size)


def test_a_snapshot_is_taken_at_every_interval_and_stays_what_it_was() -> None:
    net = snake_net()
    player = self_play(net, pool_size=2)
    player.add(0)
    first = {key: value.clone() for key, value in net.state_dict().items()}
    for step, expected in [(6, [0]), (12, [0, 12]), (18, [0, 12]), (22, [0, 22]), (47, [0, 47])]:
        with torch.no_grad():
            for parameter in net.parameters():
                parameter += 1.0
        player.update([], step)
        assert player.pool == expected
        assert player.metrics["self_play/pool_size"] == len(expected)
    player.seat(snake_pool(), SNAKES, "MultiSnake")
    assert not any(torch.equal(first[key], value) for key, value in net.named_parameters())


# --- Who plays


def test_a_share_of_the_environments_faces_the_policy_as_it_is_and_the_others_its_past() -> None:
    player = self_play(pool_size=20)
    for step in range(0, 200, 10):
        player.add(step)
    faced = player._draw(8000, np.random.default_rng(0))
    assert np.mean(faced == LATEST) == pytest.approx(0.5, abs=0.02)
    assert len(set(faced.tolist()) - {LATEST}) <= 2  # each is a pass of its own network
    chosen = set()
    for step in range(200):
        player._choose(step)
        chosen |= set(player._choice)
    assert chosen == set(range(0, 200, 10))


def test_games_count_for_whom_they_were_played_against(tmp_path: Path) -> None:
    player = self_play()
    player.add(0)
    player.add(5)
    won = [game(name(0), 1.0)] * 3 + [game(name(5), 0.0), game("latest", 1.0), game(name(999), 1.0)]
    player.update([*won, Episode(1, 0.0, 1, True, {})], 6)
    table = player.ratings.table()["snapshots"]
    assert [(row["step"], row["games"], row["win_rate_against"]) for row in table] == [(0, 3, 1.0), (5, 1, 0.0)]
    player.write(tmp_path, {})
    assert json.loads((tmp_path / "ratings.json").read_text()) == player.ratings.table()
    assert player.metrics["self_play/win_rate"] == 0.75
    assert player.metrics["self_play/rating"] == player.ratings.current.mu
    player.update([], 7)
    assert player.metrics["self_play/win_rate"] is None


@pytest.mark.parametrize(
    ("world", "why"),
    [(MineSweeper, "MineSweeper does not say which player"), (MultiSnake(num_players=1), "MultiSnake has one player")],
)
def test_worlds_without_players_are_refused(world: Any, why: str) -> None:
    with pytest.raises(ValueError, match=f"needs a world with several players, and {why}"):
        self_play().seat(snake_pool(), world, why.split()[0])


# --- On the disk


def snapshots_of(run_dir: Path) -> list[int]:
    return [step for step, _ in reversed(step_files(run_dir / "pool"))]


def checkpoints(run_dir: Path, *steps: int) -> None:
    """Make files of these checkpoints, in place of others."""
    home = run_dir / "checkpoints"
    home.mkdir(exist_ok=True)
    for old in home.iterdir():
        old.unlink()
    for step in steps:
        step_file(home, step).touch()


def test_snapshots_stay_on_the_disk_as_long_as_a_checkpoint_needs_them(tmp_path: Path) -> None:
    player = self_play(pool_size=2)
    player.add(0)
    player.update([], 10)  # joins: [0, 10]
    player.write(tmp_path, {})
    checkpoints(tmp_path, 0, 10)
    player.update([], 20)  # 10 leaves
    player.write(tmp_path, {})
    checkpoints(tmp_path, 10, 20)
    player.clean(tmp_path)
    assert snapshots_of(tmp_path) == [0, 10, 20]  # the checkpoint of step 10 needs 0 and 10
    checkpoints(tmp_path, 20)
    player.clean(tmp_path)
    assert snapshots_of(tmp_path) == [0, 20]


def test_snapshots_that_are_still_faced_stay_until_their_episodes_end() -> None:
    player = self_play(pool_size=1)
    player.add(0)
    env = player.seat(snake_pool(4), SNAKES, "MultiSnake")
    collector = Collector(env, player.net, CPU, 0)
    collector.reset(0)
    collector.collect(1)
    player.update([], 10)
    assert player.pool == [10] and player.state()["snapshots"] == [0, 10]  # the boards go on against 0
    collector.collect(40)
    player.update([], 11)
    assert player.state()["snapshots"] == [10] and player.state()["gone"] == [[0, 11]]


def test_a_resumed_run_replaces_what_an_abandoned_continuation_left_and_may_write_into_another_folder(
    tmp_path: Path,
) -> None:
    player = self_play(snake_net(0))
    player.add(0)
    player.write(tmp_path, {})
    saved = player.state()
    player.update([], 10)
    player.write(tmp_path, {})
    other = snake_net(1)
    again = self_play(other)
    again.load_state(saved, tmp_path)
    again.update([], 10)
    for folder in (tmp_path, tmp_path / "b"):
        folder.mkdir(exist_ok=True)
        again.write(folder, {})
        assert snapshots_of(folder) == [0, 10]
        weights = load_checkpoint(step_file(folder / "pool", 10)).policy
        assert all(torch.equal(weights[key], value) for key, value in other.state_dict().items())


# --- Without its library


def test_what_is_not_installed_is_said_before_an_environment_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compiled(*_: object) -> None:
        pytest.fail("environments are made, which may take half a minute")

    monkeypatch.setattr("enn_ppo.training.start.make_pools", compiled)
    monkeypatch.setitem(sys.modules, "openskill", None)
    with pytest.raises(ValueError, match=r'openskill: pip install "enn-ppo\[self-play\]"'):
        train(tiny_config(tmp_path / "a", env=EnvConfig(), self_play=SelfPlayConfig(enabled=True)), env=MultiSnake)
