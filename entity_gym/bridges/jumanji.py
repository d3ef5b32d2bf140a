"""Jumanji's environments with Gymnasium's interface, of which JAX compiles the functions once for all of a kind.

python -m enn_ppo.train env=gymnasium env.id=entity_gym.bridges.jumanji:JumanjiEnv env.kwargs.id=TSP-v1 env.view=tsp
"""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

# id and arguments -> a wrapper whose functions JAX has compiled, or will at its first reset
_compiled: dict[str, Any] = {}


class JumanjiEnv:
    """One Jumanji environment; all with the same arguments share the compiled functions.

    Args:
        id: such as "TSP-v1".
        kwargs: further arguments of `jumanji.make`.
    """

    def __init__(self, id: str, **kwargs: Any) -> None:
        key = f"{id} {sorted(kwargs.items())!r}"
        if key not in _compiled:
            import jumanji
            from jumanji.wrappers import JumanjiToGymWrapper

            _compiled[key] = JumanjiToGymWrapper(jumanji.make(id, **kwargs))
        env = copy.copy(_compiled[key])  # with a state and random numbers of its own
        self.observation_space, self.action_space = env.observation_space, env.action_space
        self.reset, self.step, self.render = env.reset, env.step, getattr(env, "render", lambda: None)
        self.spec = SimpleNamespace(id=id)
