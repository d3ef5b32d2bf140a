"""Pools of Gymnasium environments.

    pool = from_gymnasium("CartPole-v1", num_envs=64)

`entity_gym.bridges.views.reading` says what of an observation is an entity, the module `actions` converts action spaces, and
`entity_gym.bridges.masks` finds the masks that close choices. The info of the last step of an episode is its
`end_of_episode_info`.

Shapes: N environments of the pool, n of one call, F features, C choices.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions import ActionSpace, ContinuousActionSpace
from entity_gym.batch.batching import check_features
from entity_gym.batch.ragged import RaggedBuffer, offsets_of
from entity_gym.batch.vec_obs import VecAction, VecActionMask, VecObs
from entity_gym.bridges.gymnasium.actions import GymActions, Masks
from entity_gym.bridges.gymnasium.observations import Row, Varying
from entity_gym.bridges.gymnasium.tuple_agents import TupleAgents, has_agents
from entity_gym.bridges.incoming import (
    Constructor,
    check_installed,
    making,
    naming_extras,
    pool_from,
)
from entity_gym.bridges.masks import IN_INFO, MaskReader
from entity_gym.bridges.pettingzoo.incoming import PettingZooEnvironment
from entity_gym.bridges.views.reading import ViewReader
from entity_gym.bridges.views.view import View, load_view
from entity_gym.bridges.wrappers import Wrapper, load_wrappers, wrapped
from entity_gym.environment import Environment
from entity_gym.errors import NoPictureError, check_whole, warn_caller
from entity_gym.pools.one import SlotEnvironment
from entity_gym.pools.python_slots import PythonSlots
from entity_gym.pools.slots import EnvIds, EnvSlots, Run, SlotOptions, check_distinct
from entity_gym.pools.source import EnvSource, own_values, signature_of
from entity_gym.pools.vec_env import VecEnv
from entity_gym.registry import import_module
from entity_gym.spaces import GLOBAL_ENTITY, LARGEST_FLOAT32

#: How messages call the argument that names an environment.
_OPTION = "the Gymnasium environment"
#: Key of the info of a step in Gymnasium's toy text: the probability of the last transition, which is no result of an episode.
_PROBABILITY, _TOY_TEXT = "prob", "gymnasium.envs.toy_text."
#: Attribute of the environment -> advice for an environment whose space changes between episodes.
_IF_IT_VARIES = {
    "observation_space": "observations, with Sequence or Graph for what varies in number",
    "action_space": 'actions, and close those that cannot be taken with info["action_mask"]',
}
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
    global_features: bool = False,
    view: str | Path | Mapping[str, Any] | View | None = None,
    agents: bool | None = None,
    **kwargs: Any,
) -> GymFactory:
    """Return a source of Gymnasium environments, which every pool takes.

    Args:
        env: an id such as "CartPole-v1" or "my_module:MyEnv-v0", a class, or a function that makes an environment.
        wrappers: put around each environment, the innermost first: classes or functions, or "package.module:Name(size=3)".
        global_features: show the outermost numbers as global features instead of features of the entity `Agent`.
        view: what of the observation is an entity: a name of `included_views()`, a YAML file, or a mapping with its content.
        agents: each member of the Tuple spaces is an agent with a reward of its own, as in PettingZoo. None: if the environment
            has `n_agents` of them.
        kwargs: arguments of the environment.

    Raises:
        ValueError: for an environment that is not found, or arguments that do not go together.
        ImportError: if an id needs Gymnasium, which is not installed.
    """
    if isinstance(env, str):
        make = _by_id(env, kwargs)
    elif isinstance(env, Constructor):
        make = env
    elif callable(env) and (isinstance(env, type) or not hasattr(env, "reset")):
        make = Constructor(env, kwargs, _OPTION)
    elif hasattr(env, "reset"):
        raise ValueError(f"env is one {type(env).__name__} object; give its class, or a function that makes one")
    else:
        raise ValueError(f"env is {env!r:.200}; expected an id, a class, or a function that makes an environment")
    read = None if view is None else load_view(view)
    return GymFactory(make, load_wrappers(wrappers), read, global_features, agents)


class GymFactory(EnvSource):
    """Makes Gymnasium environments for any pool: one alone, or several that are stepped together.

    Args:
        make: makes one environment.
        wrappers: put around each.
        view, global_features, agents: as in `from_gymnasium`.
    """

    def __init__(
        self,
        make: Constructor,
        wrappers: Sequence[Wrapper],
        view: View | None,
        global_features: bool,
        agents: bool | None,
    ) -> None:
        self._make, self._wrappers, self.name = make, wrappers, make.name
        self._view, self._global_features, self._agents = view, global_features, agents

    def as_environment(self) -> Environment:
        (env,) = self._made(0, 1)
        if self._has_agents(env):
            return self._of_agents(env)
        return GymnasiumEnvironment(GymWorld(env, self._view, self._global_features))

    def make_slots(self, num_envs: int, options: SlotOptions = SlotOptions()) -> EnvSlots:
        check_whole(num_envs, "num_envs")
        envs = self._made(options.first_env, num_envs)
        try:
            if self._has_agents(envs[0]):
                each = iter(envs)
                return PythonSlots(lambda: self._of_agents(next(each)), num_envs, options)
            return GymSlots([GymWorld(env, self._view, self._global_features) for env in envs], options)
        except BaseException:
            _close(envs)
            raise

    def _made(self, first: int, many: int) -> list[Any]:
        envs: list[Any] = []
        try:
            for _ in range(many):
                envs.append(self._make())
                envs[-1] = wrapped(envs[-1], self._wrappers)
            check_distinct(envs, f"{self.name} returned")
        except BaseException:
            _close(envs)
            raise
        if first == 0 and (names := sorted(set(_wrappers_with_statistics(envs[0])))):
            warn_caller(
                f"{self.name}: the wrapper {' and '.join(names)} keeps running statistics, which no checkpoint has: a "
                "policy that is resumed or evaluated sees other numbers than it was trained on. Leave it out, since the network "
                "normalizes features by statistics of its own, which are saved"
            )
        return envs

    def _has_agents(self, env: Any) -> bool:
        return has_agents(env) if self._agents is None else self._agents

    def _of_agents(self, env: Any) -> PettingZooEnvironment:
        """Make an environment whose agents are entities."""
        check_is_gym(env)
        return PettingZooEnvironment(TupleAgents(env, name_of(env)), view=self._view)


def _wrappers_with_statistics(env: Any) -> Iterator[str]:
    """Yield the names of the wrappers that hold running means."""
    while env is not None:
        if any(type(value).__name__ == "RunningMeanStd" for value in getattr(env, "__dict__", {}).values()):
            yield type(env).__name__
        env = getattr(env, "__dict__", {}).get("env")


# ---- one environment


class GymWorld:
    """One environment: its spaces as entities and actions, its next seed and options, and checks of all that it returns.

    Args:
        env: closed with this object.
        view, global_features: how its observations are read, see `from_gymnasium`.

    Attributes:
        where: the name of the environment in messages.
        warns: warn, once, if the environment cannot be seeded.
        masks: reads the masks of its actions.
        reader: reads its observations.

    Raises:
        ValueError: if it is no such environment, or has spaces that have no form as entities.
    """

    def __init__(self, env: Any, view: View | None = None, global_features: bool = False) -> None:
        check_is_gym(env)
        self.env, self.name = env, name_of(env)
        self.where, self.warns = self.name, True
        is_toy_text = type(getattr(env, "unwrapped", env)).__module__.startswith(_TOY_TEXT)
        self._no_results = {*IN_INFO, *([_PROBABILITY] if is_toy_text else [])}
        self._seed: int | None = None
        self._options: dict[str, Any] = {}
        self._spaces = {side: getattr(env, side, None) for side in _IF_IT_VARIES}
        for side, space in self._spaces.items():
            if space is None:
                raise ValueError(f"{self.name} declares no {side}; make it a space of gymnasium.spaces, in a wrapper")
        try:
            self.actions = GymActions(self._spaces["action_space"])
            self.masks = MaskReader(self.name, self.actions, self._spaces["observation_space"], env, view)
            self.reader = ViewReader(view, self.masks.space, global_features=global_features)
            self.action_space: Mapping[str, ActionSpace] = self.reader.action_space(self.actions.action_space)
        except ValueError as error:
            raise ValueError(f"{self.name}: {error}") from None

    def reseed(self, seed: int) -> None:
        """Seed the environment with the next `reset`."""
        self._seed = seed

    def configure(self, info: Mapping[str, Any]) -> None:
        """Update the options of the following episodes; raises ValueError if `reset` takes none."""
        if not _takes(self.env, "options"):
            raise ValueError(f"{self.where} takes no env_info: its reset() has no parameter `options`")
        self._options = {**self._options, **info}

    def reset(self, row: Row) -> tuple[Varying, Masks]:
        """Start an episode, and write its first observation to `row`.

        Returns:
            The features of types whose number varies, and the masks of the first actions.

        Raises:
            ValueError: for an observation outside the space, or if the spaces have changed.
        """
        arguments: dict[str, Any] = {"options": dict(self._options)} if self._options else {}
        if self._seed is not None:
            arguments["seed"], self._seed = self._seed, None
            if self.warns and (why := getattr(self.env, "why_unseedable", "")):
                warn_caller(f"{self.name} cannot be seeded: {why}; its episodes differ in every run")
                self.warns = False
        result = self.env.reset(**arguments)
        if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[1], Mapping):
            raise ValueError(f"{self.where}: reset() returned {result!r:.200}; {_INTERFACE}")
        for side, before in self._spaces.items():
            now = getattr(self.env, side, None)
            if now is not before and repr(now) != repr(before):
                raise ValueError(
                    f"{self.where}: {side} was {before} and is {now} after reset(): spaces must not change; declare one that "
                    f"holds all {_IF_IT_VARIES[side]}"
                )
        return self._read(*result, row, "reset")

    def step(self, action: Any, row: Row) -> tuple[float, bool, bool, Mapping[str, Any], Varying, Masks]:
        """Take a step and write its observation to `row`.

        Returns:
            Reward, terminated, truncated, info, and as `reset`; no masks at the end of an episode.

        Raises:
            ValueError: for values outside the spaces, or of another type than `step` must return.
        """
        result = self.env.step(action)
        if not isinstance(result, tuple) or len(result) != 5:
            raise ValueError(f"{self.where}: step() returned {result!r:.200}; {_INTERFACE}")
        observation, reward, terminated, truncated, info = result
        # Every step of every environment comes here, so values of the expected type are not checked twice.
        if type(terminated) is not bool or type(truncated) is not bool:
            terminated, truncated = self._flag(terminated, "terminated"), self._flag(truncated, "truncated")
        if type(reward) is not float or not -LARGEST_FLOAT32 <= reward <= LARGEST_FLOAT32:
            reward = self._reward(reward)
        if type(info) is not dict and not isinstance(info, Mapping):
            raise ValueError(f"{self.where}: step() returned the info {info!r:.200}; expected a dictionary")
        over = terminated or truncated
        varying, masks = self._read(observation, None if over else info, row, "step")
        return reward, terminated, truncated and not terminated, info, varying, masks

    def results(self, info: Mapping[str, Any]) -> dict[str, Any]:
        """Return the `end_of_episode_info` of an episode from the info of its last step."""
        return {name: value for name, value in info.items() if name not in self._no_results}

    def render(self) -> NDArray[np.uint8]:
        """Draw the current state as a (height, width, 3) image; raises NoPictureError if the environment was not made for it."""
        image: Any = None
        modes = (getattr(self.env, "metadata", None) or {}).get("render_modes", ())
        # One that could draw, and was made without a render mode, would warn every time.
        if hasattr(self.env, "render") and not ("rgb_array" in modes and getattr(self.env, "render_mode", 0) is None):
            with suppress(NotImplementedError):
                image = self.env.render()
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
        if hasattr(self.env, "close"):
            self.env.close()

    def _read(self, observation: Any, info: Mapping[str, Any] | None, row: Row, method: str) -> tuple[Varying, Masks]:
        """Write an observation; read its masks unless `info` is None."""
        masks = self.masks
        try:
            varying = self.reader.write(masks.rest(observation) if masks.is_taken_out else observation, row)
        except ValueError as error:
            raise ValueError(f"{self.where}: {method}() does not fit the observation space: {error}") from None
        if info is None or not (info or masks.found or method == "reset"):
            return varying, {}
        try:
            return varying, masks.read(observation, info)
        except ValueError as error:
            raise ValueError(f"{self.where}: {method}(): {error}") from None

    def _flag(self, value: Any, name: str) -> bool:
        number = _scalar(value)
        if number not in (0, 1):
            raise ValueError(f"{self.where}: step() returned {name}={value!r:.200}; expected a bool")
        return bool(number)

    def _reward(self, value: Any) -> float:
        number = _scalar(value)
        if number is None or not abs(number) <= LARGEST_FLOAT32:
            several = isinstance(value, list | tuple | np.ndarray)
            hint = "; if each member of its Tuple spaces is an agent, give agents=True" if several else ""
            raise ValueError(
                f"{self.where}: step() returned the reward {value!r:.200}; expected a finite number that float32 can hold{hint}"
            )
        return float(number)


def _scalar(value: Any) -> Any:
    """Return the only number or bool in a value of any library; None if there is not exactly one."""
    if isinstance(value, bool | int | float):
        return value
    try:
        array = np.asarray(value)
    except (TypeError, ValueError):  # lists of different lengths
        return None
    return array.item() if array.size == 1 and array.dtype.kind in "biuf" else None


def check_is_gym(env: Any) -> None:
    """Raise ValueError unless `env` is one environment of Gymnasium's interface."""
    name = type(env).__name__
    if hasattr(env, "single_observation_space"):
        raise ValueError(f"{name} is a vector environment; give what makes one single environment")
    if hasattr(env, "obs_space"):
        raise ValueError(f"{name} has entities already: give it to ListEnv, ThreadedVecEnv or ProcessVecEnv as it is")
    if isinstance(env, type) or not callable(getattr(env, "reset", None)) or not callable(getattr(env, "step", None)):
        raise ValueError(f"{env!r:.200} is no environment of Gymnasium's interface: it has no reset() and step()")
    if not _takes(env, "seed"):
        raise ValueError(f"{name}: reset() has no parameter `seed`; {_INTERFACE}")


