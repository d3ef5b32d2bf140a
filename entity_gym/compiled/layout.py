"""The layout of a compiled environment: its record, its counts, and the arrays that hold what N of them show.

Environments share arrays that are as large as the declared capacities, with one slot (row) each. Batches are packed copies.
"""

from __future__ import annotations

import functools
import itertools
import keyword
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from entity_gym.actions import ActionSpace
from entity_gym.actions.chains import decision_order, selection_before
from entity_gym.actions.kind import has_global_entity
from entity_gym.actions.select_entity import EntitiesActionSpace
from entity_gym.compiled.declare import Action, Description, Entity
from entity_gym.errors import nearest
from entity_gym.spaces import GLOBAL_ENTITY, FeatureKind, ObsSpace

ENGINE_FIELDS = ("rng", "steps", "max_steps", "next_id")
I64, F32, F64, BOOL = np.dtype(np.int64), np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.bool_)
_REPORTS = ("info", "metrics", "player_rewards", "targets")  # attributes of the class that name fields
RESERVED = ("n", "global_features", "visible", "ids", "first")


def safe_name(name: str) -> str:
    """`name` as an attribute: what cannot stand in an identifier becomes "_"."""
    return re.sub(r"\W", "_", name)


class Kind(Enum):
    """The kinds of arrays with a row for each slot; the value is the first part of their names in generated code."""

    FEATURES = "features"  # of an entity type
    VISIBLE = "visible"
    IDS = "ids"
    GLOBAL_FEATURES = "global"
    ACTORS = "actors"  # of an action: entity indices
    ACTEES = "actees"
    MASK = "mask"
    MASK_AFTER = "maskafter"
    OUTCOME = ""  # of the last step; every environment has the same
    INFO = "info"
    METRIC = "metric"
    PENDING = "pending"  # parameters of the next episode


