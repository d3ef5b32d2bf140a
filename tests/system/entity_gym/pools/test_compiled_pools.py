"""One compiled world in every kind of pool: the trajectories are the same, to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from entity_gym.actions.choices import random_actions
from entity_gym.envs.minesweeper import MineSweeper
from entity_gym.pools.pool import ProcessVecEnv, ThreadedVecEnv
from entity_gym.pools.vec_env import VecEnv
from tests.entity_gym.compiled.comparing import meaning
from tests.entity_gym.pools.processes.thread_workers import threads as threads

NUM_ENVS = 6
STEPS = 60
WORLD = MineSweeper(width=4, height=4, num_mines=3, orbital_cannon=True, cooldown_period=2, max_steps=9)


def pool(kind: str, seed: int = 5) -> VecEnv:
    name, _, count = kind.partition(" ")
    if name == "threads":
        return ThreadedVecEnv(WORLD, NUM_ENVS, int(count), seed=seed, final_observations="all")
    if name == "processes":
        return ProcessVecEnv(WORLD, NUM_ENVS, int(count), seed=seed, final_observations="all")
    assert name == "unjitted"
    return ThreadedVecEnv(WORLD, NUM_ENVS, seed=seed, final_observations="all", compile=False)


def play(env: VecEnv, steps: int = STEPS, rng_seed: int = 1) -> list[dict[str, Any]]:
    """Everything that the pool shows from its reset on."""
    rng = np.random.default_rng(rng_seed)
    obs = env.reset()
    shown = [meaning(obs)]
    for _ in range(steps):
        obs = env.act(random_actions(obs, rng, env.action_space()))
        shown.append(meaning(obs))
    return shown


@pytest.fixture(scope="module")
def reference() -> list[dict[str, Any]]:
    with pool("threads 1") as env:
        return play(env)


@pytest.mark.parametrize("kind", ["unjitted", "threads 2", "processes 2"])
def test_every_pool_plays_the_same_episodes(kind: str, reference: list[dict[str, Any]], threads: None) -> None:
    with pool(kind) as env:
        for step, (shown, expected) in enumerate(zip(play(env), reference, strict=True)):
            assert shown == expected, f"step {step}"


@pytest.mark.parametrize("kind", ["threads 2", "processes 2"])
def test_a_pool_that_was_saved_in_the_middle_continues_identically_in_another(kind: str, threads: None) -> None:
    with pool(kind) as env, pool(kind, seed=99) as other:
        play(env, 7)
        state = env.state()
        after = play_on(env)
        other.reset()
        assert other.can_save
        other.load_state(state)
        assert play_on(other) == after


def play_on(env: VecEnv) -> list[dict[str, Any]]:
    rng = np.random.default_rng(3)
    obs = env.load_state(env.state())  # what is shown now
    shown = []
    for _ in range(20):
        obs = env.act(random_actions(obs, rng, env.action_space()))
        shown.append(meaning(obs))
    return shown
