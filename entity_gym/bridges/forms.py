"""The interfaces in which `make(..., env_type=...)` returns a pool."""

from __future__ import annotations

from typing import Any

from entity_gym.pools.spec import EnvSpec, EnvType
from entity_gym.pools.vec_env import VecEnv


def as_form(pool: VecEnv, spec: EnvSpec, env_type: EnvType) -> Any:
    """Return `pool` as a `GymnasiumVectorEnv` or `DmVecEnv`, or itself for "entity".

    Raises:
        ValueError: if the environment does not fit the interface.
        ImportError: naming what to install.
    """
    if env_type == "gymnasium":
        from entity_gym.bridges.gymnasium.envs import GymnasiumVectorEnv

        return GymnasiumVectorEnv(pool, spec, spec.config.render_mode)
    if env_type == "dm":
        from entity_gym.bridges.dm_env.envs import DmVecEnv

        return DmVecEnv(pool, spec)
    return pool
