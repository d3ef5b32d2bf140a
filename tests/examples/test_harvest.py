"""The rules of the environment with a flat observation that docs/bring_yours.md uses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("gymnasium")
from gymnasium.utils.env_checker import check_env

from entity_gym.bridges import from_gymnasium
from examples.harvest import Harvest

VIEW = Path(__file__).parents[2] / "examples" / "harvest.yaml"
RIGHT, LEFT = np.int64(0), np.int64(1)


def field() -> Harvest:
    """The picker at (0, 0), a ripe apple to its right, a rotten one behind it, and another ripe one at (4, 5)."""
    env = Harvest(slots=4)
    env.reset(seed=0)
    env.picker = np.array([0, 0])
    env.places = np.array([[1, 0], [2, 0], [4, 5]])
    env.there, env.ripe = np.ones(3, bool), np.array([True, False, True])
    return env


def test_it_keeps_the_rules_of_gymnasium() -> None:
    check_env(Harvest(), skip_render_check=True)


def test_a_ripe_apple_earns_its_share_and_a_rotten_one_costs_half_of_that() -> None:
    env = field()
    obs, reward, terminated, _, _ = env.step(RIGHT)
    assert reward == 0.5 and not terminated
    assert obs.tolist() == [1, 0, 0, 0, 0, 0, 1, 1, 0, 0, 1, 3, 5, 1, 0, 0, 0, 0]
    assert env.step(RIGHT)[1] == -0.25
    assert env.step(RIGHT)[1] == 0


def test_the_last_ripe_apple_ends_the_episode_and_step_50_truncates_it() -> None:
    env = field()
    env.places[2] = [3, 0]
    ends = [env.step(RIGHT)[2:4] for _ in range(3)]
    assert ends == [(False, False), (False, False), (True, False)]
    env = field()
    cut = [env.step(LEFT)[3] for _ in range(50)]  # against the left wall
    assert cut == [False] * 49 + [True]


def test_the_view_finds_as_many_apples_as_there_are_in_their_places() -> None:
    pool = from_gymnasium(Harvest, num_envs=1, seed=0, view=VIEW)
    obs = pool.reset()
    env = Harvest()
    env.reset(seed=0)
    assert obs.features["Apple"].size1().tolist() == [len(env.places)]
    assert obs.features["Apple"].values.tolist() == [
        [*map(float, place), float(ripe)] for place, ripe in zip(env.places, env.ripe, strict=True)
    ]
