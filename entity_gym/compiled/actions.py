"""Kinds of actions of compiled environments: what a class declares, and the lines that are generated for it.

Each kind is one declaration and one plan. The declaration is what the author of an environment writes; the plan is the same
with its capacities, and everything that the engine knows about the kind: arrays, checks and generated lines. The lines speak
of `a`, the arrays, `i`, the slot, `j`, its place in the call, and `n`, the counts of the slot.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions import (
    Action,
    ActionMask,
    ActionSpace,
    CategoricalAction,
    CategoricalActionMask,
    CategoricalActionSpace,
    ContinuousAction,
    ContinuousActionMask,
    ContinuousActionSpace,
    GlobalCategoricalAction,
    GlobalCategoricalActionMask,
    GlobalCategoricalActionSpace,
    SelectEntityAction,
    SelectEntityActionMask,
    SelectEntityActionSpace,
)
from entity_gym.actions.reading import EntityID
from entity_gym.compiled.declare import Entity, Kind, Slot, at_least_one, safe_name
from entity_gym.errors import nearest

I64, F64, BOOL = np.dtype(np.int64), np.dtype(np.float64), np.dtype(np.bool_)


@dataclass(frozen=True)
class Listed:
    """The actors or actees of one action.

    Attributes:
        role: "actors" or "actees".
        count: name of their number, `obs.n.<count>`.
        slot: the array of their entity indices.
        types: attributes of the declared entity types; None where `observe` writes the list.
        max: the most of them.
    """

    role: str
    count: str
    slot: Slot
    types: tuple[str, ...] | None
    max: int

    @staticmethod
    def of(
        where: str, role: str, action: str, types: Sequence[str] | None, capacity: int | None, of: Mapping[str, Entity]
    ) -> Listed:
        """Look up the declared types, or take the declared capacity."""
        for type_ in types or ():
            if type_ not in of:
                raise ValueError(f"{where}: {role} names the unknown entity type {type_!r}; {nearest(type_, of)}")
        most = capacity if capacity is not None else sum(of[type_].max for type_ in types or ())
        count = action if role == "actors" else f"{action}_actees"
        kind = Kind.ACTORS if role == "actors" else Kind.ACTEES
        slot = Slot(kind, action, I64, (most,), rows=count, row=(1,))
        return Listed(role, count, slot, None if types is None else tuple(map(safe_name, types)), most)

    @property
    def before(self) -> str:
        """The count before `observe`: everybody if they are declared, else nobody."""
        return f"n.{self.count} = {'0' if self.types is None else 'EVERYBODY'}"

    def fill(self, columns: Sequence[str], action: int) -> Iterator[str]:
        """List the declared entities, or check those that `observe` has listed."""
        count, column = f"n.{self.count}", columns.index(self.count)
        if self.types is None:
            yield f"if {count} < 0 or {count} > {self.max}:"
            yield f"    return fail(a.report, BAD_COUNT, i, {column}, {count})"
            yield f"unknown = find_unknown(a.{self.slot.name}, i, {count}, total)"
            yield "if unknown >= 0:"
            yield f"    return fail(a.report, BAD_INDEX, i, {action}, a.{self.slot.name}[i, unknown])"
            return
        yield f"if {count} == EVERYBODY:"
        yield "    k = 0"
        for type_ in self.types:
            yield f"    k = list_entities(a.{self.slot.name}, i, k, first_{type_}, n.{type_})"
        yield f"    {count} = k"
        yield f"elif {count} != 0:"
        yield f"    return fail(a.report, BAD_COUNT, i, {column}, {count})"

    def refusal(self, name: str, value: int) -> str:
        """Why `value` cannot be the count."""
        if self.types is not None:
            return (
                f"obs.n.{self.count} is {value}; the {self.role} of {name!r} are declared, so it can only be set to 0"
            )
        return f"obs.n.{self.count} is {value}; allowed: 0 to max_{self.role}={self.max}"


@dataclass(frozen=True)
class ActionPlan(ABC):
    """One action as the engine sees it.

    Attributes:
        name: of the action.
        attribute: its name in the code.
        actors: who takes it.
        actees: who can be selected; None for other actions.
        masked: whether `observe` writes the mask.
        dtype: of a choice.
        width: numbers in a choice; 0 where a choice is one integer.
    """

    name: str
    attribute: str
    actors: Listed
    actees: Listed | None = None
    masked: bool = False

    dtype: ClassVar[np.dtype[Any]] = I64
    action: ClassVar[type[Action]]

    @property
    def width(self) -> int:
        return 0

    @property
    def lists(self) -> list[Listed]:
        """Actors, and actees if there are any."""
        return [self.actors] if self.actees is None else [self.actors, self.actees]

    @property
    def mask(self) -> Slot | None:
        """The mask, which `observe` writes, or the engine."""
        return None

    def slots(self) -> list[Slot]:
        """Every array of the action with a row for each slot."""
        return [*(listed.slot for listed in self.lists), *([self.mask] if self.mask is not None else [])]

    def written(self) -> dict[str, Slot]:
        """The parts of `obs.<Action>` that `observe` writes."""
        parts = {listed.role: listed.slot for listed in self.lists if listed.types is None}
        if self.masked and self.mask is not None:
            parts["mask"] = self.mask
        return parts

    def parts(self) -> tuple[str, ...]:
        """The parts that `obs.<Action>` could have, declared otherwise."""
        return ("actors", "actees", "mask")

    # ---- generated lines

    def before(self) -> Iterator[str]:
        """Before `observe`: everybody acts, and everything is open."""
        yield from (listed.before for listed in self.lists)
        if self.mask is not None:
            yield f"open_all_choices(a.{self.mask.name}, i)"

    def after(self, columns: Sequence[str], number: int) -> Iterator[str]:
        """After `observe`: fill in what is declared, check what was written."""
        yield from self.actors.fill(columns, number)

    @abstractmethod
    def check(self) -> tuple[str, list[str]]:
        """The function of `runtime` that checks the choices of slot `i`, and its arguments."""

    def argument(self) -> str:
        """An expression: what `step` finds in `act.<Action>`."""
        return f"a.choices_{self.attribute}[{self._first}:{self._end}]"

    @property
    def _first(self) -> str:
        return f"a.starts_{self.attribute}[j]"

    @property
    def _end(self) -> str:
        return f"a.starts_{self.attribute}[j + 1]"

    @property
    def _values(self) -> list[str]:
        return [f"a.choices_{self.attribute}", self._first, f"n.{self.attribute}"]

    # ---- results

    @abstractmethod
    def offer(self, actors: list[EntityID], actees: list[EntityID], mask: NDArray[np.bool_] | None) -> ActionMask:
        """The action in an `Observation`."""

    @abstractmethod
    def read(
        self,
        where: str,
        action: Any,
        values: NDArray[Any],
        places: Callable[[Sequence[EntityID]], list[int]],
        indices: Mapping[EntityID, int],
    ) -> None:
        """Write an action in ids to `values`, a row for each actor on offer; rows of actors that it leaves out stay.

        `where` begins messages, `places` finds the rows of actors, and `indices` are entity indices by id.
        """

    def num_columns(self, num_actees: int) -> int:
        """Columns of the mask of an environment with so many actees."""
        return 0

    def choose_nobody(self, values: NDArray[Any]) -> bool:
        """Let everybody select nobody in `values`, if that is allowed at all times; returns whether it is."""
        return False


# ---- categorical


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


def _check_lengths(where: str, actors: Sequence[EntityID], choices: Sequence[Any] | NDArray[Any]) -> None:
    if len(actors) != len(choices):
        raise ValueError(f"{where} has {len(actors)} actors and {len(choices)} choices")


class ActionDeclaration(ABC):
    """The base of what `actions` of a compiled environment may hold."""

    @abstractmethod
    def space(self) -> ActionSpace:
        """The action space, which knows no capacities."""

    @abstractmethod
    def plan(self, where: str, name: str, entities: Mapping[str, Entity]) -> ActionPlan:
        """The action called `name` in a world with these entity types.

        Raises:
            ValueError: beginning with `where`, for an unknown entity type.
        """


@dataclass(frozen=True)
class Categorical(ActionDeclaration):
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

    def space(self) -> ActionSpace:
        return CategoricalActionSpace(self.choices)

    def plan(self, where: str, name: str, entities: Mapping[str, Entity]) -> ActionPlan:
        attribute = safe_name(name)
        actors = Listed.of(where, "actors", attribute, _types(self.actors), self.max_actors, entities)
        return CategoricalPlan(name, attribute, actors, None, self.masked, len(self.choices))


@dataclass(frozen=True)
class CategoricalPlan(ActionPlan):
    num_choices: int = 0
    action: ClassVar[type[Action]] = CategoricalAction

    @property
    def mask(self) -> Slot | None:
        if not self.masked:
            return None
        shape = (self.actors.max, self.num_choices)
        return Slot(
            Kind.MASK,
            self.attribute,
            BOOL,
            shape,
            self.actors.count,
            (self.num_choices,),
            "copy_choices",
            (str(self.num_choices),),
        )

    def parts(self) -> tuple[str, ...]:
        return ("actors", "mask")

    def check(self) -> tuple[str, list[str]]:
        arguments = [*self._values, str(self.num_choices)]
        if self.mask is None:
            return "are_choices", arguments
        return "are_open_choices", [*arguments, f"a.{self.mask.name}", "i"]

    def num_columns(self, num_actees: int) -> int:
        return self.num_choices

    def offer(self, actors: list[EntityID], actees: list[EntityID], mask: NDArray[np.bool_] | None) -> ActionMask:
        return CategoricalActionMask(actor_ids=actors, mask=mask)

    def read(
        self,
        where: str,
        action: Any,
        values: NDArray[Any],
        places: Callable[[Sequence[EntityID]], list[int]],
        indices: Mapping[EntityID, int],
    ) -> None:
        _check_lengths(where, action.actors, action.actions)
        values[places(action.actors), 0] = np.asarray(action.actions, dtype=np.int64)


# ---- global categorical


@dataclass(frozen=True)
class GlobalCategorical(ActionDeclaration):
    """The environment as a whole picks one of `choices`; `masked` gives `obs.<Action>.mask[0, c]`."""

    choices: Sequence[str]
    masked: bool = False

    def __post_init__(self) -> None:
        self.space()

    def space(self) -> ActionSpace:
        return GlobalCategoricalActionSpace(self.choices)

    def plan(self, where: str, name: str, entities: Mapping[str, Entity]) -> ActionPlan:
        attribute = safe_name(name)
        slot = Slot(Kind.ACTORS, attribute, I64, (1,), attribute, (1,))
        actors = Listed("actors", attribute, slot, (), 1)
        return GlobalCategoricalPlan(name, attribute, actors, None, self.masked, len(self.choices))


@dataclass(frozen=True)
class GlobalCategoricalPlan(CategoricalPlan):
    """A categorical action whose only actor is the `__global__` entity, the last of the frame."""

    action: ClassVar[type[Action]] = GlobalCategoricalAction

    def parts(self) -> tuple[str, ...]:
        return ("mask",)

    def after(self, columns: Sequence[str], number: int) -> Iterator[str]:
        count = f"n.{self.attribute}"
        yield f"if {count} == EVERYBODY:"
        yield f"    {count} = 1"
        yield f"elif {count} != 0:"
        yield f"    return fail(a.report, BAD_COUNT, i, {columns.index(self.attribute)}, {count})"
        yield f"a.{self.actors.slot.name}[i, 0] = total"

    def offer(self, actors: list[EntityID], actees: list[EntityID], mask: NDArray[np.bool_] | None) -> ActionMask:
        return GlobalCategoricalActionMask(mask=mask)

    def read(
        self,
        where: str,
        action: Any,
        values: NDArray[Any],
        places: Callable[[Sequence[EntityID]], list[int]],
        indices: Mapping[EntityID, int],
    ) -> None:
        values[:] = action.action


# ---- select entity


@dataclass(frozen=True)
class SelectEntity(ActionDeclaration):
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

    def space(self) -> ActionSpace:
        return SelectEntityActionSpace(self.exclude_self, self.nobody)

    def plan(self, where: str, name: str, entities: Mapping[str, Entity]) -> ActionPlan:
        attribute = safe_name(name)
        actors = Listed.of(where, "actors", attribute, _types(self.actors), self.max_actors, entities)
        actees = Listed.of(where, "actees", attribute, _types(self.actees), self.max_actees, entities)
        return SelectEntityPlan(name, attribute, actors, actees, self.masked, self.exclude_self, self.nobody)


@dataclass(frozen=True)
class SelectEntityPlan(ActionPlan):
    exclude_self: bool = False
    nobody: bool = False
    action = SelectEntityAction

    @property
    def can_close(self) -> bool:
        """Whether everything may be closed to an actor."""
        return self.exclude_self or self.nobody

    @property
    def _actees(self) -> Listed:
        assert self.actees is not None
        return self.actees

    @property
    def mask(self) -> Slot | None:
        if not self.masked and not self.exclude_self:
            return None
        shape = (self.actors.max, self._actees.max)
        return Slot(
            Kind.MASK, self.attribute, BOOL, shape, (self.actors.count, self._actees.count), (1,), "copy_pairs",
            (str(self.can_close),),
        )  # fmt: skip

    def after(self, columns: Sequence[str], number: int) -> Iterator[str]:
        yield from super().after(columns, number)
        actors, actees = self.actors, self._actees
        yield f"if n.{actors.count} == 0:"
        yield f"    n.{actees.count} = 0"
        yield from actees.fill(columns, number)
        if self.exclude_self:
            assert self.mask is not None
            yield (
                f"close_self(a.{self.mask.name}, i, a.{actors.slot.name}, n.{actors.count}, "
                f"a.{actees.slot.name}, n.{actees.count})"
            )

    def check(self) -> tuple[str, list[str]]:
        actees = [f"a.{self._actees.slot.name}", "i", f"n.{self._actees.count}"]
        arguments = [*self._values, *actees, str(self.nobody)]
        if self.mask is None:
            return "are_selectable", arguments
        return "are_open_to_select", [*arguments, str(self.can_close), f"a.{self.mask.name}"]

    def num_columns(self, num_actees: int) -> int:
        return num_actees

    def offer(self, actors: list[EntityID], actees: list[EntityID], mask: NDArray[np.bool_] | None) -> ActionMask:
        return SelectEntityActionMask(actor_ids=actors, actee_ids=actees, mask=mask)

    def read(
        self,
        where: str,
        action: Any,
        values: NDArray[Any],
        places: Callable[[Sequence[EntityID]], list[int]],
        indices: Mapping[EntityID, int],
    ) -> None:
        _check_lengths(where, action.actors, action.actees)
        for place, actee in zip(places(action.actors), action.actees, strict=True):
            if actee is not None and actee not in indices:
                raise ValueError(f"{where} names {actee!r}, which no entity has")
            values[place] = -1 if actee is None else indices[actee]

    def choose_nobody(self, values: NDArray[Any]) -> bool:
        if self.nobody:
            values.fill(-1)
        return self.nobody


# ---- continuous


@dataclass(frozen=True)
class Continuous(ActionDeclaration):
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

    def space(self) -> ContinuousActionSpace:
        return ContinuousActionSpace(self.low, self.high, self.names)

    def plan(self, where: str, name: str, entities: Mapping[str, Entity]) -> ActionPlan:
        attribute = safe_name(name)
        actors = Listed.of(where, "actors", attribute, _types(self.actors), self.max_actors, entities)
        low, high = (tuple(bound.tolist()) for bound in self.space().bounds())
        return ContinuousPlan(name, attribute, actors, None, False, tuple(zip(low, high, strict=True)))


@dataclass(frozen=True)
class ContinuousPlan(ActionPlan):
    bounds: tuple[tuple[float, float], ...] = ()
    dtype = np.dtype(np.float32)
    action = ContinuousAction

    @property
    def width(self) -> int:
        return len(self.bounds)

    @property
    def _numbers(self) -> Slot:
        return Slot(Kind.NUMBERS, self.attribute, F64, (self.actors.max, self.width))

    def slots(self) -> list[Slot]:
        return [*super().slots(), self._numbers]

    def parts(self) -> tuple[str, ...]:
        return ("actors",)

    def check(self) -> tuple[str, list[str]]:
        return "are_within", [*self._values, str(self.width), f"BOUNDS_{self.attribute}"]

    def argument(self) -> str:
        values = f"a.choices_{self.attribute}, {self._first}, {self._end} - {self._first}"
        return f"as_float64({values}, {self.width}, a.{self._numbers.name}[i])"

    def offer(self, actors: list[EntityID], actees: list[EntityID], mask: NDArray[np.bool_] | None) -> ActionMask:
        return ContinuousActionMask(actor_ids=actors)

    def read(
        self,
        where: str,
        action: Any,
        values: NDArray[Any],
        places: Callable[[Sequence[EntityID]], list[int]],
        indices: Mapping[EntityID, int],
    ) -> None:
        given, expected = np.asarray(action.values), (len(action.actors), self.width)
        if given.shape != expected or given.dtype.kind not in "fiu":
            raise ValueError(
                f"{where} has values of shape {given.shape} and type {given.dtype}; "
                f"expected numbers of shape {expected}, one row for each of its actors"
            )
        with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and is refused
            values[places(action.actors)] = given.astype(np.float32)
