"""What an environment declares once: its entity types and its actions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from entity_gym.errors import nearest

#: The pseudo-entity that carries global features and takes global actions. It stands last in every frame.
GLOBAL_ENTITY = "__global__"

#: float32, in which features travel, holds every whole number up to this one.
MOST_CATEGORIES = 2**24
#: The largest number that float32 holds.
LARGEST_FLOAT32 = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Category:
    """A feature that says which of `num` sorts something is, such as a card or a kind of unit: 0 to num - 1, without an order.

    Attributes:
        name: of the feature.
        num: how many sorts there are, from 1 to 2^24: up to there float32, in which features travel, is exact.
    """

    name: str
    num: int

    def __post_init__(self) -> None:
        _check_name(self.name, "Category")
        is_whole = isinstance(self.num, int | np.integer) and not isinstance(self.num, bool)
        if not is_whole or not 1 <= self.num <= MOST_CATEGORIES:
            raise ValueError(
                f"Category({self.name!r}): num is {self.num!r}; it must be a whole number from 1 to {MOST_CATEGORIES}"
            )
        object.__setattr__(self, "num", int(self.num))


@dataclass(frozen=True)
class Angle:
    """A feature that is an angle in radians: any finite number; one that is 2 pi larger is the same."""

    name: str

    def __post_init__(self) -> None:
        _check_name(self.name, "Angle")


@dataclass(frozen=True)
class Flag:
    """A feature that is either 0 or 1."""

    name: str

    def __post_init__(self) -> None:
        _check_name(self.name, "Flag")


FeatureKind = Category | Angle | Flag
#: What stands in a list of features: a plain number by its name, or something else.
Feature = str | FeatureKind

#: Of features that are all plain numbers.
NO_KINDS: Mapping[str, FeatureKind] = MappingProxyType({})
_NO_ENTITIES: Mapping[str, Entity] = MappingProxyType({})


@dataclass(frozen=True, init=False, repr=False)
class Entity:
    """A type of entity: `Entity(["x", "y", Category("card", 52), Angle("heading"), Flag("frozen")])`.

    Args:
        features: of each, one column: its name for a plain number, or a `Category`, `Angle` or `Flag`. May be empty: such an
            entity says only that it is there.
        kinds: the attribute of another entity, where `features` are its mere names.

    Attributes:
        features: their names, in the order of the columns.
        kinds: name -> `Category`, `Angle` or `Flag`, for those that are not plain numbers.

    Raises:
        ValueError: for what is no feature, or a name that is given twice.
    """

    features: tuple[str, ...]
    kinds: Mapping[str, FeatureKind] = field(hash=False)

    def __init__(self, features: Iterable[Feature] = (), kinds: Mapping[str, FeatureKind] = NO_KINDS) -> None:
        names, kinds = _split(features, kinds, "Entity.features")
        object.__setattr__(self, "features", names)
        object.__setattr__(self, "kinds", kinds)

    def __repr__(self) -> str:
        return f"Entity(features={with_kinds(self.features, self.kinds)})"


@dataclass(frozen=True, init=False, repr=False)
class ObsSpace:
    """What an environment may show. Arguments are as the attributes, and `global_features` as the features of an `Entity`.

    Attributes:
        entities: entity type -> `Entity`. **The order defines the entity index inside a frame**: all entities of the first
            type, then all of the second, and so on; types without ids advance the index too.
        global_features: names of the features that belong to the whole frame.
        global_kinds: name -> `Category`, `Angle` or `Flag`, for those that are not plain numbers.
    """

    entities: Mapping[str, Entity]
    global_features: tuple[str, ...]
    global_kinds: Mapping[str, FeatureKind]

    def __init__(
        self,
        entities: Mapping[str, Entity] = _NO_ENTITIES,
        global_features: Iterable[Feature] = (),
        global_kinds: Mapping[str, FeatureKind] = NO_KINDS,
    ) -> None:
        for name, entity in entities.items():
            if name == GLOBAL_ENTITY:
                raise ValueError(
                    f"ObsSpace.entities: the name {GLOBAL_ENTITY!r} is reserved for global features and actions"
                )
            if not isinstance(entity, Entity):
                raise ValueError(f"ObsSpace.entities[{name!r}] is {entity!r}; it must be an Entity([...feature names])")
        names, kinds = _split(global_features, global_kinds, "ObsSpace.global_features")
        object.__setattr__(self, "entities", dict(entities))
        object.__setattr__(self, "global_features", names)
        object.__setattr__(self, "global_kinds", kinds)

    def __repr__(self) -> str:
        global_features = with_kinds(self.global_features, self.global_kinds)
        return f"ObsSpace(entities={self.entities}, global_features={global_features})"


@dataclass(frozen=True)
class CategoricalActionSpace:
    """Every actor picks one of `choices`."""

    choices: Sequence[str]

    def __post_init__(self) -> None:
        _check_choices(self.choices, type(self).__name__)
        object.__setattr__(self, "choices", tuple(self.choices))


@dataclass(frozen=True)
class GlobalCategoricalActionSpace:
    """The environment as a whole picks one of `choices`: one decision per frame."""

    choices: Sequence[str]

    def __post_init__(self) -> None:
        _check_choices(self.choices, type(self).__name__)
        object.__setattr__(self, "choices", tuple(self.choices))


@dataclass(frozen=True)
class SelectEntityActionSpace:
    """Every actor picks one of the entities that its observation offers; one to whom none is open picks nobody.

    Attributes:
        exclude_self: an actor may not pick itself, whatever its observation offers.
        nobody: every actor may pick nobody at all times.
    """

    exclude_self: bool = False
    nobody: bool = False

    def __post_init__(self) -> None:
        for name, value in (("exclude_self", self.exclude_self), ("nobody", self.nobody)):
            if not isinstance(value, bool):
                raise ValueError(f"SelectEntityActionSpace.{name} is {value!r}; it must be True or False")

    @property
    def can_close(self) -> bool:
        """Whether it is in order that no entity is open to an actor to whom some are offered: it then picks nobody."""
        return self.exclude_self or self.nobody


@dataclass(frozen=True)
class ContinuousActionSpace:
    """Every actor picks n real numbers, each within bounds of its own.

    Attributes:
        low: (n,) smallest value of each; -inf: none.
        high: (n,) largest value of each, above `low`; inf: none.
        names: of the n numbers, for people to read. None: they have none.

    Values travel as float32, so the bounds that hold are these, rounded to float32.
    """

    low: Sequence[float]
    high: Sequence[float]
    names: Sequence[str] | None = None

    def __post_init__(self) -> None:
        for side in ("low", "high"):
            object.__setattr__(self, side, _bounds(getattr(self, side), f"ContinuousActionSpace.{side}"))
        if len(self.low) != len(self.high) or len(self.low) == 0:
            raise ValueError(
                f"ContinuousActionSpace has {len(self.low)} numbers in low and {len(self.high)} in high; "
                "give one of each for every number that an actor picks, at least one"
            )
        for k, (low, high) in enumerate(zip(self.low, self.high, strict=True)):
            if np.float32(low) >= np.float32(high):
                raise ValueError(
                    f"ContinuousActionSpace: low[{k}] is {low} and high[{k}] {high}; low must be smaller, as float32 too"
                )
        if self.names is not None:
            _check_names(self.names, "ContinuousActionSpace.names")
            if len(self.names) != len(self.low):
                raise ValueError(f"ContinuousActionSpace has {len(self.names)} names for {len(self.low)} numbers")
            object.__setattr__(self, "names", tuple(self.names))

    @property
    def size(self) -> int:
        """n, how many numbers an actor picks."""
        return len(self.low)

    def bounds(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """(n,) smallest and (n,) largest values, as new arrays."""
        return np.array(self.low, dtype=np.float32), np.array(self.high, dtype=np.float32)

    def label(self, k: int) -> str:
        """How messages name number `k`."""
        return f"value {k}" if self.names is None else f"value {k} ({self.names[k]!r})"


ActionSpace = CategoricalActionSpace | GlobalCategoricalActionSpace | SelectEntityActionSpace | ContinuousActionSpace


def has_global_entity(obs_space: ObsSpace, action_space: Mapping[str, ActionSpace]) -> bool:
    """Whether every frame ends with the `__global__` entity: there are global features or a global action."""
    return bool(obs_space.global_features) or any(
        isinstance(space, GlobalCategoricalActionSpace) for space in action_space.values()
    )


def with_kinds(names: Sequence[str], kinds: Mapping[str, FeatureKind]) -> tuple[Feature, ...]:
    """Features as they are declared, from their names and what is known of those that are not plain numbers."""
    return tuple(kinds.get(name, name) for name in names)


class _Features(NamedTuple):
    names: tuple[str, ...]
    kinds: dict[str, FeatureKind]


def _split(given: Iterable[Feature], kinds: Mapping[str, FeatureKind], where: str) -> _Features:
    """Names and kinds of features as they are declared; `kinds` has more of those that are given by their mere names."""
    features = tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else None
    if features is None or not all(isinstance(feature, Feature) for feature in features):
        raise ValueError(f"{where} is {given!r}; it must be a list of feature names, or of Category, Angle and Flag")
    names = tuple(feature if isinstance(feature, str) else feature.name for feature in features)
    _check_names(names, where)
    known = set(names)
    for name, kind in kinds.items():
        if name not in known:
            raise ValueError(f"{where}: the kind of {name!r} is given, which is none; {nearest(name, names)}")
        if not isinstance(kind, FeatureKind) or kind.name != name:
            raise ValueError(f"{where}: the kind of {name!r} is {kind!r}; it must be its own Category, Angle or Flag")
    all_kinds = {**kinds, **{kind.name: kind for kind in features if not isinstance(kind, str)}}
    return _Features(names, {name: all_kinds[name] for name in names if name in all_kinds})


def _check_name(name: object, where: str) -> None:
    if not isinstance(name, str):
        raise ValueError(f"{where}: name is {name!r}; it must be a text")


def _check_names(names: Sequence[str], where: str) -> None:
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{where} is {names!r}; it must be a list of feature names")
    repeated = sorted(name for name, count in Counter(names).items() if count > 1)
    if repeated:
        raise ValueError(f"{where} names {repeated} more than once")


def _check_choices(choices: Sequence[str], where: str) -> None:
    _check_names(choices, f"{where}.choices")
    if len(choices) == 0:
        raise ValueError(f"{where}.choices is empty; an action needs at least one choice")


def _bounds(given: Any, where: str) -> tuple[float, ...]:
    """Bounds as numbers that float32 can hold, or infinite on their own side."""
    if isinstance(given, str) or not isinstance(given, Sequence | np.ndarray):
        raise ValueError(f"{where} is {given!r}; it must be a list of numbers, one for each number that an actor picks")
    outer = np.inf if where.endswith("high") else -np.inf
    bounds = []
    for k, value in enumerate(given):
        is_number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
        if not is_number or not (value == outer or abs(float(value)) <= LARGEST_FLOAT32):
            raise ValueError(
                f"{where}[{k}] is {value!r}; it must be a number that float32 can hold, or {outer} for no bound"
            )
        bounds.append(float(value))
    return tuple(bounds)
