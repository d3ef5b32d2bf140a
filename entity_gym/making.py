"""How `make` comes from a name and options to environments. `registry` has the functions for users."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

from entity_gym.environment import Environment
from entity_gym.errors import nearest
from entity_gym.pools.batch_env import BatchEnvironment, BatchSlots
from entity_gym.pools.pool import (
    EnvSource,
    ListEnv,
    SlotVecEnv,
    ThreadedVecEnv,
    check_batch_size,
    check_num_threads,
    is_compiled,
    make_slots,
)
from entity_gym.pools.python_slots import PythonSlots
from entity_gym.pools.slots import check_final_observations, check_num_envs, check_seed
from entity_gym.pools.vec_env import VecEnv
from entity_gym.pools.workers import check_affinity
from entity_gym.registry import Registered, look_up
from entity_gym.spec import EnvConfig, EnvSpec, EnvType, Executor, InvalidActions, describe_spaces

if TYPE_CHECKING:
    from entity_gym.compiled import CompiledEnvironment

#: What `make` takes besides the environment's parameters.
OPTIONS = tuple(each.name for each in fields(EnvConfig) if each.name not in ("name", "parameters"))

#: How an environment may call its step limit.
LIMITS = ("max_steps", "max_episode_steps")


class Prepared(NamedTuple):
    """Environments that only need to be made."""

    config: EnvConfig
    source: EnvSource  # bound to its parameters
    compiled: CompiledEnvironment | None  # the same, where it is a compiled one


def prepare(env: Any, given: Mapping[str, Any]) -> Prepared:
    """Find the environment, check all options, and bind the parameters.

    Args:
        env: as in `make`.
        given: options and the environment's parameters.

    Raises:
        ValueError: naming what cannot be.
    """
    found = look_up(env) if isinstance(env, str) else Registered(env)
    name = env if isinstance(env, str) else getattr(env, "__name__", type(env).__name__)
    options = {key: value for key, value in given.items() if key in OPTIONS}
    parameters = {**found.defaults, **{key: value for key, value in given.items() if key not in OPTIONS}}
    if options.get("max_episode_steps") is None and "max_steps" not in given:
        options["max_episode_steps"] = found.max_episode_steps
    if options.get("reward_threshold") is None:
        options["reward_threshold"] = found.reward_threshold
    source = found.load()
    config = _checked(EnvConfig(name=name, **{**options, "parameters": parameters}))
    if isinstance(source, Environment):
        raise ValueError(f"make: {name} is one object; give what makes one, such as the class {type(source).__name__}")
    bind = _bind_compiled if is_compiled(source) else _bind_python
    prepared = bind(source, config)
    return prepared._replace(config=_with_executor(prepared.config, compiled=prepared.compiled is not None))


def make_pool(prepared: Prepared, batch_size: int | None) -> VecEnv:
    """A pool of the environments, with this `batch_size` in place of the config's."""
    config, source = prepared.config, prepared.source
    common: dict[str, Any] = {
        "batch_size": batch_size,
        "seed": config.seed,
        "final_observations": config.final_observations,
    }
    if config.executor == "list":
        return ListEnv(source, config.num_envs, compile=config.compile, **common)
    if config.executor == "process":
        from entity_gym.pools.processes.env import ProcessVecEnv

        processes = config.num_processes or min(config.num_envs, os.cpu_count() or 1)
        return ProcessVecEnv(source, config.num_envs, processes, compile=config.compile, **common)
    return ThreadedVecEnv(
        source,
        config.num_envs,
        config.num_threads,
        compile=config.compile,
        thread_affinity_offset=config.thread_affinity_offset,
        **common,
    )


def make_single_pool(prepared: Prepared) -> SlotVecEnv:
    """One environment without autoreset: after the last observation of an episode comes `reset`."""
    slots = make_slots(prepared.source, 1, autoreset=False, final_observations="none", compile=prepared.config.compile)
    return SlotVecEnv(slots, seed=prepared.config.seed)


