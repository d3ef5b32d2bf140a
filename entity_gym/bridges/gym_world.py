"""One environment of Gymnasium's interface, of any age: it shows rows of features, and all that it returns is checked.

Gymnasium's own interface is `reset(seed=, options=) -> (observation, info)` and `step(action) -> (observation, reward,
terminated, truncated, info)`. Older ones work as well: `seed(number)`, `reset()` or `reset(env_info=...)` that return the
observation alone, and `step` that returns `(observation, reward, done, info)`, where `info["TimeLimit.truncated"]` says that the
episode was cut.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from entity_gym.bridges.gym_actions import GymActions, Masks
from entity_gym.bridges.gym_features import Rows, infer_space, kind_of, members_of
from entity_gym.bridges.gym_spaces import GymObservations
from entity_gym.bridges.makers import making
from entity_gym.errors import NoPictureError, warn_caller

#: In the info of a step: which actions are open.
ACTION_MASK = "action_mask"
_CUT = "TimeLimit.truncated"


#: Side of the spaces -> what a space that changes should hold instead.
_IF_IT_VARIES = {
    "observation_space": "observations, with Sequence or Graph for what varies in number",
    "action_space": 'actions, and close those that cannot be taken with info["action_mask"]',
}


class GymStep(NamedTuple):
    """What a step came to, beside the observation."""

    reward: float
    terminated: bool
    truncated: bool  # the episode was cut, and did not end by its own rules
    info: Mapping[str, Any]
    masks: Masks  # action -> (C,) bool; actions that are left out are open


class GymOptions(NamedTuple):
    """How an environment's spaces are read; see `from_gymnasium`."""

    observation_space: Any = None
    action_space: Any = None
    global_features: bool = False
    rows: Sequence[str] = ()


AS_DECLARED = GymOptions()


class GymWorld:
    """An environment, its spaces as entities and actions, and its next seed and options.

    Args:
        env: the environment; belongs to this object from now on.
        options: how its spaces are read.

    Attributes:
        where: how messages call it.
        observations, actions: of its spaces.
        warns: whether it says that it cannot be seeded, where that is so; once.

    Raises:
        ValueError: if it is no such environment, or has spaces that have no form as entities.
    """

    def __init__(self, env: Any, options: GymOptions = AS_DECLARED) -> None:
        check_is_gym(env)
        self.env = env
        self.name = name_of(env)
        self.where = self.name
        self.warns = True
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
        self._is_inferred = space is None
        self._pair_is_shown = _is_pair_with_dict(space)
        shown = None
        if space is None:
            self._seed = 0
            with making(self.name):
                shown = self._reset()[0]
        try:
            space = infer_space(shown) if space is None else space
            self.observations = GymObservations(space, global_features=options.global_features, rows=options.rows)
            self.actions = GymActions(action_space)
        except ValueError as error:
            raise ValueError(f"{self.name}: {error}") from None

    @property
    def takes_options(self) -> bool:
        """Whether its episodes can be told parameters."""
        return self._takes["options"] or self._takes["env_info"]

    def reseed(self, seed: int) -> None:
        """Seed it with the next `reset`."""
        self._seed = seed

    def configure(self, info: Mapping[str, Any]) -> None:
        """Set some of the options of `reset`, for all episodes that begin from now on.

        Raises:
            ValueError: if its `reset` takes none.
        """
        if not self.takes_options:
            raise ValueError(
                f"{self.where} takes no env_info: its reset() has neither `options` nor `env_info` among its parameters"
            )
        self._options = {**self._options, **info}

    def reset(self, rows: MutableMapping[str, Rows]) -> Masks:
        """Start an episode; what it shows goes into `rows`, as `GymObservations.write` does it.

        Returns:
            The masks of the first actions.

        Raises:
            ValueError: for what does not fit the spaces, or if the spaces have changed.
        """
        observation, info = self._reset()
        for side, before in self._declared.items():
            now = _declared(self.env, side)
            if now is not before and not _same(now, before):
                raise ValueError(
                    f"{self.where}: {side} was {before} and is {now} after reset(): spaces must not change; declare one that "
                    f"holds all {_IF_IT_VARIES[side]}"
                )
        self._write(observation, rows, "reset")
        return self._masks(info, "reset")

    def step(self, action: Any, rows: MutableMapping[str, Rows]) -> GymStep:
        """Take a step; what it shows goes into `rows`.

        Raises:
            ValueError: for what does not fit the spaces, or is not what `step` returns.
        """
        result = self.env.step(action)
        if type(result) is not tuple or len(result) != 5:
            result = self._as_five(result)
        observation, reward, terminated, truncated, info = result
        # What follows is for every step of every environment, so what is as it should be is not looked at twice.
        if type(terminated) is not bool or type(truncated) is not bool:
            terminated, truncated = self._flag(terminated, "terminated"), self._flag(truncated, "truncated")
        if type(reward) is not float or not math.isfinite(reward):
            reward = self._number(reward)
        if type(info) is not dict and not isinstance(info, Mapping):
            raise ValueError(f"{self.where}: step() returned the info {info!r:.200}; expected a dictionary")
        self._write(observation, rows, "step")
        masks = self._masks(info, "step") if info and not (terminated or truncated) else {}
        return GymStep(reward, terminated, truncated and not terminated, info, masks)

    def render(self) -> NDArray[np.uint8]:
        """Draw the current state as a (height, width, 3) image.

        Raises:
            NoPictureError: if it was not made for that.
        """
        render = getattr(self.env, "render", None)
        if render is None:
            raise NoPictureError(f"{self.where} has no render()")
        if "mode" in _parameters(render):
            image = render(mode="rgb_array")
        else:  # one that was made without is not asked: it would warn every time
            image = None if self._could_draw() else render()
        if isinstance(image, list) and image:
            image = image[-1]
        array = None if image is None else np.asarray(image)
        if array is None or array.ndim != 3 or array.shape[2] != 3:
            raise NoPictureError(
                f"{self.where}: render() returned {image!r:.80}; expected an image (height, width, 3): make it with "
                "render_mode='rgb_array', in training env.kwargs.render_mode=rgb_array, in evaluation env_kwargs.render_mode=..."
            )
        return array.astype(np.uint8, copy=False)

    def close(self) -> None:
        """Release the environment."""
        close = getattr(self.env, "close", None)
        if close is not None:
            close()

    def _could_draw(self) -> bool:
        """Whether it would draw images, and was made without."""
        modes = (getattr(self.env, "metadata", None) or {}).get("render_modes", ())
        return "rgb_array" in modes and getattr(self.env, "render_mode", "unknown") is None

    def _reset(self) -> tuple[Any, Mapping[str, Any]]:
        """Call `reset` in the way that it has, and return the observation and info."""
        arguments: dict[str, Any] = {}
        seed, self._seed = self._seed, None
        if seed is not None and self._takes["seed"]:
            arguments["seed"] = seed
        elif seed is not None and callable(getattr(self.env, "seed", None)):
            self.env.seed(seed)
        elif seed is not None:
            self._warn_unseedable("it has neither reset(seed=...) nor seed()")
        if seed is not None and (why := getattr(self.env, "why_unseedable", "")):
            self._warn_unseedable(why)
        if self._options:
            arguments["options" if self._takes["options"] else "env_info"] = dict(self._options)
        if self._takes["return_info"]:
            arguments["return_info"] = True
        result = self.env.reset(**arguments)
        is_pair = isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping)
        if is_pair and not (self._pair_is_shown and not self._takes["seed"]):
            return result[0], result[1]
        return result, {}

    def _warn_unseedable(self, why: str) -> None:
        if self.warns:
            warn_caller(f"{self.name} cannot be seeded: {why}; its episodes differ in every run")
        self.warns = False

    def _write(self, observation: Any, rows: MutableMapping[str, Rows], method: str) -> None:
        try:
            self.observations.write(observation, rows)
        except ValueError as error:
            as_expected = "the first observation, since no observation_space is declared" if self._is_inferred else ""
            expected = as_expected or "the observation space"
            raise ValueError(f"{self.where}: {method}() does not fit {expected}: {error}") from None

    def _masks(self, info: Mapping[str, Any], method: str) -> Masks:
        given = info.get(ACTION_MASK)
        if given is None:
            return {}
        try:
            return self.actions.masks(given)
        except ValueError as error:
            raise ValueError(f"{self.where}: the info of {method}(): {error}") from None

    def _as_five(self, result: Any) -> tuple[Any, Any, Any, Any, Any]:
        """What `step` returned, as Gymnasium has it."""
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
                raise ValueError(f"{self.where}: step() returned the reward {value!r:.200}; expected a number")
            value = array.item()
        if not math.isfinite(value):
            raise ValueError(f"{self.where}: step() returned the reward {value!r}; it must be finite")
        return float(value)


