"""Environments by name: `make` them, `register` your own, `list_envs`.

Nothing is imported before it is made: neither the environments, nor their compiler, nor other libraries' interfaces.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib
import inspect
import os
from collections.abc import Callable, Mapping, MutableMapping, MutableSequence, MutableSet, Sequence
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

import numpy as np

from entity_gym.environment import Environment
from entity_gym.errors import nearest
from entity_gym.pools.pool import EnvSource, ListEnv, SlotVecEnv, ThreadedVecEnv, is_compiled, make_slots
from entity_gym.pools.python_slots import PythonSlots
from entity_gym.pools.slots import EnvSlots, SlotOptions
from entity_gym.pools.spec import OPTIONS, PADDED_OPTIONS, EnvConfig, EnvSpec, describe_spaces
from entity_gym.pools.vec_env import VecEnv

#: Parameters by which an environment may take its step limit.
LIMITS = ("max_steps", "max_episode_steps")

YOUR_OWN = "your own is written as my_package.my_module:MyEnv"


@dataclass(frozen=True)
class Registered:
    """The environment of a name.

    Attributes:
        env: what pools are made from, or where that is found: "package.module:Name".
        max_episode_steps, reward_threshold: replace the environment's own.
        defaults: parameters that replace the environment's own defaults.
    """

    env: EnvSource | str
    max_episode_steps: int | None = None
    reward_threshold: float | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def load(self, option: str = "the environment") -> Any:
        """Import the environment, if need be; `option` is its name in messages.

        Raises:
            ValueError: if it is not where `env` says.
        """
        return import_callable(self.env, option, _environments) if isinstance(self.env, str) else self.env

    def arguments(self, source: Any) -> dict[str, Any]:
        """Return the parameters to make `source`, the result of `load`, with: the defaults, and the step limit."""
        if self.max_episode_steps is None:
            return dict(self.defaults)
        names, _, _ = _parameters_of(source)
        limit = next((each for each in LIMITS if each in names), LIMITS[0])
        return {limit: self.max_episode_steps, **self.defaults}

    def bind(
        self,
        source: Any,
        name: str,
        given: Mapping[str, Any],
        max_episode_steps: int | None = None,
        options: Sequence[str] = (),
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the parameters to call the environment with, and all of its parameters, defaults included.

        Args:
            source: the result of `load`.
            name: the environment's name in messages.
            given: parameters that replace the registered ones.
            max_episode_steps: step limit. None: the registered one, unless `given` has one.
            options: further keywords that messages offer.

        Raises:
            ValueError: the environment has no such parameter, takes no step limit, or is given two.
        """
        names, defaults, takes_others = _parameters_of(source)
        parameters = {**self.defaults, **given}
        limit = next((each for each in LIMITS if each in names), None)
        steps = max_episode_steps
        if steps is None and limit not in given:
            steps = self.max_episode_steps
        for key, value in parameters.items():
            if key == limit and steps not in (None, value):
                raise ValueError(f"{key}={value!r} and max_episode_steps={steps!r}: give one of them")
            if key not in names and not takes_others:
                raise ValueError(f"{name} has no parameter {key!r}; {nearest(key, [*names, *options])}")
        if steps is not None:
            if limit is None:
                raise ValueError(f"max_episode_steps is {steps}, but {name} has no parameter 'max_steps' to give it to")
            parameters[limit] = steps
        return parameters, {**defaults, **parameters}