@dataclass(frozen=True)
class Slot:
    """An array with a row for each slot.

    Attributes:
        kind: of the array.
        owner: attribute of the entity type, action, parameter... that it belongs to.
        dtype, shape: of one slot.
        rows: for packed arrays the count that tells how many rows leave, or a pair of counts whose product tells it. None: the
            array is not packed by compiled code.
        row: shape of a row as it leaves.
        copy: the function of `runtime` that copies the rows.
        options: further arguments of that function.
        whole: (first column, last + 1, number of values) of neighbouring features that must be whole numbers.
    """

    kind: Kind
    owner: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...] = ()
    rows: str | tuple[str, str] | None = None
    row: tuple[int, ...] = ()
    copy: str = "copy_numbers"
    options: tuple[str, ...] = ()
    whole: tuple[tuple[int, int, int], ...] = ()

    @functools.cached_property
    def name(self) -> str:
        """The array's name in generated code."""
        return self.owner if self.kind is Kind.OUTCOME else f"{self.kind.value}_{self.owner}"


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
        mask_after: the mask after a selection, which `observe` writes; None where there is none.
        written: the parts of `obs.<Action>` that `observe` writes.
    """

    name: str
    attribute: str
    space: ActionSpace
    lists: tuple[Listed, ...]
    mask: Slot | None
    mask_after: Slot | None
    written: Mapping[str, Slot]

    @staticmethod
    def of(where: str, name: str, actions: Mapping[str, Action], entities: Mapping[str, Entity]) -> ActionPlan:
        """Plan the action called `name` in a world with these actions and entity types.

        Raises:
            ValueError: beginning with `where`, for an unknown entity type, or a mask after no selection.
        """
        action = actions[name]
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
        mask, most = None, lists[0].max
        if isinstance(space, EntitiesActionSpace):
            if action.masked or space.exclude_self:
                counts, options = (lists[0].count, lists[1].count), (str(space.can_close),)
                mask = Slot(Kind.MASK, attribute, BOOL, (most, lists[1].max), counts, (1,), "copy_pairs", options)
        elif action.masked:
            num = len(space.labels)
            mask = Slot(Kind.MASK, attribute, BOOL, (most, num), attribute, (num,), "copy_choices", (str(num),))
        if action.masked and mask is not None:
            written["mask"] = mask
        mask_after = None
        if action.masked_after:
            earlier = selection_before(name, {each: declared.space for each, declared in actions.items()})
            if earlier is None:
                raise ValueError(
                    f"{where}: masked_after needs one select-entity action in after, which is {list(space.after)}"
                )
            actees = ActionPlan.of(where, earlier, actions, entities).lists[1]
            shape, options = (most, actees.max, len(space.labels)), (str(len(space.labels)),)
            counts = attribute, actees.count
            mask_after = Slot(Kind.MASK_AFTER, attribute, BOOL, shape, counts, shape[2:], "copy_after", options)
            written["mask_after"] = mask_after
        return ActionPlan(name, attribute, space, tuple(lists), mask, mask_after, written)

    @property
    def slots(self) -> list[Slot]:
        """Return the arrays of the action that have a row for each slot."""
        return [*(listed.slot for listed in self.lists), *filter(None, (self.mask, self.mask_after))]

    @property
    def num_values(self) -> str:
        """How many values slot `i` is given."""
        return f"n.{self.attribute}" + (f" * n.{self.lists[1].count}" if self.space.per_pair else "")

    @property
    def chosen(self) -> str:
        """The expression that `step` reads as `act.<Action>`."""
        own = f"a.choices_{self.attribute}[a.starts_{self.attribute}[j]:a.starts_{self.attribute}[j + 1]]"
        return f"{own}.reshape((n.{self.attribute}, n.{self.lists[1].count}))" if self.space.per_pair else own

    def before(self) -> Iterator[str]:
        """Before `observe`: everybody acts, and everything is open."""
        for listed in self.lists:
            yield f"n.{listed.count} = {'0' if listed.ranges is None else 'EVERYBODY'}"
        for mask in filter(None, (self.mask, self.mask_after)):
            yield f"a.{mask.name}[i] = True"  # as ordinary Python a loop would take longer than the rest of a step

    def after(self, columns: Sequence[str], number: int) -> Iterator[str]:
        """After `observe`: fill in what is declared, check what was written."""
        for listed in self.lists:
            if listed.role == "actees":
                yield f"if n.{self.attribute} == 0:"
                yield f"    n.{listed.count} = 0"
            yield from listed.fill(columns, number)
        if isinstance(self.space, EntitiesActionSpace) and self.space.exclude_self and self.mask is not None:
            lists = ", ".join(f"a.{listed.slot.name}, n.{listed.count}" for listed in self.lists)
            yield f"close_self(a.{self.mask.name}, i, {lists})"

    def check(self) -> str:
        """Return the call of the space's `compiled_check` for slot `i`."""
        name, actees = self.attribute, ", ".join(f"a.{each.slot.name}, n.{each.count}" for each in self.lists[1:])
        mask = "None" if self.mask is None else f"a.{self.mask.name}"
        return f"check_{name}(a.choices_{name}, a.starts_{name}[j], n.{name}, {mask}, i, {actees or 'None, 0'})"


@dataclass(frozen=True)
class Layout:
    """Declarations of a compiled environment on which its code and its memory depend.

    Attributes:
        env: the class.
        record: dtype of `s`.
        counts: dtype of `obs.n`; all int64.
        entity_names: attribute -> name of the entity type.
        obs_space: of the class.
        actions: in the order of the class.
    """

    env: type[Description]
    record: np.dtype[Any]
    counts: np.dtype[Any]
    entity_names: Mapping[str, str]
    obs_space: ObsSpace
    actions: tuple[ActionPlan, ...]

    @property
    def name(self) -> str:
        """The name of the class."""
        return self.env.__name__

    @functools.cached_property
    def entities(self) -> dict[str, Entity]:
        """Attribute -> declaration of the entity type."""
        return {attribute: self.env.entities[name] for attribute, name in self.entity_names.items()}

    @functools.cached_property
    def slots(self) -> tuple[Slot, ...]:
        """The arrays with a row for each environment."""
        return tuple(_slots(self))

    @functools.cached_property
    def columns(self) -> list[str | tuple[str, str]]:
        """The row counts of packed arrays: the name of a count, or a pair of them whose product is the number of rows."""
        return [*(self.counts.names or ()), *(slot.rows for slot in self.slots if isinstance(slot.rows, tuple))]

    @functools.cached_property
    def packed(self) -> tuple[Slot, ...]:
        """The slots that compiled code packs."""
        return tuple(slot for slot in self.slots if slot.rows is not None)

    def of_kind(self, *kinds: Kind) -> list[Slot]:
        """The slots of some kinds."""
        return [slot for slot in self.slots if slot.kind in kinds]


