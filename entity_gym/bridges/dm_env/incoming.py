"""Environments of dm_env's interface as a pool of entity environments.

    pool = from_dm_env(lambda seed: MyTask(seed), num_envs=64)

Specs are converted to Gymnasium's spaces, and `bridges.gymnasium` does the rest: arrays become numeric features, a
`DiscreteArray` a category or a categorical action, and a nested dictionary an entity type. An episode whose last discount is 0
has terminated, and one with another discount was truncated. Discounts of other steps are not used: the trainer has its own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from entity_gym.bridges.gymnasium.incoming import GymFactory, gymnasium_worlds
from entity_gym.bridges.gymnasium.observations import PlainSpace
from entity_gym.bridges.incoming import Constructor, pool_from
from entity_gym.pools.source import signature_of
from entity_gym.pools.vec_env import VecEnv

#: Parameters by which a function that makes an environment may take its seed.
SEEDS = ("seed", "random", "random_seed", "random_state")


def from_dm_env(env: Callable[..., Any], num_envs: int = 1, seed: int = 0, **options: Any) -> VecEnv:
    """Make a pool of dm_env environments.

    Args:
        env: a class or function that makes an environment.
        num_envs: number of environments.
        seed: dm_env has no seeds after an environment is made, so `env` is called again for environment i with `seed + i`
            whenever the pool is seeded, if it has a parameter called seed, random, random_seed or random_state, or
            `task_kwargs`, of which dm_control's suite takes "random".
        options: those of the pool as in `from_gymnasium`; `view` as in `gymnasium_worlds`; and arguments of `env`.
    """
    return pool_from(dm_worlds, env, num_envs, seed, options)


def dm_worlds(
    env: str | Callable[..., Any],
    *,
    view: str | Path | Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> GymFactory:
    """Return a factory that every pool takes; arguments as in `from_dm_env`, or "package.module:Name"."""
    return gymnasium_worlds(DmConstructor(env, kwargs, "the dm_env environment"), view=view)


class DmConstructor(Constructor):
    """Makes environments of dm_env's interface, and gives them Gymnasium's."""

    def __call__(self, **more: Any) -> DmAsGym:
        parameters, of_task = signature_of(self.make).parameters, self.kwargs.get("task_kwargs") or {}
        name = next((name for name in SEEDS if name in parameters and name not in self.kwargs), None)
        takes_seed = name is not None or ("task_kwargs" in parameters and "random" not in of_task)

        def seeded(seed: int) -> dict[str, Any]:
            return {"task_kwargs": {**of_task, "random": seed}} if name is None else {name: seed}

        return DmAsGym(functools.partial(super().__call__, **more), seeded if takes_seed else None)


class DmAsGym:
    """One dm_env environment (`unwrapped`) with Gymnasium's interface, as far as the bridge needs it.

    Args:
        make: makes the environment.
        seeded: returns the arguments of `make` with which it takes a seed; None if there are none.
    """

    def __init__(self, make: Callable[..., Any], seeded: Callable[[int], dict[str, Any]] | None) -> None:
        self._make, self._seeded = make, seeded
        self.why_unseedable = "" if seeded else f"its constructor has none of the parameters {', '.join(SEEDS)}"
        self.unwrapped: Any = make()
        for method in ("reset", "step", "observation_spec", "action_spec"):
            if not hasattr(self.unwrapped, method):
                raise ValueError(f"{type(self.unwrapped).__name__} is no dm_env environment: it has no {method}()")
        self.observation_space = _space(self.unwrapped.observation_spec(), "observation")
        self.action_space = _space(self.unwrapped.action_spec(), "action")

    def reset(self, *, seed: int | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode; with a seed, in an environment that is made anew."""
        if seed is not None and self._seeded is not None:
            self.close()
            self.unwrapped = self._make(**self._seeded(seed))
        return self.unwrapped.reset().observation, {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take a step."""
        shown = self.unwrapped.step(action)
        ended = bool(shown.last())
        truncated = ended and shown.discount is not None and bool(np.any(shown.discount))
        reward = 0.0 if shown.reward is None else shown.reward
        return shown.observation, reward, ended and not truncated, truncated, {}

    def render(self) -> Any:
        """Draw with `render()` of the environment, or of dm_control's physics."""
        draw = getattr(self.unwrapped, "render", None) or getattr(
            getattr(self.unwrapped, "physics", None), "render", None
        )
        return None if draw is None else draw()

    def close(self) -> None:
        """Release the environment."""
        if hasattr(self.unwrapped, "close"):
            self.unwrapped.close()


def _space(spec: Any, path: str) -> PlainSpace:
    """Convert a spec to a space."""
    if isinstance(spec, Mapping):
        return PlainSpace("Dict", spaces={key: _space(each, f"{path}.{key}") for key, each in spec.items()})
    if isinstance(spec, list | tuple):
        return PlainSpace("Tuple", spaces=tuple(_space(each, f"{path}.{k}") for k, each in enumerate(spec)))
    dtype = np.dtype(getattr(spec, "dtype", object))
    low, high = getattr(spec, "minimum", None), getattr(spec, "maximum", None)
    if dtype.kind not in "biuf" or any(size < 0 for size in spec.shape):
        raise ValueError(
            f"the spec of {path} is {spec!r:.200}; expected numbers of a known shape, in dictionaries or lists: leave others "
            "out in a wrapper"
        )
    if hasattr(spec, "num_values"):
        return PlainSpace("Discrete", n=int(spec.num_values))
    if dtype.kind != "f" and path.startswith("action") and low is None:
        raise ValueError(
            f"the spec of {path} is {spec!r:.200}; whole numbers need bounds: use DiscreteArray or BoundedArray"
        )
    return PlainSpace(
        "Box", tuple(spec.shape), dtype, -np.inf if low is None else low, np.inf if high is None else high
    )
