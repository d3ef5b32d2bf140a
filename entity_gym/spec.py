"""What `make_spec` says about an environment before there is one: its configuration, and everything that it shows and takes."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from entity_gym.actions import (
    ActionSpace,
    CategoricalActionSpace,
    ContinuousActionSpace,
    GlobalCategoricalActionSpace,
    SelectEntityActionSpace,
)
from entity_gym.errors import nearest
from entity_gym.pools.slots import FinalObservations
from entity_gym.spaces import FeatureKind, ObsSpace, describe

if TYPE_CHECKING:  # they import a compiler, Gymnasium and dm_env; most uses need none of these
    import gymnasium

    from entity_gym.compiled import Array, CompiledEnvironment

EnvType = Literal["entity", "gymnasium", "dm"]
Executor = Literal["thread", "process", "list"]
InvalidActions = Literal["replace", "raise"]


@dataclass(frozen=True)
class EnvConfig:
    """Every option of `make`, with the values that it comes to; see there."""

    name: str
    num_envs: int = 1
    batch_size: int | None = None
    num_threads: int | Literal["auto"] = 1
    num_processes: int | None = None
    executor: Executor | None = None
    thread_affinity_offset: int = -1
    seed: int = 0
    max_episode_steps: int | None = None
    reward_threshold: float | None = None
    max_num_players: int | None = None
    env_type: EnvType = "entity"
    final_observations: FinalObservations | None = None
    compile: bool = True
    max_entities: Mapping[str, int] | None = None
    max_actors: Mapping[str, int] | None = None
    invalid_actions: InvalidActions | None = None
    render_mode: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        shown = {
            each.name: getattr(self, each.name) for each in fields(self) if each.name not in ("name", "parameters")
        }
        return ", ".join(f"{name}={value!r}" for name, value in shown.items())


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
        kind: of choice.
        choices: their names; none for "select entity". For "continuous" the names of the numbers, if they have any.
        low, high: smallest and largest value. For "select entity" a value is a position in the padded list of entities, in
            which every type has the room that its `max` says, and the one after the last is nobody, where that is a choice
            at all times; None where the room is not known. For "continuous" one bound for each number.
        max_actors: the most that act in one frame; None: not known.
        closable: whether not all values can be taken at all times.
        nobody: whether nobody can be selected at all times.
    """

    kind: Literal["categorical", "global categorical", "select entity", "continuous"]
    choices: tuple[str, ...]
    high: int | tuple[float, ...] | None
    max_actors: int | None
    closable: bool
    low: int | tuple[float, ...] = 0
    nobody: bool = False

    def __str__(self) -> str:
        high = "?" if self.high is None else self.high
        if self.nobody:
            high = f"{high}, the last for nobody"
        names = f" ({', '.join(self.choices)})" if self.choices else ""
        most = "any number of actors" if self.max_actors is None else f"at most {self.max_actors} actor(s)"
        return f"{self.kind}, {self.low} to {high}{names}, {most}{', masked' if self.closable else ''}"


@dataclass(frozen=True)
class EnvSpec:
    """What an environment shows and takes, and how a pool of it is configured.

    Attributes:
        config: every option of `make`, with the values that it comes to.
        obs_space: what it may show.
        action_space: its actions by name.
        entities: type -> features, and how many there can be.
        actions: name -> bounds, names of choices, and how many act.
        arrays: name -> shape, dtype and bounds of the fixed arrays.
    """

    config: EnvConfig
    obs_space: ObsSpace
    action_space: Mapping[str, ActionSpace]
    entities: Mapping[str, EntitySpec]
    actions: Mapping[str, ActionSpec]
    arrays: Mapping[str, Array]

    @property
    def reward_threshold(self) -> float | None:
        """Mean episodic reward at which the environment counts as solved."""
        return self.config.reward_threshold

    @property
    def gymnasium_observation_space(self) -> gymnasium.Space[Any]:
        """Of one environment in the Gymnasium form.

        Raises:
            ImportError: without Gymnasium.
            ValueError: if the environment has no such form.
        """
        from entity_gym.bridges.gymnasium_form import observation_space

        return observation_space(self)

    @property
    def gymnasium_action_space(self) -> gymnasium.Space[Any]:
        """Of one environment in the Gymnasium form; raises as `gymnasium_observation_space` does."""
        from entity_gym.bridges.gymnasium_form import action_space

        return action_space(self)

    @property
    def dm_observation_spec(self) -> Any:
        """Of one environment in the dm form, a nested dictionary of `dm_env.specs`.

        Raises:
            ImportError: without dm_env.
            ValueError: if the environment has no such form.
        """
        from entity_gym.bridges.dm_form import observation_spec

        return observation_spec(self)

    @property
    def dm_action_spec(self) -> Any:
        """Of one environment in the dm form; raises as `dm_observation_spec` does."""
        from entity_gym.bridges.dm_form import action_spec

        return action_spec(self)

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
        for name, array in self.arrays.items():
            bounds = f"{_bound(array.low)} to {_bound(array.high)}"
            lines.append(f"    array {name!r}: {array.shape} {array.dtype}, {bounds}")
        lines.append("  actions:")
        lines += [f"    {name}: {action}" for name, action in self.actions.items()]
        return "\n".join(lines)


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, 110, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)


