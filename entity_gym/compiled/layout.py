"""The layout of a compiled environment: its record, its counts, and the arrays that hold what N of them show.

Environments share arrays that are as large as the declared capacities, with one slot (row) each. Batches are packed copies.
"""

from __future__ import annotations

import functools
import itertools
import keyword
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from entity_gym.actions.kind import has_global_entity
from entity_gym.compiled.actions import BOOL, F64, I64, Action, ActionPlan
from entity_gym.compiled.declare import Entity, Kind, Slot, is_compilable, safe_name
from entity_gym.compiled.description import Description
from entity_gym.errors import nearest
from entity_gym.spaces import GLOBAL_ENTITY, FeatureKind, ObsSpace, num_values

ENGINE_FIELDS = ("rng", "steps", "max_steps", "next_id")
RESERVED = ("n", "global_features", "visible", "ids", "first")


@dataclass(frozen=True)
class Layout:
    """Everything about a compiled environment that its code and its memory depend on.

    Attributes:
        record: dtype of `s`.
        counts: dtype of `obs.n`; all int64.
        columns: the row counts of packed arrays: the name of a count, or a pair of them whose product is the number of rows.
        entities: attribute -> declaration.
        entity_names: attribute -> name.
        global_kinds: the kinds of the global features that are not plain numbers.
        info, metrics: reported name -> field.
        player_rewards: fields, by player.
        targets: name -> field.
        slots: the arrays with a row for each slot.
    """

    name: str
    record: np.dtype[Any]
    parameters: tuple[str, ...]
    counts: np.dtype[Any]
    columns: tuple[str | tuple[str, str], ...]
    entities: Mapping[str, Entity]
    entity_names: Mapping[str, str]
    global_features: tuple[str, ...]
    global_kinds: Mapping[str, FeatureKind]
    actions: tuple[ActionPlan, ...]
    info: Mapping[str, str]
    metrics: Mapping[str, str]
    player_rewards: tuple[str, ...]
    targets: Mapping[str, str]
    slots: tuple[Slot, ...]

    @functools.cached_property
    def packed(self) -> tuple[Slot, ...]:
        """The slots that compiled code packs."""
        return tuple(slot for slot in self.slots if slot.rows is not None)

    @property
    def count_names(self) -> list[str]:
        """The counts that `observe` may write."""
        return [name for name in self.counts.names or () if name != GLOBAL_ENTITY]

    def of_kind(self, *kinds: Kind) -> list[Slot]:
        """The slots of some kinds."""
        return [slot for slot in self.slots if slot.kind in kinds]

    def slot(self, kind: Kind, owner: str) -> Slot | None:
        """The slot of one kind that belongs to `owner`."""
        return next((slot for slot in self.slots if slot.kind is kind and slot.owner == owner), None)


_layouts: dict[type[Description], Layout] = {}


def layout_of(env: type[Description]) -> Layout:
    """Check the declaration of `env` and lay it out, once for each class.

    Raises:
        ValueError: naming the class, and what in its declaration is wrong.
    """
    if env not in _layouts:
        _layouts[env] = _layout_of(env)
    return _layouts[env]


def _layout_of(env: type[Description]) -> Layout:
    name = env.__name__
    for function in ("reset", "step", "observe"):
        if not callable(getattr(env, function, None)):
            raise ValueError(f"{name} has no function {function}; a CompiledEnvironment needs reset, step and observe")
    _check_kinds(name, "entities", env.entities, Entity, "Entity")
    _check_kinds(
        name,
        "actions",
        env.actions,
        Action,
        "Categorical, GlobalCategorical, SelectEntity or Continuous",
    )
    if not env.entities and not env.actions:
        raise ValueError(f"{name} declares neither entities nor actions: there is nothing to see or to do")
    entity_names = _attributes(env.entities, name, "entities")
    action_names = _attributes(env.actions, name, "actions")
    both = entity_names.keys() & action_names.keys()
    if both:
        raise ValueError(f"{name}: an entity type and an action are both called {sorted(both)}; rename one of them")
    obs_space, action_space = env.obs_space(), env.action_space()  # check names and choices
    entities = {attribute: env.entities[original] for attribute, original in entity_names.items()}
    actions = tuple(
        ActionPlan.of(f"{name}: action {original!r}", original, env.actions[original], env.entities)
        for original in action_names.values()
    )
    record, counts = _record(env), _counts(name, entities, actions, has_global_entity(obs_space, action_space))
    info, metrics = _reported(env.info, "info", record, name), _reported(env.metrics, "metrics", record, name)
    player_rewards = tuple(_reported(env.player_rewards, "player_rewards", record, name).values())
    slots = [
        *_shown_slots(obs_space, entities, actions),
        *_outcome_slots(record, info, metrics, player_rewards, tuple(env.parameters)),
    ]
    pairs = [slot.rows for slot in slots if isinstance(slot.rows, tuple)]
    return Layout(
        name=name,
        record=record,
        parameters=tuple(env.parameters),
        counts=counts,
        columns=(*(counts.names or ()), *pairs),
        entities=entities,
        entity_names=entity_names,
        global_features=obs_space.global_features,
        global_kinds=obs_space.global_kinds,
        actions=actions,
        info=info,
        metrics=metrics,
        player_rewards=player_rewards,
        targets=_reported(env.targets, "targets", record, name),
        slots=tuple(slots),
    )


def _check_kinds(owner: str, what: str, given: Mapping[str, Any], kind: Any, names: str) -> None:
    for name, value in given.items():
        if not isinstance(value, kind):
            raise ValueError(f"{owner}: {what}[{name!r}] is {value!r}; declare it with {names} of entity_gym.compiled")


