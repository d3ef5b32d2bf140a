"""Descriptions of environments that `make` can make: the options of a pool, and the spaces and sizes of its environments."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from entity_gym.actions import ActionSpace, ContinuousActionSpace, SelectEntityActionSpace
from entity_gym.errors import check_whole, nearest
from entity_gym.pools.pool import check_pool
from entity_gym.pools.slots import FinalObservations, SlotOptions
from entity_gym.pools.source import EnvSource
from entity_gym.pools.vec_env import VecEnv
from entity_gym.spaces import FeatureKind, ObsSpace, describe


@dataclass(frozen=True)
class PoolConfig:
    """The options of `make`.

    Attributes:
        name: the environment's name, or the place where it was found.
        source: makes the environments; None: not found yet.
        num_envs: number of environments.
        batch_size: how many environments `recv` returns; None: all.
        num_threads: threads that step the environments; see `ThreadedVecEnv`.
        num_processes: worker processes that step them, see `ProcessVecEnv`; 0: none.
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
class EntitySpec:
    """A type of entity.

    Attributes:
        features: names of its numbers.
        max: the most in one frame; None: not known.
        hideable: whether some may be hidden from the policy.
        kinds: name -> `Category`, `Angle` or `Flag`, for the features that are not plain numbers.
    """

    features: tuple[str, ...]
    max: int | None
    hideable: bool
    kinds: Mapping[str, FeatureKind] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class ActionSpec:
    """An action.

    Attributes:
        space: says what an actor may choose.
        max_actors: the most that act in one frame; None: not known.
        closable: whether not all values can be taken at all times.
        num_rows: the length of the padded list of entities, in which every type has the room that its `max` says; None: not
            known.
    """

    space: ActionSpace
    max_actors: int | None
    closable: bool
    num_rows: int | None

    @property
    def bounds(self) -> tuple[Any, Any]:
        """The smallest and the largest value: numbers, or tuples of them for continuous actions.

        Where actors select entities, a value is a row of the padded list of entities, and the one after the last row is
        nobody, if the space has `nobody`. The largest value is None where the number of rows is not known.
        """
        if isinstance(self.space, ContinuousActionSpace):
            return self.space.low, self.space.high
        if isinstance(self.space, SelectEntityActionSpace):
            return 0, None if self.num_rows is None else self.num_rows - 1 + self.space.nobody
        return 0, len(self.space.labels) - 1

    def __str__(self) -> str:
        low, high = self.bounds
        shown = f"{self.space.kind}, {low} to {'?' if high is None else high}"
        if self.space.labels:
            shown += f" ({', '.join(self.space.labels)})"
        most = "any number of actors" if self.max_actors is None else f"at most {self.max_actors} actor(s)"
        return f"{shown}, {most}{', masked' if self.closable else ''}"


@dataclass(frozen=True)
class EnvSpec:
    """Spaces and sizes of an environment, and the options of a pool of it.

    Attributes:
        config: every option of `make`, with the values that it comes to.
        obs_space: what it may show.
        action_space: its actions by name.
        entities: type -> features, and how many there can be.
        actions: name -> bounds, names of choices, and how many act.
    """

    config: PoolConfig
    obs_space: ObsSpace
    action_space: Mapping[str, ActionSpace]
    entities: Mapping[str, EntitySpec]
    actions: Mapping[str, ActionSpec]

    @property
    def reward_threshold(self) -> float | None:
        """Mean episodic reward at which the environment counts as solved."""
        return self.config.reward_threshold

    def __repr__(self) -> str:
        parameters = ", ".join(f"{name}={value!r}" for name, value in self.config.parameters.items())
        lines = [f"EnvSpec of {self.config.name}", *_wrapped(f"config: {self.config}")]
        lines += [*_wrapped(f"parameters: {parameters or 'none'}"), "  observation:"]
        for name, entity in self.entities.items():
            most = "any number" if entity.max is None else f"at most {entity.max}"
            hidden = ", may be hidden" if entity.hideable else ""
            lines.append(f"    {name}: {most}, features [{describe(entity.features, entity.kinds)}]{hidden}")
        if self.obs_space.global_features:
            shown = describe(self.obs_space.global_features, self.obs_space.global_kinds)
            lines.append(f"    global features [{shown}]")
        lines.append("  actions:")
        lines += [f"    {name}: {action}" for name, action in self.actions.items()]
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
    entities: dict[str, EntitySpec] = {}
    for name, entity in obs_space.entities.items():
        declared = source.entities.get(name)
        most = (config.max_entities or {}).get(name, getattr(declared, "max", None))
        entities[name] = EntitySpec(entity.features, most, getattr(declared, "hideable", True), entity.kinds)
    actions = {}
    for name, space in action_space.items():
        declared = source.actions.get(name)
        max_actors = getattr(declared, "max_actors", None) or _most(entities, getattr(declared, "actors", None))
        actions[name] = ActionSpec(
            space,
            1 if space.is_global else (config.max_actors or {}).get(name, max_actors),
            space.selects or (space.discrete and getattr(declared, "masked", True)),
            _most(entities),
        )
    return EnvSpec(config, obs_space, action_space, entities, actions)


def _check_room(option: str, given: Any, allowed: Mapping[str, object]) -> None:
    if not isinstance(given, Mapping | None):
        raise ValueError(f"{option} is {given!r:.200}; expected a mapping from name to the most in one frame")
    for name, most in (given or {}).items():
        if name not in allowed:
            raise ValueError(f"{option} names {name!r}; {nearest(name, allowed)}")
        check_whole(most, f"{option}[{name!r}]")


def _most(entities: Mapping[str, EntitySpec], types: tuple[str, ...] | None = None) -> int | None:
    """Return the most entities of `types` (None: of all) in one frame; None: not known."""
    most = [entity.max for name, entity in entities.items() if types is None or name in types]
    known = [each for each in most if each is not None]
    return sum(known) if len(known) == len(most) else None
