"""Environments by name, and the one door to them: `bind` finds one and gives it its parameters.

Nothing is imported before it is made: neither the environments, nor their compiler, nor other libraries.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

from entity_gym.errors import nearest
from entity_gym.pools.pool import ThreadedVecEnv
from entity_gym.pools.source import EnvFactory, EnvSource, as_source
from entity_gym.pools.spec import OPTIONS, PADDED_OPTIONS, EnvSpec, PoolConfig, spec_of
from entity_gym.pools.vec_env import VecEnv

#: Parameters by which an environment may take its step limit.
LIMITS = ("max_steps", "max_episode_steps")

#: Prefix of a name, as in "gymnasium:CartPole-v1" -> the function that returns the source of that name and its parameters.
LIBRARIES = {
    "gymnasium": "entity_gym.bridges:gymnasium_worlds",
    "dm_env": "entity_gym.bridges:dm_worlds",
    "pettingzoo": "entity_gym.bridges:pettingzoo_worlds",
    "program": "entity_gym.bridges.remote:ProgramWorlds",
}

YOUR_OWN = "your own is written as my_package.my_module:MyEnv"


@dataclass(frozen=True)
class Registered:
    """The environment of a name.

    Attributes:
        env: what makes it, or where that is found: "package.module:Name".
        max_episode_steps, reward_threshold: replace the environment's own.
        defaults: parameters that replace the environment's own defaults.
    """

    env: EnvFactory | str
    max_episode_steps: int | None = None
    reward_threshold: float | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)


_ENVS = "entity_gym.envs"
_registered: dict[str, Registered] = {
    name: Registered(f"{_ENVS}.{where}")
    for name, where in {
        "CartPole-v0": "cart_pole:CartPoleV0",
        "CartPole-v1": "cart_pole:CartPole",
        "CherryPick": "cherry_pick:CherryPick",
        "ConnectFour": "connect_four:ConnectFour",
        "Corridor": "corridor:Corridor",
        "Count": "toys:Count",
        "FloorIsLava": "toys:FloorIsLava",
        "Knapsack": "knapsack:Knapsack",
        "Minefield": "minefield:Minefield",
        "MineSweeper": "minesweeper:MineSweeper",
        "MoveToOrigin": "toys:MoveToOrigin",
        "MultiArmedBandit": "toys:MultiArmedBandit",
        "MultiSnake": "multi_snake:MultiSnake",
        "NotHotdog": "toys:NotHotdog",
        "Pairs": "pairs:Pairs",
        "PickMatchingBalls": "pick_matching_balls:PickMatchingBalls",
        "RockPaperScissors": "toys:RockPaperScissors",
        "Route": "route:Route",
        "Shells": "shells:Shells",
        "Skirmish": "skirmish:Skirmish",
        "TreasureHunt": "treasure_hunt:TreasureHunt",
        "Xor": "toys:Xor",
    }.items()
}


def list_envs() -> list[str]:
    """List all registered names in alphabetical order."""
    return sorted(_registered, key=str.lower)


def register(
    name: str,
    env: EnvFactory | str,
    *,
    max_episode_steps: int | None = None,
    reward_threshold: float | None = None,
    **defaults: Any,
) -> None:
    """Give an environment a name for `make`.

    Args:
        name: the new name, without ":".
        env: what makes it, as in `make`, or "package.module:Name", which is imported only when it is made.
        max_episode_steps: in place of the environment's own step limit.
        reward_threshold: in place of the environment's own.
        defaults: parameters, in place of the environment's own defaults.

    Raises:
        ValueError: if the name is taken by something else, or cannot be one.
    """
    new = Registered(env, max_episode_steps, reward_threshold, defaults)
    if isinstance(env, str):
        _split(env, "the environment")
    else:
        as_source(env)
    if not isinstance(name, str) or not name or ":" in name:
        raise ValueError(f"register: the name is {name!r}; it must be a text without ':'")
    if _registered.get(name, new) != new:
        raise ValueError(f"register: the name {name!r} is taken by {_registered[name].env!r}; choose another")
    _registered[name] = new


# ---- the door


def bind(
    env: EnvFactory | str,
    parameters: Mapping[str, Any] = {},  # noqa: B006 - is not changed
    max_episode_steps: int | None = None,
    *,
    option: str = "the environment",
    options: Iterable[str] = (),
) -> EnvSource:
    """Find an environment, and give it its parameters.

    Args:
        env: one of `list_envs()`, "package.module:Name", "gymnasium:CartPole-v1" or another of `LIBRARIES`, or what makes
            environments (`EnvFactory`).
        parameters: they replace registered ones, and the environment's own defaults.
        max_episode_steps: the step limit. None: that of `parameters`, the registered one, or the environment's own.
        option: how messages call `env`.
        options: further keywords that messages offer.

    Raises:
        ValueError: there is no such environment, it has no such parameter, takes no step limit, or is given two. Exceptions of
            its module pass through.
    """
    if isinstance(env, str) and env.partition(":")[0] in LIBRARIES:
        return _across(env, parameters)
    found = look_up(env, option) if isinstance(env, str) else Registered(env)
    source = as_source(import_callable(found.env, option) if isinstance(found.env, str) else found.env)
    name = env if isinstance(env, str) else source.name
    values = {**found.defaults, **parameters}
    for key in values:
        if key not in source.names and not source.takes_others:
            raise ValueError(f"{name} has no parameter {key!r}; {nearest(key, [*source.names, *options])}")
    limit, steps = limit_of(source), max_episode_steps
    if steps is None and limit not in parameters:
        steps = found.max_episode_steps
    if steps is not None:
        if not limit:
            raise ValueError(f"max_episode_steps is {steps}, but {name} has no parameter 'max_steps' to give it to")
        if values.get(limit) not in (None, steps):
            raise ValueError(f"{limit}={values[limit]!r} and max_episode_steps={steps!r}: give one of them")
        values[limit] = steps
    return source.with_values(values)


def make(env: EnvFactory | str, num_envs: int = 1, **options: Any) -> VecEnv:
    """Make a pool of environments.

    Args:
        env: one of `list_envs()`, "package.module:Class", "gymnasium:CartPole-v1" or another of `LIBRARIES`, or what makes
            environments: a compiled environment (class, or instance with parameters), a class or function that makes a Python
            one, a class of `EnvSlots`.
        num_envs: number of environments.
        options: those of `PoolConfig`, and the environment's parameters.

    Raises:
        ValueError: for names, options and values that are not allowed, with the nearest allowed ones.
    """
    config = prepare(env, {"num_envs": num_envs, **options})
    for option in PADDED_OPTIONS:
        if (given := getattr(config, option)) is not None:
            raise ValueError(f"{option} is {given!r}, which is for make_gym and make_dm: make does not pad entities")
    return ThreadedVecEnv(**config.of_pool())


def make_spec(env: EnvFactory | str, num_envs: int = 1, **options: Any) -> EnvSpec:
    """Describe the pool that `make`, `make_gym` or `make_dm` makes with the same arguments: its options, spaces and sizes.

    A Python environment is made once to see its spaces.

    Raises:
        ValueError: as `make` does.
    """
    return spec_of(prepare(env, {"num_envs": num_envs, **options}))


def prepare(env: Any, options: Mapping[str, Any]) -> PoolConfig:
    """Find an environment, give it its parameters, and check the options; `options` are those of `make`.

    Raises:
        ValueError: naming the option or parameter that cannot be.
    """
    config = PoolConfig("", **{name: value for name, value in options.items() if name in OPTIONS})
    parameters = {name: value for name, value in options.items() if name not in OPTIONS}
    source = bind(env, parameters, config.max_episode_steps, options=OPTIONS)
    values = dict(source.values)
    steps = values.pop(limit_of(source), None) or None
    registered = look_up(env).reward_threshold if isinstance(env, str) else None
    thresholds = (config.reward_threshold, registered, getattr(source.world, "reward_threshold", None))
    return replace(
        config,
        name=env if isinstance(env, str) else source.name,
        source=source,
        max_episode_steps=steps,
        reward_threshold=next((each for each in thresholds if each is not None), None),
        parameters=values,
    )


# ---- finding environments


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


def limit_of(source: EnvSource) -> str:
    """Return the parameter that is the step limit; "" if there is none."""
    return next((each for each in LIMITS if each in source.names), "")


def _across(env: str, parameters: Mapping[str, Any]) -> EnvSource:
    """Return the source of another library's environments; errors name the library to install."""
    library, _, name = env.partition(":")
    make_source = import_callable(LIBRARIES[library], "the library")
    try:
        source: EnvSource = make_source(name, **parameters)
    except (TypeError, ImportError) as error:
        raise ValueError(f"{env}: {error}") from error
    return source


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


def import_callable(env_id: str, option: str) -> Any:
    """Import the class, function or source at "package.module:Name".

    Messages call that text `option`.

    Raises:
        ValueError: it is not there. Exceptions of its module pass through.
    """
    module_name, name = _split(env_id, option)
    module = import_module(env_id, option)
    found = getattr(module, name, None)
    if not callable(found) and not isinstance(found, EnvSource):
        public = {key: value for key, value in vars(module).items() if not key.startswith("_")}
        of_module = [each for each in public.items() if getattr(each[1], "__module__", None) == module_name]
        own = [key for key, value in public.items() if isinstance(value, EnvSource)] + [key for key, _ in of_module]
        raise ValueError(
            f"{option} is {env_id!r}, but {module_name} has no class or function {name!r}; {nearest(name, own or list(public))}"
        )
    return found