def _attributes(names: Iterable[str], owner: str, what: str) -> dict[str, str]:
    """Attribute -> name."""
    attributes: dict[str, str] = {}
    for name in names:
        attribute = safe_name(name)
        if attribute in attributes:
            raise ValueError(
                f"{owner}: {what} {attributes[attribute]!r} and {name!r} are both written {attribute}; rename one"
            )
        if keyword.iskeyword(attribute) or not attribute[:1].isalpha() or not attribute.isidentifier():
            raise ValueError(
                f"{owner}: {name!r} in {what} becomes the attribute {attribute}, which is no valid name: it must begin with a "
                "letter and be no keyword of Python"
            )
        if attribute in RESERVED:
            raise ValueError(f"{owner}: {name!r} in {what} is a name that the engine uses; choose another")
        attributes[attribute] = name
    return attributes


def _record(env: type[Description]) -> np.dtype[Any]:
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
    names = [field[0] for field in fields]
    for name in names:
        if names.count(name) > 1:
            by = "by the engine" if name in ENGINE_FIELDS else "twice, in parameters or state"
            raise ValueError(f"{env.__name__}: the field {name!r} is declared {by}; rename it")
        if not str(name).isidentifier() or keyword.iskeyword(name):
            raise ValueError(f"{env.__name__}: the field {name!r} is not a Python name")
    return np.dtype(fields, align=True)


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
    if not is_compilable(dtype):
        raise ValueError(f"{owner}: state has the field {field!r}; {expected}")
    if is_array and dtype == np.bool_:
        return (name, np.uint8, *shape)
    return (name, dtype, *shape)


def _reported(given: Sequence[str] | Mapping[str, str], what: str, record: np.dtype[Any], owner: str) -> dict[str, str]:
    reported = dict(given) if isinstance(given, Mapping) else {name: name for name in given}
    for name, other in itertools.combinations(reported, 2):
        if safe_name(name) == safe_name(other):
            raise ValueError(
                f"{owner}: {what} {name!r} and {other!r} are too alike, both {safe_name(name)}; rename one"
            )
    assert record.fields is not None
    for field in reported.values():
        if field not in record.fields:
            raise ValueError(f"{owner}: {what} names the field {field!r}; {nearest(field, record.fields)}")
        if record.fields[field][0].shape:
            raise ValueError(f"{owner}: {what} names {field!r}, which is an array; report single numbers")
    return reported


def _counts(
    owner: str, entities: Mapping[str, Entity], actions: Sequence[ActionPlan], has_global: bool
) -> np.dtype[Any]:
    names = [*entities, *(action.attribute for action in actions)]
    for action in actions:
        for actees in (listed.count for listed in action.lists[1:]):
            if actees in names:
                raise ValueError(
                    f"{owner}: obs.n.{actees} would be two counts: of the entities {actees!r}, and of the "
                    f"actees of {action.name!r}; rename one of them"
                )
            names.append(actees)
    names += [GLOBAL_ENTITY] if has_global else []  # always 1
    return np.dtype([(name, np.int64) for name in names])


F32 = np.dtype(np.float32)


def _shown_slots(obs_space: ObsSpace, entities: Mapping[str, Entity], actions: Sequence[ActionPlan]) -> Iterator[Slot]:
    for type_, entity in entities.items():
        num = len(entity.features)
        if num:
            whole = _whole_numbers(entity.features, entity.kinds)
            yield Slot(Kind.FEATURES, type_, F32, (entity.max, num), type_, (num,), "copy_features", (str(num),), whole)
        if entity.hideable:
            yield Slot(Kind.VISIBLE, type_, BOOL, (entity.max,), type_, (1,))
        if entity.ids:
            yield Slot(Kind.IDS, type_, I64, (entity.max,), type_, (1,))
    for action in actions:
        yield from action.slots
    names = obs_space.global_features
    if names:
        whole = _whole_numbers(names, obs_space.global_kinds)
        shape = (len(names),)
        yield Slot(
            Kind.GLOBAL_FEATURES,
            "features",
            F32,
            (1, *shape),
            GLOBAL_ENTITY,
            shape,
            "copy_features",
            (str(len(names)),),
            whole,
        )


def _outcome_slots(
    record: np.dtype[Any],
    info: Mapping[str, str],
    metrics: Mapping[str, str],
    player_rewards: Sequence[str],
    parameters: Sequence[str],
) -> Iterator[Slot]:
    yield Slot(Kind.OUTCOME, "reward", F32)
    # kept: the last record of the episode is in `final_record`; pending: the next episode has new parameters
    for flag in ("done", "truncated", "kept", "pending"):
        yield Slot(Kind.OUTCOME, flag, BOOL)
    yield Slot(Kind.OUTCOME, "elapsed", I64)
    if player_rewards:
        yield Slot(Kind.OUTCOME, "player_rewards", F32, (len(player_rewards),))
    for name, field in info.items():
        yield Slot(Kind.INFO, safe_name(name), record[field])
    for name in metrics:
        yield Slot(Kind.METRIC, safe_name(name), F64)  # for any type of the field: NaN means that there is no report
    for name in ("max_steps", *parameters):
        yield Slot(Kind.PENDING, name, record[name])


def _whole_numbers(names: Sequence[str], kinds: Mapping[str, FeatureKind]) -> tuple[tuple[int, int, int], ...]:
    """(first, end, num) of neighbouring categories and flags with the same number of values."""
    columns = [(num_values(kinds.get(name)), column) for column, name in enumerate(names)]
    found = []
    for num, neighbours in itertools.groupby(columns, key=lambda pair: pair[0]):
        places = [column for _, column in neighbours]
        if num is not None:
            found.append((places[0], places[-1] + 1, num))
    return tuple(found)
