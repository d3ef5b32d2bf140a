"""Finding and making the environment that the settings name."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from enn_ppo.settings.config import EnvConfig, RolloutConfig
from entity_gym import Environment
from entity_gym.agents import TrainEnv
from entity_gym.bridges.incoming import check_arguments
from entity_gym.bridges.views import included_views, view_mapping
from entity_gym.compiled import CompiledEnvironment
from entity_gym.pools.pool import EnvSource, ThreadedVecEnv, is_compiled, is_slots
from entity_gym.pools.processes.env import ProcessVecEnv
from entity_gym.pools.slots import SlotsFactory
from entity_gym.pools.vec_env import VecEnv
from entity_gym.registry import look_up, with_parameters

#: A compiled environment's class, an environment class, or a function that makes an environment.
EnvFactory = Callable[..., Any]

#: `env.api` -> import path of `function(env.id, **env.kwargs)`, which returns an environment source for pools. Imported on use,
#: since it may need other packages.
BRIDGES = {
    "gymnasium": "entity_gym.bridges:gymnasium_worlds",
    "dm_env": "entity_gym.bridges:dm_worlds",
    "pettingzoo": "entity_gym.bridges:pettingzoo_worlds",
    "program": "entity_gym.bridges.remote:program_worlds",
}

#: Setting of the environment -> the interfaces that it is for.
_APIS = {"view": ("gymnasium", "dm_env", "pettingzoo"), "wrappers": ("gymnasium", "pettingzoo")}


class BoundEnvironment(NamedTuple):
    """An environment source together with its settings."""

    source: (
        EnvSource  # a compiled environment with its parameters, a vectorised class, or a Python environment's factory
    )
    config: EnvConfig  # names `source`, so that a checkpoint can find it again

    def create(self) -> Environment:
        """Make a single environment.

        Raises:
            ValueError: the environment is vectorised by hand and has no single form.
        """
        source: Any = self.source
        if isinstance(source, CompiledEnvironment):
            return source.as_environment()
        if is_slots(source):
            raise ValueError(f"{self.config.id} is vectorised by hand and has no form that can be drawn one by one")
        made: Environment = source()
        return made

    def make_vec_env(
        self, rollout: RolloutConfig, seed: int, first_env: int = 0, *, background: bool = False
    ) -> VecEnv:
        """Make the pool that `rollout` describes.

        Args:
            rollout: number of environments, and how they are stepped.
            seed: of their random numbers.
            first_env: number of the pool's first environment in seeds and messages.
            background: whether the pool steps while the caller does something else.

        Raises:
            ValueError: an environment cannot be made, or breaks its contract.
        """
        if rollout.num_processes:
            return ProcessVecEnv(self.source, rollout.num_envs, rollout.num_processes, seed=seed, first_env=first_env)
        return ThreadedVecEnv(
            self.source,
            rollout.num_envs,
            rollout.num_threads,
            seed=seed,
            first_env=first_env,
            background=background,
        )


def bind_environment(config: EnvConfig, env: EnvFactory | None = None) -> BoundEnvironment:
    """Find the environment and check its arguments.

    Args:
        config: the environment's name and arguments.
        env: used instead of looking `config.id` up.

    Raises:
        ValueError: there is no such environment, or it does not take these arguments.
    """
    kwargs = dict(config.kwargs)
    if isinstance(config.view, str) and config.view not in included_views():
        config = replace(config, view=view_mapping(config.view))  # the file may be elsewhere, or changed, later
    for name, apis in _APIS.items():
        if getattr(config, name) and config.api not in apis:
            raise ValueError(f"env.{name} is for env.api={' or '.join(apis)}; it is {config.api}")
    if env is None and config.api in BRIDGES:
        return BoundEnvironment(_across(config), config)
    factory: Any = env
    if env is None:
        registered = look_up(config.id, "env.id")
        factory = registered.load("env.id")
        kwargs = registered.arguments(factory) | kwargs
    name = config.id if env is None else f"{getattr(env, '__module__', '?')}:{getattr(env, '__qualname__', repr(env))}"
    return BoundEnvironment(_bind(factory, name, kwargs), replace(config, id=name))


def _across(config: EnvConfig) -> EnvSource:
    """Make the factory of an environment with another interface; errors name the library to install."""
    module, _, name = BRIDGES[config.api].partition(":")
    reading = {setting: getattr(config, setting) for setting in _APIS if getattr(config, setting)}
    bridge = getattr(importlib.import_module(module), name)
    try:
        source: EnvSource = bridge(config.id, **reading, **config.kwargs)
    except (TypeError, ImportError) as error:
        raise ValueError(f"env.api={config.api} env.id={config.id}: {error}") from error
    return source


def _bind(factory: Any, name: str, kwargs: Mapping[str, Any]) -> EnvSource:
    if is_compiled(factory):
        compiled: CompiledEnvironment = with_parameters(factory, kwargs)
        return compiled
    if is_slots(factory):
        slots: EnvSource = with_parameters(factory, kwargs)
        return slots
    if isinstance(factory, TrainEnv):
        return factory.configured(kwargs)
    if isinstance(factory, SlotsFactory):
        if kwargs:
            raise ValueError(f"env.kwargs {kwargs} cannot be given to {name}, which is made already: {factory!r:.200}")
        return factory
    check_arguments(factory, name, kwargs, "env.kwargs")
    create: Callable[[], Environment] = with_parameters(factory, kwargs)
    return create
