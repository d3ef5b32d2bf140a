"""The pools that bridges make."""

from __future__ import annotations

import os
from typing import Literal, get_args

from entity_gym.errors import nearest
from entity_gym.pools.episodes import EpisodeVecEnv
from entity_gym.pools.pool import EnvSource, ThreadedVecEnv
from entity_gym.pools.slots import FinalObservations, check_num_envs
from entity_gym.pools.vec_env import VecEnv

Executor = Literal["list", "thread", "process"]


def make_bridge_pool(
    env: EnvSource,
    num_envs: int,
    seed: int = 0,
    executor: Executor = "list",
    autoreset: bool = True,
    num_workers: int | None = None,
    final_observations: FinalObservations = "truncated",
) -> VecEnv | EpisodeVecEnv:
    """A pool of environments from elsewhere; arguments as in `from_gymnasium`.

    Raises:
        ValueError: for arguments that cannot be, or do not go together.
    """
    if executor not in get_args(Executor):
        raise ValueError(f"executor is {executor!r}; {nearest(executor, get_args(Executor))}")
    if executor == "list" and num_workers not in (None, 1):
        raise ValueError(f"num_workers is {num_workers}, which is for executor='thread' or 'process'; it is 'list'")
    check_num_envs(num_envs)
    if num_workers is not None and num_workers < 1:
        raise ValueError(f"num_workers is {num_workers}; it must be at least 1, or None for one for each core")
    workers = 1 if executor == "list" else min(num_envs, num_workers or os.cpu_count() or 1)
    if not autoreset:
        if executor == "process":
            raise ValueError("autoreset=False is not there for executor='process'; use 'list' or 'thread'")
        return EpisodeVecEnv(env, num_envs, workers, seed)
    if executor == "process":
        from entity_gym.pools.processes.env import ProcessVecEnv

        return ProcessVecEnv(env, num_envs, workers, seed=seed, final_observations=final_observations)
    return ThreadedVecEnv(env, num_envs, workers, seed=seed, final_observations=final_observations)
