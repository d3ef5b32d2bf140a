"""Worlds with a variable number of things: what a world declares and shows, and pools that step many of them.

To write a world: `Environment` (a Python object), `CompiledEnvironment` (three functions over one record) or
`EnvSlots` (rules over arrays), with the spaces below. To step worlds: `make`, or a pool. To see a batch: `VecObs`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from entity_gym import actions
from entity_gym.actions import *  # noqa: F403 - the spaces, masks and actions of all kinds
from entity_gym.actions.reading import EntityID
from entity_gym.environment import Environment, Observation
from entity_gym.spaces import GLOBAL_ENTITY, Angle, Category, Entity, Flag, ObsSpace

if TYPE_CHECKING:
    from entity_gym.actions.choices import random_actions
    from entity_gym.batch.ragged import RaggedBuffer
    from entity_gym.batch.vec_obs import VecActionMask, VecObs
    from entity_gym.bridges import make_dm, make_gym
    from entity_gym.compiled import CompiledEnvironment
    from entity_gym.pools.pool import ListEnv, ThreadedVecEnv
    from entity_gym.pools.slots import EnvSlots
    from entity_gym.pools.vec_env import VecEnv
    from entity_gym.registry import list_envs, make, make_spec, register

#: Names that are imported when they are used first: the compiler alone takes longer to import than all the rest.
_LATER = {
    "CompiledEnvironment": "compiled",
    "EnvSlots": "pools.slots",
    "ListEnv": "pools.pool",
    "RaggedBuffer": "batch.ragged",
    "ThreadedVecEnv": "pools.pool",
    "VecActionMask": "batch.vec_obs",
    "VecEnv": "pools.vec_env",
    "VecObs": "batch.vec_obs",
    "list_envs": "registry",
    "make": "registry",
    "make_dm": "bridges",
    "make_gym": "bridges",
    "make_spec": "registry",
    "random_actions": "actions.choices",
    "register": "registry",
}

__all__ = [
    "GLOBAL_ENTITY",
    "Angle",
    "Category",
    "CompiledEnvironment",
    "Entity",
    "EntityID",
    "Environment",
    "EnvSlots",
    "Flag",
    "ListEnv",
    "ObsSpace",
    "Observation",
    "RaggedBuffer",
    "ThreadedVecEnv",
    "VecActionMask",
    "VecEnv",
    "VecObs",
    "list_envs",
    "make",
    "make_dm",
    "make_gym",
    "make_spec",
    "random_actions",
    "register",
]
__all__ += actions.__all__


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_LATER[name]}"), name)
