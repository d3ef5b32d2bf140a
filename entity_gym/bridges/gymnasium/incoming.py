"""Pools of Gymnasium environments, those with the interface of the old gym included.

    pool = from_gymnasium("CartPole-v1", num_envs=64)

The module `observations` converts observation spaces, and the module `actions` converts action spaces. The info of the last
step of an episode is its `end_of_episode_info`; `info["action_mask"]` closes choices.

Gymnasium's interface is `reset(seed=, options=) -> (observation, info)` and `step(action) -> (observation, reward, terminated,
truncated, info)`. Older interfaces work as well: `seed(number)`, `reset()` or `reset(env_info=...)` that return the observation
alone, and `step` that returns `(observation, reward, done, info)`, where `info["TimeLimit.truncated"]` marks a truncated episode.

Shapes: N environments of the pool, n of one call, F features, C choices.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

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
    SelectEntityAction,
    SelectEntityActionMask,
)
from entity_gym.batch.batching import check_features
from entity_gym.batch.ragged import RaggedBuffer, offsets_of
from entity_gym.batch.vec_obs import VecAction, VecActionMask, VecObs
from entity_gym.bridges.gymnasium.actions import GymActions, Masks
from entity_gym.bridges.gymnasium.observations import (
    AGENT,
    Features,
    GymObservations,
    infer_space,
    kind_of,
    members_of,
)
from entity_gym.bridges.gymnasium.tuple_agents import TupleAgents, has_agents
from entity_gym.bridges.incoming import (
    Constructor,
    Executor,
    check_installed,
    make_pool,
    making,
    naming_extras,
    parameters_of,
)
from entity_gym.bridges.installed import packages_using, registered_ids
from entity_gym.bridges.masks import IN_INFO, MaskReader
from entity_gym.bridges.pettingzoo.incoming import PettingZooEnvironment
from entity_gym.bridges.views.reading import FLAT, Numbers, ViewReader
from entity_gym.bridges.views.view import View, load_view
from entity_gym.bridges.wrappers import Wrapper, load_wrappers, wrapped
from entity_gym.environment import Environment, Observation
from entity_gym.errors import NoPictureError, warn_caller
from entity_gym.pools.python_slots import PythonSlots
from entity_gym.pools.slots import (
    EnvIds,
    EnvSlots,
    FinalObservations,
    Run,
    SlotOptions,
    check_distinct,
    check_num_envs,
    check_seed,
)
from entity_gym.pools.source import EnvSource, own_values
from entity_gym.pools.vec_env import VecEnv
from entity_gym.registry import import_module
from entity_gym.spaces import GLOBAL_ENTITY, LARGEST_FLOAT32, ObsSpace

#: How messages call the argument that names an environment.
_OPTION = "the Gymnasium environment"
#: Namespace of environment ids -> pip package, where the two names differ.
_PACKAGES = {"ALE": "ale-py"}
#: Key of the info of a step in Gymnasium's toy text: the probability of the last transition, which is no result of an episode.
_PROBABILITY, _TOY_TEXT = "prob", "gymnasium.envs.toy_text."
_CUT = "TimeLimit.truncated"

#: Attribute of the environment -> advice for an environment whose space changes between episodes.
_IF_IT_VARIES = {
    "observation_space": "observations, with Sequence or Graph for what varies in number",
    "action_space": 'actions, and close those that cannot be taken with info["action_mask"]',
}


# ---- for users


class GymOptions(NamedTuple):
    """How an environment's spaces are read; see `from_gymnasium`."""

    observation_space: Any = None
    action_space: Any = None
    global_features: bool = False
    view: str | Path | Mapping[str, Any] | View | None = None
    agents: bool | None = None


AS_DECLARED = GymOptions()


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
    view: str | Path | Mapping[str, Any] | View | None = None,
    agents: bool | None = None,
    wrappers: Sequence[str | Wrapper] = (),
    **kwargs: Any,
) -> VecEnv:
    """Make a pool of Gymnasium environments.

    Args:
        env: an id such as "CartPole-v1" or "my_module:MyEnv-v0", a class, a function that makes an environment, or a list of
            environments.
        num_envs: number of environments. None: one, or the length of the list.
        seed: environment i is seeded with `seed + i`.
        executor: "list" steps the environments in the calling thread, "thread" in several threads (`ThreadedVecEnv`), "process"
            in worker processes (`ProcessVecEnv`).
        autoreset: whether a new episode follows each that ends. Otherwise each environment plays one episode, and the batch
            shrinks as they end (see `VecEnv`).
        num_workers: number of threads or processes. None: one for each core, at most one for each environment.
        final_observations: which last observations to keep in `VecObs.final`.
        observation_space: replaces the environment's own. If an environment declares none, the space is inferred
            from its first observation.
        action_space: replaces the environment's own.
        global_features: show the outermost numbers as global features instead of features of the entity `Agent`.
        view: what of the observation is an entity: a name of `included_views()`, a YAML file, or a mapping with its content.
        agents: each member of the Tuple spaces is an agent with a reward of its own, as in PettingZoo. None: if the environment
            has `n_agents` of them.
        wrappers: put around each environment, the innermost first: classes or functions, or "package.module:Name(size=3)".
        kwargs: arguments of the environment.

    Returns:
        A pool; `reset(env_info=...)` gives each environment its `options`.

    Raises:
        ValueError: for an environment that is not found or cannot be made, spaces that have no form as entities, or arguments
            that do not go together.
        ImportError: if an id needs Gymnasium, which is not installed.
    """
    options = GymOptions(observation_space, action_space, global_features, view, agents)
    factory = GymFactory(env, options, wrappers, **kwargs)
    many = factory.num_instances or 1 if num_envs is None else num_envs
    return make_pool(factory, many, seed, executor, autoreset, num_workers, final_observations)


