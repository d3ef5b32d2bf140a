"""Descriptions of environments that `make` can make: the options of a pool, and the spaces and sizes of its environments."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from entity_gym.actions import ActionSpace
from entity_gym.errors import check_whole, nearest
from entity_gym.pools.pool import check_pool
from entity_gym.pools.slots import FinalObservations, SlotOptions
from entity_gym.pools.source import EnvSource
from entity_gym.pools.vec_env import VecEnv
from entity_gym.spaces import ObsSpace, describe


@dataclass(frozen=True)
class PoolConfig:
    """The options of `make`.

    Attributes:
        name: the environment's name, or the place where it was found.
        source: makes the environments; None: not found yet.
        num_envs: number of environments.
        batch_size: how many environments `recv` returns; None: all.
        num_threads: threads that step the environments; see `ThreadedVecEnv`.
        num_processes: worker processes that step them; 0: none.
        seed: environment i draws from `SeedSequence((seed, i))`.
        max_episode_steps: steps after which an episode is truncated; None: as the environment says.
        reward_threshold: mean episodic reward at which the environment counts as solved; for information only.
        final_observations: the last observations to keep.
        compile: false runs compiled environments as ordinary Python.
        max_entities: for `make_gym` and `make_dm`, entity type -> room in padded arrays. Types that are left out have as much
            as they declare; those of Python environments declare nothing.
        max_actors: in the same way, action -> room for those who act.
        parameters: the environment's own. `make` takes them by keyword, like options.

    Raises:
        ValueError: naming the option, its value and the allowed values.
    """

    name: str
    source: EnvSource | None = None
    num_envs: int = 1
    batch_size: int | None = None
    num_threads: int = 1
    num_processes: int = 0
    seed: int = 0
    max_episode_steps: int | None = None
    reward_threshold: float | None = None
    final_observations: FinalObservations = "truncated"
    compile: bool = True
    max_entities: Mapping[str, int] | None = None
    max_actors: Mapping[str, int] | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_pool(self.num_envs, self.num_threads, self.batch_size, self.seed, self.num_processes)
        SlotOptions(final_observations=self.final_observations)
        if self.max_episode_steps is not None:
            check_whole(self.max_episode_steps, "max_episode_steps")

    def of_pool(self) -> dict[str, Any]:
        """Return the arguments of `ThreadedVecEnv`, by name."""
        names = ("num_envs", "num_threads", "batch_size", "seed", "num_processes")
        options = {name: getattr(self, name) for name in (*names, "final_observations", "compile")}
        return {"env": self.source, **options}

    def __str__(self) -> str:
        return ", ".join(f"{option}={getattr(self, option)!r}" for option in OPTIONS)


#: The names of all options of `make`; its other arguments are parameters of the environment.
OPTIONS = tuple(each.name for each in fields(PoolConfig) if each.name not in ("name", "source", "parameters"))

#: Those that concern padded arrays alone.
PADDED_OPTIONS = ("max_entities", "max_actors")


@dataclass(frozen=True)
class EnvSpec:
    """Spaces and sizes of an environment, and the options of a pool of it.

    Attributes:
        config: every option of `make`, with the values that it comes to.
        obs_space: what it may show.
        action_space: its actions by name.
        entities: type -> the most in one frame; None: not known.
        actions: action -> the most that act in one frame; None: not known.
        closable: actions of which not all values can be taken at all times.
    """

    config: PoolConfig
    obs_space: ObsSpace
    action_space: Mapping[str, ActionSpace]
    entities: Mapping[str, int | None]
    actions: Mapping[str, int | None]
    closable: Collection[str]

    @property
    def reward_threshold(self) -> float | None:
        """Mean episodic reward at which the environment counts as solved."""
        return self.config.reward_threshold

    @property
    def id(self) -> str:
        """Name of the environment, by which Gymnasium shows it."""
        return self.config.name

    def __repr__(self) -> str:
        parameters = ", ".join(f"{name}={value!r}" for name, value in self.config.parameters.items())
        lines = [f"EnvSpec of {self.config.name}", *_wrapped(f"config: {self.config}")]
        lines += [*_wrapped(f"parameters: {parameters or 'none'}"), "  observation:"]
        for name, room in self.entities.items():
            entity, most = self.obs_space.entities[name], "any number" if room is None else f"at most {room}"
            lines.append(f"    {name}: {most}, features [{describe(entity.features, entity.kinds)}]")
        if self.obs_space.global_features:
            shown = describe(self.obs_space.global_features, self.obs_space.global_kinds)
            lines.append(f"    global features [{shown}]")
        lines.append("  actions:")
        for name, space in self.action_space.items():
            low, high = space.padded_bounds(most_of(self.entities.values()))
            shown = f"{space.kind}, {low} to {'?' if high is None else high}"
            shown += f" ({', '.join(space.labels)})" if space.labels else ""
            actors = "any number of actors" if self.actions[name] is None else f"at most {self.actions[name]} actor(s)"
            after = f", after {', '.join(space.after)}" if space.after else ""
            lines.append(f"    {name}: {shown}, {actors}{', masked' if name in self.closable else ''}{after}")
        return "\n".join(lines)


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, 110, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)


def spec_of(config: PoolConfig, pool: VecEnv | None = None) -> EnvSpec:
    """Return the spec of environments that have been found; their spaces are those of `pool`, which may be left out.

    Raises:
        ValueError: if `max_entities` or `max_actors` do not fit.
    """
    source = config.source
    assert source is not None
    obs_space, action_space = source.spaces() if pool is None else (pool.obs_space(), pool.action_space())
    _check_room("max_entities", config.max_entities, obs_space.entities)
    _check_room("max_actors", config.max_actors, action_space)
    entities, actions = {}, {}
    for name in obs_space.entities:
        entities[name] = (config.max_entities or {}).get(name, getattr(source.entities.get(name), "max", None))
    for name, space in action_space.items():
        declared = source.actions.get(name)
        types = getattr(declared, "actors", None)
        most = most_of(room for type_, room in entities.items() if types is None or type_ in types)
        most = getattr(declared, "max_actors", None) or most
        actions[name] = 1 if space.is_global else (config.max_actors or {}).get(name, most)
    closable = [
        name
        for name, space in action_space.items()
        if space.selects
        or space.allowed
        or (
            space.discrete and any(getattr(source.actions.get(name), each, True) for each in ("masked", "masked_after"))
        )
    ]
    return EnvSpec(config, obs_space, action_space, entities, actions, closable)


def _check_room(option: str, given: Any, allowed: Mapping[str, object]) -> None:
    if not isinstance(given, Mapping | None):
        raise ValueError(f"{option} is {given!r:.200}; expected a mapping from name to the most in one frame")
    for name, most in (given or {}).items():
        if name not in allowed:
            raise ValueError(f"{option} names {name!r}; {nearest(name, allowed)}")
        check_whole(most, f"{option}[{name!r}]")


def most_of(rooms: Iterable[int | None]) -> int | None:
    """Return the most entities of some types in one frame; None: not known."""
    known = list(rooms)
    return None if None in known else sum(filter(None, known))