def name_of(env: Any) -> str:
    """Return the id of an environment, or the name of its class."""
    name = getattr(getattr(env, "spec", None), "id", None)
    return name if isinstance(name, str) else type(getattr(env, "unwrapped", env)).__name__


def _takes(env: Any, name: str) -> bool:
    """Return whether `reset` has this parameter, or passes on all."""
    parameters = signature_of(env.reset).parameters
    return name in parameters or any(each.kind == each.VAR_KEYWORD for each in parameters.values())


# ---- many environments


class GymSlots(EnvSlots):
    """N Gymnasium environments with the same spaces, stepped one after the other; each writes into arrays of all.

    In every frame one entity acts. `close` closes the environments; environment i is seeded with `seed + first_env + i`.

    Raises:
        ValueError: if the spaces differ.
    """

    one_by_one = True

    def __init__(self, worlds: Sequence[GymWorld], options: SlotOptions = SlotOptions()) -> None:
        self.worlds = list(worlds)
        first = self.worlds[0]
        self._actions, self._entities = first.actions, first.reader
        super().__init__(len(self.worlds), options, first.reader.obs_space, first.action_space, first.name)
        for i, world in enumerate(self.worlds):
            _check_same(first, world, i)
            self._number(i)
            world.warns = i == 0  # one warning for all
        self._rows = np.zeros((len(self), self._entities.size), np.float32)  # (N, R) what each has shown last
        self._varying: list[Varying] = [{} for _ in self.worlds]
        self._masks: list[Masks] = [{} for _ in self.worlds]
        self._reward = np.zeros(len(self), np.float32)
        self._done, self._truncated = np.zeros(len(self), np.bool_), np.zeros(len(self), np.bool_)
        self._elapsed = np.zeros(len(self), np.int64)
        # environment -> report on the episode that ended with the last step
        self._infos: dict[int, Mapping[str, Any]] = {}
        self._finals: dict[int, VecObs] = {}  # environment -> last observation of that episode

    def seed(self, seed: int) -> None:
        check_whole(seed, "seed", 0)
        for i, world in enumerate(self.worlds):
            world.reseed(seed + self._number(i))

    def _number(self, i: int) -> int:
        """Return the number of environment `i` in seeds and messages, after telling it to the environment."""
        number, world = self._reader.first_env + i, self.worlds[i]
        world.where, world.masks.is_quiet = self.where(i), number != 0
        return number

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
        if self._entities.view.select:
            seen = self._entities.read(self._rows[mine])
            for name, entity_type in self._entities.view.select.items():
                chosen[name] = self._entities.rows_of(entity_type, seen, chosen[name])
        rewards, terminated, truncated, ended = [], [], [], {}
        for i, action in zip(mine.tolist(), self._actions.decode(chosen, len(mine)), strict=True):
            try:
                reward, over, cut, info, self._varying[i], self._masks[i] = self.worlds[i].step(action, self._rows[i])
            except Exception as error:
                error.add_note(f"raised by {self.worlds[i].where} in step()")
                raise
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
        finals = [self._finals[i] for i in ids.tolist() if i in self._finals] if self._finals else []
        obs.final = VecObs.cat(finals) if finals else None
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
                self._varying[i], self._masks[i] = self.worlds[i].reset(self._rows[i])
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
        rows, n = self._rows[ids], len(ids)
        seen = self._entities.read(rows, [self._varying[i] for i in ids.tolist()])
        shown = {name: (each.values, each.counts) for name, each in seen.items()}
        everywhere, opened = self._entities.global_features(rows), self._entities.open_choices(rows)
        if everywhere is not None:
            shown[GLOBAL_ENTITY] = everywhere, np.ones(n, np.int64)
        features = {}
        for name, (values, counts) in shown.items():
            features[name] = RaggedBuffer(np.ascontiguousarray(values, np.float32), offsets_of(counts))
            check_features(name, features[name], ids, self._reader)

        firsts, total = {}, np.zeros(n, np.int64)  # (n,) entity index of the first of each type
        for name in self._reader.obs_space.entities:
            firsts[name], total = total, total + seen[name].counts
        acts = np.full(n, not last) if self.options.autoreset else ~self._done[ids]
        actors = RaggedBuffer(firsts[self._entities.actor][acts][:, None], offsets_of(acts.astype(np.int64)))
        closed: list[Masks] = [self._masks[i] for i in ids.tolist()]
        masks = {}
        for name in self._reader.action_space:
            mask = opened  # a view's mask is the only one
            size = next((len(each[name]) for each in closed if name in each), None)
            if size is not None:
                mask = np.stack([each.get(name, np.ones(size, np.bool_)) for each in closed])
            selected = self._entities.view.select.get(name)
            if selected is None:
                self._require_open(name, mask, acts, ids)
                choices = None if mask is None else RaggedBuffer(mask[acts], actors.offsets)
                masks[name] = VecActionMask(actors, mask=choices)
                continue
            counts = np.where(acts, seen[selected].counts, 0)
            offsets = offsets_of(counts)
            indices = np.arange(offsets[-1]) + np.repeat(firsts[selected] - offsets[:-1], counts)
            pairs = None
            if mask is not None:
                present = seen[selected].present
                there = np.ones_like(mask) if present is None else present
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