def gymnasium_worlds(env: Any, wrappers: Sequence[str | Wrapper] = (), **kwargs: Any) -> GymFactory:
    """Return a factory of Gymnasium environments that every pool takes; arguments as in `from_gymnasium`, without the pool's."""
    options = {name: kwargs.pop(name) for name in GymOptions._fields if name in kwargs}
    return GymFactory(env, GymOptions(**options), wrappers, **kwargs)


class GymFactory(EnvSource):
    """Makes Gymnasium environments for any pool : one alone, or several with slots of their own.

    Args:
        env: as in `from_gymnasium`.
        options: how its spaces are read.
        wrappers: as in `from_gymnasium`.
        kwargs: arguments of the environment.

    Attributes:
        num_instances: the length of the list of environments, if `env` is one.

    Raises:
        ValueError: if there is no such environment.
    """

    def __init__(
        self,
        env: Any,
        options: GymOptions = AS_DECLARED,
        wrappers: Sequence[str | Wrapper] = (),
        **kwargs: Any,
    ) -> None:
        if options.view is not None:
            options = options._replace(view=load_view(options.view))
        self._options = options
        self._wrappers = load_wrappers(wrappers)
        self.name = env if isinstance(env, str) else getattr(env, "__name__", type(env).__name__)
        self._instances: list[Any] | None = None
        self._make: Callable[[], Any] | None = None
        if isinstance(env, str):
            self._make = _by_id(env, kwargs)
        elif callable(env) and not (hasattr(env, "reset") and not isinstance(env, type)):
            self._make = env if isinstance(env, Constructor) else Constructor(env, kwargs, _OPTION)
        elif isinstance(env, Sequence) and len(env):
            self._instances = _made_already(env, kwargs)
        elif hasattr(env, "reset"):
            raise ValueError(
                f"env is one {type(env).__name__} object; give its class, a function that makes one, or a list of environments"
            )
        else:
            raise ValueError(f"env is {env!r:.200}; expected an id, a class, a function, or a list of environments")

    @property
    def num_instances(self) -> int | None:
        return None if self._instances is None else len(self._instances)

    def as_environment(self) -> Environment:
        (env,) = self._made(0, 1)
        return self._of_agents(env) if self._has_agents(env) else GymnasiumEnvironment(GymWorld(env, self._options))

    def make_slots(
        self,
        num_envs: int,
        options: SlotOptions = SlotOptions(),
    ) -> EnvSlots:
        """Make slots of several environments; arguments as in `EnvSlots`."""
        check_num_envs(num_envs)
        envs = self._made(options.first_env, num_envs)
        try:
            if self._has_agents(envs[0]):
                each = iter(envs)
                return PythonSlots(lambda: self._of_agents(next(each)), num_envs, options)
            return GymSlots([GymWorld(env, self._options) for env in envs], options)
        except BaseException:
            if self._make is not None:
                _close(envs)
            raise

    def _made(self, first: int, many: int) -> list[Any]:
        if self._instances is not None and first + many > len(self._instances):
            raise ValueError(f"num_envs asks for {first + many} environments, and the list has {len(self._instances)}")
        envs: list[Any] = []
        try:
            for i in range(first, first + many):
                if self._make is None:
                    assert self._instances is not None
                    envs.append(wrapped(self._instances[i], self._wrappers))
                else:
                    envs.append(self._make())
                    envs[-1] = wrapped(envs[-1], self._wrappers)
            check_distinct(envs, f"{self.name} returned")
        except BaseException:
            if self._make is not None:
                _close(envs)
            raise
        return envs

    def _has_agents(self, env: Any) -> bool:
        return has_agents(env) if self._options.agents is None else self._options.agents

    def _of_agents(self, env: Any) -> PettingZooEnvironment:
        """Make an environment whose agents are entities."""
        check_is_gym(env)
        view = self._options.view
        return PettingZooEnvironment(TupleAgents(env, name_of(env)), view=None if view is None else load_view(view))


# ---- one environment


