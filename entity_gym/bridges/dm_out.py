"""Any entity environment as a `dm_env.Environment`, for libraries that know nothing of entities.

    env = to_dm_env("MineSweeper", seed=1)
    env = to_dm_env(MyWorld, max_entities={"Robot": 4, "Box": 20})   # a Python world does not say how many there can be

Observations and actions are those of the dm form (see `dm_form`), without its dimension of environments.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from entity_gym.bridges.dense_obs import Tree
from entity_gym.bridges.one_world import source_of
from entity_gym.registry import make

try:
    import dm_env
    from dm_env import specs
except ImportError as error:
    raise ImportError(f'to_dm_env needs dm_env ({error}): pip install "enn-ppo[dm]"') from error

from entity_gym.bridges.dm_form import DmVecEnv, PlayersArray


def to_dm_env(env: Any, seed: int = 0, **options: Any) -> DmEnvironment:
    """One environment as a `dm_env.Environment`.

    Args:
        env: what `make` takes: a name, "package.module:Class", a class or a function; or one `Environment`, which belongs to
            the result from now on.
        seed: of all random numbers; dm_env knows no other place for it.
        options: those of `make` that concern one environment, and the environment's parameters. `max_entities` (type -> room)
            and `max_actors` (action -> room) say how many there can be, where the environment does not; one that shows more
            than that raises a ValueError.

    Raises:
        ValueError: for arguments that cannot be, and if it is not known how many entities or actors there can be.
    """
    if options.pop("num_envs", 1) != 1:
        raise ValueError("to_dm_env makes one environment; make(..., num_envs, env_type='dm') has several side by side")
    return DmEnvironment(make(source_of(env), 1, seed=seed, env_type="dm", **options))


class DmEnvironment(dm_env.Environment):  # type: ignore[misc, unused-ignore]
    """The only environment of a pool, as dm_env wants one: what is first has neither reward nor discount.

    Args:
        pool: of one environment; belongs to this object from now on.

    Attributes:
        pool: the same.
    """

    def __init__(self, pool: DmVecEnv) -> None:
        if pool.num_envs != 1:
            raise ValueError(f"the pool has {pool.num_envs} environments; a DmEnvironment is one")
        self.pool = pool
        self._observation_spec, self._action_spec = pool.spec.dm_observation_spec, pool.spec.dm_action_spec
        self._has_ended = False

    def reset(self) -> dm_env.TimeStep:
        """Start an episode. The seed decides what it is like, whether the last one came to its end or not."""
        # The next episode after an end has begun already, and comes in answer to an action that is ignored.
        return self._one(self.pool.step(None) if self._has_ended else self.pool.reset())

    def step(self, action: Any) -> dm_env.TimeStep:
        """Take one step; where no episode is running, this is `reset`.

        Raises:
            ValueError: for an action outside its bounds.
        """
        if isinstance(action, Mapping):
            return self._one(self.pool.step({name: np.asarray(values)[None] for name, values in action.items()}))
        return self._one(self.pool.step(np.asarray(action)[None]))

    def observation_spec(self) -> Any:
        """A nested dictionary of `dm_env.specs`."""
        return self._observation_spec

    def action_spec(self) -> Any:
        """A bounded array, or action -> bounded array."""
        return self._action_spec

    def reward_spec(self) -> specs.Array:
        """One float."""
        return specs.Array((), np.float64, "reward")

    def discount_spec(self) -> specs.BoundedArray:
        """One float, 0 where an episode ended by its own rules and 1 elsewhere, also where it was cut."""
        return specs.BoundedArray((), np.float64, 0.0, 1.0, "discount")

    def close(self) -> None:
        """Release everything. May be called twice."""
        self.pool.close()

    def _one(self, steps: dm_env.TimeStep) -> dm_env.TimeStep:
        step_type = dm_env.StepType(int(steps.step_type[0]))
        self._has_ended = step_type is dm_env.StepType.LAST
        observation = _of_the_only_one(steps.observation, self._observation_spec)
        if step_type is dm_env.StepType.FIRST:
            return dm_env.restart(observation)
        return dm_env.TimeStep(step_type, float(steps.reward[0]), float(steps.discount[0]), observation)


def _of_the_only_one(tree: Tree, spec: Any) -> Tree:
    """An observation of a pool of one environment without the dimension of environments, which rows of players do not have."""
    if isinstance(tree, dict):
        return {name: _of_the_only_one(branch, spec[name]) for name, branch in tree.items()}
    return tree if isinstance(spec, PlayersArray) else np.asarray(tree[0])