_ENVS = "entity_gym.envs"
_registered: dict[str, Registered] = {
    name: Registered(f"{_ENVS}.{where}")
    for name, where in {
        "CartPole-v0": "cart_pole:CartPoleV0",
        "CartPole-v1": "cart_pole:CartPole",
        "CherryPick": "cherry_pick:CherryPick",
        "Count": "count:Count",
        "FloorIsLava": "floor_is_lava:FloorIsLava",
        "Minefield": "minefield:Minefield",
        "MineSweeper": "minesweeper:MineSweeper",
        "MoveToOrigin": "move_to_origin:MoveToOrigin",
        "MultiArmedBandit": "multi_armed_bandit:MultiArmedBandit",
        "MultiSnake": "multi_snake:MultiSnake",
        "NotHotdog": "not_hotdog:NotHotdog",
        "PickMatchingBalls": "pick_matching_balls:PickMatchingBalls",
        "RockPaperScissors": "rock_paper_scissors:RockPaperScissors",
        "Skirmish": "skirmish:Skirmish",
        "TreasureHunt": "treasure_hunt:TreasureHunt",
        "Xor": "xor:Xor",
    }.items()
}


def list_envs() -> list[str]:
    """List all registered names in alphabetical order."""
    return sorted(_registered, key=str.lower)


def register(
    name: str,
    env: EnvSource | str,
    *,
    max_episode_steps: int | None = None,
    reward_threshold: float | None = None,
    aliases: Sequence[str] = (),
    **defaults: Any,
) -> None:
    """Give an environment a name for `make`.

    Args:
        name: the new name, without ":".
        env: a compiled environment (class, or with parameters), a class or function that makes a Python one, or where to find
            one of these: "package.module:Name". That is imported only when it is made.
        max_episode_steps: in place of the environment's own step limit.
        reward_threshold: in place of the environment's own.
        aliases: further names for the same.
        defaults: parameters, in place of the environment's own defaults.

    Raises:
        ValueError: if a name is taken by something else, or cannot be one.
    """
    new = Registered(env, max_episode_steps, reward_threshold, defaults)
    names = [name, *([aliases] if isinstance(aliases, str) else aliases)]
    if isinstance(env, str):
        _split(env, "the environment")
    elif not callable(env) and not is_compiled(env):
        raise ValueError(
            f"register: env is {env!r:.200}; expected a class, what makes an environment, or 'module:Name'"
        )
    for each in names:
        if not isinstance(each, str) or not each or ":" in each:
            raise ValueError(f"register: the name is {each!r}; it must be a text without ':'")
        if _registered.get(each, new) != new:
            raise ValueError(f"register: the name {each!r} is taken by {_registered[each].env!r}; choose another")
    for each in names:
        _registered[each] = new


def make(env: EnvSource | str, num_envs: int = 1, **options: Any) -> VecEnv:
    """Make a pool of environments.

    Args:
        env: one of `list_envs()`, "package.module:Class", or what pools are made from: a compiled environment (class, or
            instance with parameters), a class or function that makes a Python one, a class of `EnvSlots`.
        num_envs: number of environments.
        options: those of `EnvConfig`, and the environment's parameters.

    Raises:
        ValueError: for names, options and values that are not allowed, with the nearest allowed ones.
    """
    prepared = prepare(env, {"num_envs": num_envs, **options})
    for option in PADDED_OPTIONS:
        if getattr(prepared.config, option) is not None:
            raise ValueError(
                f"{option} is {getattr(prepared.config, option)!r}, which is for make_gym and make_dm: make does not pad entities"
            )
    return make_pool(prepared)


def make_spec(env: EnvSource | str, num_envs: int = 1, **options: Any) -> EnvSpec:
    """Describe the pool that `make`, `make_gym` or `make_dm` makes with the same arguments: its options, spaces and sizes.

    A Python environment is made once to see its spaces.

    Raises:
        ValueError: as `make` does.
    """
    return spec_of(prepare(env, {"num_envs": num_envs, **options}))


def look_up(name: str, option: str = "the environment") -> Registered:
    """Find the environment of a name: one of `list_envs()`, or "package.module:Name". Messages call the name `option`.

    Raises:
        ValueError: if there is no such name.
    """
    if ":" in name:
        return Registered(name)
    if name not in _registered:
        raise ValueError(f"{option} is {name!r}, which is no known one; {nearest(name, list_envs())}; {YOUR_OWN}")
    return _registered[name]