class GymWorld:
    """One environment: its spaces as entities and actions, its next seed and options, and checks of all that it returns.

    Args:
        env: closed with this object.
        options: how its spaces are read.

    Attributes:
        where: the name of the environment in messages.
        warns: warn, once, if the environment cannot be seeded.
        masks: reads the masks of its actions.

    Raises:
        ValueError: if it is no such environment, or has spaces that have no form as entities.
    """

    def __init__(self, env: Any, options: GymOptions = AS_DECLARED) -> None:
        check_is_gym(env)
        self.env = env
        self.name = self.where = name_of(env)
        self.warns = True
        is_toy_text = type(getattr(env, "unwrapped", env)).__module__.startswith(_TOY_TEXT)
        self._no_results = {*IN_INFO, *([_PROBABILITY] if is_toy_text else [])}
        self._seed: int | None = None
        self._options: dict[str, Any] = {}
        self._declared = {side: _declared(env, side) for side in ("observation_space", "action_space")}
        self._takes = {name: _takes(env, name) for name in ("seed", "options", "env_info", "return_info")}
        action_space = self._declared["action_space"] if options.action_space is None else options.action_space
        if action_space is None:
            raise ValueError(
                f"{self.name} declares no action space: give action_space=..., a space of gymnasium.spaces"
            )
        space = self._declared["observation_space"] if options.observation_space is None else options.observation_space
        self._expected = "the observation space"
        # An observation of a Tuple(..., Dict) space could be taken for the pair (observation, info).
        self._shows_pairs = space is not None and kind_of(space) == "Tuple"
        self._shows_pairs &= self._shows_pairs and [kind_of(each) for _, each in members_of(space)][1:] == ["Dict"]
        shown = None
        if space is None:
            self._expected = "the first observation, since no observation_space is declared"
            self._seed = 0
            with making(self.name):
                shown = self._reset()[0]
        try:
            space = infer_space(shown) if space is None else space
            self.actions = GymActions(action_space)
            self.action_space: Mapping[str, ActionSpace] = self.actions.action_space
            view = None if options.view is None else load_view(options.view)
            self.masks = MaskReader(self.name, self.actions, space, env, view)
            space = self.masks.space
            self.view = None if view is None else ViewReader(view, space)
            self.observations: GymObservations | ViewReader
            if self.view is None:
                self.observations = GymObservations(space, global_features=options.global_features)
            else:
                self.observations = self.view
                self.action_space = self.view.action_space(self.actions.action_space)
        except ValueError as error:
            raise ValueError(f"{self.name}: {error}") from None

    def reseed(self, seed: int) -> None:
        """Seed the environment with the next `reset`."""
        self._seed = seed

    def configure(self, info: Mapping[str, Any]) -> None:
        """Update the options of the following episodes; raises ValueError if `reset` takes none."""
        if not (self._takes["options"] or self._takes["env_info"]):
            raise ValueError(
                f"{self.where} takes no env_info: its reset() has neither `options` nor `env_info` among its parameters"
            )
        self._options = {**self._options, **info}

    def reset(self, to: MutableMapping[str, Features]) -> Masks:
        """Start an episode, write its first observation to `to`, and return the masks of its first actions.

        Raises:
            ValueError: for an observation outside the space, or if the spaces have changed.
        """
        observation, info = self._reset()
        for side, before in self._declared.items():
            now = _declared(self.env, side)
            if now is not before and not _same(now, before):
                raise ValueError(
                    f"{self.where}: {side} was {before} and is {now} after reset(): spaces must not change; declare one that "
                    f"holds all {_IF_IT_VARIES[side]}"
                )
        self._write(observation, to, "reset")
        return self._masks(observation, info, "reset")

    def step(
        self, action: Any, to: MutableMapping[str, Features]
    ) -> tuple[float, bool, bool, Mapping[str, Any], Masks]:
        """Take a step and write its observation to `to`.

        Returns:
            Reward, terminated, truncated, info, and the masks of the next actions.

        Raises:
            ValueError: for values outside the spaces, or of another type than `step` must return.
        """
        result = self.env.step(action)
        if type(result) is not tuple or len(result) != 5:
            result = self._as_five(result)
        observation, reward, terminated, truncated, info = result
        # Every step of every environment comes here, so values of the expected type are not checked twice.
        if type(terminated) is not bool or type(truncated) is not bool:
            terminated, truncated = self._flag(terminated, "terminated"), self._flag(truncated, "truncated")
        if type(reward) is not float or not -LARGEST_FLOAT32 <= reward <= LARGEST_FLOAT32:
            reward = self._number(reward)
        if type(info) is not dict and not isinstance(info, Mapping):
            raise ValueError(f"{self.where}: step() returned the info {info!r:.200}; expected a dictionary")
        self._write(observation, to, "step")
        masks = {} if terminated or truncated else self._masks(observation, info, "step")
        return reward, terminated, truncated and not terminated, info, masks

    def results(self, info: Mapping[str, Any]) -> dict[str, Any]:
        """Return the `end_of_episode_info` of an episode from the info of its last step."""
        return {name: value for name, value in info.items() if name not in self._no_results}

    def render(self) -> NDArray[np.uint8]:
        """Draw the current state as a (height, width, 3) image; raises NoPictureError if the environment was not made for it."""
        render = getattr(self.env, "render", None)
        if render is None:
            raise NoPictureError(f"{self.where} has no render()")
        modes = (getattr(self.env, "metadata", None) or {}).get("render_modes", ())
        if "mode" in parameters_of(render):
            image = render(mode="rgb_array")
        elif "rgb_array" in modes and getattr(self.env, "render_mode", "unknown") is None:
            image = None  # it could draw, and was made without a render mode: it would warn every time
        else:
            image = render()
        if isinstance(image, list) and image:
            image = image[-1]
        array = None if image is None else np.asarray(image)
        if array is None or array.ndim != 3 or array.shape[2] != 3:
            raise NoPictureError(
                f"{self.where}: render() returned {image!r:.80}; expected an image (height, width, 3). Make the "
                "environment with render_mode='rgb_array'; in training with env.kwargs.render_mode=rgb_array, in evaluation with "
                "env_kwargs.render_mode=rgb_array"
            )
        return array.astype(np.uint8, copy=False)

    def close(self) -> None:
        """Release the environment."""
        close = getattr(self.env, "close", None)
        if close is not None:
            close()

    def _reset(self) -> tuple[Any, Mapping[str, Any]]:
        """Call `reset` with the arguments that it has; returns observation and info."""
        arguments: dict[str, Any] = {}
        seed, self._seed = self._seed, None
        if seed is not None:
            why = getattr(self.env, "why_unseedable", "")
            if self._takes["seed"]:
                arguments["seed"] = seed
            elif callable(getattr(self.env, "seed", None)):
                self.env.seed(seed)
            else:
                why = why or "it has neither reset(seed=...) nor seed()"
            if why and self.warns:
                warn_caller(f"{self.name} cannot be seeded: {why}; its episodes differ in every run")
                self.warns = False
        if self._options:
            arguments["options" if self._takes["options"] else "env_info"] = dict(self._options)
        if self._takes["return_info"]:
            arguments["return_info"] = True
        result = self.env.reset(**arguments)
        is_pair = isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping)
        if is_pair and not (self._shows_pairs and not self._takes["seed"]):
            return result[0], result[1]
        return result, {}

    def _write(self, observation: Any, to: MutableMapping[str, Features], method: str) -> None:
        try:
            self.observations.write(self.masks.rest(observation), to)
        except ValueError as error:
            raise ValueError(f"{self.where}: {method}() does not fit {self._expected}: {error}") from None

    def _masks(self, observation: Any, info: Mapping[str, Any], method: str) -> Masks:
        try:
            return self.masks.read(observation, info)
        except ValueError as error:
            raise ValueError(f"{self.where}: {method}(): {error}") from None

    def _as_five(self, result: Any) -> tuple[Any, Any, Any, Any, Any]:
        """Convert the result of an older `step`."""
        size = len(result) if isinstance(result, tuple | list) else 0
        if size == 5:
            return tuple(result)
        if size != 4:
            raise ValueError(
                f"{self.where}: step() returned {result!r:.200}; expected (observation, reward, terminated, truncated, info), or "
                "(observation, reward, done, info) of an older environment"
            )
        observation, reward, done, info = result
        cut = isinstance(info, Mapping) and self._flag(info.get(_CUT, False), _CUT)
        done = self._flag(done, "done")
        return observation, reward, done and not cut, done and cut, {} if info is None else info

    def _flag(self, value: Any, name: str) -> bool:
        if value is True or value is False:
            return value
        if np.ndim(value) or np.asarray(value).dtype.kind not in "biu" or value not in (0, 1):
            raise ValueError(f"{self.where}: step() returned {name}={value!r:.200}; expected a bool")
        return bool(value)

    def _number(self, value: Any) -> float:
        if not isinstance(value, float | int):
            array = np.asarray(value)
            if array.size != 1 or array.dtype.kind not in "biuf":
                several = "; if each member of its Tuple spaces is an agent, give agents=True" if array.size > 1 else ""
                raise ValueError(f"{self.where}: step() returned the reward {value!r:.200}; expected a number{several}")
            value = array.item()
        if not abs(value) <= LARGEST_FLOAT32:
            raise ValueError(
                f"{self.where}: step() returned the reward {value!r}; it must be a finite number that float32 can hold"
            )
        return float(value)


