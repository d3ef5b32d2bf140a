"""From a declaration to the arrays that hold many environments: one slot each, sized by the capacities.

Shapes: N slots. Copies leave as `Stream`s; a slot's own arrays never do.
"""

from __future__ import annotations

import functools
import itertools
import keyword
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from entity_gym.compiled.declare import (
    Array,
    Categorical,
    Continuous,
    Entity,
    GlobalCategorical,
    SelectEntity,
    at_least_one,
    is_compilable,
    safe_name,
)
from entity_gym.compiled.environment import CompiledEnvironment
from entity_gym.errors import nearest
from entity_gym.spaces import FeatureKind, ObsSpace, num_values

ENGINE_FIELDS = ("rng", "steps", "max_steps")
ENGINE_COUNTS = ("players",)
RESERVED = (*ENGINE_COUNTS, "n", "global_features", "visible", "arrays", "first")


class SlotArray(NamedTuple):
    """An array with one row a slot, an attribute of `b` in the generated code."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]  # of one slot


class WholeNumbers(NamedTuple):
    """Neighbouring columns that hold whole numbers from 0 to `num` - 1: categories and flags."""

    first: int
    end: int  # of the columns; the last is the one before
    num: int


class Stream(NamedTuple):
    """Rows that compiled code packs: the first so many of each slot's, or one of each."""

    slot: str  # name of the `SlotArray`
    rows: str  # the count that says how many rows, or "<Action>_pairs"; "": exactly one
    dtype: np.dtype[Any]
    row: tuple[int, ...]  # shape of a row as it leaves
    whole: tuple[WholeNumbers, ...] = ()  # of features: those that are not just any finite numbers


@dataclass(frozen=True)
class ActionPlan:
    """One action. `attribute` is its name in the code; capacities are in rows."""

    name: str
    attribute: str
    max_actors: int
    num_choices: int = 0  # 0: select-entity or continuous
    max_actees: int = 0
    is_global: bool = False
    masked: bool = False  # whether `observe` writes the mask
    actor_types: tuple[str, ...] | None = None  # attributes of types; None: `observe` writes the actors
    actee_types: tuple[str, ...] | None = None
    exclude_self: bool = False
    nobody: bool = False
    bounds: tuple[tuple[float, float], ...] = ()  # of the numbers of a continuous action, as float32 has them

    @property
    def selects(self) -> bool:
        """Whether it is select-entity."""
        return self.num_choices == 0 and not self.bounds

    @property
    def has_mask(self) -> bool:
        """Whether there is a mask, which `observe` writes or the engine."""
        return self.masked or self.exclude_self

    @property
    def can_close(self) -> bool:
        """Whether it is in order that everything is closed to an actor."""
        return self.exclude_self or self.nobody


@dataclass(frozen=True)
class Layout:
    """Everything about a compiled environment that its code and its memory depend on."""

    name: str
    record: np.dtype[Any]  # of `s`
    parameters: tuple[str, ...]
    counts: np.dtype[Any]  # of `obs.n`; all int64
    entities: Mapping[str, Entity]  # attribute -> declaration
    entity_names: Mapping[str, str]  # attribute -> name
    global_features: tuple[str, ...]
    global_kinds: Mapping[str, FeatureKind]  # of those that are not plain numbers
    actions: tuple[ActionPlan, ...]
    info: Mapping[str, str]  # reported name -> field
    metrics: Mapping[str, str]
    player_rewards: tuple[str, ...]  # fields, by player
    slots: tuple[SlotArray, ...]
    streams: tuple[Stream, ...]
    array_slots: Mapping[str, str]  # declared array -> its slot
    max_num_players: int  # 0 where no array has players

    @property
    def has_global(self) -> bool:
        """Whether frames end with the `__global__` entity."""
        return bool(self.global_features) or any(action.is_global for action in self.actions)