@functools.cache
def layout_of(env: type[Description]) -> Layout:
    """Check the declaration of `env` and lay it out, once for each class.

    Raises:
        ValueError: naming the class, and what in its declaration is wrong.
    """
    name = env.__name__
    for function in ("reset", "step", "observe"):
        if not callable(getattr(env, function, None)):
            raise ValueError(f"{name} has no function {function}; a CompiledEnvironment needs reset, step and observe")
    for what, kind in (("entities", Entity), ("actions", Action)):
        for key, value in getattr(env, what).items():
            if not isinstance(value, kind):
                raise ValueError(
                    f"{name}: {what}[{key!r}] is {value!r}; declare it with Entity, Categorical or another function of "
                    "entity_gym.compiled"
                )
    if not env.entities and not env.actions:
        raise ValueError(f"{name} declares neither entities nor actions: there is nothing to see or to do")
    entity_names, action_names = _attributes(name, "entities", env.entities), _attributes(name, "actions", env.actions)
    actions = tuple(
        ActionPlan.of(f"{name}: action {original!r}", original, env.actions, env.entities)
        for original in action_names.values()
    )
    obs_space, action_space = env.obs_space(), env.action_space()  # check names and choices
    decision_order(action_space)
    counts = [*entity_names, *action_names, *(listed.count for action in actions for listed in action.lists[1:])]
    for count in counts:
        if counts.count(count) > 1:
            raise ValueError(
                f"{name}: obs.n.{count} would be two counts: of entities, of those who take an action, or of those whom an "
                "action may select; rename one of them"
            )
    if has_global_entity(obs_space, action_space):
        counts.append(GLOBAL_ENTITY)  # always 1
    return Layout(
        env, _record(env), np.dtype([(count, np.int64) for count in counts]), entity_names, obs_space, actions
    )


def _attributes(owner: str, what: str, names: Iterable[str]) -> dict[str, str]:
    """Attribute -> name."""
    attributes: dict[str, str] = {}
    for name in names:
        attribute, wrong = safe_name(name), ""
        if attribute in attributes:
            wrong = f"as {attributes[attribute]!r} is"
        elif keyword.iskeyword(attribute) or not attribute[:1].isalpha() or not attribute.isidentifier():
            wrong = "but a name begins with a letter and is no keyword of Python"
        elif attribute in RESERVED:
            wrong = "a name that the engine uses"
        if wrong:
            raise ValueError(f"{owner}: {name!r} in {what} is written {attribute} in code, {wrong}; rename it")
        attributes[attribute] = name
    return attributes


def _record(env: type[Description]) -> np.dtype[Any]:
    """Return the dtype of `s`, after checking every declaration that names its fields."""
    kinds = {bool: np.bool_, int: np.int64, float: np.float64}
    fields: list[tuple[Any, ...]] = [("rng", np.uint64), ("steps", np.int64), ("max_steps", np.int64)]
    for parameter, default in env.parameters.items():
        if type(default) not in kinds:
            raise ValueError(
                f"{env.__name__}: parameter {parameter!r} has the default {default!r}; it must be int, float or bool"
            )
        fields.append((parameter, kinds[type(default)]))
    if any(entity.ids for entity in env.entities.values()):
        fields.append(("next_id", np.int64))
    fields += [_storable(env.__name__, field) for field in env.state]
    names = [str(field[0]) for field in fields]
    for name in names:
        if names.count(name) > 1:
            by = "by the engine" if name in ENGINE_FIELDS else "twice, in parameters or state"
            raise ValueError(f"{env.__name__}: the field {name!r} is declared {by}; rename it")
        if not name.isidentifier() or keyword.iskeyword(name):
            raise ValueError(f"{env.__name__}: the field {name!r} is not a Python name")
    record = np.dtype(fields, align=True)
    for what, allowed in (("ranges", list(env.parameters)), *((what, names) for what in _REPORTS)):
        for name in getattr(env, what):
            if name not in allowed:
                raise ValueError(f"{env.__name__}: {what} names the field {name!r}; {nearest(name, allowed)}")
            if record[name].shape:
                raise ValueError(f"{env.__name__}: {what} names {name!r}, which is an array; report single numbers")
    return record