def check_is_gym(env: Any) -> None:
    """Raise ValueError unless `env` is one environment of Gymnasium's interface."""
    name = type(env).__name__
    if hasattr(env, "single_observation_space"):
        raise ValueError(f"{name} is a vector environment; give what makes one single environment")
    if hasattr(env, "obs_space"):
        raise ValueError(f"{name} has entities already: give it to ListEnv, ThreadedVecEnv or ProcessVecEnv as it is")
    if isinstance(env, type) or not callable(getattr(env, "reset", None)) or not callable(getattr(env, "step", None)):
        raise ValueError(f"{env!r:.200} is no environment of Gymnasium's interface: it has no reset() and step()")


def name_of(env: Any) -> str:
    """Return the id of an environment, or the name of its class."""
    name = getattr(getattr(env, "spec", None), "id", None)
    return name if isinstance(name, str) else type(getattr(env, "unwrapped", env)).__name__


def _declared(env: Any, side: str) -> Any:
    """Return a space that the environment declares, or None."""
    try:
        return getattr(env, side, None)
    except NotImplementedError:
        return None


def _same(now: Any, before: Any) -> bool:
    try:
        return bool(now == before)
    except ValueError:  # arrays in a space of the user's own class
        return repr(now) == repr(before)


def _takes(env: Any, name: str) -> bool:
    """Return whether `reset` has this parameter; `**kwargs` pass on what the wrapped environment or Gymnasium takes."""
    parameters = parameters_of(env.reset)
    if name in parameters:
        return True
    if not any(each.kind == each.VAR_KEYWORD for each in parameters.values()):
        return False
    inner = getattr(env, "env", None)
    return name in ("seed", "options") if inner is None else _takes(inner, name)


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
        self.unwrapped = getattr(self.world.env, "unwrapped", self.world.env)
        self.display_name = self.world.name  # by messages of pools

    @property
    def found_masks(self) -> str:
        """The place of the action masks, such as 'info["action_mask"]'; "" if none was found up to now."""
        return self.world.masks.found

    @property
    def left_out(self) -> list[str]:
        """Names of the numbers of an observation that a view shows nowhere."""
        return [] if self.world.view is None else self.world.view.left_out

    def obs_space(self) -> ObsSpace:
        return self.world.observations.obs_space

    def action_space(self) -> Mapping[str, ActionSpace]:
        return self.world.action_space

    def reseed(self, seed: int, number: int) -> None:
        super().reseed(seed, number)
        self.world.where = f"{self.world.name} (environment {number})"
        self.world.masks.is_quiet = number != 0  # one line for all
        self.world.reseed(seed + number)

    def configure(self, info: Mapping[str, Any]) -> None:
        self.world.configure(info)

    def reset(self) -> Observation:
        features = self.world.observations.empty()
        return self._shown(features, self.world.reset(features))

    def act(self, actions: Mapping[str, Action]) -> Observation:
        chosen: dict[str, NDArray[Any]] = {}
        for name, action in actions.items():
            if isinstance(action, SelectEntityAction):
                (actee,) = action.actees
                chosen[name] = np.array([0 if actee is None else actee[1]])  # type: ignore[index]
            else:
                assert isinstance(action, CategoricalAction | ContinuousAction)
                chosen[name] = action.values if isinstance(action, ContinuousAction) else action.actions
        features = self.world.observations.empty()
        reward, terminated, truncated, info, masks = self.world.step(self.world.actions.decode(chosen, 1)[0], features)
        shown = self._shown(features, masks)
        shown.reward, shown.done, shown.truncated = reward, terminated or truncated, truncated
        if shown.done:
            shown.actions = {}
            shown.end_of_episode_info = self.world.results(info)
        return shown

    def render(self) -> NDArray[np.uint8]:
        return self.world.render()

    def close(self) -> None:
        self.world.close()

    def _shown(self, features: dict[str, Features], masks: Masks) -> Observation:
        view = self.world.view
        if view is not None:
            return _viewed(view, features[FLAT], masks, self.action_space())
        everywhere = features.pop(GLOBAL_ENTITY, ())
        return Observation(
            features={name: np.atleast_2d(rows) for name, rows in features.items()},
            ids={AGENT: [AGENT]},
            actions={name: _offer(space, [AGENT], masks.get(name)) for name, space in self.action_space().items()},
            global_features=everywhere,
        )


