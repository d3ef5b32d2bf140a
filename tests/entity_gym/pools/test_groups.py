"""Environments in groups: members begin the same episodes, in every kind of pool, and go on with them when they are restored."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from entity_gym import Environment, Observation
from entity_gym.batch.vec_obs import INSTANCE, VecObs
from entity_gym.bridges.gymnasium.incoming import gymnasium_worlds
from entity_gym.envs.minesweeper import MineSweeper
from entity_gym.pools.pool import ListEnv, ThreadedVecEnv
from entity_gym.pools.source import EnvFactory
from entity_gym.pools.vec_env import VecEnv
from examples.walks import Walks
from tests.entity_gym.envs.minesweeper_python import PythonMineSweeper
from tests.entity_gym.pools.kinds_of_pools import Counter, contents, play_together
from tests.entity_gym.pools.processes.thread_workers import threads as threads

BOARD = {"width": 4, "height": 4, "num_mines": 3, "num_robots": 1, "max_steps": 6}
WORLDS: dict[str, EnvFactory] = {
    "compiled": MineSweeper(**BOARD),
    "Python": functools.partial(PythonMineSweeper, **BOARD),
}
POOLS: dict[str, Callable[..., VecEnv]] = {
    "list": ListEnv,
    "not compiled": functools.partial(ListEnv, compile=False),
    "threads": functools.partial(ThreadedVecEnv, num_threads=3),
    "processes": functools.partial(ThreadedVecEnv, num_processes=2),
}
ALL = [(world, pool) for world in WORLDS for pool in POOLS]


def instances(seen: list[VecObs]) -> list[list[int]]:
    """The numbers of each environment's episodes, in the order in which it played them."""
    shown = np.array([obs.arrays[INSTANCE] for obs in seen])  # (steps, N)
    begins = np.array([obs.elapsed_step == 0 for obs in seen])
    return [shown[begins[:, i], i].tolist() for i in range(shown.shape[1])]


def firsts(seen: list[VecObs]) -> dict[int, set[str]]:
    """Instance -> what its first observations show."""
    shown: dict[int, set[str]] = {}
    for obs in seen:
        for k in np.flatnonzero(obs.elapsed_step == 0).tolist():
            frame = repr([(name, buffer.to_list()[k]) for name, buffer in sorted(obs.features.items())])
            shown.setdefault(int(obs.arrays[INSTANCE][k]), set()).add(frame)  # type: ignore[arg-type]
    return shown


@pytest.mark.parametrize(("world", "kind"), ALL)
def test_members_play_the_same_episodes_one_after_the_other_each_at_its_own_pace(
    world: str, kind: str, threads: None
) -> None:
    with POOLS[kind](WORLDS[world], 6, seed=3, group_size=3) as env:
        seen = play_together(env, 40)
    played = instances(seen)
    shortest = [min(map(len, members)) for members in (played[:3], played[3:])]
    assert min(shortest) > 3 and len({len(each) for each in played}) > 1  # some play faster
    for members, number in zip((played[:3], played[3:]), shortest, strict=True):
        assert members[0][:number] == members[1][:number] == members[2][:number]
    boards = firsts(seen)
    assert all(len(frames) == 1 for frames in boards.values())
    distinct = {number for members in played for number in members}
    assert len({frame for frames in boards.values() for frame in frames}) == len(distinct) == len(boards)
    assert not set(played[0]) & set(played[3])  # of another group


@pytest.mark.parametrize("world", WORLDS)
def test_all_kinds_of_pools_play_alike_and_the_first_part_of_a_group_may_be_in_another_pool(
    world: str, threads: None
) -> None:
    def play(make: Callable[..., VecEnv], num_envs: int, **options: Any) -> list[VecObs]:
        with make(WORLDS[world], num_envs, seed=3, group_size=3, **options) as env:
            return play_together(env, 20)

    expected = contents(play(ListEnv, 6))
    for make in POOLS.values():
        assert contents(play(make, 6)) == expected
    whole, part = instances(play(ListEnv, 6)), instances(play(ListEnv, 2, first_env=4))
    number = min(len(each) for each in (*whole, *part))
    assert [each[:number] for each in part] == [each[:number] for each in whole[4:]]