class GymnasiumEnvironment(SlotEnvironment):
    """One Gymnasium environment as an entity environment; in pools, `from_gymnasium` is several times as fast.

    Attributes:
        unwrapped: the environment without wrappers.
        left_out: names of the numbers of an observation that a view shows nowhere.
        sums: (type, feature) of features to which a view adds the actor's of the same name.
    """

    def __init__(self, world: GymWorld) -> None:
        super().__init__(GymSlots([world], SlotOptions(autoreset=False)))
        self.unwrapped, self._masks = getattr(world.env, "unwrapped", world.env), world.masks
        self.left_out, self.sums = world.reader.left_out, world.reader.sums

    @property
    def found_masks(self) -> str:
        """The place of the action masks, such as 'info["action_mask"]'; "" if none was found up to now."""
        return self._masks.found


def _check_same(first: GymWorld, world: GymWorld, i: int) -> None:
    for side, one, other in (
        ("observation", first.reader.obs_space, world.reader.obs_space),
        ("action", first.action_space, world.action_space),
        ("action", first.actions.firsts, world.actions.firsts),
    ):
        if one != other:
            raise ValueError(
                f"the environments of a pool must have the same spaces: as entities, the {side} space of environment 0 "
                f"({first.name}) is {one}, and that of environment {i} ({world.name}) is {other}"
            )