def _offer(space: ActionSpace, actor_ids: list[Any], mask: NDArray[np.bool_] | None) -> ActionMask:
    if isinstance(space, ContinuousActionSpace):
        return ContinuousActionMask(actor_ids=actor_ids)
    return CategoricalActionMask(actor_ids=actor_ids, mask=None if mask is None else mask[None])


def _viewed(view: ViewReader, row: Numbers, masks: Masks, spaces: Mapping[str, ActionSpace]) -> Observation:
    """Return the entities of one observation (R,); their ids are (type, row)."""
    seen = view.read(row[None])
    numbers = {
        name: range(view.num_rows[name]) if each.present is None else np.flatnonzero(each.present[0]).tolist()
        for name, each in seen.items()
    }
    opened = view.open_choices(row[None])
    actions: dict[str, ActionMask] = {}
    for name, space in spaces.items():
        mask = _both(masks.get(name), None if opened is None else opened[0])
        actors = [(view.actor, 0)]
        entity_type = view.view.select.get(name)
        if entity_type is None:
            actions[name] = _offer(space, actors, mask)
        else:
            its = None if mask is None else mask[None, list(numbers[entity_type])]
            actions[name] = SelectEntityActionMask(actor_ids=actors, actee_types=[entity_type], mask=its)
    everywhere = view.global_features(row[None])
    return Observation(
        features={name: each.packed() for name, each in seen.items()},
        ids={name: [(name, number) for number in its] for name, its in numbers.items()},
        actions=actions,
        global_features=() if everywhere is None else everywhere[0],
    )


def _both(one: NDArray[np.bool_] | None, other: NDArray[np.bool_] | None) -> NDArray[np.bool_] | None:
    """Return where both masks are open; None is open everywhere."""
    return other if one is None else one if other is None else one & other


# ---- many environments


