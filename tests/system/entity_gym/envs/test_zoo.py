"""Worlds of the package, compiled: the same as ordinary Python, and episodes end when they must."""

import numpy as np
import pytest

from entity_gym.actions.choices import random_actions
from entity_gym.compiled import CompiledEnvironment
from tests.entity_gym.envs.test_zoo import NUM_ENVS, WORLDS, ZOO, each_class, play, pool, same


@each_class
def test_compiled_and_ordinary_python_do_the_same(env: type[CompiledEnvironment]) -> None:
    for world in WORLDS:
        if type(world) is env:
            assert same(play(pool(world), steps=100), play(pool(world, compile=True), steps=100))


@pytest.mark.parametrize(("env", "limit"), ZOO, ids=map(repr, WORLDS))
def test_every_episode_ends_within_the_promised_number_of_steps(env: CompiledEnvironment, limit: int) -> None:
    pools = pool(env, compile=True)
    obs, rng, lengths = pools.reset(), np.random.default_rng(0), np.zeros(NUM_ENVS, np.int64)
    num_ends = 0
    for _ in range(3 * limit):
        obs = pools.act(random_actions(obs, rng, pools.action_space()))
        lengths += 1
        assert (lengths <= limit).all()
        np.testing.assert_array_equal(obs.truncated & ~obs.done, False)
        num_ends += int(obs.done.sum())
        lengths[obs.done] = 0
    assert num_ends >= 3 * NUM_ENVS
