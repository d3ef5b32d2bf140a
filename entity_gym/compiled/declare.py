"""Declarations of a compiled environment's class: its entities, actions, fields, and the parameters of an instance."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from entity_gym import spaces
from entity_gym.actions import (
    ActionSpace,
    CategoricalActionSpace,
    ContinuousActionSpace,
    GlobalCategoricalActionSpace,
    SelectEntitiesActionSpace,
    SelectEntityActionSpace,
)
from entity_gym.errors import check_whole, nearest
from entity_gym.pools.source import EnvSource
from entity_gym.spaces import Feature, ObsSpace

Types = str | Sequence[str] | None
Value = int | float | bool


@dataclass(frozen=True, init=False, repr=False)
class Entity(spaces.Entity):
    """A type of entity. Features are as in `entity_gym.Entity`.

    Attributes:
        max: the most that one environment can show at once; sizes memory, and is never seen outside.
        hideable: whether `obs.visible.<Type>[i] = False` can hide entities from the policy.
        ids: whether `observe` writes `obs.ids.<Type>[i]`, an integer that stays with the entity for the whole episode;
            `new_id(s)` gives out fresh ones.
    """

    max: int
    hideable: bool
    ids: bool

    def __init__(
        self,
        features: Iterable[spaces.Feature],
        max: int,
        hideable: bool = False,
        kinds: Mapping[str, spaces.FeatureKind] = spaces.NO_KINDS,
        *,
        ids: bool = False,
    ) -> None:
        super().__init__(features, kinds)
        check_whole(max, "Entity: max")
        for name, value in (("max", max), ("hideable", hideable), ("ids", ids)):
            object.__setattr__(self, name, value)


@dataclass(frozen=True)
class Action:
    """An action of a compiled environment; `Categorical` and the functions below it declare one.

    Attributes:
        space: the kind of the action, with its choices or bounds.
        actors: entity types whose every entity acts; None where `observe` lists the actors, and for a global action.
        max_actors: the most actors that `observe` lists.
        actees, max_actees: likewise, the entities that may be selected.
        masked: whether `observe` can close choices.
        masked_after: whether `observe` can close choices after the entity that an earlier action has selected.
    """

    space: ActionSpace
    actors: Types = None
    max_actors: int | None = None
    actees: Types = None
    max_actees: int | None = None
    masked: bool = False
    masked_after: bool = False

    def __post_init__(self) -> None:
        owner = type(self.space).__name__.removesuffix("ActionSpace")
        for role in self.roles:
            types, most = getattr(self, role), getattr(self, f"max_{role}")
            if (types is None) == (most is None):
                raise ValueError(
                    f"{owner}: {role}={types!r} and max_{role}={most!r}; give one of them: the entity types that are the {role}, "
                    f"or the most {role} that `observe` will write"
                )
            if types is None:
                check_whole(most, f"{owner}: max_{role}")
            else:
                object.__setattr__(self, role, (types,) if isinstance(types, str) else tuple(types))

    @property
    def roles(self) -> tuple[str, ...]:
        """The lists of entities that the action has."""
        return () if self.space.is_global else ("actors", "actees") if self.space.selects else ("actors",)


def Categorical(
    choices: Sequence[str],
    actors: Types = None,
    max_actors: int | None = None,
    masked: bool = False,
    *,
    masked_after: bool = False,
    **options: Any,
) -> Action:
    """Declare an action with which every actor picks one of `choices`.

    Args:
        choices: their names.
        actors: entity types whose every entity acts; the engine fills them in.
        max_actors: instead of `actors`: the most that `observe` writes into `obs.<Action>.actors`.
        masked: whether `obs.<Action>.mask[j, c]` can close choices.
        masked_after: whether `obs.<Action>.mask_after[j, k, c]` can close choice c to an actor that has selected actee k, by its
            place in the list of the select-entity action in `after`.
        options: further ones of `entity_gym.CategoricalActionSpace`, such as `after`.
    """
    return Action(
        CategoricalActionSpace(choices, **options), actors, max_actors, masked=masked, masked_after=masked_after
    )


def GlobalCategorical(choices: Sequence[str], masked: bool = False, **options: Any) -> Action:
    """Declare an action with which the environment as a whole picks one of `choices`.

    Args:
        choices: their names.
        masked: whether `obs.<Action>.mask[0, c]` can close choices.
        options: further ones of `entity_gym.GlobalCategoricalActionSpace`.
    """
    return Action(GlobalCategoricalActionSpace(choices, **options), masked=masked)


def SelectEntity(
    actors: Types = None,
    max_actors: int | None = None,
    actees: Types = None,
    max_actees: int | None = None,
    masked: bool = False,
    **options: Any,
) -> Action:
    """Declare an action with which every actor picks an entity.

    In `step`, `act.<Action>[j]` is the entity index that actor j picked; -1 for nobody.

    Args:
        actors: as in `Categorical`.
        max_actors: as in `Categorical`.
        actees: entity types whose every entity may be picked; the engine fills them in.
        max_actees: instead of `actees`: the most that `observe` writes into `obs.<Action>.actees`.
        masked: whether `obs.<Action>.mask[actor, actee]` (positions in the two lists) can close pairs.
        options: those of `entity_gym.SelectEntityActionSpace`.
    """
    return Action(SelectEntityActionSpace(**options), actors, max_actors, actees, max_actees, masked)


def SelectEntities(
    actors: Types = None,
    max_actors: int | None = None,
    actees: Types = None,
    max_actees: int | None = None,
    masked: bool = False,
    **options: Any,
) -> Action:
    """Declare an action with which every actor picks a set of entities; arguments as in `SelectEntity`.

    In `step`, `act.<Action>[j, k]` is 0 if actor j has not picked actee k, by its place in the list, and otherwise 1, or in an
    ordered set the place of the pick, from 1 on. The options are those of `entity_gym.SelectEntitiesActionSpace`.
    """
    return Action(SelectEntitiesActionSpace(**options), actors, max_actors, actees, max_actees, masked)


def Continuous(
    low: Sequence[float],
    high: Sequence[float],
    names: Sequence[str] | None = None,
    actors: Types = None,
    max_actors: int | None = None,
    **options: Any,
) -> Action:
    """Declare an action with which every actor picks n real numbers: in `step`, number `k` of actor `j` is `act.<Action>[j, k]`.

    They are float64, since compiled code and ordinary Python differ in how they mix float32 with other numbers. The numbers and
    options are those of `entity_gym.ContinuousActionSpace`; the actors are given as in `Categorical`.
    """
    return Action(ContinuousActionSpace(low, high, names, **options), actors, max_actors)


class Description(EnvSource):
    """The base of `CompiledEnvironment`, whose docstring explains the attributes: all but what runs it."""

    entities: ClassVar[Mapping[str, Entity]] = {}
    actions: ClassVar[Mapping[str, Action]] = {}
    global_features: ClassVar[Sequence[Feature]] = ()
    parameters: ClassVar[Mapping[str, Value]] = {}
    ranges: ClassVar[Mapping[str, tuple[float, float | None]]] = {}
    max_steps: ClassVar[int | None] = None
    state: ClassVar[Sequence[tuple[Any, ...]]] = ()
    info: ClassVar[Sequence[str]] = ()
    metrics: ClassVar[Sequence[str]] = ()
    player_rewards: ClassVar[Sequence[str]] = ()
    targets: ClassVar[Sequence[str]] = ()
    reward_threshold: ClassVar[float | None] = None

    reset: ClassVar[Callable[..., None]]
    step: ClassVar[Callable[..., tuple[float, bool, bool]]]
    observe: ClassVar[Callable[..., None]]
    render: ClassVar[Callable[..., NDArray[np.uint8]] | None] = None
    draw: ClassVar[Callable[..., Mapping[str, Any]] | Mapping[str, Any] | None] = None

    is_compiled = True

    def __init__(self, **parameters: Any) -> None:
        self.values: Mapping[str, Value] = self.defaults()
        self.values = self.with_values(parameters).values

    def __repr__(self) -> str:
        values = {**self.values, "max_steps": self.values["max_steps"] or None}
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in values.items())})"

    def given(self) -> Mapping[str, Any]:
        return {name: value for name, value in self.values.items() if value != self.defaults()[name]}

    @classmethod
    def defaults(cls) -> dict[str, Value]:
        """Return the parameters with their defaults, `max_steps` (0: no limit) included."""
        return {"max_steps": _like(0, cls.max_steps, f"{cls.__name__}: max_steps", is_limit=True), **cls.parameters}

    def with_values(self, given: Mapping[str, Any]) -> Self:
        """Return the same description with other values of some parameters.

        Raises:
            ValueError: for a value that is unknown, of the wrong type, outside `ranges`, or refused by `check_parameters`.
        """
        name, values, twin = type(self).__name__, dict(self.values), copy.copy(self)
        for key, value in given.items():
            if key not in values:
                raise ValueError(f"{name} has no parameter {key!r}; {nearest(key, values)}")
            values[key] = _like(values[key], value, f"{name}: {key}", is_limit=key == "max_steps")
        for key, (least, most) in self.ranges.items():
            if values[key] < least or (most is not None and values[key] > most):
                kind = "a whole number" if isinstance(values[key], int) else "a number"
                allowed = f">= {least}" if most is None else f"from {least} to {most}"
                raise ValueError(f"{name}: {key}={values[key]!r}; it must be {kind} {allowed}")
        type(self).check_parameters(SimpleNamespace(**values))
        twin.values = values
        return twin

    @staticmethod
    def check_parameters(p: Any) -> None:
        """Refuse parameters that do not go together; `p.<name>` is the value. To be overridden.

        Raises:
            ValueError: naming the parameter, its value and what is allowed.
        """

    @classmethod
    def obs_space(cls) -> ObsSpace:
        """Return what it may show."""
        entities = {name: spaces.Entity(entity.features, entity.kinds) for name, entity in cls.entities.items()}
        return ObsSpace(entities, cls.global_features, targets=dict.fromkeys(cls.targets, 1))

    @classmethod
    def action_space(cls) -> dict[str, ActionSpace]:
        """Its actions by name."""
        return {name: action.space for name, action in cls.actions.items()}

    def spaces(self) -> tuple[ObsSpace, Mapping[str, ActionSpace]]:
        return self.obs_space(), self.action_space()


def _like(default: Value, value: Any, where: str, *, is_limit: bool) -> Value:
    """`value` in the type of `default`; for a limit of steps None is 0."""
    is_whole = isinstance(value, int | np.integer) and not isinstance(value, bool) and -(2**63) <= int(value) < 2**63
    if is_limit:
        fits, allowed = value is None or (is_whole and value >= 1), "a whole number of at least 1, or None for no limit"
    elif isinstance(default, bool):
        fits, allowed = isinstance(value, bool | np.bool_), "True or False"
    elif isinstance(default, int):
        fits, allowed = is_whole, "a whole number of 64 bits"
    else:
        is_number = isinstance(value, float | np.floating) and np.isfinite(value)
        fits, allowed = is_whole or is_number, "a finite number"
    if not fits:
        raise ValueError(f"{where} is {value!r}; it must be {allowed}")
    return type(default)(0 if value is None else value)
