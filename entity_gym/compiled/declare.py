"""What a compiled environment declares: its entities, actions and arrays, each with the most that one environment can have."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from entity_gym import actions, spaces


def safe_name(name: str) -> str:
    """`name` as an attribute: what cannot stand in an identifier becomes "_"."""
    return re.sub(r"\W", "_", name)


def is_compilable(dtype: np.dtype[Any]) -> bool:
    """Whether compiled code can read and write it: whole numbers, float32, float64 or bool, in this machine's byte order."""
    return dtype.isnative and (dtype.kind in "biu" or dtype in (np.float32, np.float64))


def at_least_one(owner: str, name: str, value: Any) -> None:
    """Raise a ValueError unless `value` is a whole number of at least 1."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{owner}: {name} is {value!r}; it must be a whole number of at least 1")


@dataclass(frozen=True, init=False, repr=False)
class Entity:
    """A type of entity.

    Attributes:
        features: names of its numbers; may be empty. Among the arguments some may be a `Category`, `Angle` or `Flag`, as in
            `entity_gym.Entity`.
        max: the most that one environment can show at once; sizes memory, and is never seen outside.
        hideable: whether `obs.visible.<Type>[i] = False` can hide entities from the policy.
        kinds: name -> `Category`, `Angle` or `Flag`, for the features that are not plain numbers.
    """

    features: tuple[str, ...]
    max: int
    hideable: bool
    kinds: Mapping[str, spaces.FeatureKind] = field(hash=False)

    def __init__(
        self,
        features: Iterable[spaces.Feature],
        max: int,
        hideable: bool = False,
        kinds: Mapping[str, spaces.FeatureKind] = spaces.NO_KINDS,
    ) -> None:
        shown = spaces.Entity(features, kinds)  # checks the names
        at_least_one("Entity", "max", max)
        values = {"features": shown.features, "max": max, "hideable": hideable, "kinds": shown.kinds}
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        features = spaces.with_kinds(self.features, self.kinds)
        return f"Entity(features={features}, max={self.max}, hideable={self.hideable})"


def _types(types: str | Sequence[str] | None) -> tuple[str, ...] | None:
    return None if types is None else (types,) if isinstance(types, str) else tuple(types)


def _check_declared(owner: str, role: str, types: Any, capacity: int | None) -> None:
    if (types is None) == (capacity is None):
        raise ValueError(
            f"{owner}: {role}={types!r} and max_{role}={capacity!r}; give one of them: the entity types that are the {role}, "
            f"or the most {role} that `observe` will write"
        )
    if capacity is not None:
        at_least_one(owner, f"max_{role}", capacity)


@dataclass(frozen=True)
class Categorical:
    """Every actor picks one of `choices`.

    Attributes:
        choices: their names.
        actors: entity types whose every entity acts; the engine fills them in.
        max_actors: instead of `actors`: the most that `observe` writes into `obs.<Action>.actors`.
        masked: whether `obs.<Action>.mask[j, c]` can close choices.
    """

    choices: Sequence[str]
    actors: str | Sequence[str] | None = None
    max_actors: int | None = None
    masked: bool = False

    def __post_init__(self) -> None:
        self.space()
        _check_declared("Categorical", "actors", self.actors, self.max_actors)
        object.__setattr__(self, "actors", _types(self.actors))

    def space(self) -> actions.ActionSpace:
        """The same without capacities."""
        return actions.CategoricalActionSpace(self.choices)


@dataclass(frozen=True)
class GlobalCategorical:
    """The environment as a whole picks one of `choices`; `masked` gives `obs.<Action>.mask[0, c]`."""

    choices: Sequence[str]
    masked: bool = False

    def __post_init__(self) -> None:
        self.space()

    def space(self) -> actions.ActionSpace:
        """The same without capacities."""
        return actions.GlobalCategoricalActionSpace(self.choices)


@dataclass(frozen=True)
class SelectEntity:
    """Every actor picks an entity.

    Attributes:
        actors, max_actors: as in `Categorical`.
        actees: entity types whose every entity may be picked; the engine fills them in.
        max_actees: instead of `actees`: the most that `observe` writes into `obs.<Action>.actees`.
        masked: whether `obs.<Action>.mask[actor, actee]` (positions in the two lists) can close pairs.
        exclude_self: an actor may not pick itself, whatever the mask says.
        nobody: every actor may pick nobody at all times. In `step`, `act.<Action>[j]` is then -1, as it is for an actor to
            whom no entity is open.
    """

    actors: str | Sequence[str] | None = None
    max_actors: int | None = None
    actees: str | Sequence[str] | None = None
    max_actees: int | None = None
    masked: bool = False
    exclude_self: bool = False
    nobody: bool = False

    def __post_init__(self) -> None:
        self.space()
        _check_declared("SelectEntity", "actors", self.actors, self.max_actors)
        _check_declared("SelectEntity", "actees", self.actees, self.max_actees)
        object.__setattr__(self, "actors", _types(self.actors))
        object.__setattr__(self, "actees", _types(self.actees))

    def space(self) -> actions.ActionSpace:
        """The same without capacities."""
        return actions.SelectEntityActionSpace(self.exclude_self, self.nobody)


@dataclass(frozen=True)
class Continuous:
    """Every actor picks n real numbers: in `step`, `act.<Action>[j, k]` is number `k` of actor `j`.

    They come as float32, and `act.<Action>` is an array of float64, so that rules reckon alike in compiled code and in
    ordinary Python, which differ in how they mix float32 with other numbers.

    Attributes:
        low, high, names: as in `entity_gym.ContinuousActionSpace`.
        actors, max_actors: as in `Categorical`.
    """

    low: Sequence[float]
    high: Sequence[float]
    names: Sequence[str] | None = None
    actors: str | Sequence[str] | None = None
    max_actors: int | None = None

    def __post_init__(self) -> None:
        self.space()
        _check_declared("Continuous", "actors", self.actors, self.max_actors)
        object.__setattr__(self, "actors", _types(self.actors))

    def space(self) -> actions.ContinuousActionSpace:
        """The same without capacities."""
        return actions.ContinuousActionSpace(self.low, self.high, self.names)


Action = Categorical | GlobalCategorical | SelectEntity | Continuous


@dataclass(frozen=True)
class Array:
    """A fixed array beside the entities, for consumers of the Gymnasium and dm forms.

    Attributes:
        shape: of one environment. A leading -1 stands for the players: `obs.n.players` of them, at most `max_num_players`.
        dtype: of its numbers.
        low: smallest value: a number, or an array of `shape` (without the players).
        high: largest value, in the same way.
    """

    shape: tuple[int, ...] = ()
    dtype: Any = np.float32
    low: Any = -np.inf
    high: Any = np.inf

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(self.shape))
        object.__setattr__(self, "dtype", np.dtype(self.dtype))
        if any(size < 0 for size in self.shape[1:]) or any(size < -1 for size in self.shape[:1]):
            raise ValueError(f"Array: shape is {self.shape}; only its first number may be -1, for the players")
        if not is_compilable(self.dtype):
            raise ValueError(
                f"Array: dtype is {self.dtype}; it must be of numbers or bool, as compiled code knows them"
            )

    @property
    def per_player(self) -> bool:
        """Whether every player has a row."""
        return self.shape[:1] == (-1,)

    @property
    def item_shape(self) -> tuple[int, ...]:
        """The shape without the players."""
        return self.shape[1:] if self.per_player else self.shape