@dataclass(frozen=True)
class Prepared:
    """Environments that only need to be made.

    Attributes:
        config: all options, checked and resolved.
        source: the environment, bound to its parameters.
    """

    config: EnvConfig
    source: Any


def prepare(env: Any, given: Mapping[str, Any]) -> Prepared:
    """Find the environment, check all options, and bind the parameters; arguments are those of `make`.

    Raises:
        ValueError: naming what cannot be.
    """
    found = look_up(env) if isinstance(env, str) else Registered(env)
    name = env if isinstance(env, str) else getattr(env, "__name__", type(env).__name__)
    options = {key: value for key, value in given.items() if key in OPTIONS}
    if options.get("reward_threshold") is None:
        options["reward_threshold"] = found.reward_threshold
    source = found.load()
    config = EnvConfig(name=name, **options)
    if isinstance(source, Environment):
        raise ValueError(f"make: {name} is one object; give what makes one, such as the class {type(source).__name__}")
    compiled = is_compiled(source)
    if not compiled and not callable(source):
        raise ValueError(f"make: {source!r:.200} is no environment; give a name, a class or what makes an environment")

    others = {key: value for key, value in given.items() if key not in OPTIONS}
    parameters, values = found.bind(source, name, others, config.max_episode_steps, OPTIONS)
    if config.reward_threshold is None:
        config = replace(config, reward_threshold=getattr(source, "reward_threshold", None))
    source = with_parameters(source, parameters)
    if compiled:
        values = _as_given(source.values)
    limit = next((each for each in LIMITS if each in values), "")
    steps = values.pop(limit, None) or None
    config = replace(config, max_episode_steps=steps, parameters=values)
    return Prepared(config.resolved(compiled=compiled), source)


def _parameters_of(source: Any) -> tuple[list[str], Mapping[str, Any], bool]:
    """Return the names of an environment's parameters, the defaults of those that have one, and if it takes any other."""
    if is_compiled(source):
        description: Any = source
        values = description.defaults() if isinstance(source, type) else description.values
        return list(values), values, False
    try:
        parameters = inspect.signature(source).parameters.values()
    except (TypeError, ValueError):  # some callables have none to look at
        return [], {}, True
    named = [each for each in parameters if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)]
    defaults = {each.name: each.default for each in named if each.default is not each.empty}
    return [each.name for each in named], defaults, any(each.kind == each.VAR_KEYWORD for each in parameters)


def make_pool(prepared: Prepared) -> VecEnv:
    """Make a pool of the environments."""
    config, source = prepared.config, prepared.source
    common: dict[str, Any] = {
        "batch_size": config.batch_size,
        "seed": config.seed,
        "final_observations": config.final_observations,
        "compile": config.compile,
        "entity_ids": config.entity_ids,
    }
    if config.executor == "list":
        return ListEnv(source, config.num_envs, **common)
    if config.executor == "process":
        from entity_gym.pools.processes.env import ProcessVecEnv

        processes = config.num_processes or min(config.num_envs, os.cpu_count() or 1)
        return ProcessVecEnv(source, config.num_envs, processes, **common)
    return ThreadedVecEnv(
        source, config.num_envs, config.num_threads, thread_affinity_offset=config.thread_affinity_offset, **common
    )


def make_single_pool(prepared: Prepared) -> SlotVecEnv:
    """Make a pool of one environment without autoreset: after the last observation of an episode comes `reset`."""
    slots = make_slots(
        prepared.source,
        1,
        SlotOptions(autoreset=False, final_observations="none"),
        compile=prepared.config.compile,
    )
    return SlotVecEnv(slots, seed=prepared.config.seed)


def draws(prepared: Prepared, pool: SlotVecEnv) -> bool:
    """Return True if the environments of `pool` implement `render`, as far as that can be seen without calling it."""
    if is_compiled(prepared.source):
        return prepared.source.render is not None
    if isinstance(pool.slots, PythonSlots):
        return type(pool.slots.envs[0]).render is not Environment.render
    return type(pool.slots).render is not EnvSlots.render