def _storable(owner: str, field: Any) -> tuple[Any, ...]:
    """A field as it is stored.

    Numba knows no arrays of bool inside a record: they become uint8, whose 0 and 1 read and write the same.
    """
    expected = (
        "expected (name, dtype) or (name, dtype, shape), with a dtype of numbers or bool that compiled code knows"
    )
    try:
        name, given, *shape = field
        dtype = np.dtype(given)
        is_array = np.dtype([(str(name), dtype, *shape)])[0].shape != ()
    except (TypeError, ValueError) as error:
        raise ValueError(f"{owner}: state has the field {field!r}; {expected} ({error})") from error
    if not dtype.isnative or not (dtype.kind in "biu" or dtype in (np.float32, np.float64)):
        raise ValueError(f"{owner}: state has the field {field!r}; {expected}")
    if is_array and dtype == np.bool_:
        return (name, np.uint8, *shape)
    return (name, dtype, *shape)


def _slots(layout: Layout) -> Iterator[Slot]:
    for type_, entity in layout.entities.items():
        yield _features(Kind.FEATURES, type_, type_, entity.max, entity.features, entity.kinds)
        if entity.hideable:
            yield Slot(Kind.VISIBLE, type_, BOOL, (entity.max,), type_, (1,))
        if entity.ids:
            yield Slot(Kind.IDS, type_, I64, (entity.max,), type_, (1,))
    for action in layout.actions:
        yield from action.slots
    names = layout.obs_space.global_features
    if GLOBAL_ENTITY in (layout.counts.names or ()):
        yield _features(Kind.GLOBAL_FEATURES, "features", GLOBAL_ENTITY, 1, names, layout.obs_space.global_kinds)
    yield Slot(Kind.OUTCOME, "reward", F32)
    # kept: the last record of the episode is in `final_record`; pending: the next episode has new parameters
    for flag in ("done", "truncated", "kept", "pending"):
        yield Slot(Kind.OUTCOME, flag, BOOL)
    yield Slot(Kind.OUTCOME, "elapsed", I64)
    if layout.env.player_rewards:
        yield Slot(Kind.OUTCOME, "player_rewards", F32, (len(layout.env.player_rewards),))
    for name in layout.env.info:
        yield Slot(Kind.INFO, name, layout.record[name])
    for name in layout.env.metrics:
        yield Slot(Kind.METRIC, name, F64)  # for any type of the field: NaN means that there is no report
    for name in ("max_steps", *layout.env.parameters):
        yield Slot(Kind.PENDING, name, layout.record[name])


def _features(
    kind: Kind, owner: str, count: str, most: int, names: Sequence[str], kinds: Mapping[str, FeatureKind]
) -> Slot:
    """The array of a type's features; neighbouring categories and flags with as many values are checked together."""
    whole, num = [], len(names)
    columns = [(getattr(kinds.get(name), "num", None), column) for column, name in enumerate(names)]
    for values, neighbours in itertools.groupby(columns, key=lambda pair: pair[0]):
        places = [column for _, column in neighbours]
        if values is not None:
            whole.append((places[0], places[-1] + 1, values))
    return Slot(kind, owner, F32, (most, num), count, (num,), "copy_features", (str(num),), tuple(whole))