def draws(prepared: Prepared, pool: SlotVecEnv) -> bool:
    """Whether the environments of `pool` implement `render`, as far as that can be seen without calling it."""
    if prepared.compiled is not None:
        return type(prepared.compiled).render is not None
    if isinstance(pool.slots, PythonSlots):
        return type(pool.slots.envs[0]).render is not Environment.render
    return not isinstance(pool.slots, BatchSlots) or type(pool.slots.env).render is not BatchEnvironment.render


def spec_of(prepared: Prepared, pool: VecEnv | None = None) -> EnvSpec:
    """What the environments show and take; a Python environment is asked itself, so without a pool one is made for that."""
    config = prepared.config
    if prepared.compiled is not None:
        declared = type(prepared.compiled)
        return describe_spaces(config, declared.obs_space(), declared.action_space(), declared)
    if pool is not None:
        return describe_spaces(config, pool.obs_space(), pool.action_space())
    with ListEnv(prepared.source, 1) as one:
        return describe_spaces(config, one.obs_space(), one.action_space())


def _checked(config: EnvConfig) -> EnvConfig:
    """The config, with options that can be, each by itself.

    Raises:
        ValueError: naming the option, its value and what is allowed.
    """
    check_num_envs(config.num_envs)
    check_batch_size(config.batch_size, config.num_envs)
    if config.num_threads != "auto":
        check_num_threads(config.num_threads)
    check_affinity(config.thread_affinity_offset)
    check_seed(config.seed)
    for option, allowed in (
        ("env_type", get_args(EnvType)),
        ("executor", (None, *get_args(Executor))),
        ("invalid_actions", (None, *get_args(InvalidActions))),
        ("render_mode", (None, "rgb_array")),
    ):
        if getattr(config, option) not in allowed:
            raise ValueError(f"{option} is {getattr(config, option)!r}; allowed: {', '.join(map(repr, allowed))}")
    for option in ("max_episode_steps", "max_num_players"):
        value = getattr(config, option)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise ValueError(f"{option} is {value!r}; it must be a whole number of at least 1")
    if config.render_mode is not None and config.env_type != "gymnasium":
        raise ValueError(
            f"render_mode is {config.render_mode!r}, which is for env_type='gymnasium'; others just render"
        )
    for option in ("max_entities", "max_actors"):
        if getattr(config, option) is not None and config.env_type == "entity":
            raise ValueError(f"{option} is for env_type='gymnasium' and 'dm'; entities are not padded")
    if config.invalid_actions == "replace" and config.env_type == "entity":
        raise ValueError("invalid_actions is 'replace', which is for env_type='gymnasium' and 'dm'; entity pools raise")
    final = config.final_observations
    if final is not None:
        check_final_observations(final)
        if config.env_type != "entity" and final != "all":
            raise ValueError(f"final_observations is {final!r}; env_type={config.env_type!r} needs 'all'")
    return config


def _with_executor(config: EnvConfig, *, compiled: bool) -> EnvConfig:
    """The config with the executor that it comes to, if its options go together.

    Raises:
        ValueError: for an option that the executor would ignore.
    """
    threads = config.num_threads != 1 or config.thread_affinity_offset != -1
    executor = config.executor
    if executor is None:
        executor = "process" if config.num_processes is not None else "thread" if compiled or threads else "list"
    if executor != "thread" and threads:
        raise ValueError(f"num_threads and thread_affinity_offset are for executor='thread'; it is {executor!r}")
    if executor != "process" and config.num_processes is not None:
        raise ValueError(
            f"num_processes is {config.num_processes!r}, which is for executor='process'; it is {executor!r}"
        )
    if executor == "list" and compiled and config.env_type != "entity":
        raise ValueError(f"env_type={config.env_type!r} of a compiled environment needs executor='thread' or 'process'")
    final = config.final_observations or ("truncated" if config.env_type == "entity" else "all")
    return replace(config, executor=executor, batch_size=config.batch_size or config.num_envs, final_observations=final)


