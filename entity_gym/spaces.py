"""Observation spaces: entity types, their features, and the values that features may take.

Shapes: E rows of entities, F features.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from entity_gym.errors import check_whole, nearest

#: The pseudo-entity that carries global features and takes global actions. It stands last in every frame.
GLOBAL_ENTITY = "__global__"

#: float32, in which features travel, holds every whole number up to this one.
MOST_CATEGORIES = 2**24
#: The largest number that float32 holds.
LARGEST_FLOAT32 = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Category:
    """A categorical feature with the values 0 to num - 1, such as a card or a kind of unit.

    Attributes:
        name: of the feature.
        num: number of values, from 1 to 2^24. Features are float32, which is exact for whole numbers up to there.
    """

    name: str
    num: int

    def __post_init__(self) -> None:
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


@dataclass(frozen=True)
class Flag:
    """A feature that is either 0 or 1."""

    name: str
    num = 2  # values


FeatureKind = Category | Angle | Flag
#: An item of a list of features: the name of a plain number, or its kind.
Feature = str | FeatureKind

#: The kinds of features that are all plain numbers: none.
NO_KINDS: Mapping[str, FeatureKind] = MappingProxyType({})
_NO_ENTITIES: Mapping[str, Entity] = MappingProxyType({})
_NO_TARGETS: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True, init=False, repr=False)
class Entity:
    """A type of entity: `Entity(["x", "y", Category("card", 52), Angle("heading"), Flag("frozen")])`.

    Args:
        features: one item for each column: a name (a plain number), or a `Category`, `Angle` or `Flag`. May be empty: then all
            that is observed is that the entity exists.
        kinds: name -> kind, for features that are given by name only: `Entity(other.features, other.kinds)` is a copy.

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

    @cached_property
    def high(self) -> NDArray[np.float32]:
        """(F,) the largest value of each feature that is a whole number from 0 on; infinite for others."""
        nums = [getattr(self.kinds.get(name), "num", np.inf) for name in self.features]
        return np.array(nums, np.float32) - 1

    @property
    def low(self) -> NDArray[np.float32]:
        """(F,) the smallest value of each feature: 0 or infinite."""
        return np.where(np.isfinite(self.high), np.float32(0), -self.high)

    def __repr__(self) -> str:
        return f"Entity(features={with_kinds(self.features, self.kinds)})"


@dataclass(frozen=True, init=False, repr=False)
class ObsSpace:
    """Entity types and global features that an environment may show. `global_features` are given as those of an `Entity`.

    Attributes:
        entities: entity type -> `Entity`. **The order defines the entity index inside a frame**: all entities of the first
            type, then all of the second, and so on; types without ids advance the index too.
        global_features: names of the features that belong to the whole frame.
        global_kinds: name -> `Category`, `Angle` or `Flag`, for those that are not plain numbers.
        targets: name -> how many numbers about each frame the environment tells, which no policy sees: a network may learn
            to predict them (`Observation.targets`).
    """

    entities: Mapping[str, Entity]
    global_features: tuple[str, ...]
    global_kinds: Mapping[str, FeatureKind]
    targets: Mapping[str, int]

    def __init__(
        self,
        entities: Mapping[str, Entity] = _NO_ENTITIES,
        global_features: Iterable[Feature] = (),
        global_kinds: Mapping[str, FeatureKind] = NO_KINDS,
        targets: Mapping[str, int] = _NO_TARGETS,
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
        for name, size in targets.items():
            check_whole(size, f"ObsSpace.targets[{name!r}]")
        object.__setattr__(self, "targets", {name: int(size) for name, size in targets.items()})

    def entity(self, name: str) -> Entity:
        """Return the features of a type; those of `__global__` are the global features."""
        return Entity(self.global_features, self.global_kinds) if name == GLOBAL_ENTITY else self.entities[name]

    def __repr__(self) -> str:
        global_features = with_kinds(self.global_features, self.global_kinds)
        targets = f", targets={self.targets}" if self.targets else ""
        return f"ObsSpace(entities={self.entities}, global_features={global_features}{targets})"


def with_kinds(names: Sequence[str], kinds: Mapping[str, FeatureKind]) -> tuple[Feature, ...]:
    """Return features as they are declared: the kind where there is one, and else the name."""
    return tuple(kinds.get(name, name) for name in names)


def _split(
    given: Iterable[Feature], kinds: Mapping[str, FeatureKind], where: str
) -> tuple[tuple[str, ...], dict[str, FeatureKind]]:
    """Split declared features into names and kinds; `kinds` has those of features that are given by name only."""
    features = tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else None
    if features is None or not all(isinstance(feature, Feature) for feature in features):
        raise ValueError(f"{where} is {given!r}; it must be a list of feature names, or of Category, Angle and Flag")
    names = tuple(feature if isinstance(feature, str) else feature.name for feature in features)
    check_names(names, where)
    known = set(names)
    for name, kind in kinds.items():
        if name not in known:
            raise ValueError(f"{where}: kinds has {name!r}, which is no feature; {nearest(name, names)}")
        if not isinstance(kind, FeatureKind) or kind.name != name:
            raise ValueError(f"{where}: the kind of {name!r} is {kind!r}; it must be its own Category, Angle or Flag")
    all_kinds = {**kinds, **{kind.name: kind for kind in features if not isinstance(kind, str)}}
    return names, {name: all_kinds[name] for name in names if name in all_kinds}


def check_names(names: Sequence[str], where: str) -> None:
    """Raise a ValueError unless `names` is a list of different texts."""
    is_list = isinstance(names, Collection) and not isinstance(names, str | Mapping)
    if not is_list or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{where} is {names!r}; it must be a list of names")
    repeated = sorted(name for name, count in Counter(names).items() if count > 1)
    if repeated:
        raise ValueError(f"{where} names {repeated} more than once")


# ---- the values that features may take: numbers and angles any finite one, categories and flags whole numbers from 0 on


def wrong_values(features: NDArray[np.float32], entity: Entity) -> NDArray[np.bool_]:
    """(E, F) true where one of the `features` (E, F) is invalid: not finite, or outside the range of its kind."""
    wrong = ~np.isfinite(features)
    whole = np.isfinite(entity.high)
    if whole.any():
        values = features[:, whole]
        wrong[:, whole] |= (values < 0) | (values > entity.high[whole]) | (values != np.floor(values))
    return wrong


def refusal(value: np.float32, kind: FeatureKind | None) -> str:
    """The end of a message about a wrong value: what it is, and what is allowed."""
    number = format(float(value), ".9g")  # tells float32 apart, and 52 is not 52.0
    if isinstance(kind, Category):
        return f"{number}; a category of {kind.num} must be a whole number from 0 to {kind.num - 1}"
    if isinstance(kind, Flag):
        return f"{number}; a flag must be 0 or 1"
    rule = "an angle must be a finite number" if kind else "features must be finite numbers"
    return f"{number}; {rule} that float32 can hold"


def describe(names: Sequence[str], kinds: Mapping[str, FeatureKind]) -> str:
    """Return features as a text, such as "x, card (category of 52), heading (angle), frozen (flag)"."""
    words = {Angle: " (angle)", Flag: " (flag)"}
    told = {
        name: f" (category of {kind.num})" if isinstance(kind, Category) else words[type(kind)]
        for name, kind in kinds.items()
    }
    return ", ".join(f"{name}{told.get(name, '')}" for name in names)
