"""From settings to environments."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from enn_ppo.config import EnvConfig, RolloutConfig
from entity_gym import Environment
from entity_gym.batch_env import BatchEnvironment
from entity_gym.compiled import CompiledEnvironment
from entity_gym.list_env import ListEnv
from entity_gym.process_env import ProcessVecEnv
from entity_gym.registry import look_up
from entity_gym.saving import spaces_difference, spaces_from_dict, spaces_to_dict
from entity_gym.spaces import ActionSpace, ObsSpace
from entity_gym.threaded_env import EnvSource, ThreadedVecEnv
from entity_gym.vec_env import VecEnv
from rogue_net.adaptor import ObsAdaptor

#: A compiled environment's class, an environment class, or a function that makes an environment.
EnvFactory = Callable[..., Any]


class BoundEnvironment(NamedTuple):
    """An environment that only needs to be made."""

    source: (
        EnvSource  # a compiled environment with its parameters, a vectorised one's class, or what makes a Python one
    )
    config: EnvConfig  # names `source`, so that a checkpoint can find it again

    def create(self) -> Environment:
        """One plain environment.

        Raises:
            ValueError: for an environment that is vectorised by hand: it has no such form.
        """
        source: Any = self.source
        if isinstance(source, CompiledEnvironment):
            return source.as_environment()
        if _is_vectorised(source):
            raise ValueError(f"{self.config.id} is vectorised by hand and has no form that can be drawn one by one")
        made: Environment = source()
        return made

    def make_vec_env(self, rollout: RolloutConfig, seed: int) -> VecEnv:
        """The pool that `rollout` asks for.

        Raises:
            ValueError: an environment cannot be made, or is not as it must be.
        """
        if rollout.num_processes:
            return ProcessVecEnv(self.source, rollout.num_envs, rollout.num_processes, seed=seed)
        is_native = isinstance(self.source, CompiledEnvironment) or _is_vectorised(self.source)
        if is_native or rollout.num_threads != 1:
            return ThreadedVecEnv(self.source, rollout.num_envs, rollout.num_threads, seed=seed)
        return ListEnv(self.create, rollout.num_envs, seed)


def _is_vectorised(source: object) -> bool:
    return isinstance(source, type) and issubclass(source, BatchEnvironment)


def bind_environment(config: EnvConfig, env: EnvFactory | None = None) -> BoundEnvironment:
    """Find the environment and check its arguments.

    Args:
        config: what to look up, and the arguments.
        env: used instead of looking `config.id` up.

    Raises:
        ValueError: there is no such environment, or it does not take these arguments.
    """
    kwargs = dict(config.kwargs)
    factory: Any = env
    if env is None:
        registered = look_up(config.id, "env.id")
        factory, kwargs = registered.load("env.id"), registered.arguments() | kwargs
    name = config.id if env is None else f"{getattr(env, '__module__', '?')}:{getattr(env, '__qualname__', repr(env))}"
    return BoundEnvironment(_bind(factory, name, kwargs), EnvConfig(id=name, kwargs=config.kwargs))


def _bind(factory: Any, name: str, kwargs: Mapping[str, Any]) -> EnvSource:
    if isinstance(factory, CompiledEnvironment):
        return type(factory)(**{**factory.values, **kwargs})
    if isinstance(factory, type) and issubclass(factory, CompiledEnvironment):
        return factory(**kwargs)
    if _is_vectorised(factory):
        if kwargs:
            raise ValueError(f"env.kwargs {kwargs} cannot be given to {name}, which is vectorised by hand: subclass it")
        vectorised: type[BatchEnvironment] = factory
        return vectorised
    _check_arguments(name, factory, kwargs)
    create: Callable[[], Environment] = functools.partial(factory, **kwargs)
    return create


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


def adapt_spaces(
    saved: Mapping[str, Any],
    obs_space: ObsSpace,
    action_space: Mapping[str, ActionSpace],
    *,
    checkpoint: object,
    env: str,
) -> ObsAdaptor:
    """What shows a checkpoint's policy the observations of an environment with these spaces, as it knows them.

    Raises:
        ValueError: the environment has other actions, or does not show what the policy needs.
    """
    known, _ = spaces_from_dict(saved)
    try:
        adaptor = ObsAdaptor(known, obs_space, action_space)
    except ValueError as error:
        raise ValueError(f"checkpoint {checkpoint} belongs to another environment than {env}: {error}") from None
    check_same_spaces(saved, known, action_space, checkpoint=checkpoint, env=env)
    return adaptor


def _check_arguments(name: str, factory: EnvFactory, kwargs: Mapping[str, Any]) -> None:
    try:
        signature = inspect.signature(factory)
    except (TypeError, ValueError):  # some callables have none to look at
        return
    try:
        signature.bind(**kwargs)
    except TypeError as error:
        raise ValueError(f"env.kwargs {dict(kwargs)} do not fit {name}{signature}: {error}") from error
