"""Finding and making the environment that the settings name."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from enn_ppo.settings.config import EnvConfig
from entity_gym.bridges.views.view import included_views, view_mapping
from entity_gym.pools.source import EnvFactory, EnvSource
from entity_gym.registry import LIBRARIES, bind

#: Setting of the environment -> the interfaces that it is for.
_APIS = {"view": ("gymnasium", "dm_env", "pettingzoo"), "wrappers": ("gymnasium", "pettingzoo")}


class BoundEnvironment(NamedTuple):
    """An environment with its parameters, and its settings, by which a checkpoint finds it again."""

    source: EnvSource
    config: EnvConfig


def bind_environment(config: EnvConfig, env: EnvFactory | None = None) -> BoundEnvironment:
    """Find the environment and check its arguments; `env` is used instead of looking `config.id` up.

    Raises:
        ValueError: there is no such environment, or it does not take these arguments.
    """
    if isinstance(config.view, str) and config.view not in included_views():
        config = replace(config, view=view_mapping(config.view))  # the file may be elsewhere, or changed, later
    for name, apis in _APIS.items():
        if getattr(config, name) and config.api not in apis:
            raise ValueError(f"env.{name} is for env.api={' or '.join(apis)}; it is {config.api}")
    if env is None and config.api in LIBRARIES:
        reading = {setting: getattr(config, setting) for setting in _APIS if getattr(config, setting)}
        return BoundEnvironment(bind(f"{config.api}:{config.id}", {**reading, **config.kwargs}), config)
    if env is None:
        return BoundEnvironment(bind(config.id, config.kwargs, option="env.id"), config)
    name = f"{getattr(env, '__module__', '?')}:{getattr(env, '__qualname__', repr(env))}"
    return BoundEnvironment(bind(env, config.kwargs), replace(config, id=name))
