"""From settings to environments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from enn_ppo.config import EnvConfig
from entity_gym import Environment
from entity_gym.registry import find_environment
from entity_gym.saving import spaces_difference, spaces_to_dict
from entity_gym.spaces import ActionSpace, ObsSpace

#: An environment class, or a function that makes one.
EnvFactory = Callable[..., Environment]


class BoundEnvironment(NamedTuple):
    """An environment that only needs to be made."""

    create: Callable[[], Environment]
    config: EnvConfig  # names what `create` makes, so that a checkpoint can find it again


def bind_environment(config: EnvConfig, env: EnvFactory | None = None) -> BoundEnvironment:
    """Find the environment and check its arguments.

    Args:
        config: what to look up, and the arguments.
        env: used instead of looking `config.id` up.

    Raises:
        ValueError: there is no such environment, or it does not take these arguments.
    """
    factory = find_environment(config.id) if env is None else env
    name = config.id if env is None else f"{getattr(env, '__module__', '?')}:{getattr(env, '__qualname__', repr(env))}"
    _check_arguments(name, factory, config.kwargs)
    return BoundEnvironment(lambda: factory(**config.kwargs), EnvConfig(id=name, kwargs=config.kwargs))


def check_same_spaces(
    saved: Mapping[str, Any],
    obs_space: ObsSpace,
    action_space: Mapping[str, ActionSpace],
    *,
    checkpoint: object,
    env: str,
) -> None:
    """Check that a checkpoint was trained in an environment with these spaces.

    Raises:
        ValueError: naming the first difference.
    """
    difference = spaces_difference(saved, spaces_to_dict(obs_space, action_space))
    if difference:
        raise ValueError(f"checkpoint {checkpoint} belongs to another environment than {env}: {difference}")


def _check_arguments(name: str, factory: EnvFactory, kwargs: Mapping[str, Any]) -> None:
    try:
        signature = inspect.signature(factory)
    except (TypeError, ValueError):  # some callables have none to look at
        return
    try:
        signature.bind(**kwargs)
    except TypeError as error:
        raise ValueError(f"env.kwargs {dict(kwargs)} do not fit {name}{signature}: {error}") from error
