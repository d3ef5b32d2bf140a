"""The layout of a compiled environment: its record, its counts, and the arrays that hold what N of them show.

Environments share arrays that are as large as the declared capacities, with one slot (row) each. Batches are packed copies.
"""

from __future__ import annotations

import functools
import itertools
import keyword
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from entity_gym.actions.kind import has_global_entity
from entity_gym.compiled.actions import BOOL, F64, I64, Action, ActionPlan
from entity_gym.compiled.declare import Entity, Kind, Slot, is_compilable, safe_name
from entity_gym.compiled.description import Description
from entity_gym.errors import nearest
from entity_gym.spaces import GLOBAL_ENTITY, FeatureKind, ObsSpace

ENGINE_FIELDS = ("rng", "steps", "max_steps", "next_id")
F32 = np.dtype(np.float32)
RESERVED = ("n", "global_features", "visible", "ids", "first")


@dataclass(frozen=True)
class Layout:
    """Everything about a compiled environment that its code and its memory depend on.

    Attributes:
        record: dtype of `s`.
        counts: dtype of `obs.n`; all int64.
        entities: attribute -> declaration.
        entity_names: attribute -> name.
        info, metrics: reported name -> field.
        player_rewards: fields, by player.
        targets: name -> field.
    """

    name: str
    record: np.dtype[Any]
    parameters: tuple[str, ...]
    counts: np.dtype[Any]
    entities: Mapping[str, Entity]
    entity_names: Mapping[str, str]
    obs_space: ObsSpace
    actions: tuple[ActionPlan, ...]
    info: Mapping[str, str]
    metrics: Mapping[str, str]
    player_rewards: tuple[str, ...]
    targets: Mapping[str, str]

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

    @property
    def count_names(self) -> list[str]:
        """The counts that `observe` may write."""
        return [name for name in self.counts.names or () if name != GLOBAL_ENTITY]

    def of_kind(self, *kinds: Kind) -> list[Slot]:
        """The slots of some kinds."""
        return [slot for slot in self.slots if slot.kind in kinds]


def _layout_of(env: type[Description]) -> Layout:
    """Check the declaration of `env` and lay it out.

    Raises:
        ValueError: naming the class, and what in its declaration is wrong.
    """
    name = env.__name__
    for function in ("reset", "step", "observe"):
        if not callable(getattr(env, function, None)):
            raise ValueError(f"{name} has no function {function}; a CompiledEnvironment needs reset, step and observe")
    kinds = "Categorical, GlobalCategorical, SelectEntity or Continuous"
    for what, declared, kind, names in (
        ("entities", env.entities, Entity, "Entity"),
        ("actions", env.actions, Action, kinds),
    ):
        for original, value in declared.items():
            if not isinstance(value, kind):
                raise ValueError(
                    f"{name}: {what}[{original!r}] is {value!r}; declare it with {names} of entity_gym.compiled"
                )
    if not env.entities and not env.actions:
        raise ValueError(f"{name} declares neither entities nor actions: there is nothing to see or to do")
    entity_names, action_names = _attributes(env.entities, name, "entities"), _attributes(env.actions, name, "actions")
    actions = tuple(
        ActionPlan.of(f"{name}: action {original!r}", original, env.actions[original], env.entities)
        for original in action_names.values()
    )
    obs_space, action_space = env.obs_space(), env.action_space()  # check names and choices
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
        name=name,
        record=_record(env),
        parameters=tuple(env.parameters),
        counts=np.dtype([(count, np.int64) for count in counts]),
        entities={attribute: env.entities[original] for attribute, original in entity_names.items()},
        entity_names=entity_names,
        obs_space=obs_space,
        actions=actions,
        info=_reported(env, "info"),
        metrics=_reported(env, "metrics"),
        player_rewards=tuple(_reported(env, "player_rewards").values()),
        targets=_reported(env, "targets"),
    )


#: Once for each class.
layout_of: Callable[[type[Description]], Layout] = functools.cache(_layout_of)  # type: ignore[assignment]


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


def _reported(env: type[Description], what: str) -> dict[str, str]:
    """Reported name -> field, of one attribute of the class."""
    given, record, owner = getattr(env, what), _record(env), env.__name__
    reported = dict(given) if isinstance(given, Mapping) else {name: name for name in given}
    for name, other in itertools.combinations(reported, 2):
        if safe_name(name) == safe_name(other):
            raise ValueError(
                f"{owner}: {what} {name!r} and {other!r} are too alike, both {safe_name(name)}; rename one"
            )
    for field in reported.values():
        if field not in (record.names or ()):
            raise ValueError(f"{owner}: {what} names the field {field!r}; {nearest(field, record.names or ())}")
        if record[field].shape:
            raise ValueError(f"{owner}: {what} names {field!r}, which is an array; report single numbers")
    return reported


def _slots(layout: Layout) -> Iterator[Slot]:
    for type_, entity in layout.entities.items():
        if entity.features:
            yield _features(Kind.FEATURES, type_, type_, entity.max, entity.features, entity.kinds)
        if entity.hideable:
            yield Slot(Kind.VISIBLE, type_, BOOL, (entity.max,), type_, (1,))
        if entity.ids:
            yield Slot(Kind.IDS, type_, I64, (entity.max,), type_, (1,))
    for action in layout.actions:
        yield from action.slots
    names = layout.obs_space.global_features
    if names:
        yield _features(Kind.GLOBAL_FEATURES, "features", GLOBAL_ENTITY, 1, names, layout.obs_space.global_kinds)
    yield Slot(Kind.OUTCOME, "reward", F32)
    # kept: the last record of the episode is in `final_record`; pending: the next episode has new parameters
    for flag in ("done", "truncated", "kept", "pending"):
        yield Slot(Kind.OUTCOME, flag, BOOL)
    yield Slot(Kind.OUTCOME, "elapsed", I64)
    if layout.player_rewards:
        yield Slot(Kind.OUTCOME, "player_rewards", F32, (len(layout.player_rewards),))
    for name, field in layout.info.items():
        yield Slot(Kind.INFO, safe_name(name), layout.record[field])
    for name in layout.metrics:
        yield Slot(Kind.METRIC, safe_name(name), F64)  # for any type of the field: NaN means that there is no report
    for name in ("max_steps", *layout.parameters):
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