def spec_of(prepared: Prepared, pool: VecEnv | None = None) -> EnvSpec:
    """Describe the environments. Spaces of those that are not compiled come from `pool`, or from one made for that."""
    if is_compiled(prepared.source):
        declared = type(prepared.source)
        return describe_spaces(prepared.config, declared.obs_space(), declared.action_space(), declared)
    with contextlib.nullcontext(pool) if pool is not None else ListEnv(prepared.source, 1) as one:
        return describe_spaces(prepared.config, one.obs_space(), one.action_space())


def with_parameters(source: Any, parameters: Mapping[str, Any]) -> Any:
    """Return a compiled environment, or a function that makes a Python one, with `parameters` in place of its own."""
    if not is_compiled(source):
        return _WithOwn(source, **parameters) if parameters else source
    if isinstance(source, type):
        return source(**parameters)
    return type(source)(**{**_as_given(source.values), **parameters})


class _WithOwn(functools.partial[Any]):
    """A `functools.partial` that gives every call lists and mappings of its own, see `own_values`."""

    def __call__(self, /, *args: Any, **keywords: Any) -> Any:
        return self.func(*self.args, *args, **own_values(self.keywords), **keywords)


def own_values(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Copy lists, mappings, sets, tuples and arrays deeply: environments may change them. Other values stay the same."""
    mutable = (MutableSequence, MutableMapping, MutableSet, tuple, np.ndarray)
    return {name: copy.deepcopy(value) if isinstance(value, mutable) else value for name, value in parameters.items()}


def _as_given(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments for a description with these values; it keeps None for the step limit as 0."""
    return {**values, "max_steps": values["max_steps"] or None}


def _split(env_id: str, option: str) -> tuple[str, str]:
    module_name, _, name = env_id.partition(":")
    if not module_name or module_name.startswith(".") or not name:
        raise ValueError(f"{option} is {env_id!r}; {YOUR_OWN}")
    return module_name, name


def import_module(env_id: str, option: str) -> ModuleType:
    """Import the module of "package.module:Name". Messages call that text `option`.

    Raises:
        ValueError: there is no such module. Exceptions of the module itself pass through.
    """
    module_name, _ = _split(env_id, option)
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name + ".").startswith(error.name + "."):
            raise  # the module is there, and something that it imports is not
        raise ValueError(f"{option} is {env_id!r}, but there is no module {module_name!r} to import") from error


def import_callable(env_id: str, option: str, offered: Callable[[ModuleType], list[str]]) -> Any:
    """Import the class or function at "package.module:Name".

    Messages call that text `option`, and name what `offered` lists of the module.

    Raises:
        ValueError: it is not there. Exceptions of its module pass through.
    """
    module_name, name = _split(env_id, option)
    module = import_module(env_id, option)
    found = getattr(module, name, None)
    if not callable(found) and not is_compiled(found):
        raise ValueError(
            f"{option} is {env_id!r}, but {module_name} has no class or function {name!r}; {nearest(name, offered(module))}"
        )
    for key, value in vars(module).items():
        if _is_made(value) and getattr(value, "main", None) is found:
            raise ValueError(f"{option} is {env_id!r}, which is the main of {module_name}:{key}; name that")
    return found


def _environments(module: ModuleType) -> list[str]:
    mine = module.__name__.startswith("entity_gym.")  # elsewhere our classes are what somebody has subclassed
    return [
        key
        for key, value in vars(module).items()
        if _is_made(value) or (_is_environment(value) and (mine or not value.__module__.startswith("entity_gym.")))
    ]


def _is_made(value: Any) -> bool:
    """Return True for an object that makes environments and is no class: a `SlotsFactory`."""
    return callable(value) and hasattr(value, "make_slots") and not isinstance(value, type)


def _is_environment(value: Any) -> bool:
    return isinstance(value, type) and (issubclass(value, Environment) or is_compiled(value))
