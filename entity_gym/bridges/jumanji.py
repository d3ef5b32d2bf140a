"""Jumanji's environments with Gymnasium's interface, of which JAX compiles the functions once for all of a kind.

python -m enn_ppo.train env=gymnasium env.id=entity_gym.bridges.jumanji:JumanjiEnv env.kwargs.id=TSP-v1 env.view=tsp
"""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

_compiled: dict[
    str, Any
] = {}  # id and arguments -> a wrapper whose functions JAX has compiled, or will at its first reset


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
        self._env = copy.copy(_compiled[key])  # with a state and random numbers of its own
        self.observation_space, self.action_space = self._env.observation_space, self._env.action_space
        self.spec = SimpleNamespace(id=id)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Start an episode; return observation and info."""
        return self._env.reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        """Take a step; return observation, reward, terminated, truncated and info."""
        return self._env.step(action)

    def render(self) -> Any:
        """Draw the environment."""
        return self._env.render()
