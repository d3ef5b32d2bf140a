"""Environments and helpers for the tests of pools."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from entity_gym import (
    Action,
    ActionSpace,
    CategoricalActionMask,
    CategoricalActionSpace,
    Entity,
    Environment,
    Observation,
    ObsSpace,
)
from entity_gym.batch.ragged import RaggedBuffer
from entity_gym.batch.vec_obs import VecObs
from entity_gym.pools.vec_env import VecEnv
from tests.worlds import actions_of_each


class Counter(Environment):
    """Adds up what it is told, and is cut after `limit` steps. One can be told to raise or to show NaN by adding 2."""

    def __init__(self, limit: int = 3, error: Exception | None = None) -> None:
        self.limit = limit
        self.error = error
        self.total = 0
        self.steps = 0
        self.threads: set[str] = set()
        self.closed = 0

    def obs_space(self) -> ObsSpace:
        return ObsSpace({"Total": Entity(["n"])})

    def action_space(self) -> Mapping[str, ActionSpace]:
        return {"add": CategoricalActionSpace(["nothing", "one", "two"])}

    def configure(self, info: Mapping[str, Any]) -> None:
        for name, value in info.items():
            if name != "limit":
                raise ValueError(f"unknown parameter {name!r}; allowed: 'limit'")
            self.limit = value

    def reset(self) -> Observation:
        self.total = self.steps = 0
        return self.observe()

    def act(self, actions: Mapping[str, Action]) -> Observation:
        self.threads.add(threading.current_thread().name)
        added = int(actions["add"].actions[0])
        if added == 2 and self.error is not None:
            raise self.error
        self.total += added
        self.steps += 1
        return self.observe(reward=added, done=self.steps == self.limit)

    def observe(self, reward: float = 0.0, *, done: bool = False) -> Observation:
        return Observation(
            features={"Total": [[self.total]]},
            ids={"Total": ["it"]},
            actions={"add": CategoricalActionMask()},
            reward=reward,
            done=done,
            truncated=done,
            end_of_episode_info={"total": self.total} if done else None,
        )

    def close(self) -> None:
        self.closed += 1

    def state(self) -> dict[str, Any]:
        return {"total": self.total, "steps": self.steps, "limit": self.limit}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.total, self.steps, self.limit = state["total"], state["steps"], state["limit"]


def add(*amounts: int) -> dict[str, RaggedBuffer[np.int64]]:
    """Return the actions of `Counter`s, one after the other."""
    return {"add": RaggedBuffer.from_array(np.array(amounts, np.int64).reshape(-1, 1, 1))}


def totals(obs: VecObs) -> list[int]:
    """Return the totals of all `Counter`s."""
    return obs.features["Total"].values[:, 0].astype(int).tolist()


class Streams:
    """Random actions, from a stream of its own for each environment, so that the order of steps makes no difference."""

    def __init__(self, env: VecEnv, seed: int = 0) -> None:
        self.action_space = env.action_space()
        self.rngs = [np.random.default_rng((seed, i)) for i in range(len(env))]

    def actions(self, obs: VecObs) -> dict[str, RaggedBuffer[np.int64]]:
        return actions_of_each(obs, self.action_space, [self.rngs[i] for i in obs.env_id])


def play_together(env: VecEnv, steps: int, obs: VecObs | None = None, seed: int = 0) -> list[VecObs]:
    """Random steps from `obs` on, or from a reset; `obs` is the first of what is returned."""
    streams = Streams(env, seed)
    seen = [env.reset() if obs is None else obs]
    for _ in range(steps):
        seen.append(env.act(streams.actions(seen[-1])))
    return seen


def content(value: Any) -> Any:
    """Return all of a value, down to the bytes of arrays."""
    if isinstance(value, np.ndarray):
        return (value.dtype.str, value.shape, value.tobytes())
    if isinstance(value, RaggedBuffer):
        return (content(value.values), content(value.offsets))
    if isinstance(value, Mapping):
        return {key: content(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [content(item) for item in value]
    if hasattr(value, "__dataclass_fields__"):
        return {field.name: content(getattr(value, field.name)) for field in fields(value)}
    return value


def contents(seen: Sequence[VecObs]) -> list[Any]:
    return [content(obs) for obs in seen]


def pool_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("environments-")]
