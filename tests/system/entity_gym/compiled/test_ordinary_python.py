"""Compiled code takes what people write without thinking of the compiler: temporary arrays and copies of rows."""

import numpy as np
import pytest

from entity_gym.actions.choices import random_actions
from entity_gym.compiled import CompiledEnvironment, Entity, GlobalCategorical, rand_int
from entity_gym.pools.pool import ThreadedVecEnv


class Careless(CompiledEnvironment):
    """Keeps its last three draws."""

    entities = {"Draw": Entity(["value"], max=3)}
    actions = {"go": GlobalCategorical(["on", "back"])}
    max_steps = 10
    state = [("draws", np.float64, (3, 2))]

    def reset(s):
        s.draws[:] = 0.0

    def step(s, act):
        drawn = np.zeros(2)
        drawn[0] = rand_int(s, 5)
        s.draws[2] = s.draws[1]
        s.draws[1] = s.draws[0]
        s.draws[0] = drawn
        return s.draws[:, 0].max(), False, False

    def observe(s, obs):
        obs.n.Draw = 3
        for i in range(3):
            obs.Draw[i, 0] = s.draws[i, 0]


@pytest.mark.parametrize("compile", [False, True])
def test_temporary_arrays_and_copies_of_rows_work(compile: bool) -> None:
    with ThreadedVecEnv(Careless, 4, seed=1, compile=compile) as pool:
        rng = np.random.default_rng(1)
        obs = pool.reset()
        for _ in range(5):
            shown = obs.features["Draw"].values.reshape(4, 3)
            obs = pool.act(random_actions(obs, rng, pool.action_space()))
            now = obs.features["Draw"].values.reshape(4, 3)
            np.testing.assert_array_equal(now[:, 1:], shown[:, :2])
            np.testing.assert_array_equal(obs.reward, now.max(axis=1))
        assert len(np.unique(now)) > 2