@pytest.mark.parametrize("world", WORLDS)
def test_a_group_begins_with_the_first_episode_of_the_environment_of_its_number(world: str) -> None:
    with ListEnv(WORLDS[world], 4, seed=3, group_size=2) as grouped, ListEnv(WORLDS[world], 2, seed=3) as alone:
        features = grouped.reset().features["Mine" if "Mine" in grouped.obs_space().entities else "Robot"]
        expected = alone.reset().features["Mine" if "Mine" in alone.obs_space().entities else "Robot"]
        assert features.to_list()[::2] == features.to_list()[1::2] == expected.to_list()
        assert expected.to_list()[0] != expected.to_list()[1]


@pytest.mark.parametrize(("world", "kind"), ALL)
def test_a_restored_pool_goes_on_exactly(world: str, kind: str, threads: None) -> None:
    with POOLS[kind](WORLDS[world], 6, seed=3, group_size=3) as env, ListEnv(WORLDS[world], 6, group_size=3) as other:
        play_together(env, 7)
        state = pickle.loads(pickle.dumps(env.state()))
        shown = other.load_state(state)
        expected = contents(play_together(env, 20, env.load_state(state)))
        assert contents(play_together(other, 20, shown)) == expected
    with ListEnv(WORLDS[world], 6) as other, pytest.raises(ValueError, match="another kind of environments"):
        ListEnv(WORLDS[world], 6, group_size=3).load_state((other.reset(), other.state())[1])


@pytest.mark.parametrize("world", WORLDS)
def test_a_seed_is_that_of_the_episodes_that_begin_from_then_on(world: str) -> None:
    def first_after(seed: int, played: int) -> list[int]:
        """The instances of the first episodes that four members begin after a new seed; what runs goes on until then."""
        with ListEnv(WORLDS[world], 4, seed=1, group_size=4) as env:
            now = play_together(env, played)[-1]
            env.seed(seed)
            later = play_together(env, 12, now)[1:]
        first = [next(obs for obs in later if obs.elapsed_step[i] == 0).arrays[INSTANCE][i] for i in range(4)]
        for i in range(4):
            running = {int(obs.arrays[INSTANCE][i]) for obs in later}
            assert (int(now.arrays[INSTANCE][i]) in running) == (later[0].elapsed_step[i] > 0)
        return [int(each) for each in first]

    (begun,) = set(first_after(9, 3))
    assert set(first_after(9, 8)) == {begun} and set(first_after(10, 3)) != {begun}


class Draws(Environment):
    """Shows two random numbers, one after the other."""

    def __init__(self) -> None:
        self.inner = Counter(2)

    def obs_space(self) -> Any:
        return self.inner.obs_space()

    def action_space(self) -> Any:
        return self.inner.action_space()

    def reset(self) -> Observation:
        self.inner.reset()
        self.inner.total = int(self.rng.integers(1000))
        return self.inner.observe()

    def act(self, actions: Any) -> Observation:
        obs = self.inner.act(actions)
        return Observation(**{**vars(obs), "features": {"Total": [[int(self.rng.integers(1000))]]}})


def test_members_draw_the_same_random_numbers_within_episodes_too() -> None:
    with ListEnv(Draws, 4, seed=1, group_size=2) as env:
        drawn = [obs.features["Total"].values[:, 0].tolist() for obs in play_together(env, 7)]
    assert all(a == b and c == d and a != c for a, b, c, d in drawn)
    assert len({row[0] for row in drawn}) == len(drawn)


def test_gymnasium_environments_are_seeded_for_each_episode() -> None:
    gymnasium = pytest.importorskip("gymnasium")
    source = gymnasium_worlds(functools.partial(gymnasium.make, "CartPole-v1", max_episode_steps=3))
    with ListEnv(source, 4, seed=5, group_size=2) as env, ListEnv(source, 2, seed=5) as alone:
        seen = play_together(env, 9)
        shown = [obs.features[next(iter(obs.features))].values for obs in seen if obs.elapsed_step[0] == 0]
        first = alone.reset()
        assert np.array_equal(first.features[next(iter(first.features))].values, shown[0][::2])
    assert len(shown) == 4
    for rows in shown:
        assert np.array_equal(rows[0], rows[1]) and np.array_equal(rows[2], rows[3])
        assert not np.array_equal(rows[0], rows[2])
    assert len({rows.tobytes() for rows in shown}) == 4


def test_slots_that_cannot_seed_single_episodes_refuse_groups() -> None:
    with pytest.raises(ValueError, match=r"^group_size=2: Walks cannot seed single episodes$"):
        ListEnv(functools.partial(Walks, length=3), 4, group_size=2)
    with pytest.raises(ValueError, match=r"group_size.* 0"):
        ListEnv(Counter, 4, group_size=0)