class GymSlots(EnvSlots):
    """N Gymnasium environments with the same spaces, stepped one after the other; each writes into arrays of all.

    In every frame one entity acts. `close` closes the environments; environment i is seeded with `seed + first_env + i`.

    Raises:
        ValueError: if the spaces differ.
    """

    one_by_one = True

    def __init__(
        self,
        worlds: Sequence[GymWorld],
        options: SlotOptions = SlotOptions(),
    ) -> None:
        self.worlds = list(worlds)
        first = self.worlds[0]
        self._observations, self._actions, self._view = first.observations, first.actions, first.view
        super().__init__(len(self.worlds), options, self._observations.obs_space, first.action_space, first.name)
        for i, world in enumerate(self.worlds):
            _check_same(first, world, i)
            world.where = self.where(i)
            world.warns = i == 0  # one warning for all
            world.masks.is_quiet = options.first_env + i != 0
        self._empty = self._observations.empty()
        fixed = [name for name, count in self._observations.counts.items() if count is not None]
        # Entity type of which there is always one, or FLAT -> (N, F).
        self._fixed = {name: np.zeros((len(self), *self._empty[name].shape), np.float32) for name in fixed}
        # The arrays of each environment: views of `_fixed`, and arrays of its own for types with a varying number of entities.
        self._shown = [
            {**self._empty, **{name: all_[i] for name, all_ in self._fixed.items()}} for i in range(len(self))
        ]
        self._masks: dict[str, NDArray[np.bool_]] = {}  # action -> (N, C), once a choice was closed
        self._reward = np.zeros(len(self), np.float32)
        self._done, self._truncated = np.zeros(len(self), np.bool_), np.zeros(len(self), np.bool_)
        self._elapsed = np.zeros(len(self), np.int64)
        # environment -> report on the episode that ended with the last step
        self._infos: dict[int, Mapping[str, Any]] = {}
        self._finals: dict[int, tuple[VecObs, int]] = {}  # environment -> last observations, and its row there

    def seed(self, seed: int) -> None:
        check_seed(seed)
        for i, world in enumerate(self.worlds):
            world.reseed(seed + self.options.first_env + i)

    def configure(self, ids: EnvIds, env_info: Sequence[Mapping[str, Any]]) -> None:
        for i in ids.tolist():
            self.worlds[i].configure({})  # raises if the environment takes none, before any is changed
        for i, info in zip(ids.tolist(), env_info, strict=True):
            self.worlds[i].configure(info)

    def reset(self, ids: EnvIds, worker: int = 0) -> None:
        self._begin(ids)
        self._reward[ids], self._done[ids], self._truncated[ids] = 0, False, False
        self._forget(ids)

    def step(self, actions: Mapping[str, VecAction], ids: EnvIds, lo: int, hi: int, worker: int = 0) -> None:
        mine = ids[lo:hi]
        chosen: dict[str, NDArray[Any]] = {}
        for name, space in self._actions.action_space.items():
            values = actions[name][lo:hi].values
            chosen[name] = values if isinstance(space, ContinuousActionSpace) else values[:, 0]
        if self._view is not None and self._view.view.select:
            seen = self._view.read(self._fixed[FLAT][mine])
            for name, entity_type in self._view.view.select.items():
                chosen[name] = self._view.rows_of(entity_type, seen, chosen[name])
        rewards, terminated, truncated, ended = [], [], [], {}
        for i, action in zip(mine.tolist(), self._actions.decode(chosen, len(mine)), strict=True):
            try:
                reward, over, cut, info, masks = self.worlds[i].step(action, self._shown[i])
            except Exception as error:
                error.add_note(f"raised by {self.worlds[i].where} in step()")
                raise
            if masks or self._masks:
                self._close_choices(i, masks)
            rewards.append(reward)
            terminated.append(over)
            truncated.append(cut)
            if over or cut:
                ended[i] = self.worlds[i].results(info)
        self._forget(mine)
        self._elapsed[mine] += 1
        self._reward[mine] = rewards
        self._truncated[mine] = truncated
        self._done[mine] = np.array(terminated, np.bool_) | truncated
        self._infos.update(ended)
        if self.options.autoreset and ended:
            self._start_again(np.array(list(ended), np.int64))

    def collect(self, ids: EnvIds, run: Run) -> VecObs:
        obs = self._pack(ids)
        obs.final = self._final(ids)
        return obs

    def render(self, i: int) -> NDArray[np.uint8]:
        return self.worlds[i].render()

    def close(self) -> None:
        errors = []
        for world in self.worlds:
            try:
                world.close()
            except Exception as error:  # the other environments must be closed as well
                errors.append(error)
        if errors:
            raise errors[0]

    def _begin(self, ids: EnvIds) -> None:
        """Start episodes."""
        for i in ids.tolist():
            try:
                self._close_choices(i, self.worlds[i].reset(self._shown[i]))
            except Exception as error:
                error.add_note(f"raised by {self.worlds[i].where} in reset()")
                raise
        self._elapsed[ids] = 0

    def _start_again(self, ended: EnvIds) -> None:
        """Keep what is wanted of the episodes that ended, and start the next ones."""
        wanted = {"all": ended, "truncated": ended[self._truncated[ended]], "none": ended[:0]}
        keep = wanted[self.options.final_observations]
        if len(keep):
            last = self._pack(keep, last=True)
            self._finals.update({i: (last, row) for row, i in enumerate(keep.tolist())})
        self._begin(ended)

    def _forget(self, ids: EnvIds) -> None:
        """Drop what is reported once: infos and last observations."""
        if self._infos or self._finals:
            for i in ids.tolist():
                self._infos.pop(i, None)
                self._finals.pop(i, None)

    def _final(self, ids: EnvIds) -> VecObs | None:
        kept = [self._finals[i] for i in ids.tolist() if i in self._finals]
        parts = []
        while kept:
            batch = kept[0][0]  # those of one step were packed together
            together = next((k for k, (other, _) in enumerate(kept) if other is not batch), len(kept))
            parts.append(batch.gather(np.array([row for _, row in kept[:together]])))
            kept = kept[together:]
        return VecObs.cat(parts) if parts else None

    def _pack(self, ids: EnvIds, *, last: bool = False) -> VecObs:
        """Return what the environments show; `last`: the last observations of their episodes, in which nobody acts."""
        features, masks = self._read(ids, last=last)
        return VecObs(
            features=features,
            action_masks=masks,
            reward=self._reward[ids],
            done=self._done[ids],
            truncated=self._truncated[ids],
            env_id=ids.copy(),
            elapsed_step=self._elapsed[ids],
            end_of_episode_info={i: self._infos[i] for i in ids.tolist() if self._infos.get(i)},
        )

    def _read(
        self, ids: EnvIds, *, last: bool = False
    ) -> tuple[dict[str, RaggedBuffer[np.float32]], dict[str, VecActionMask]]:
        """Return the features by type, and the offers by action, of n environments."""
        n, view = len(ids), self._view
        shown: dict[str, tuple[NDArray[np.float32], NDArray[np.int64]]] = {}  # type -> (entities, F), and (n,) how many
        present: dict[str, NDArray[np.bool_] | None] = {}  # type of a view -> (n, I) which rows are entities
        opened = None
        if view is None:
            for name, count in self._observations.counts.items():
                if count is None:
                    parts = [self._shown[i][name] for i in ids.tolist()]
                    counts = np.array([len(part) for part in parts], np.int64)
                    shown[name] = np.concatenate([self._empty[name], *parts]), counts
                else:
                    shown[name] = self._fixed[name][ids], np.ones(n, np.int64)
        else:
            rows = self._fixed[FLAT][ids]
            for name, seen in view.read(rows).items():
                shown[name], present[name] = (seen.packed(), seen.counts()), seen.present
            everywhere, opened = view.global_features(rows), view.open_choices(rows)
            if everywhere is not None:
                shown[GLOBAL_ENTITY] = everywhere, np.ones(n, np.int64)
        features = {}
        for name in (*self._reader.widths, *((GLOBAL_ENTITY,) if self._reader.has_global else ())):
            values, counts = shown[name]
            features[name] = RaggedBuffer(np.ascontiguousarray(values, np.float32), offsets_of(counts))
            check_features(name, features[name], ids, self._reader)

        firsts, total = {}, np.zeros(n, np.int64)  # (n,) entity index of the first of each type
        for name in self._reader.widths:
            firsts[name], total = total, total + shown[name][1]
        acts = np.full(n, not last) if self.options.autoreset else ~self._done[ids]
        actors = RaggedBuffer(
            firsts[AGENT if view is None else view.actor][acts][:, None], offsets_of(acts.astype(np.int64))
        )
        closed, masks = dict(self._masks), {}  # other workers may add to it meanwhile
        for name in self._reader.action_space:
            mask = _both(closed[name][ids] if name in closed else None, opened)
            selected = None if view is None else view.view.select.get(name)
            if selected is None:
                self._require_open(name, mask, acts, ids)
                choices = None if mask is None else RaggedBuffer(mask[acts], actors.offsets)
                masks[name] = VecActionMask(actors, mask=choices)
                continue
            counts = np.where(acts, shown[selected][1], 0)
            offsets = offsets_of(counts)
            indices = np.arange(offsets[-1]) + np.repeat(firsts[selected] - offsets[:-1], counts)
            pairs = None
            if mask is not None:
                rows_there = present[selected]
                there = np.ones_like(mask) if rows_there is None else rows_there
                self._require_open(name, (mask & there) | ~there.any(axis=1, keepdims=True), acts, ids)
                pairs = RaggedBuffer(mask[there & acts[:, None]][:, None], offsets)
            masks[name] = VecActionMask(actors, RaggedBuffer(indices[:, None], offsets), pairs)
        return features, masks

    def _require_open(self, action: str, mask: NDArray[np.bool_] | None, acts: NDArray[np.bool_], ids: EnvIds) -> None:
        """Raise a ValueError if everything is closed, in `mask` (n, C), to one of the actors."""
        if mask is None or not (closed := acts & ~mask.any(axis=1)).any():
            return
        raise ValueError(
            f"{self.where(int(ids[closed.argmax()]))}: action {action!r}: everything is masked; leave something open"
        )

    def _close_choices(self, i: int, masks: Masks) -> None:
        """Set the masks of environment `i`; everything else is open to it."""
        for name in masks.keys() - self._masks.keys():
            every = np.ones((len(self), len(masks[name])), np.bool_)
            self._masks.setdefault(name, every)  # atomic: other threads step other environments
        for name, every in list(self._masks.items()):
            every[i] = masks.get(name, True)