def check_is_gym(env: Any) -> None:
    """Raise a ValueError unless `env` is one environment of Gymnasium's interface."""
    name = type(env).__name__
    if hasattr(env, "single_observation_space"):
        raise ValueError(f"{name} is a vector environment; give what makes one single environment")
    if hasattr(env, "obs_space"):
        raise ValueError(f"{name} has entities already: give it to ListEnv, ThreadedVecEnv or ProcessVecEnv as it is")
    if isinstance(env, type) or not callable(getattr(env, "reset", None)) or not callable(getattr(env, "step", None)):
        raise ValueError(f"{env!r:.200} is no environment of Gymnasium's interface: it has no reset() and step()")


def name_of(env: Any) -> str:
    """How messages call an environment: by its id, or else its class."""
    spec = getattr(env, "spec", None)
    name = getattr(spec, "id", None)
    return name if isinstance(name, str) else type(getattr(env, "unwrapped", env)).__name__


def _declared(env: Any, side: str) -> Any:
    """A space that the environment declares, or None."""
    try:
        return getattr(env, side, None)
    except NotImplementedError:
        return None


def _same(now: Any, before: Any) -> bool:
    try:
        return bool(now == before)
    except ValueError:  # arrays in spaces of one's own
        return repr(now) == repr(before)


def _is_pair_with_dict(space: Any) -> bool:
    """Whether an observation alone looks like (observation, info)."""
    if space is None or kind_of(space) != "Tuple":
        return False
    kinds = [kind_of(member) for _, member in members_of(space)]
    return len(kinds) == 2 and kinds[1] == "Dict"


def _takes(env: Any, name: str) -> bool:
    """Whether `reset` has a parameter of this name; `**kwargs` stand for what a wrapped one has, or for Gymnasium's."""
    parameters = _parameters(env.reset)
    if name in parameters:
        return True
    if not any(each.kind == each.VAR_KEYWORD for each in parameters.values()):
        return False
    inner = getattr(env, "env", None)
    return name in ("seed", "options") if inner is None else _takes(inner, name)


def _parameters(method: Any) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(method).parameters
    except (TypeError, ValueError):  # some callables have none to look at
        return {}
