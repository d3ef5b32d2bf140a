"""Actions of compiled environments: what a class declares, and the lines that are generated for each.

The lines speak of `a`, the arrays, `i`, the slot, `j`, its place in the call, and `n`, the counts of the slot.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from entity_gym.actions import (
    ActionSpace,
    CategoricalActionSpace,
    ContinuousActionSpace,
    GlobalCategoricalActionSpace,
    SelectEntityActionSpace,
)
from entity_gym.compiled.declare import Entity, Kind, Slot, safe_name
from entity_gym.errors import check_whole, nearest

Types = str | Sequence[str] | None

I64, F64, BOOL = np.dtype(np.int64), np.dtype(np.float64), np.dtype(np.bool_)


@dataclass(frozen=True)
class Action:
    """An action of a compiled environment; `Categorical` and the functions below it declare one.

    Attributes:
        space: the kind of the action, with its choices or bounds.
        actors: entity types whose every entity acts; None where `observe` lists the actors, and for a global action.
        max_actors: the most actors that `observe` lists.
        actees, max_actees: likewise, the entities that may be selected.
        masked: whether `observe` can close choices.
    """

    space: ActionSpace
    actors: Types = None
    max_actors: int | None = None
    actees: Types = None
    max_actees: int | None = None
    masked: bool = False

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
    choices: Sequence[str], actors: Types = None, max_actors: int | None = None, masked: bool = False
) -> Action:
    """Declare an action with which every actor picks one of `choices`.

    Args:
        choices: their names.
        actors: entity types whose every entity acts; the engine fills them in.
        max_actors: instead of `actors`: the most that `observe` writes into `obs.<Action>.actors`.
        masked: whether `obs.<Action>.mask[j, c]` can close choices.
    """
    return Action(CategoricalActionSpace(choices), actors, max_actors, masked=masked)


def GlobalCategorical(choices: Sequence[str], masked: bool = False) -> Action:
    """Declare an action with which the environment as a whole picks one of `choices`.

    Args:
        choices: their names.
        masked: whether `obs.<Action>.mask[0, c]` can close choices.
    """
    return Action(GlobalCategoricalActionSpace(choices), masked=masked)


def SelectEntity(
    actors: Types = None,
    max_actors: int | None = None,
    actees: Types = None,
    max_actees: int | None = None,
    masked: bool = False,
    exclude_self: bool = False,
    nobody: bool = False,
) -> Action:
    """Declare an action with which every actor picks an entity.

    Args:
        actors: as in `Categorical`.
        max_actors: as in `Categorical`.
        actees: entity types whose every entity may be picked; the engine fills them in.
        max_actees: instead of `actees`: the most that `observe` writes into `obs.<Action>.actees`.
        masked: whether `obs.<Action>.mask[actor, actee]` (positions in the two lists) can close pairs.
        exclude_self: an actor may not pick itself, whatever the mask says.
        nobody: every actor may pick nobody at all times. In `step`, `act.<Action>[j]` is then -1, as it is for an actor to
            whom no entity is open.
    """
    return Action(SelectEntityActionSpace(exclude_self, nobody), actors, max_actors, actees, max_actees, masked)


def Continuous(
    low: Sequence[float],
    high: Sequence[float],
    names: Sequence[str] | None = None,
    actors: Types = None,
    max_actors: int | None = None,
) -> Action:
    """Declare an action with which every actor picks n real numbers: in `step`, number `k` of actor `j` is `act.<Action>[j, k]`.

    They come as float32, and `act.<Action>` is an array of float64, so that rules reckon alike in compiled code and in
    ordinary Python, which differ in how they mix float32 with other numbers.

    Args:
        low: as in `entity_gym.ContinuousActionSpace`.
        high: as in `entity_gym.ContinuousActionSpace`.
        names: as in `entity_gym.ContinuousActionSpace`.
        actors: as in `Categorical`.
        max_actors: as in `Categorical`.
    """
    return Action(ContinuousActionSpace(low, high, names), actors, max_actors)


@dataclass(frozen=True)
class Listed:
    """The actors or actees of one action.

    Attributes:
        role: "actors" or "actees".
        count: name of their number, `obs.n.<count>`.
        slot: the array of their entity indices.
        ranges: expressions for the first index and the number of each entity type; None where `observe` writes the list.
        max: the most of them.
    """

    role: str
    count: str
    slot: Slot
    ranges: tuple[tuple[str, str], ...] | None
    max: int

    def fill(self, columns: Sequence[str], action: int) -> Iterator[str]:
        """List the declared entities, or check those that `observe` has listed."""
        count, listed, column = f"n.{self.count}", f"a.{self.slot.name}", columns.index(self.count)
        if self.ranges is None:
            yield f"if {count} < 0 or {count} > {self.max}:"
            yield f"    return fail(a.report, BAD_COUNT, i, {column}, {count})"
            yield f"unknown = find_unknown({listed}, i, {count}, total)"
            yield "if unknown >= 0:"
            yield f"    return fail(a.report, BAD_INDEX, i, {action}, {listed}[i, unknown])"
            return
        yield f"if {count} == EVERYBODY:"
        yield "    k = 0"
        for first, number in self.ranges:
            yield f"    k = list_entities({listed}, i, k, {first}, {number})"
        yield f"    {count} = k"
        yield f"elif {count} != 0:"
        yield f"    return fail(a.report, BAD_COUNT, i, {column}, {count})"


@dataclass(frozen=True)
class ActionPlan:
    """One action as the engine sees it: its arrays, and the lines that are generated for it.

    Attributes:
        name: of the action.
        attribute: its name in the code.
        space: its kind.
        lists: the actors, and where they select entities the actees.
        mask: the mask, which `observe` writes, or the engine; None where nothing can be closed.
        numbers: for continuous actions, the numbers as `step` sees them.
        written: the parts of `obs.<Action>` that `observe` writes.
    """

    name: str
    attribute: str
    space: ActionSpace
    lists: tuple[Listed, ...]
    mask: Slot | None
    numbers: Slot | None
    written: Mapping[str, Slot]

    @staticmethod
    def of(where: str, name: str, action: Action, entities: Mapping[str, Entity]) -> ActionPlan:
        """Plan the action called `name` in a world with these entity types.

        Raises:
            ValueError: beginning with `where`, for an unknown entity type.
        """
        attribute, space = safe_name(name), action.space
        lists = []
        for role in action.roles or ("actors",):
            types, most = getattr(action, role), getattr(action, f"max_{role}")
            ranges: tuple[tuple[str, str], ...] | None = None
            if space.is_global:  # the `__global__` entity, the last of the frame, is the only actor
                most, ranges = 1, (("total", "1"),)
            elif types is not None:
                for type_ in types:
                    if type_ not in entities:
                        raise ValueError(
                            f"{where}: {role} names the unknown entity type {type_!r}; {nearest(type_, entities)}"
                        )
                most = sum(entities[type_].max for type_ in types)
                ranges = tuple((f"first_{safe_name(type_)}", f"n.{safe_name(type_)}") for type_ in types)
            count = attribute if role == "actors" else f"{attribute}_actees"
            slot = Slot(Kind.ACTORS if role == "actors" else Kind.ACTEES, attribute, I64, (most,), count, (1,))
            lists.append(Listed(role, count, slot, ranges, most))
        written = {listed.role: listed.slot for listed in lists if listed.ranges is None}
        mask, numbers, most = None, None, lists[0].max
        if isinstance(space, SelectEntityActionSpace):
            if action.masked or space.exclude_self:
                counts, options = (lists[0].count, lists[1].count), (str(space.can_close),)
                mask = Slot(Kind.MASK, attribute, BOOL, (most, lists[1].max), counts, (1,), "copy_pairs", options)
        elif action.masked:
            num = len(space.labels)
            mask = Slot(Kind.MASK, attribute, BOOL, (most, num), attribute, (num,), "copy_choices", (str(num),))
        if not space.discrete:
            numbers = Slot(Kind.NUMBERS, attribute, F64, (most, space.width))
        if action.masked and mask is not None:
            written["mask"] = mask
        return ActionPlan(name, attribute, space, tuple(lists), mask, numbers, written)

    @property
    def slots(self) -> list[Slot]:
        """Every array of the action with a row for each slot."""
        return [*(listed.slot for listed in self.lists), *(slot for slot in (self.mask, self.numbers) if slot)]

    def before(self) -> Iterator[str]:
        """Before `observe`: everybody acts, and everything is open."""
        for listed in self.lists:
            yield f"n.{listed.count} = {'0' if listed.ranges is None else 'EVERYBODY'}"
        if self.mask is not None:
            yield f"open_all_choices(a.{self.mask.name}, i)"

    def after(self, columns: Sequence[str], number: int) -> Iterator[str]:
        """After `observe`: fill in what is declared, check what was written."""
        for listed in self.lists:
            if listed.role == "actees":
                yield f"if n.{self.attribute} == 0:"
                yield f"    n.{listed.count} = 0"
            yield from listed.fill(columns, number)
        if isinstance(self.space, SelectEntityActionSpace) and self.space.exclude_self and self.mask is not None:
            lists = ", ".join(f"a.{listed.slot.name}, n.{listed.count}" for listed in self.lists)
            yield f"close_self(a.{self.mask.name}, i, {lists})"

    def check(self) -> tuple[str, list[str]]:
        """Return the function of `runtime` that checks the choices of slot `i`, and its arguments."""
        values: list[Any] = [f"a.choices_{self.attribute}", f"a.starts_{self.attribute}[j]", f"n.{self.attribute}"]
        mask = f"a.{self.mask.name}" if self.mask is not None else ""
        if isinstance(self.space, SelectEntityActionSpace):
            actees = self.lists[1]
            values += [f"a.{actees.slot.name}", "i", f"n.{actees.count}", str(self.space.nobody)]
            return (
                ("are_open_to_select", [*values, str(self.space.can_close), mask])
                if mask
                else ("are_selectable", values)
            )
        if not self.space.discrete:
            return "are_within", [*values, str(self.space.width), f"BOUNDS_{self.attribute}"]
        values.append(str(len(self.space.labels)))
        return ("are_open_choices", [*values, mask, "i"]) if mask else ("are_choices", values)

    def argument(self) -> str:
        """Return an expression: what `step` finds in `act.<Action>`."""
        values, first = f"a.choices_{self.attribute}", f"a.starts_{self.attribute}[j]"
        end = f"a.starts_{self.attribute}[j + 1]"
        if self.numbers is None:
            return f"{values}[{first}:{end}]"
        return f"as_float64({values}, {first}, {end} - {first}, {self.space.width}, a.{self.numbers.name}[i])"
