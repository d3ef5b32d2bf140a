"""A serial pool of Python environments."""

from __future__ import annotations

from collections.abc import Callable

from entity_gym.environment import Environment
from entity_gym.pools.python_slots import PythonSlots
from entity_gym.pools.slot_vec_env import SlotVecEnv
from entity_gym.pools.slots import FinalObservations


class ListEnv(SlotVecEnv):
    """Steps Python environments one after the other, in the calling thread.

    Args:
        create_env: makes one environment; called `num_envs` times.
        num_envs: at least 1.
        seed: see `VecEnv.reset`.
        final_observations: which last observations to keep in `VecObs.final`.
        first_env: the number of environment 0 in seeds and messages, where this is a part of a larger pool.
        batch_size: how many environments `recv` returns. None: all.
    """

    def __init__(
        self,
        create_env: Callable[[], Environment],
        num_envs: int,
        seed: int = 0,
        final_observations: FinalObservations = "truncated",
        first_env: int = 0,
        batch_size: int | None = None,
    ) -> None:
        slots = PythonSlots(create_env, num_envs, first_env=first_env, final_observations=final_observations)
        super().__init__(slots, batch_size=batch_size, seed=seed)
        self.envs = slots.envs