@functools.cache
def layout_of(env: type[CompiledEnvironment]) -> Layout:
    """Check what `env` declares and lay it out.

    Raises:
        ValueError: naming the class, and what in its declaration is wrong.
    """
    name = env.__name__
    for function in ("reset", "step", "observe"):
        if not callable(getattr(env, function, None)):
            raise ValueError(f"{name} has no function {function}; a CompiledEnvironment needs reset, step and observe")
    _check_kinds(name, "entities", env.entities, Entity, "Entity")
    _check_kinds(name, "arrays", env.arrays, Array, "Array")
    _check_kinds(
        name,
        "actions",
        env.actions,
        Categorical | SelectEntity | GlobalCategorical | Continuous,
        "Categorical, SelectEntity, Continuous",
    )
    entity_names = _attributes(env.entities, name, "entities")
    action_names = _attributes(env.actions, name, "actions")
    both = entity_names.keys() & action_names.keys()
    if both:
        raise ValueError(f"{name}: an entity type and an action are both called {sorted(both)}; rename one of them")
    at_least_one(name, "max_num_players", env.max_num_players)
    obs_space, _ = env.obs_space(), env.action_space()  # check names and choices
    entities = {attribute: env.entities[original] for attribute, original in entity_names.items()}
    actions = tuple(_plan(name, env, attribute, original) for attribute, original in action_names.items())
    record = _record(env)
    return Layout(
        name=name,
        record=record,
        parameters=tuple(env.parameters),
        counts=_counts(name, entities, actions),
        entities=entities,
        entity_names=entity_names,
        global_features=obs_space.global_features,
        global_kinds=obs_space.global_kinds,
        actions=actions,
        info=_reported(env.info, "info", record, name),
        metrics=_reported(env.metrics, "metrics", record, name),
        player_rewards=tuple(_reported(env.player_rewards, "player_rewards", record, name).values()),
        slots=tuple(_slots(env, entities, actions)),
        streams=tuple(_streams(env, obs_space, entities, actions)),
        array_slots={original: f"x_{safe}" for safe, original in _attributes(env.arrays, name, "arrays").items()},
        max_num_players=env.max_num_players if any(array.per_player for array in env.arrays.values()) else 0,
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
                f"{owner}: {name!r} in {what} is written {attribute} in the functions, which is no Python name that can be used "
                "there; it must begin with a letter and be no keyword"
            )
        if attribute in RESERVED:
            raise ValueError(f"{owner}: {name!r} in {what} is a name that the engine uses; choose another")
        attributes[attribute] = name
    return attributes


def _plan(owner: str, env: type[CompiledEnvironment], attribute: str, name: str) -> ActionPlan:
    action = env.actions[name]
    if isinstance(action, GlobalCategorical):
        return ActionPlan(name, attribute, 1, len(action.choices), is_global=True, masked=action.masked)
    assert isinstance(action, Categorical | SelectEntity | Continuous)
    where = f"{owner}: action {name!r}"
    actor_types, max_actors = _capacity(where, "actors", action.actors, action.max_actors, env.entities)
    if isinstance(action, Categorical):
        return ActionPlan(name, attribute, max_actors, len(action.choices), 0, False, action.masked, actor_types)
    if isinstance(action, Continuous):
        low, high = (tuple(bound.tolist()) for bound in action.space().bounds())
        return ActionPlan(
            name, attribute, max_actors, actor_types=actor_types, bounds=tuple(zip(low, high, strict=True))
        )
    actee_types, max_actees = _capacity(where, "actees", action.actees, action.max_actees, env.entities)
    return ActionPlan(
        name,
        attribute,
        max_actors,
        0,
        max_actees,
        False,
        action.masked,
        actor_types,
        actee_types,
        action.exclude_self,
        action.nobody,
    )


def _capacity(
    where: str, role: str, types: Any, capacity: int | None, entities: Mapping[str, Entity]
) -> tuple[tuple[str, ...] | None, int]:
    if capacity is not None:
        return None, capacity
    for type_ in types:
        if type_ not in entities:
            raise ValueError(f"{where}: {role} names the unknown entity type {type_!r}; {nearest(type_, entities)}")
    return tuple(safe_name(type_) for type_ in types), sum(entities[type_].max for type_ in types)


def _record(env: type[CompiledEnvironment]) -> np.dtype[Any]:
    kinds = {bool: np.bool_, int: np.int64, float: np.float64}
    fields: list[tuple[Any, ...]] = [("rng", np.uint64), ("steps", np.int64), ("max_steps", np.int64)]
    for parameter, default in env.parameters.items():
        if type(default) not in kinds:
            raise ValueError(
                f"{env.__name__}: parameter {parameter!r} has the default {default!r}; it must be int, float or bool"
            )
        fields.append((parameter, kinds[type(default)]))
    fields += [_storable(env.__name__, field) for field in env.state]
    names = [field[0] for field in fields]
    for name in names:
        if names.count(name) > 1:
            by = "the engine" if name in ENGINE_FIELDS else "parameters and state, or twice"
            raise ValueError(f"{env.__name__}: the field {name!r} is declared by {by}; rename it")
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