def _bind_compiled(source: Any, config: EnvConfig) -> Prepared:
    cls: type[CompiledEnvironment] = source if isinstance(source, type) else type(source)
    values = cls.defaults() if isinstance(source, type) else dict(source.values)
    _check_parameters(config, list(values), limit="max_steps")
    given = dict(config.parameters)
    if config.max_episode_steps is not None:
        given["max_steps"] = config.max_episode_steps
    if config.max_num_players is not None and config.max_num_players != cls.max_num_players:
        if not any(array.per_player for array in cls.arrays.values()):
            raise ValueError(
                f"max_num_players is {config.max_num_players}; {config.name} has no arrays with a row a player"
            )
        cls = resized(cls, config.max_num_players)  # type: ignore[arg-type]  # mypy takes the hash of instances for the class's
    description = cls(**_as_given({**values, **given}))
    values = dict(description.values)
    limit = values.pop("max_steps")
    threshold = cls.reward_threshold if config.reward_threshold is None else config.reward_threshold
    config = replace(
        config,
        parameters=values,
        max_episode_steps=int(limit) or None,
        max_num_players=cls.max_num_players,
        reward_threshold=threshold,
    )
    return Prepared(config, description, description)


def _bind_python(source: Any, config: EnvConfig) -> Prepared:
    if not callable(source):
        raise ValueError(f"make: {source!r:.200} is no environment; give a name, a class or what makes an environment")
    try:
        signature: Mapping[str, inspect.Parameter] = inspect.signature(source).parameters
    except (TypeError, ValueError):  # some callables have none to look at
        signature = {}
    kinds = {each.kind for each in signature.values()}
    names = [name for name, each in signature.items() if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)]
    limit = next((name for name in LIMITS if name in names), None)
    if signature and inspect.Parameter.VAR_KEYWORD not in kinds:
        _check_parameters(config, names, limit)
    if config.max_num_players not in (None, 1):
        raise ValueError(
            f"max_num_players is {config.max_num_players}; {config.name} has no arrays with a row a player"
        )
    if config.max_episode_steps is not None and limit is None:
        raise ValueError(
            f"max_episode_steps is {config.max_episode_steps}, but {config.name} has no parameter 'max_steps' to give it to"
        )
    given = dict(config.parameters)
    if limit is not None and config.max_episode_steps is not None:
        given[limit] = config.max_episode_steps
    bound: Callable[[], Environment] = functools.partial(source, **given) if given else source
    declared = {name: each.default for name, each in signature.items() if each.default is not inspect.Parameter.empty}
    values = {**declared, **given}
    steps = None if limit is None else values.pop(limit, None)
    threshold = config.reward_threshold
    if threshold is None:
        threshold = getattr(source, "reward_threshold", None)
    config = replace(config, parameters=values, max_episode_steps=steps, max_num_players=1, reward_threshold=threshold)
    return Prepared(config, bound, None)


def _check_parameters(config: EnvConfig, parameters: list[str], limit: str | None) -> None:
    """Raise a ValueError for what is neither an option nor a parameter."""
    for key, value in config.parameters.items():
        if key == limit and config.max_episode_steps not in (None, value):
            raise ValueError(f"{key}={value!r} and max_episode_steps={config.max_episode_steps!r}: give one of them")
        if key not in parameters:
            raise ValueError(
                f"make: {config.name} has no parameter {key!r}, and there is no such option; "
                f"{nearest(key, [*parameters, *OPTIONS])}"
            )


def _as_given(values: Mapping[str, Any]) -> dict[str, Any]:
    """A description's values as its constructor takes them: 0 is how it keeps that there is no step limit."""
    return {**values, "max_steps": values["max_steps"] or None}


@functools.cache
def resized(cls: type[CompiledEnvironment], max_num_players: int) -> type[CompiledEnvironment]:
    """`cls` with room for so many players."""

    def reduce(self: CompiledEnvironment) -> Any:  # the class is in no module, where pickle would look for it
        return _resized_description, (cls, max_num_players, _as_given(self.values))

    body = {
        "__module__": cls.__module__,
        "__doc__": cls.__doc__,
        "max_num_players": max_num_players,
        "__reduce__": reduce,
    }
    return type(cls.__name__, (cls,), body)


def _resized_description(
    cls: type[CompiledEnvironment], max_num_players: int, values: Mapping[str, Any]
) -> CompiledEnvironment:
    return resized(cls, max_num_players)(**values)  # type: ignore[arg-type]
