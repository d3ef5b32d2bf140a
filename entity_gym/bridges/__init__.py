"""Bridges to other libraries: `from_...` makes a pool of their environments, `to_...` and `make_...` make theirs of ours.

Modules are imported when a name is used, since each needs its own library. Programs in other languages: `bridges.remote`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from entity_gym.bridges.dm_env.envs import make_dm, to_dm_env
    from entity_gym.bridges.dm_env.incoming import dm_worlds, from_dm_env
    from entity_gym.bridges.gymnasium.envs import make_gym, to_gymnasium
    from entity_gym.bridges.gymnasium.incoming import from_gymnasium, gymnasium_worlds
    from entity_gym.bridges.pettingzoo.envs import to_pettingzoo
    from entity_gym.bridges.pettingzoo.incoming import from_pettingzoo, pettingzoo_worlds

__all__ = [
    "dm_worlds",
    "from_dm_env",
    "from_gymnasium",
    "from_pettingzoo",
    "gymnasium_worlds",
    "make_dm",
    "make_gym",
    "pettingzoo_worlds",
    "to_dm_env",
    "to_gymnasium",
    "to_pettingzoo",
]

_MODULES = {
    "dm_env.envs": ("make_dm", "to_dm_env"),
    "dm_env.incoming": ("dm_worlds", "from_dm_env"),
    "gymnasium.envs": ("make_gym", "to_gymnasium"),
    "gymnasium.incoming": ("from_gymnasium", "gymnasium_worlds"),
    "pettingzoo.envs": ("to_pettingzoo",),
    "pettingzoo.incoming": ("from_pettingzoo", "pettingzoo_worlds"),
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
