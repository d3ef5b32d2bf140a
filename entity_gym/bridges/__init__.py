"""Bridges to other libraries: `from_...` makes a pool of their environments, `to_...` and `make_...` make theirs of ours.

Modules are imported when a name is used, since each needs its own library. Programs in other languages: `bridges.remote`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from entity_gym.bridges.dm_env.incoming import dm_worlds, from_dm_env
    from entity_gym.bridges.gymnasium.incoming import from_gymnasium, gymnasium_worlds
    from entity_gym.bridges.outgoing import make_dm, make_gym, to_dm_env, to_gymnasium, to_pettingzoo
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

_MODULES = {"gymnasium": "gymnasium.incoming", "dm": "dm_env.incoming", "pettingzoo": "pettingzoo.incoming"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    library = name.removeprefix("from_").partition("_")[0]
    module = "outgoing" if name.startswith(("to_", "make_")) else _MODULES[library]
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)
