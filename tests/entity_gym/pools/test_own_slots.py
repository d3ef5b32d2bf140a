"""Environments that bring slots of their own: every pool uses them; `examples/walks.py` is the example, over NumPy arrays."""

from __future__ import annotations

import functools
import pickle
from typing import Any

import numpy as np
import pytest

from enn_ppo.settings.config import EnvConfig, RolloutConfig
from enn_ppo.training.environment import bind_environment
from enn_ppo.training.sampling import make_pools
from entity_gym import (
    CategoricalActionMask,
    CategoricalActionSpace,
    Entity,
    Environment,
    Observation,
    ObsSpace,
    registry,
)
from entity_gym import make as make_env
from entity_gym.pools.pool import ListEnv, ProcessVecEnv, ThreadedVecEnv
from entity_gym.pools.python_slots import PythonSlots
from entity_gym.pools.slots import SlotOptions
from entity_gym.pools.source import EnvSource
from examples.walks import MAX_STEPS, Walks
from tests.entity_gym.pools.kinds_of_pools import content, contents, play_together
from tests.entity_gym.pools.processes.thread_workers import threads as threads


class Numbered(Environment):
    """Shows what it was seeded with, and the number that its slots gave it."""

    def __init__(self) -> None:
        self.number, self.seeded = -1.0, -1.0

    def reseed(self, seed: int, number: int) -> None:
        super().reseed(seed, number)
        self.seeded = float(seed + number)

    def obs_space(self) -> ObsSpace:
        return ObsSpace({"Thing": Entity(["number", "seeded"])})

    def action_space(self) -> dict[str, CategoricalActionSpace]:
        return {"Wait": CategoricalActionSpace(["wait"])}

    def reset(self) -> Observation:
        return Observation(
            features={"Thing": [[self.number, self.seeded]]},
            ids={"Thing": [0]},
            actions={"Wait": CategoricalActionMask()},
        )

    def act(self, actions: Any) -> Observation:
        return self.reset()


class Counting(EnvSource):
    """Its slots count their environments in tens."""

    def as_environment(self) -> Environment:
        return Numbered()

    def make_slots(self, num_envs: int, options: SlotOptions) -> PythonSlots:
        slots = PythonSlots(self.as_environment, num_envs, options)
        for i, env in enumerate(slots.envs):
            assert isinstance(env, Numbered)
            env.number = 10.0 * (options.first_env + i)
        return slots


counting = Counting()  # found by its name


@pytest.mark.parametrize(
    "make",
    [
        lambda: ThreadedVecEnv(counting, 3, seed=5),
        lambda: ThreadedVecEnv(counting, 3, 2, seed=5),
        lambda: ProcessVecEnv(counting, 3, 2, seed=5),
        lambda: make_pools(bind_environment(EnvConfig(id=f"{__name__}:counting")), RolloutConfig(num_envs=3), 5)[0],
    ],
    ids=["one thread", "threads", "processes", "training"],
)
def test_a_pool_asks_for_the_slots(make: Any, threads: None) -> None:
    with make() as pool:
        np.testing.assert_array_equal(pool.reset().features["Thing"].values, [[0, 5], [10, 6], [20, 7]])


def limited(max_episode_steps: int = 100) -> Environment:
    env = Numbered()
    env.number = float(max_episode_steps)
    return env


def test_training_binds_a_registered_limit_to_the_name_that_the_world_has_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registry, "_registered", {})
    registry.register("Limited", limited, max_episode_steps=5)
    pools = [
        make_env("Limited", 1),
        *make_pools(bind_environment(EnvConfig(id="Limited")), RolloutConfig(num_envs=1), 0),
    ]
    for pool in pools:
        assert pool.reset().features["Thing"].values[0, 0] == 5
        pool.close()


def test_what_is_made_already_takes_no_arguments() -> None:
    with pytest.raises(ValueError, match=r":counting has no parameter 'size'; allowed: nothing"):
        bind_environment(EnvConfig(id=f"{__name__}:counting", kwargs={"size": 3}))


# --- A world over NumPy arrays

Walk = functools.partial(ListEnv, functools.partial(Walks, length=MAX_STEPS), seed=1, final_observations="all")


@pytest.mark.parametrize(
    "make",
    [
        lambda: ThreadedVecEnv(functools.partial(Walks, length=MAX_STEPS), 5, 2, seed=1, final_observations="all"),
        lambda: ProcessVecEnv(functools.partial(Walks, length=MAX_STEPS), 5, 2, seed=1, final_observations="all"),
        lambda: make_env("examples.walks:Walks", 5, seed=1, final_observations="all", length=MAX_STEPS),
    ],
    ids=["threads", "processes", "make"],
)
def test_a_world_over_arrays_plays_alike_in_every_pool(make: Any, threads: None) -> None:
    with Walk(num_envs=5) as env, make() as other:
        seen = play_together(env, 30)
        assert contents(play_together(other, 30)) == contents(seen)
        state = pickle.loads(pickle.dumps(env.state()))
        shown = other.load_state(state)
        seen[-1].final = None  # belongs to the step that was taken before saving
        assert content(shown) == content(seen[-1])
        assert contents(play_together(other, 30)) == contents(play_together(env.clone(), 30))
    # Computed by hand: a walk pays at the goal alone, and its last frame offers nobody an action.
    x = {name: np.stack([obs.features[name].values[:, 0] for obs in seen]) for name in ("Walker", "Goal")}
    assert (np.abs(x["Goal"]) <= MAX_STEPS).all() and (x["Walker"] != x["Goal"]).all()
    for before, obs in zip(seen, seen[1:], strict=False):
        ended = before.elapsed_step + 1 == np.where(obs.elapsed_step == 0, before.elapsed_step + 1, 0)
        assert (ended == obs.done).all()
        assert (obs.final is None) == (not obs.done.any())
        if obs.final is not None:
            at_goal = (obs.final.features["Walker"].values == obs.final.features["Goal"].values)[:, 0]
            assert (at_goal == (obs.reward[obs.final.env_id] == 1)).all() and (at_goal != obs.final.truncated).all()
            assert obs.final.action_masks["walk"].actors.items() == 0