def _check_same(first: GymWorld, world: GymWorld, i: int) -> None:
    for side, one, other in (
        ("observation", first.observations.obs_space, world.observations.obs_space),
        ("observation", first.observations.counts, world.observations.counts),
        ("action", first.action_space, world.action_space),
        ("action", first.actions.firsts, world.actions.firsts),
    ):
        if one != other:
            raise ValueError(
                f"the environments of a pool must have the same spaces: as entities, the {side} space of environment 0 "
                f"({first.name}) is {one}, and that of environment {i} ({world.name}) is {other}"
            )


# ---- how environments are found


def _made_already(envs: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """Return the environments of a list; raises ValueError for what is no list of different environments."""
    for each in envs:
        if isinstance(each, type) or (callable(each) and not hasattr(each, "reset")):
            name = getattr(each, "__name__", type(each).__name__)
            raise ValueError(
                f"the list has {name}, which makes environments; give {name} itself, with num_envs={len(envs)}, or a list of "
                "environments: [make() for make in makes]"
            )
    if kwargs:
        raise ValueError(
            f"the arguments {list(kwargs)} are for making environments; those in the list are made already"
        )
    check_distinct(envs, "the list has")
    return list(envs)


def _close(envs: Sequence[Any]) -> None:
    for env in envs:
        with suppress(Exception):  # another error is being raised
            env.close()


def _by_id(name: str, kwargs: Mapping[str, Any]) -> Callable[[], Any]:
    """Return the constructor of an id, or of the class or function at "module:Name"."""
    package, colon, rest = name.rpartition(":")
    if colon:
        check_installed(name)
        with naming_extras():
            module = import_module(f"{package.replace('-', '_')}:{rest}", _OPTION)  # which may register ids
        known = getattr(sys.modules.get("gymnasium"), "registry", {})
        if callable(getattr(module, rest, None)) or (rest.isidentifier() and rest not in known):
            return Constructor(name, kwargs, _OPTION)
    try:
        import gymnasium
    except ImportError as error:
        raise ImportError(f'environments by id need Gymnasium ({error}): pip install "enn-ppo[gymnasium]"') from error
    try:
        spec = gymnasium.spec(rest)
    except gymnasium.error.Error as error:
        hint, near = _hint(rest, [] if colon else packages_using("gymnasium"), list(gymnasium.registry))
        if isinstance(error, gymnasium.error.NamespaceNotFound) and not near:
            namespace = rest.partition("/")[0]
            distribution = _PACKAGES.get(namespace)
            hint = (
                f"; ids of {namespace}/ come with {distribution or 'a package of their own'}: install that, and name its module "
                f"as well, as in {(distribution or 'its_module').replace('-', '_')}:{rest}"
            )
        reason = str(error).removesuffix(".")
        raise ValueError(f"{name!r} is no environment that Gymnasium knows: {reason}{hint}") from None
    return _FromSpec(name, spec, dict(kwargs))


def _hint(env_id: str, packages: Sequence[str], registered: Sequence[str]) -> tuple[str, bool]:
    """Return the end of a message about an unknown id, and whether it names an environment.

    Args:
        env_id: the id that Gymnasium does not know.
        packages: packages whose import may register more ids.
        registered: ids that Gymnasium knows.
    """
    ids = {package: ids for package in packages if (ids := registered_ids(package)) is not None}
    if there := [package for package in ids if env_id in ids[package]]:
        return f"; it is an environment of {there[0]}: {there[0]}:{env_id}", True
    names = {each: each for each in registered} | {
        f"{package}:{each}": each for package in ids for each in ids[package]
    }
    by_id = {each: written for written, each in names.items()} | {each: each for each in registered}
    if near := [by_id[each] for each in difflib.get_close_matches(env_id, by_id, n=3)]:
        return f"; near are {', '.join(map(repr, near))}", True
    if ids:
        listed = ", ".join(ids)
        return f"; ids of a package are written package:id, which imports it first; installed are {listed}", False
    return "", False


class _FromSpec:
    """Makes environments of a Gymnasium spec. Worker processes get the spec itself: its id may not be registered there."""

    def __init__(self, name: str, spec: Any, kwargs: dict[str, Any]) -> None:
        self._name, self._spec, self._kwargs = name, spec, kwargs

    def __call__(self) -> Any:
        import gymnasium

        try:
            with making(self._name):
                # GymWorld checks all that is returned.
                return gymnasium.make(self._spec, disable_env_checker=True, **own_values(self._kwargs))
        except (gymnasium.error.Error, TypeError, ImportError) as error:
            arguments = f" with {self._kwargs}" if self._kwargs else ""
            raise ValueError(f"Gymnasium cannot make {self._name!r}{arguments}: {error}") from error
