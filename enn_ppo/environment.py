"""From settings to environments."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from enn_ppo.checkpoints.space_changes import gained_actions, gained_features
from enn_ppo.config import EnvConfig, RolloutConfig
from entity_gym import Environment
from entity_gym.actions import ActionSpace
from entity_gym.actions.kind import has_global_entity
from entity_gym.agents import TrainEnv
from entity_gym.batch.saving import spaces_from_dict
from entity_gym.bridges.incoming import check_arguments
from entity_gym.compiled import CompiledEnvironment
from entity_gym.pools.batch_env import BatchEnvironment
from entity_gym.pools.pool import EnvSource, ThreadedVecEnv, is_compiled
from entity_gym.pools.processes.env import ProcessVecEnv
from entity_gym.pools.slots import SlotsFactory
from entity_gym.pools.vec_env import VecEnv
from entity_gym.registry import look_up, with_parameters
from entity_gym.spaces import GLOBAL_ENTITY, Entity, ObsSpace
from rogue_net.adaptor import ObsAdaptor

#: A compiled environment's class, an environment class, or a function that makes an environment.
EnvFactory = Callable[..., Any]

#: `env.api` -> where the function is that finds a world of that interface: `function(env.id, **env.kwargs)` returns what
#: pools take. Imported when it is used: it may need other packages.
BRIDGES = {
    "gymnasium": "entity_gym.bridges:gymnasium_worlds",
    "dm_env": "entity_gym.bridges:dm_worlds",
    "pettingzoo": "entity_gym.bridges:pettingzoo_worlds",
    "program": "entity_gym.bridges.remote:program_worlds",
}


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

    def make_vec_env(
        self, rollout: RolloutConfig, seed: int, first_env: int = 0, *, background: bool = False
    ) -> VecEnv:
        """The pool that `rollout` asks for.

        Args:
            rollout: how many environments, and how they are stepped.
            seed: of their random numbers.
            first_env: the number of environment 0 in seeds and messages, where this is a part of more.
            background: whether steps that are sent are taken while the caller does something else.

        Raises:
            ValueError: an environment cannot be made, or is not as it must be.
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
    if env is None and config.api in BRIDGES:
        return BoundEnvironment(_across(config), config)
    factory: Any = env
    if env is None:
        registered = look_up(config.id, "env.id")
        factory, kwargs = registered.load("env.id"), registered.arguments() | kwargs
    name = config.id if env is None else f"{getattr(env, '__module__', '?')}:{getattr(env, '__qualname__', repr(env))}"
    return BoundEnvironment(_bind(factory, name, kwargs), replace(config, id=name))


def _across(config: EnvConfig) -> EnvSource:
    """Make the factory of an environment with another interface; errors name the library to install."""
    module, _, name = BRIDGES[config.api].partition(":")
    bridge = getattr(importlib.import_module(module), name)
    try:
        source: EnvSource = bridge(config.id, **config.kwargs)
    except (TypeError, ImportError) as error:
        raise ValueError(f"env.api={config.api} env.id={config.id}: {error}") from error
    return source


def _bind(factory: Any, name: str, kwargs: Mapping[str, Any]) -> EnvSource:
    if is_compiled(factory):
        compiled: CompiledEnvironment = with_parameters(factory, kwargs)
        return compiled
    if _is_vectorised(factory):
        if kwargs:
            raise ValueError(f"env.kwargs {kwargs} cannot be given to {name}, which is vectorised by hand: subclass it")
        vectorised: type[BatchEnvironment] = factory
        return vectorised
    if isinstance(factory, TrainEnv):
        return factory.configured(kwargs)
    if isinstance(factory, SlotsFactory):
        if kwargs:
            raise ValueError(f"env.kwargs {kwargs} cannot be given to {name}, which is made already: {factory!r:.200}")
        return factory
    check_arguments(factory, name, kwargs, "env.kwargs")
    create: Callable[[], Environment] = functools.partial(factory, **kwargs)
    return create


class AdaptedSpaces(NamedTuple):
    """Spaces of a checkpoint's policy, adapted to an environment."""

    obs_space: ObsSpace  # what a network sees there: the features that the checkpoint knows, and new types as they are
    action_space: dict[str, ActionSpace]  # what it does there
    untrained: list[str]  # entity types that the checkpoint does not know; hidden from the others
    adaptor: ObsAdaptor  # shows a network of these spaces what the environment shows
    news: list[str]  # what else it does not know, a line each


def adapt_spaces(
    saved: Mapping[str, Any],
    obs_space: ObsSpace,
    action_space: Mapping[str, ActionSpace],
    *,
    name: str,
    env: str,
) -> AdaptedSpaces:
    """Fit a checkpoint's policy into an environment with these spaces, which may have gained something since.

    Args:
        saved: the checkpoint's spaces.
        obs_space: what the environment shows.
        action_space: what can be done in it.
        name: what messages call the policy, such as "checkpoint out/a/checkpoints/step_000000000100".
        env: the environment's name, for messages.

    Raises:
        ValueError: the environment does not show what the policy needs, or does not take its actions; names the first.
    """
    known, known_actions = spaces_from_dict(saved)
    try:
        seen = _as_known(known, obs_space)
        untrained = [name for name in obs_space.entities if name not in known.entities]
        if untrained and (gone := [name for name in known.entities if name not in obs_space.entities]):
            raise ValueError(f"the entity types {gone} are gone, and {untrained} are new")
        if has_global_entity(seen, action_space) and not has_global_entity(known, known_actions):
            untrained.append(GLOBAL_ENTITY)
        adaptor = ObsAdaptor(seen, obs_space, action_space, untrained)
        of_known = {name: entity for name, entity in seen.entities.items() if name in known.entities}
        news = gained_features(known, ObsSpace(of_known, seen.global_features, seen.global_kinds, seen.targets))
        news += gained_actions(known_actions, action_space)
    except ValueError as error:
        raise ValueError(f"{name} belongs to another environment than {env}: {error}") from None
    return AdaptedSpaces(seen, dict(action_space), untrained, adaptor, news)


def _as_known(known: ObsSpace, offered: ObsSpace) -> ObsSpace:
    """The types of both, with the features that are known, of the kind that they have now."""

    def present(before: Entity, now: Entity) -> Entity:
        return Entity(before.features, {name: kind for name, kind in now.kinds.items() if name in before.features})

    entities = {
        name: present(known.entities[name], entity) if name in known.entities else entity
        for name, entity in offered.entities.items()
    }
    everywhere = present(
        Entity(known.global_features, known.global_kinds), Entity(offered.global_features, offered.global_kinds)
    )
    return ObsSpace({**known.entities, **entities}, everywhere.features, everywhere.kinds, known.targets)