# ---- how environments are found


def _close(envs: Sequence[Any]) -> None:
    for env in envs:
        with suppress(Exception):  # another error is being raised
            env.close()


def _by_id(name: str, kwargs: Mapping[str, Any]) -> Constructor:
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
        return _FromSpec(name, gymnasium.spec(rest), kwargs)
    except gymnasium.error.Error as error:
        hint = "" if colon else "; ids of another package are written package:id, which imports it first"
        reason = str(error).removesuffix(".")
        raise ValueError(f"{name!r} is no environment that Gymnasium knows: {reason}{hint}") from None


class _FromSpec(Constructor):
    """Makes environments of a Gymnasium spec. Worker processes get the spec itself: its id may not be registered there."""

    def __init__(self, name: str, spec: Any, kwargs: Mapping[str, Any]) -> None:
        self.name, self._spec, self.kwargs = name, spec, dict(kwargs)

    def __call__(self, **more: Any) -> Any:
        import gymnasium

        try:
            with making(self.name):
                # GymWorld checks all that is returned.
                return gymnasium.make(self._spec, disable_env_checker=True, **own_values(self.kwargs), **more)
        except (gymnasium.error.Error, TypeError, ImportError) as error:
            arguments = f" with {self.kwargs}" if self.kwargs else ""
            raise ValueError(f"Gymnasium cannot make {self.name!r}{arguments}: {error}") from error