def _bound(value: Any) -> str:
    return str(value.tolist()) if isinstance(value, np.ndarray) else str(value)


def describe_spaces(
    config: EnvConfig,
    obs_space: ObsSpace,
    action_space: Mapping[str, ActionSpace],
    declared: type[CompiledEnvironment] | None = None,
) -> EnvSpec:
    """The spec of an environment with these spaces.

    Args:
        config: its `max_entities` and `max_actors` replace what is declared.
        obs_space: what it may show.
        action_space: its actions by name.
        declared: the class of a compiled environment, which says how many there can be of everything.

    Raises:
        ValueError: if `max_entities` or `max_actors` do not fit.
    """
    entities = {}
    _check_capacities(config.max_entities, "max_entities", obs_space.entities)
    _check_capacities(config.max_actors, "max_actors", action_space)
    for name, entity in obs_space.entities.items():
        most = (config.max_entities or {}).get(name)
        hideable = declared is None or declared.entities[name].hideable
        if declared is not None:
            most = most or declared.entities[name].max
        entities[name] = EntitySpec(entity.features, most, hideable, entity.kinds)
    actions = {name: _action_spec(name, space, config, entities, declared) for name, space in action_space.items()}
    return EnvSpec(
        config, obs_space, action_space, entities, actions, {} if declared is None else dict(declared.arrays)
    )


def _action_spec(
    name: str,
    space: ActionSpace,
    config: EnvConfig,
    entities: Mapping[str, EntitySpec],
    declared: type[CompiledEnvironment] | None,
) -> ActionSpec:
    action: Any = None if declared is None else declared.actions[name]
    closable = getattr(action, "masked", True)
    if isinstance(space, GlobalCategoricalActionSpace):
        return ActionSpec("global categorical", tuple(space.choices), len(space.choices) - 1, 1, closable)
    max_actors = (config.max_actors or {}).get(name)
    if max_actors is None:
        max_actors = getattr(action, "max_actors", None) or _room(entities, getattr(action, "actors", None))
    if isinstance(space, CategoricalActionSpace):
        return ActionSpec("categorical", tuple(space.choices), len(space.choices) - 1, max_actors, closable)
    if isinstance(space, ContinuousActionSpace):
        names, low, high = tuple(space.names or ()), tuple(space.low), tuple(space.high)
        return ActionSpec("continuous", names, high, max_actors, closable=False, low=low)
    assert isinstance(space, SelectEntityActionSpace)
    room = _room(entities, None)
    last = None if room is None else room - 1 + space.nobody
    return ActionSpec("select entity", (), last, max_actors, closable=True, nobody=space.nobody)


def _room(entities: Mapping[str, EntitySpec], types: tuple[str, ...] | None) -> int | None:
    """How many entities of `types` (None: of all) there can be."""
    most = [entity.max for name, entity in entities.items() if types is None or name in types]
    known = [each for each in most if each is not None]
    return sum(known) if len(known) == len(most) else None


def _check_capacities(given: Mapping[str, int] | None, option: str, allowed: Mapping[str, object]) -> None:
    if given is not None and not isinstance(given, Mapping):
        raise ValueError(f"{option} is {given!r:.200}; expected a mapping from name to the most in one frame")
    for name, most in (given or {}).items():
        if name not in allowed:
            raise ValueError(f"{option} names {name!r}; {nearest(name, allowed)}")
        if isinstance(most, bool) or not isinstance(most, int) or most < 1:
            raise ValueError(f"{option}[{name!r}] is {most!r}; it must be a whole number of at least 1")