def _counts(owner: str, entities: Mapping[str, Entity], actions: Sequence[ActionPlan]) -> np.dtype[Any]:
    names = [*entities, *ENGINE_COUNTS, *(action.attribute for action in actions)]
    for action in actions:
        if action.selects:
            actees = f"{action.attribute}_actees"
            if actees in names:
                raise ValueError(
                    f"{owner}: obs.n.{actees} would be the number of {actees!r} and of those that {action.name!r} selects from; "
                    "rename one of them"
                )
            names.append(actees)
    return np.dtype([(name, np.int64) for name in names])


def _slots(
    env: type[CompiledEnvironment], entities: Mapping[str, Entity], actions: Sequence[ActionPlan]
) -> list[SlotArray]:
    f32, i64, flag = np.dtype(np.float32), np.dtype(np.int64), np.dtype(np.bool_)
    slots = [SlotArray(f"f_{name}", f32, (e.max, len(e.features))) for name, e in entities.items() if e.features]
    slots += [SlotArray(f"v_{name}", flag, (e.max,)) for name, e in entities.items() if e.hideable]
    if env.global_features:
        slots.append(SlotArray("g", f32, (len(env.global_features),)))
    for action in actions:
        slots.append(SlotArray(f"w_{action.attribute}", i64, (action.max_actors,)))
        if action.bounds:
            # What `step` sees: float64, with which ordinary Python and compiled code reckon in the same way.
            shape = (action.max_actors, len(action.bounds))
            slots.append(SlotArray(f"d_{action.attribute}", np.dtype(np.float64), shape))
        if action.selects:
            slots.append(SlotArray(f"t_{action.attribute}", i64, (action.max_actees,)))
        if action.has_mask:
            slots.append(
                SlotArray(f"m_{action.attribute}", flag, (action.max_actors, action.num_choices or action.max_actees))
            )
    for name, array in env.arrays.items():
        players = (env.max_num_players,) if array.per_player else ()
        slots.append(SlotArray(f"x_{safe_name(name)}", array.dtype, (*players, *array.item_shape)))
    return slots


def _streams(
    env: type[CompiledEnvironment], obs_space: ObsSpace, entities: Mapping[str, Entity], actions: Sequence[ActionPlan]
) -> list[Stream]:
    f32, i64, flag = np.dtype(np.float32), np.dtype(np.int64), np.dtype(np.bool_)
    streams = [
        Stream(f"f_{name}", name, f32, (len(e.features),), _whole_numbers(e.features, e.kinds))
        for name, e in entities.items()
        if e.features
    ]
    streams += [Stream(f"v_{name}", name, flag, (1,)) for name, e in entities.items() if e.hideable]
    for action in actions:
        name = action.attribute
        streams.append(Stream(f"w_{name}", name, i64, (1,)))
        if action.selects:
            streams.append(Stream(f"t_{name}", f"{name}_actees", i64, (1,)))
        if action.has_mask:
            rows, width = (name, action.num_choices) if action.num_choices else (f"{name}_pairs", 1)
            streams.append(Stream(f"m_{name}", rows, flag, (width,)))
    for name, array in env.arrays.items():
        if array.per_player:
            streams.append(Stream(f"x_{safe_name(name)}", "players", array.dtype, array.item_shape))
    names = obs_space.global_features
    if names:
        streams.append(Stream("g", "", f32, (len(names),), _whole_numbers(names, obs_space.global_kinds)))
    return streams


def _whole_numbers(names: Sequence[str], kinds: Mapping[str, FeatureKind]) -> tuple[WholeNumbers, ...]:
    columns = [(num_values(kinds.get(name)), column) for column, name in enumerate(names)]
    found = []
    for num, neighbours in itertools.groupby(columns, key=lambda pair: pair[0]):
        places = [column for _, column in neighbours]
        if num is not None:
            found.append(WholeNumbers(places[0], places[-1] + 1, num))
    return tuple(found)
