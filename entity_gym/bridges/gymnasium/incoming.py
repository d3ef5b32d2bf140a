"""Pools of Gymnasium environments.

    pool = from_gymnasium("CartPole-v1", num_envs=64)

`entity_gym.bridges.views.reading` says what of an observation is an entity, the module `actions` converts action spaces, and
`entity_gym.bridges.masks` finds the masks that close choices. The info of the last step of an episode is its
`end_of_episode_info`.

Shapes: N environments of the pool, n of one call, F features, C choices.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions import ActionSpace
from entity_gym.batch.batching import check_features
from entity_gym.batch.ragged import RaggedBuffer, offsets_of
from entity_gym.batch.vec_obs import INSTANCE, VecAction, VecActionMask, VecObs
from entity_gym.bridges.gymnasium.actions import GymActions, Masks
from entity_gym.bridges.gymnasium.observations import Row, Varying
from entity_gym.bridges.gymnasium.tuple_agents import TupleAgents, has_agents
from entity_gym.bridges.incoming import (
    Constructor,
    Wrapper,
    load_wrappers,
    naming_extras,
    picture_of,
    pool_from,
    wrapped,
)
from entity_gym.bridges.masks import IN_INFO, MaskReader
from entity_gym.bridges.pettingzoo.incoming import PettingZooEnvironment
from entity_gym.bridges.views.reading import ViewReader
from entity_gym.bridges.views.view import View, load_view
from entity_gym.environment import Environment
from entity_gym.errors import check_whole, warn_caller
from entity_gym.pools.one import SlotEnvironment
from entity_gym.pools.python_slots import PythonSlots
from entity_gym.pools.slots import EnvIds, EnvSlots, EpisodeSeeds, Run, SlotOptions, check_distinct
from entity_gym.pools.source import EnvSource, signature_of
from entity_gym.pools.vec_env import VecEnv
from entity_gym.registry import import_module
from entity_gym.spaces import LARGEST_FLOAT32

#: How messages call the argument that names an environment.
_OPTION = "the Gymnasium environment"
_INTERFACE = (
    "expected Gymnasium's reset(seed=, options=) -> (observation, info) and step(action) -> (observation, reward, terminated, "
    "truncated, info); environments of the older gym get it from shimmy.GymV21CompatibilityV0 (pip install shimmy)"
)


# ---- for users


def from_gymnasium(env: str | Callable[..., Any], num_envs: int = 1, seed: int = 0, **options: Any) -> VecEnv:
    """Make a pool of Gymnasium environments.

    Args:
        env: as in `gymnasium_worlds`.
        num_envs: number of environments.
        seed: environment i is seeded with `seed + i`.
        options: `num_threads`, `num_processes`, `batch_size`, `autoreset` and `final_observations` as in `ThreadedVecEnv`; all
            others as in `gymnasium_worlds`.

    Returns:
        A pool; `reset(env_info=...)` gives each environment its `options`.

    Raises:
        ValueError: as in `gymnasium_worlds`, and for options of the pool that are not allowed.
        ImportError: if an id needs Gymnasium, which is not installed.
    """
    return pool_from(gymnasium_worlds, env, num_envs, seed, options)


def gymnasium_worlds(
    env: str | Callable[..., Any],
    wrappers: Sequence[str | Wrapper] = (),
    *,
    view: str | Path | Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> GymFactory:
    """Return a source of Gymnasium environments, which every pool takes.

    Where an environment has `n_agents` and Tuple spaces of as many members, each member is an agent with a reward of its own, as
    in PettingZoo.

    Args:
        env: an id such as "CartPole-v1" or "my_module:MyEnv-v0", a class, or a function that makes an environment.
        wrappers: put around each environment, the innermost first: classes or functions, or "package.module:Name(size=3)".
        view: what of the observation is an entity: a name of `included_views()`, a YAML file, or a mapping with its content.
        kwargs: arguments of the environment.

    Raises:
        ValueError: for an environment that is not found, or arguments that do not go together.
        ImportError: if an id needs Gymnasium, which is not installed.
    """
    if isinstance(env, Constructor):
        make = env
    else:
        make = _by_id(env, kwargs) if isinstance(env, str) else Constructor(env, kwargs, _OPTION)
    return GymFactory(make, load_wrappers(wrappers), None if view is None else load_view(view))


class GymFactory(EnvSource):
    """Makes Gymnasium environments for any pool: one alone, or several that are stepped together.

    Args:
        make: makes one environment.
        wrappers: put around each.
        view: what of the observation is an entity, if it is given.
    """

    def __init__(self, make: Constructor, wrappers: Sequence[Wrapper], view: View | None) -> None:
        self._make, self._wrappers, self.name = make, wrappers, make.name
        self._view = view

    def as_environment(self) -> Environment:
        slots = self.make_slots(1, SlotOptions(autoreset=False))
        return SlotEnvironment(slots) if isinstance(slots, GymSlots) else slots.envs[0]

    def make_slots(self, num_envs: int, options: SlotOptions = SlotOptions()) -> GymSlots | PythonSlots:
        check_whole(num_envs, "num_envs")
        envs: list[Any] = []
        try:
            for _ in range(num_envs):
                envs.append(self._make())
                env = envs[-1] = wrapped(envs[-1], self._wrappers)
                if isinstance(env, type) or not callable(getattr(env, "step", None)) or not _takes(env, "seed"):
                    raise ValueError(f"{type(env).__name__} is no environment of Gymnasium's interface; {_INTERFACE}")
            check_distinct(envs, f"{self.name} returned")
            if options.first_env == 0:
                _warn_of_lost_state(envs[0], _name_of(envs[0]))
            if has_agents(envs[0]):
                teams = (PettingZooEnvironment(TupleAgents(env, _name_of(env)), view=self._view) for env in envs)
                return PythonSlots(teams.__next__, num_envs, options)
            return GymSlots([GymWorld(env, self._view) for env in envs], options)
        except BaseException:
            with suppress(Exception):  # another error is being raised
                _close(envs)
            raise


def _warn_of_lost_state(env: Any, name: str) -> None:
    """Warn of an environment that cannot be seeded, and of wrappers with running statistics, which no checkpoint has."""
    if why := getattr(env, "why_unseedable", ""):
        warn_caller(f"{name} cannot be seeded: {why}; its episodes differ in every run")
    while env is not None:
        held = getattr(env, "__dict__", {})
        if any(type(value).__name__ == "RunningMeanStd" for value in held.values()):
            warn_caller(
                f"{name}: the wrapper {type(env).__name__} keeps running statistics, which no checkpoint has: a policy that is "
                "resumed or evaluated sees other numbers than it was trained on. Leave it out, since the network normalizes "
                "features by statistics of its own, which are saved"
            )
        env = held.get("env")


# ---- one environment


class GymWorld:
    """One environment: its spaces as entities and actions, what it shows, and checks of all that it returns.

    Args:
        env: the environment.
        view: what of the observation is an entity, if it is given.

    Attributes:
        row: (R,) the last observation.
        varying: features of types whose number varies.
        closed: masks of the next actions; none at the end of an episode.
        seed, options: of the next `reset`; the seed is given once.
        masks, reader: read the masks of its actions, and its observations.

    Raises:
        ValueError: if it has spaces that have no form as entities.
    """

    def __init__(self, env: Any, view: View | None) -> None:
        self.env, self.name = env, _name_of(env)
        self.seed: int | None = None
        self.options: dict[str, Any] = {}
        try:
            self.actions = GymActions(getattr(env, "action_space", None), {} if view is None else view.select)
            self.masks = MaskReader(self.name, self.actions, getattr(env, "observation_space", None), env, view)
            self.reader = ViewReader(view, self.masks.space)
            self.action_space: Mapping[str, ActionSpace] = self.reader.action_space(self.actions)
        except ValueError as error:
            raise ValueError(f"{self.name}: {error}") from None
        self.row: Row = np.zeros(self.reader.size, np.float32)
        self.varying: Varying = {}
        self.closed: Masks = {}

    def reset(self) -> None:
        """Start an episode; raises ValueError for an observation outside the space."""
        arguments: dict[str, Any] = {"options": dict(self.options)} if self.options else {}
        if self.seed is not None:
            arguments["seed"], self.seed = self.seed, None
        result = self.env.reset(**arguments)
        if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[1], Mapping):
            raise ValueError(f"reset() returned {result!r:.200}; {_INTERFACE}")
        self._read(*result)

    def step(self, action: Any) -> tuple[float, bool, bool, Mapping[str, Any]]:
        """Take a step; returns reward, terminated, truncated and the info.

        Raises:
            ValueError: for values outside the spaces, or of another type than `step` must return.
        """
        result = self.env.step(action)
        if not isinstance(result, tuple) or len(result) != 5:
            raise ValueError(f"step() returned {result!r:.200}; {_INTERFACE}")
        observation, reward, terminated, truncated, info = result
        # Every step of every environment comes here, so values of the expected type are not checked twice.
        if type(terminated) is not bool or type(truncated) is not bool:
            terminated = bool(_number(terminated, "terminated", 1, "a bool"))
            truncated = bool(_number(truncated, "truncated", 1, "a bool"))
        if type(reward) is not float or not -LARGEST_FLOAT32 <= reward <= LARGEST_FLOAT32:
            several = "; an environment of several agents has n_agents and Tuple spaces"
            expected = "a finite number that float32 can hold" + (several if isinstance(reward, list | tuple) else "")
            reward = _number(reward, "reward", LARGEST_FLOAT32, expected)
        if type(info) is not dict and not isinstance(info, Mapping):
            raise ValueError(f"step() returned the info {info!r:.200}; expected a dictionary")
        self._read(observation, None if terminated or truncated else info)
        return reward, terminated, truncated, info

    def render(self) -> NDArray[np.uint8]:
        """Draw the current state as a (height, width, 3) image; raises NoPictureError if the environment was not made for it."""
        image: Any = None
        modes = (getattr(self.env, "metadata", None) or {}).get("render_modes", ())
        # One that could draw, and was made without a render mode, would warn every time.
        if hasattr(self.env, "render") and not ("rgb_array" in modes and getattr(self.env, "render_mode", 0) is None):
            with suppress(NotImplementedError):
                image = self.env.render()
        return picture_of(image[-1] if isinstance(image, list) and image else image, self.name)

    def _read(self, observation: Any, info: Mapping[str, Any] | None) -> None:
        """Keep an observation and its masks; `info` is None at the end of an episode."""
        observation, self.closed = self.masks.read(observation, info)
        self.varying = self.reader.write(observation, self.row)


def _number(value: Any, name: str, most: float, expected: str) -> float:
    """Return the only number or bool in a value of any library, if it is not larger than `most`."""
    try:
        array = np.asarray(value)
    except (TypeError, ValueError):  # lists of different lengths
        array = np.array(None)
    if array.size != 1 or array.dtype.kind not in "biuf" or not abs(array.item()) <= most:
        raise ValueError(f"step() returned {name}={value!r:.200}; expected {expected}")
    return float(array.item())


def _name_of(env: Any) -> str:
    """Return the id of an environment, or the name of its class."""
    name = getattr(getattr(env, "spec", None), "id", None)
    return name if isinstance(name, str) else type(getattr(env, "unwrapped", env)).__name__


def _takes(env: Any, name: str) -> bool:
    """Return whether `reset` has this parameter, or passes on all."""
    reset = getattr(env, "reset", None)
    parameters = signature_of(reset).parameters if callable(reset) else {}
    return name in parameters or any(each.kind == each.VAR_KEYWORD for each in parameters.values())


# ---- many environments


class GymSlots(EnvSlots):
    """N Gymnasium environments with the same spaces, stepped one after the other; each writes into arrays of all.

    In every frame one entity acts. `close` closes the environments; environment i is seeded with `seed + first_env + i`.

    Attributes:
        sums: (type, feature) of features to which a view adds the actor's of the same name.
        left_out: names of the numbers of an observation that a view shows nowhere.

    Raises:
        ValueError: if the spaces differ.
    """

    one_by_one = True
    has_groups = True

    def __init__(self, worlds: Sequence[GymWorld], options: SlotOptions = SlotOptions()) -> None:
        self.worlds, first = list(worlds), worlds[0]
        super().__init__(len(worlds), options, first.reader.obs_space, first.action_space, first.name)
        self._actions, self._entities = first.actions, first.reader
        self.sums, self.left_out = first.reader.sums, first.reader.left_out
        self._rows = np.zeros((len(self), self._entities.size), np.float32)  # (N, R) what each has shown last
        for i, world in enumerate(worlds):
            own = (world.reader.obs_space, world.action_space, world.actions.firsts)
            if own != (self.obs_space, first.action_space, first.actions.firsts):
                raise ValueError(
                    f"the environments of a pool must have the same spaces: as entities and actions, those of {self.where(0)} "
                    f"are {self.obs_space} and {first.action_space}, and those of {world.name} (environment {i}) "
                    f"{world.reader.obs_space} and {world.action_space}"
                )
            world.row, world.masks.is_quiet = self._rows[i], options.first_env + i > 0
        self._seeds = EpisodeSeeds(len(self), options) if options.group_size > 1 else None
        self._reward = np.zeros(len(self), np.float32)
        self._done, self._truncated = np.zeros(len(self), np.bool_), np.zeros(len(self), np.bool_)
        self._elapsed = np.zeros(len(self), np.int64)
        # environment -> report on the episode that ended with the last step
        self._infos: dict[int, Mapping[str, Any]] = {}
        self._finals: dict[int, VecObs] = {}  # environment -> last observation of that episode

    @property
    def found_masks(self) -> str:
        """The place of the action masks, such as 'info["action_mask"]'; "" if none was found up to now."""
        return self.worlds[0].masks.found

    def seed(self, seed: int) -> None:
        check_whole(seed, "seed", 0)
        if self._seeds:
            self._seeds.seed(seed)
            return
        for number, world in enumerate(self.worlds, self._reader.first_env):
            world.seed, world.masks.is_quiet = seed + number, number > 0

    def configure(self, ids: EnvIds, env_info: Sequence[Mapping[str, Any]]) -> None:
        if not _takes(self.worlds[0].env, "options"):
            raise ValueError(f"{self.worlds[0].name} takes no env_info: its reset() has no parameter `options`")
        for i, info in zip(ids.tolist(), env_info, strict=True):
            self.worlds[i].options |= info

    def reset(self, ids: EnvIds, worker: int = 0) -> None:
        self._begin(ids)
        self._reward[ids], self._done[ids], self._truncated[ids] = 0, False, False
        self._forget(ids)

    def step(self, actions: Mapping[str, VecAction], ids: EnvIds, lo: int, hi: int, worker: int = 0) -> None:
        mine = ids[lo:hi]
        chosen: dict[str, NDArray[Any]] = {}
        for name, space in self._actions.action_space.items():
            values = actions[name][lo:hi].values
            chosen[name] = values[:, 0] if space.discrete else values
        if self._entities.view.select:
            seen = self._entities.read(self._rows[mine])
            for name, entity_type in self._entities.view.select.items():
                rows = self._entities.flags_of if self.action_space[name].per_pair else self._entities.rows_of
                chosen[name] = rows(entity_type, seen, chosen[name])
        told: list[tuple[float, bool, bool, Mapping[str, Any]]] = []
        i = 0
        try:
            for i, action in zip(mine.tolist(), self._actions.decode(chosen, len(mine)), strict=True):
                told.append(self.worlds[i].step(action))
        except Exception as error:  # keeps its type, and says which environment it was
            error.add_note(f"raised by {self.where(i)} in step()")
            raise
        reward, terminated, truncated, infos = zip(*told, strict=True) if told else ((), (), (), ())
        self._forget(mine)
        self._elapsed[mine] += 1
        self._reward[mine] = reward
        ends, cut = np.array(terminated, np.bool_), np.array(truncated, np.bool_)
        self._truncated[mine] = cut & ~ends
        self._done[mine] = over = ends | cut
        for k in np.flatnonzero(over).tolist():
            self._infos[int(mine[k])] = {name: value for name, value in infos[k].items() if name not in IN_INFO}
        if self.options.autoreset and over.any():
            self._start_again(mine[over])

    def collect(self, ids: EnvIds, run: Run) -> VecObs:
        obs = self._pack(ids)
        if self._seeds:
            obs.arrays[INSTANCE] = self._seeds.instances[ids]
        finals = [self._finals[i] for i in ids.tolist() if i in self._finals] if self._finals else []
        obs.final = VecObs.cat(finals) if finals else None
        return obs

    def render(self, i: int) -> NDArray[np.uint8]:
        return self.worlds[i].render()

    def close(self) -> None:
        _close([world.env for world in self.worlds])

    def _begin(self, ids: EnvIds) -> None:
        """Start episodes."""
        i = 0
        try:
            for i in ids.tolist():
                if self._seeds:
                    self.worlds[i].seed = sum(self._seeds.begin(i))
                self.worlds[i].reset()
        except Exception as error:
            error.add_note(f"raised by {self.where(i)} in reset()")
            raise
        self._elapsed[ids] = 0

    def _start_again(self, ended: EnvIds) -> None:
        """Keep what is wanted of the episodes that ended, and start the next ones."""
        wanted = {"all": ended, "truncated": ended[self._truncated[ended]], "none": ended[:0]}
        keep = wanted[self.options.final_observations]
        if len(keep):
            last = self._pack(keep, last=True)
            self._finals.update({i: last.gather(np.array([row])) for row, i in enumerate(keep.tolist())})
        self._begin(ended)

    def _forget(self, ids: EnvIds) -> None:
        """Drop what is reported once: infos and last observations."""
        if self._infos or self._finals:
            for i in ids.tolist():
                self._infos.pop(i, None)
                self._finals.pop(i, None)

    def _pack(self, ids: EnvIds, *, last: bool = False) -> VecObs:
        """Return what the environments show; `last`: the last observations of their episodes, in which nobody acts."""
        rows, worlds = self._rows[ids], [self.worlds[i] for i in ids.tolist()]
        seen = self._entities.read(rows, [world.varying for world in worlds])
        features = {}
        for name, each in seen.items():
            features[name] = RaggedBuffer(np.ascontiguousarray(each.values, np.float32), offsets_of(each.counts))
            check_features(name, features[name], ids, self._reader)
        firsts, total = {}, np.zeros(len(ids), np.int64)  # (n,) entity index of the first of each type
        for name in self._reader.obs_space.entities:
            firsts[name], total = total, total + seen[name].counts
        acts = np.full(len(ids), not last) if self.options.autoreset else ~self._done[ids]
        actors = RaggedBuffer(firsts[self._entities.actor][acts][:, None], offsets_of(acts.astype(np.int64)))
        masks = {}
        for name, space in self._reader.action_space.items():
            mask = None
            size = next((len(world.closed[name]) for world in worlds if name in world.closed), None)
            if size is not None:
                mask = np.stack([world.closed.get(name, np.ones(size, np.bool_)) for world in worlds])
            selected = self._entities.view.select.get(name)
            its = None if selected is None else seen[selected]
            present = None if its is None else its.present
            if mask is not None and not space.per_pair:
                able = mask if present is None else (mask & present) | ~present.any(axis=1, keepdims=True)
                if (closed := acts & ~able.any(axis=1)).any():
                    where = self.where(int(ids[closed.argmax()]))
                    raise ValueError(f"{where}: action {name!r}: everything is masked; leave something open")
            if selected is None or its is None:
                choices = None if mask is None else RaggedBuffer(mask[acts], actors.offsets)
                masks[name] = VecActionMask(actors, mask=choices)
                continue
            offsets = offsets_of(np.where(acts, its.counts, 0))
            indices = np.arange(offsets[-1]) + np.repeat(firsts[selected] - offsets[:-1], np.diff(offsets))
            pairs = None
            if mask is not None:
                opened_rows = mask[acts].reshape(-1) if present is None else mask[present & acts[:, None]]
                pairs = RaggedBuffer(opened_rows[:, None], offsets)
            masks[name] = VecActionMask(actors, RaggedBuffer(indices[:, None], offsets), pairs)
        agent = features[self._entities.actor]  # the same one in the whole episode; who others are is not known
        return VecObs(
            features=features,
            action_masks=masks,
            ids={self._entities.actor: RaggedBuffer(np.zeros((len(agent.values), 1), np.int64), agent.offsets)},
            reward=self._reward[ids],
            done=self._done[ids],
            truncated=self._truncated[ids],
            env_id=ids.copy(),
            elapsed_step=self._elapsed[ids],
            end_of_episode_info={i: self._infos[i] for i in ids.tolist() if self._infos.get(i)},
        )


def _close(envs: Sequence[Any]) -> None:
    """Close all environments, then raise the first error."""
    errors = []
    for env in envs:
        try:
            getattr(env, "close", lambda: None)()
        except Exception as error:
            errors.append(error)
    if errors:
        raise errors[0]


# ---- how environments are found


def _by_id(name: str, kwargs: Mapping[str, Any]) -> Constructor:
    """Return the constructor of an id, or of the class or function at "module:Name"."""
    package, colon, rest = name.rpartition(":")
    if colon:
        with naming_extras():
            module = import_module(f"{package.replace('-', '_')}:{rest}", _OPTION)  # which may register ids
        known = getattr(sys.modules.get("gymnasium"), "registry", {})
        if callable(getattr(module, rest, None)) or (rest.isidentifier() and rest not in known):
            return Constructor(name, kwargs, _OPTION)
    with naming_extras():
        import gymnasium
    try:
        # Worker processes get the spec itself: its id may not be registered there.
        constructor = Constructor(functools.partial(_make_registered, gymnasium.spec(rest)), kwargs, _OPTION)
    except gymnasium.error.Error as error:
        hint = "" if colon else "; ids of another package are written package:id, which imports it first"
        reason = str(error).removesuffix(".")
        raise ValueError(f"{name!r} is no environment that Gymnasium knows: {reason}{hint}") from None
    constructor.name = name
    return constructor


def _make_registered(spec: Any, **kwargs: Any) -> Any:
    """Make an environment of a Gymnasium spec; all that it returns is checked by `GymWorld`."""
    import gymnasium

    try:
        return gymnasium.make(spec, disable_env_checker=True, **kwargs)
    except (gymnasium.error.Error, TypeError) as error:
        arguments = f" with {kwargs}" if kwargs else ""
        raise ValueError(f"Gymnasium cannot make {spec.id!r}{arguments}: {error}") from error
