"""Environments of Gymnasium's interface as a pool of entity environments.

    pool = from_gymnasium("CartPole-v1", num_envs=64)

`gym_spaces` says what becomes of observations, `gym_actions` of actions, and `gym_world` which environments there can be. What
the info of the last step of an episode says is its `end_of_episode_info`; `info["action_mask"]` closes choices.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions import (
    Action,
    ActionMask,
    ActionSpace,
    CategoricalAction,
    CategoricalActionMask,
    ContinuousAction,
    ContinuousActionMask,
    ContinuousActionSpace,
)
from entity_gym.bridges.gym_actions import Masks
from entity_gym.bridges.gym_features import Rows
from entity_gym.bridges.gym_slots import GymSlots
from entity_gym.bridges.gym_spaces import AGENT
from entity_gym.bridges.gym_world import ACTION_MASK, AS_DECLARED, GymOptions, GymWorld
from entity_gym.bridges.makers import Maker, making, naming_extras
from entity_gym.bridges.pools import Executor, make_bridge_pool
from entity_gym.environment import Environment, Observation
from entity_gym.pools.episodes import EpisodeVecEnv
from entity_gym.pools.slots import FinalObservations, check_num_envs
from entity_gym.pools.vec_env import VecEnv
from entity_gym.registry import import_module
from entity_gym.spaces import GLOBAL_ENTITY, ObsSpace

#: What messages call the argument that names an environment.
_OPTION = "the Gymnasium environment"
#: Namespace of ids -> the package that has it, where its name does not say so.
_PACKAGES = {"ALE": "ale-py"}


def from_gymnasium(
    env: str | Callable[..., Any] | Sequence[Any],
    num_envs: int | None = None,
    seed: int = 0,
    executor: Executor = "list",
    autoreset: bool = True,
    *,
    num_workers: int | None = None,
    final_observations: FinalObservations = "truncated",
    observation_space: Any = None,
    action_space: Any = None,
    global_features: bool = False,
    rows: Sequence[str] = (),
    **kwargs: Any,
) -> VecEnv | EpisodeVecEnv:
    """A pool of Gymnasium environments.

    Args:
        env: an id such as "CartPole-v1" or "my_module:MyEnv-v0", a class, a function that makes an environment, or a list of
            environments.
        num_envs: how many. None: one, or as many as the list has.
        seed: environment i is seeded with `seed + i`.
        executor: "list" steps them in this thread, "thread" in several (`ThreadedVecEnv`), "process" in processes of their own
            (`ProcessVecEnv`).
        autoreset: whether episodes follow on one another without end, in a `VecEnv`. False: each environment plays one episode,
            and the batch shrinks as they end, in an `EpisodeVecEnv`.
        num_workers: threads or processes. None: one for each core, at most one for each environment.
        final_observations: which last observations to keep in `VecObs.final`.
        observation_space: in place of the environment's own. Observations of one that declares none are all as its first one is.
        action_space: in place of the environment's own.
        global_features: show the outermost numbers as global features, and not as those of the entity `Agent`.
        rows: paths of Boxes, such as "ships", whose rows are entities; "Item" where the observation itself is the Box.
        kwargs: arguments with which the environment is made.

    Returns:
        A pool, whose `reset(env_info=...)` hands each environment its `options`.

    Raises:
        ValueError: for an environment that is not there or cannot be made, spaces that have no form as entities, or arguments
            that do not go together.
        ImportError: an id needs Gymnasium; says how to install it.
    """
    options = GymOptions(
        observation_space, action_space, global_features, rows if isinstance(rows, str) else tuple(rows)
    )
    factory = GymFactory(env, options, **kwargs)
    many = factory.num_instances or 1 if num_envs is None else num_envs
    return make_bridge_pool(factory, many, seed, executor, autoreset, num_workers, final_observations)


def gymnasium_worlds(env: Any, **kwargs: Any) -> GymFactory:
    """What makes environments for any pool; arguments as of `from_gymnasium`, but for those of the pool itself."""
    options = {name: kwargs.pop(name) for name in GymOptions._fields if name in kwargs}
    return GymFactory(env, GymOptions(**options), **kwargs)


class GymFactory:
    """Makes Gymnasium environments for any pool, one alone or with slots of their own (`SlotsFactory`).

    Args:
        env: as in `from_gymnasium`.
        options: how spaces are read.
        kwargs: arguments with which the environment is made.

    Attributes:
        num_instances: how many environments were given, where they were not to be made.

    Raises:
        ValueError: if there is no such environment.
    """

    def __init__(self, env: Any, options: GymOptions = AS_DECLARED, **kwargs: Any) -> None:
        self._options = options
        self._instances: list[Any] | None = None
        if isinstance(env, str):
            self._make = _by_id(env, kwargs)
        elif callable(env) and not (hasattr(env, "reset") and not isinstance(env, type)):
            self._make = env if isinstance(env, Maker) else Maker(env, kwargs, _OPTION)
        elif isinstance(env, Sequence) and len(env):
            self._instances = _made_already(env, kwargs)
        elif hasattr(env, "reset"):
            raise ValueError(f"env is one {type(env).__name__} object; give [it] as a list, or what makes one")
        else:
            raise ValueError(f"env is {env!r:.200}; expected an id, a class, a function, or a list of environments")

    @property
    def num_instances(self) -> int | None:
        return None if self._instances is None else len(self._instances)

    def __call__(self) -> GymnasiumEnvironment:
        """One environment alone."""
        return GymnasiumEnvironment(self._worlds(0, 1)[0])

    def make_slots(
        self,
        num_envs: int,
        *,
        first_env: int = 0,
        autoreset: bool = True,
        final_observations: FinalObservations = "truncated",
    ) -> GymSlots:
        """Slots for several; arguments as in `EnvSlots`."""
        check_num_envs(num_envs)
        worlds = self._worlds(first_env, num_envs)
        try:
            return GymSlots(worlds, first_env=first_env, autoreset=autoreset, final_observations=final_observations)
        except BaseException:
            _close(worlds)
            raise

    def _worlds(self, first: int, many: int) -> list[GymWorld]:
        if self._instances is not None:
            if first + many > len(self._instances):
                raise ValueError(
                    f"num_envs asks for {first + many} environments, and the list has {len(self._instances)}"
                )
            return [GymWorld(env, self._options) for env in self._instances[first : first + many]]
        worlds: list[GymWorld] = []
        try:
            for _ in range(many):
                worlds.append(GymWorld(self._make(), self._options))
        except BaseException:
            _close(worlds)
            raise
        return worlds


class GymnasiumEnvironment(Environment):
    """One Gymnasium environment as an entity environment; in pools, `from_gymnasium` is several times as fast.

    Args:
        env: the environment, or a `GymWorld` of it.
        options: how its spaces are read.

    Raises:
        ValueError: for spaces that have no form as entities.
    """

    def __init__(self, env: Any, options: GymOptions = AS_DECLARED) -> None:
        self.world = env if isinstance(env, GymWorld) else GymWorld(env, options)
        self.display_name = self.world.name  # by messages of pools

    def obs_space(self) -> ObsSpace:
        return self.world.observations.obs_space

    def action_space(self) -> Mapping[str, ActionSpace]:
        return self.world.actions.action_space

    def reseed(self, seed: int, number: int) -> None:
        super().reseed(seed, number)
        self.world.where = f"{self.world.name} (environment {number})"
        self.world.reseed(seed + number)

    def configure(self, info: Mapping[str, Any]) -> None:
        self.world.configure(info)

    def reset(self) -> Observation:
        rows = self.world.observations.empty()
        return self._shown(rows, self.world.reset(rows))

    def act(self, actions: Mapping[str, Action]) -> Observation:
        chosen: dict[str, NDArray[Any]] = {}
        for name, action in actions.items():
            assert isinstance(action, CategoricalAction | ContinuousAction)
            chosen[name] = action.values if isinstance(action, ContinuousAction) else action.actions
        rows = self.world.observations.empty()
        step = self.world.step(self.world.actions.decode(chosen, 1)[0], rows)
        shown = self._shown(rows, step.masks)
        shown.reward, shown.done, shown.truncated = step.reward, step.terminated or step.truncated, step.truncated
        if shown.done:
            shown.actions = {}
            shown.end_of_episode_info = {key: value for key, value in step.info.items() if key != ACTION_MASK}
        return shown

    def render(self) -> NDArray[np.uint8]:
        return self.world.render()

    def close(self) -> None:
        self.world.close()

    def _shown(self, rows: dict[str, Rows], masks: Masks) -> Observation:
        everywhere = rows.pop(GLOBAL_ENTITY, None)
        actions: dict[str, ActionMask] = {}
        for name, space in self.action_space().items():
            mask = masks.get(name)
            actions[name] = (
                ContinuousActionMask(actor_types=[AGENT])
                if isinstance(space, ContinuousActionSpace)
                else CategoricalActionMask(actor_types=[AGENT], mask=None if mask is None else mask[None])
            )
        return Observation(
            features=rows,
            ids={AGENT: [AGENT]},
            actions=actions,
            global_features=() if everywhere is None else everywhere[0],
        )


def _made_already(envs: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """The environments of a list."""
    for each in envs:
        if isinstance(each, type) or (callable(each) and not hasattr(each, "reset")):
            name = getattr(each, "__name__", type(each).__name__)
            raise ValueError(
                f"the list has {name}, which makes environments; give it alone, with num_envs={len(envs)}, or a list of what "
                "such functions return: [make() for make in makes]"
            )
    if kwargs:
        raise ValueError(
            f"the arguments {list(kwargs)} are for making environments; those in the list are made already"
        )
    if len({id(each) for each in envs}) != len(envs):
        raise ValueError("the list has one environment twice; each is stepped by itself, so make as many as you need")
    return list(envs)


def _close(worlds: Sequence[GymWorld]) -> None:
    for world in worlds:
        with suppress(Exception):  # something else is being raised
            world.close()


def _by_id(name: str, kwargs: Mapping[str, Any]) -> Callable[[], Any]:
    """What makes the environment of an id, or the class or function at "module:Name"."""
    _, colon, rest = name.rpartition(":")
    if colon:
        with naming_extras():
            module = import_module(name, _OPTION)  # which may register ids
        known = getattr(sys.modules.get("gymnasium"), "registry", {})
        if callable(getattr(module, rest, None)) or (rest.isidentifier() and rest not in known):
            return Maker(name, kwargs, _OPTION)
    try:
        import gymnasium
    except ImportError as error:
        raise ImportError(f'environments by id need Gymnasium ({error}): pip install "enn-ppo[gymnasium]"') from error
    try:
        spec = gymnasium.spec(rest)
    except gymnasium.error.Error as error:
        near = difflib.get_close_matches(rest, gymnasium.registry, n=3)
        hint = f"; near are {', '.join(map(repr, near))}" if near else ""
        if isinstance(error, gymnasium.error.NamespaceNotFound) and not near:
            hint = _elsewhere(rest)
        raise ValueError(f"{name!r} is no environment that Gymnasium knows: {error}{hint}") from None
    # The spec goes to worker processes, which have not run the code that registered it. What is returned is checked here anyway.
    return _FromSpec(name, spec, dict(kwargs))


def _elsewhere(env_id: str) -> str:
    """How an id is found that another package has."""
    namespace = env_id.partition("/")[0]
    package = _PACKAGES.get(namespace)
    module = "its_module" if package is None else package.replace("-", "_")
    return (
        f"; ids of {namespace}/ come with {package or 'a package of their own'}: install that, and name its module as well, "
        f"as in {module}:{env_id}"
    )


class _FromSpec:
    def __init__(self, name: str, spec: Any, kwargs: dict[str, Any]) -> None:
        self._name, self._spec, self._kwargs = name, spec, kwargs

    def __call__(self) -> Any:
        import gymnasium

        try:
            with making(self._name):
                return gymnasium.make(self._spec, disable_env_checker=True, **self._kwargs)
        except (gymnasium.error.Error, TypeError, ImportError) as error:
            arguments = f" with {self._kwargs}" if self._kwargs else ""
            raise ValueError(f"Gymnasium cannot make {self._name!r}{arguments}: {error}") from error
