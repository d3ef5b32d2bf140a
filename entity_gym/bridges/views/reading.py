"""Views checked against observation and action spaces, and the entities that they find in observations.

An observation is written into one flat row of R numbers, in the order of the leaves of its space; the entities of n
observations are gathered from n rows at once.

Shapes: n observations, R numbers of each, I rows of a type, F features, C choices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions import ActionSpace, CategoricalActionSpace, SelectEntityActionSpace
from entity_gym.bridges.gymnasium.observations import (
    AGENT,
    MOST_NUMBERS,
    FixedFeatures,
    Leaf,
    PlainSpace,
    join,
    kind_of,
    members_of,
)
from entity_gym.bridges.views.view import Column, EntityView, View
from entity_gym.errors import nearest
from entity_gym.spaces import GLOBAL_ENTITY, Angle, Category, Entity, Feature, Flag, ObsSpace

#: Largest number of numbers of a leaf that a view reads.
MOST_OF_A_LEAF = 2**16

#: Name of the flat row of an observation, where entity types have theirs in the absence of a view.
FLAT = ""

Numbers = NDArray[np.float32]


class Seen(NamedTuple):
    """The rows of a type in n observations."""

    values: Numbers  # (n, I, F)
    present: NDArray[np.bool_] | None  # (n, I) false where a row is no entity; None: all are

    def counts(self) -> NDArray[np.int64]:
        """Return (n,) numbers of entities."""
        if self.present is None:
            return np.full(len(self.values), self.values.shape[1], np.int64)
        counts: NDArray[np.int64] = self.present.sum(axis=1)
        return counts

    def packed(self) -> Numbers:
        """Return the (entities, F) features of all observations, one after another."""
        if self.present is None:
            n, count, width = self.values.shape
            return self.values.reshape(n * count, width)
        packed: Numbers = self.values[self.present]
        return packed


class ViewReader:
    """Reads the entities of a view from observations of a space.

    Args:
        view: what is an entity.
        space: of the observations, of one agent where there are several.
        num_agents: number of agents; None in worlds of one, which does not count them.

    Attributes:
        size: R.
        features: name of each of the R numbers, as the space has them.
        obs_space: of the entities.
        actor: the type that takes the actions.
        left_out: names of the numbers that are shown nowhere.
        counts: FLAT -> 1, as an observation is one row (see `GymObservations.counts`).
        num_rows: type -> number of rows, whether or not they are entities.

    Raises:
        ValueError: for a view that does not fit the space, naming the column.
    """

    def __init__(self, view: View, space: Any, num_agents: int | None = None) -> None:
        self.view = view
        self._num_agents = num_agents
        self._gone, space = _without_ignored(space, view)
        try:
            self._fixed = FixedFeatures(space, most=MOST_OF_A_LEAF)
        except ValueError as error:
            raise ValueError(f"{view.name}: {error}; or name it in ignore") from None
        self.size = len(self._fixed.features)
        self.features = [each if isinstance(each, str) else each.name for each in self._fixed.features]
        self._owner: dict[int, str] = {}  # number of the row -> type that shows it
        self._types = self._read_types()
        self._mask = self._mask_leaf()
        self.actor = AGENT if view.actor is None else view.actor
        rest = self._rest()
        if view.actor is None:
            if AGENT in self._types:
                raise ValueError(
                    f"{view.name}: entities has {AGENT!r}; name it as the actor, or call it something else"
                )
            self._types = {AGENT: rest, **self._types}
        elif self._types[self.actor].count != 1 and num_agents is None:
            raise ValueError(
                f"{view.name}: the actor {self.actor} has {self._types[self.actor].count} rows; the one that acts needs a type "
                "of its own, with count: 1"
            )
        elif rest.features:
            everywhere = self._types.get(GLOBAL_ENTITY)
            self._types[GLOBAL_ENTITY] = rest if everywhere is None else _side_by_side(everywhere, rest)
        if num_agents is not None and (view.select or view.action_mask):
            raise ValueError(
                f"{view.name}: select and action_mask are for worlds of one agent; of several, each closes choices with the "
                "key action_mask of its observation or info"
            )
        for name, each in self._types.items():
            self._resolve_relative(name, each)
        shown = set().union(*(each.read() for each in self._types.values()))
        if self._mask is not None:
            shown |= set(range(self._mask.columns.start, self._mask.columns.stop))
        self.left_out = [name for k, name in enumerate(self.features) if k not in shown]
        self._global = self._types.pop(GLOBAL_ENTITY, None)
        self.counts: dict[str, int | None] = {FLAT: 1}
        self.num_rows = {name: each.count for name, each in self._types.items()}
        try:
            self.obs_space = ObsSpace(
                {name: Entity(each.features) for name, each in self._types.items()},
                self._global.features if self._global is not None else (),
            )
        except ValueError as error:
            raise ValueError(f"{view.name}: {error}") from None

    # ---- observations

    def write(self, observation: Any, to: Mapping[str, Numbers]) -> None:
        """Write an observation into the row (R,) of `to`, as `empty` returns it.

        Raises:
            ValueError: for an observation outside the space, naming where.
        """
        self.write_row(observation, to[FLAT])

    def write_row(self, observation: Any, row: Numbers) -> None:
        """Write an observation into `row` (R,); raises as `write`."""
        if self._gone and isinstance(observation, Mapping):
            observation = {key: value for key, value in observation.items() if key not in self._gone}
        self._fixed.write(observation, row)

    def empty(self) -> dict[str, Numbers]:
        """Return what `write` writes to: FLAT -> (R,) zeros."""
        return {FLAT: np.zeros(self.size, np.float32)}

    def read(self, rows: Numbers) -> dict[str, Seen]:
        """Return type -> its rows in n observations (n, R)."""
        actor = self._types[self.actor].gathered(rows)
        return {
            name: Seen(
                actor if name == self.actor else each.made_absolute(each.gathered(rows), actor), each.presence_of(rows)
            )
            for name, each in self._types.items()
        }

    def global_features(self, rows: Numbers) -> Numbers | None:
        """Return (n, number of global features); None where there are none."""
        if self._global is None:
            return None
        actor = self._types[self.actor].gathered(rows)
        return self._global.made_absolute(self._global.gathered(rows), actor)[:, 0]

    def read_agents(self, rows: Numbers, first: int) -> tuple[dict[str, Numbers], Numbers | None]:
        """Return the entities and global features of a frame of n agents, from their observations (n, R).

        Args:
            rows: of each agent; its first row of the actor's type is the agent itself.
            first: the agent whose observation has all entities of other types.
        """
        one = rows[first : first + 1]
        features = {name: seen.packed() for name, seen in self.read(one).items()}
        if len(rows):
            features[self.actor] = self._types[self.actor].gathered(rows)[:, 0]
        everywhere = self.global_features(one)
        if everywhere is None or not len(one):
            return features, None if everywhere is None else np.zeros(everywhere.shape[1], np.float32)
        return features, everywhere[0]

    def open_choices(self, rows: Numbers) -> NDArray[np.bool_] | None:
        """Return (n, C) true where the view's mask leaves a choice open; None without such a mask."""
        return None if self._mask is None else rows[:, self._mask.columns] != 0

    # ---- actions

    def action_space(self, given: Mapping[str, ActionSpace]) -> dict[str, ActionSpace]:
        """Return the actions, with those that select an entity in place of choices.

        Raises:
            ValueError: an action does not exist, or has another number of choices than its type has rows.
        """
        view = self.view
        space = dict(given)
        for action, entity_type in view.select.items():
            if action not in given:
                raise ValueError(f"{view.name}: select names the action {action!r}; {nearest(action, given)}")
            self._check_choices(action, given[action], self.num_rows[entity_type], f"{entity_type} has", "rows")
            space[action] = SelectEntityActionSpace()
        if self._mask is not None:
            if len(given) != 1:
                raise ValueError(
                    f"{view.name}: action_mask closes choices of the only action; there are {', '.join(given)}"
                )
            ((action, only),) = given.items()
            self._check_choices(
                action, only, self._mask.columns.stop - self._mask.columns.start, "action_mask has", "numbers"
            )
        return space

    def rows_of(self, entity_type: str, seen: Mapping[str, Seen], chosen: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return (n,) the row of each chosen entity (n,), an entity index inside the frame; row 0 for -1, nobody."""
        within = chosen - self.first_of(entity_type, seen)
        present = seen[entity_type].present
        if present is None:
            return np.asarray(np.maximum(within, 0), np.int64)
        rows: NDArray[np.int64] = (np.cumsum(present, axis=1) == (within + 1)[:, None]).argmax(axis=1)
        return rows

    def first_of(self, entity_type: str, seen: Mapping[str, Seen]) -> NDArray[np.int64]:
        """Return (n,) the entity index of the first entity of a type."""
        first = np.zeros(len(seen[entity_type].values), np.int64)
        for name in self.num_rows:
            if name == entity_type:
                break
            first += seen[name].counts()
        return first

    # ---- checking

    def _check_choices(self, action: str, space: ActionSpace, count: int, what: str, unit: str) -> None:
        if not isinstance(space, CategoricalActionSpace):
            raise ValueError(
                f"{self.view.name}: the action {action!r} is not Discrete, so it cannot select or be masked"
            )
        if len(space.choices) != count:
            raise ValueError(
                f"{self.view.name}: the action {action!r} has {len(space.choices)} choices, and {what} {count} {unit}"
            )

    def _read_types(self) -> dict[str, _Type]:
        views = dict(self.view.entities)
        if self.view.global_features is not None:
            views[GLOBAL_ENTITY] = self.view.global_features
        ends: dict[str, int] = {}  # leaf -> where the type before ended
        types = {}
        for name, each in views.items():
            types[name] = self._read_type(name, each, views, ends)
        return types

    def _read_type(self, name: str, view: EntityView, views: Mapping[str, EntityView], ends: dict[str, int]) -> _Type:
        where = self._where(name)
        parts = [
            _Part(self._leaf(path, where), columns, view, where, len(view.features) > 1)
            for path, columns in view.features.items()
            if columns != ()
        ]
        counts = set()
        if not parts:  # nothing is known of such entities but that they are there
            counts.add(self._count(view, where) or 1)
        for part in parts:
            if part.points:
                continue
            part.start = ends.get(part.leaf.path, 0) if view.start is None else view.start
            count = self._count(view, where)
            if count is None:
                room = self._end_of(name, part, views) - part.start
                if room <= 0 or room % part.step:
                    raise ValueError(
                        f"{where}: the {room} {part.unit}s of {part.title} from {part.start} on are no whole number of rows of "
                        f"{part.width} features {part.names}: name other features, or say count and start"
                    )
                count = room // part.step
            stop = part.start + count * part.step
            if stop > part.length:
                raise ValueError(
                    f"{where}: {count} rows of {part.width} features from {part.unit} {part.start} on end at {part.unit} "
                    f"{stop - 1}; {part.title} has {part.length} {part.unit}s, the last is {part.length - 1}"
                )
            counts.add(count)
            ends[part.leaf.path] = stop
        if len(counts) != 1:
            told = "only pointers" if not counts else f"leaves with {sorted(counts)} rows"
            raise ValueError(f"{where}.features has {told}; its leaves must have equally many rows")
        made = _Type.of(counts.pop(), parts, view, where)
        for part in parts:
            for number in part.numbers(made.count).reshape(-1).tolist():
                if number in self._owner:
                    raise ValueError(
                        f"{where}: column {self.features[number]} of the observation is in {self._owner[number]} already; "
                        "each number can be in one entity: see start and count"
                    )
                self._owner[number] = name
        return made

    def _end_of(self, name: str, part: _Part, views: Mapping[str, EntityView]) -> int:
        """Return where the rows of a type of no given count must end, since types listed later follow it."""
        names = list(views)
        taken = 0
        for later in names[names.index(name) + 1 :]:
            view = views[later]
            if view.features.get(part.leaf.path, ()) == ():
                continue
            if view.start is not None:
                return (view.start if view.start >= part.start else part.length) - taken
            where = self._where(later)
            count = self._count(view, where)
            if count is None:
                raise ValueError(f"{where}: neither {name} nor {later} has a count; at most one may be as many as fit")
            step = _Part(part.leaf, view.features[part.leaf.path], view, where, len(view.features) > 1).step
            taken += count * step
        return part.length - taken

    def _count(self, view: EntityView, where: str) -> int | None:
        if view.count != "agents":
            return view.count
        if self._num_agents is None:
            raise ValueError(f"{where}.count is agents; this world has one, and does not count them: give a number")
        return self._num_agents

    def _leaf(self, path: str, where: str) -> Leaf:
        leaves = self._fixed.leaves
        if path in leaves:
            return leaves[path]
        if path == "":
            raise ValueError(
                f"{where}.features is a list of columns, and the observation has several parts: {', '.join(leaves)}; write "
                f"features: {{{next(iter(leaves))}: [...]}}"
            )
        raise ValueError(f"{where}.features names {path!r}, which the observation has not; {nearest(path, leaves)}")

    def _mask_leaf(self) -> Leaf | None:
        path = self.view.action_mask
        return None if path is None else self._leaf(path, f"{self.view.name}: action_mask")

    def _rest(self) -> _Type:
        """Return the numbers that are in no entity, as one row."""
        if self.view.ignore == "rest":
            return _Type(1, [], np.zeros((1, 0), np.int64))
        taken = set(self._owner)
        if self._mask is not None:
            taken |= set(range(self._mask.columns.start, self._mask.columns.stop))
        for each in self.view.ignore:
            found = [k for k, name in enumerate(self.features) if name == each or name.startswith(f"{each}.")]
            if not found and each not in self._gone:
                raise ValueError(f"{self.view.name}: ignore names {each!r}; {nearest(each, self.features[:40])}")
            taken |= set(found)
        numbers = [k for k in range(self.size) if k not in taken]
        if len(numbers) > MOST_NUMBERS:
            raise ValueError(
                f"{self.view.name}: {len(numbers):,} numbers are in no entity; at most {MOST_NUMBERS:,} can be features: name "
                "them, or ignore: rest"
            )
        return _Type(1, [self._fixed.features[k] for k in numbers], np.array([numbers], np.int64).reshape(1, -1))

    def _resolve_relative(self, name: str, each: _Type) -> None:
        actor = [_name(feature) for feature in self._types[self.actor].features]
        names = [_name(feature) for feature in each.features]
        for feature in each.relative:
            if feature not in actor or name == self.actor:
                raise ValueError(
                    f"{self._where(name)}.relative names {feature!r}, which is no feature of the actor {self.actor} to be added; "
                    f"{nearest(feature, [] if name == self.actor else actor)}"
                )
            each.added.append((names.index(feature), actor.index(feature)))

    def _where(self, name: str) -> str:
        return f"{self.view.name}: " + ("global_features" if name == GLOBAL_ENTITY else f"entities.{name}")


# ---- one type


class _Part:
    """The columns of a type that come from one leaf.

    Attributes:
        start: first column of a flat leaf, or first row.
        width: number of columns of a row.
        step: how far the rows are apart: `width` columns of a flat leaf, or one row.
        length: number of columns of a flat leaf, or rows.
        points: it holds numbers of rows instead of rows.
    """

    def __init__(
        self, leaf: Leaf, columns: Sequence[Column] | None, view: EntityView, where: str, several: bool
    ) -> None:
        self.leaf, self.start, self.where = leaf, 0, where
        shape = leaf.shape
        self.title = f"the leaf {leaf.path!r}" if leaf.path else "the observation"
        self.points = columns is not None and len(columns) == 1 and columns[0].kind == "pointer"
        if columns is not None and not self.points and any(column.kind == "pointer" for column in columns):
            raise ValueError(
                f"{where}.features: a pointer must be the only column of its leaf, and stands beside others"
            )
        self.is_flat = len(shape) <= 1
        by_cell = bool(view.index) and len(view.index) == len(shape) > 1
        self.leading = len(shape) if by_cell or self.is_flat else len(shape) - 1
        self.rows_shape = shape if by_cell else shape[:-1]
        if self.is_flat:
            self.length = int(np.prod(shape, dtype=np.int64))
            if columns is None:
                self.width = self.length // view.count if isinstance(view.count, int) else 1
            else:
                self.width = len(columns)
            self.step, self.unit = self.width, "column"
        else:
            self.length = int(np.prod(self.rows_shape, dtype=np.int64))
            self.width, self.step, self.unit = 1 if by_cell else shape[-1], 1, "row"
        if columns is None:
            columns = [Column(join(leaf.path if several else "", str(k))) for k in range(self.width)]
        self.columns = columns
        self.names = [column.name for column in columns]
        if not self.points and (len(columns) != self.width or not self.width):
            raise ValueError(
                f"{where}.features has {len(columns)} names {self.names}, and a row of {self.title} {shape} has {self.width} "
                "columns: name each of them, null for those that are left out"
            )

    def numbers(self, count: int) -> NDArray[np.int64]:
        """Return (count, width) the numbers of a flat observation in these rows; (1, L) of a pointer."""
        first = self.leaf.columns.start
        if self.points:
            return np.arange(first, self.leaf.columns.stop)[None]
        begin = first + self.start * (1 if self.is_flat else self.width)
        return begin + np.arange(count * self.width).reshape(count, self.width)


@dataclass
class _Type:
    """How the rows of a type are gathered from flat observations.

    Attributes:
        count: I.
        features: F of them.
        numbers: (I, F) the number of a flat observation in each place.
        shift: (F,) subtracted from it; None: nothing is.
        fixed: feature -> (I,) its values, which are the same in every observation.
        pointers: feature -> the leaf that names rows.
        presence: (I,) numbers of which each must not be 0.
        absent: (I,) numbers, and the value that all of these have where a row is no entity.
        relative: features to which those of the actor are added; `added` has the columns.
    """

    count: int
    features: list[Feature]
    numbers: NDArray[np.int64]
    shift: Numbers | None = None
    fixed: dict[int, Numbers] = field(default_factory=dict)
    pointers: dict[int, Leaf] = field(default_factory=dict)
    presence: NDArray[np.int64] | None = None
    absent: list[tuple[NDArray[np.int64], float]] = field(default_factory=list)
    relative: tuple[str, ...] = ()
    added: list[tuple[int, int]] = field(default_factory=list)

    @classmethod
    def of(cls, count: int, parts: Sequence[_Part], view: EntityView, where: str) -> _Type:
        made = cls(count, [], np.zeros((count, 0), np.int64), relative=view.relative)
        columns: list[NDArray[np.int64]] = []
        shifts: list[float] = []
        absent = dict(view.absent)
        if view.index:
            main = next(part for part in parts if not part.points)
            places = (
                np.unravel_index(main.start + np.arange(count), main.rows_shape)
                if main.leading > 1
                else [np.arange(count)]
            )
            if len(view.index) != len(places):
                raise ValueError(
                    f"{where}.index has {len(view.index)} names; the rows of {main.title} {main.leaf.shape} have "
                    f"{len(places)} numbers"
                )
            for name, values in zip(view.index, places, strict=True):
                made.fixed[len(made.features)] = values.astype(np.float32)
                made.features.append(name)
                columns.append(np.zeros(count, np.int64))
                shifts.append(0.0)
        for part in parts:
            numbers = part.numbers(count)
            for k, column in enumerate(part.columns):
                its = np.zeros(count, np.int64) if part.points else numbers[:, k]
                if column.name is not None and column.name == view.presence:
                    made.presence = its
                    continue
                if column.name in absent:
                    made.absent.append((its, float(absent.pop(column.name))))
                if column.name is None:
                    continue
                if part.points:
                    made.pointers[len(made.features)] = part.leaf
                    made.features.append(column.name if part.leaf.shape else Flag(column.name))
                    shifts.append(0.0)
                else:
                    feature, shift = _feature(column, part.leaf, its - part.leaf.columns.start)
                    made.features.append(feature)
                    shifts.append(shift)
                columns.append(its)
        names = [_name(feature) for feature in made.features]
        for what, wanted in (("absent", absent), ("relative", view.relative)):
            for name in wanted:
                if name not in names:
                    raise ValueError(f"{where}.{what} names {name!r}, which is no column; {nearest(name, names)}")
        if view.presence is not None and made.presence is None:
            raise ValueError(
                f"{where}.presence names {view.presence!r}, which is no column; {nearest(view.presence, names)}"
            )
        if columns:
            made.numbers = np.stack(columns, axis=1)
        if any(shifts):
            made.shift = np.array(shifts, np.float32)
        return made

    def read(self) -> set[int]:
        """Return the numbers of a flat observation that are read."""
        hollow = {*self.fixed, *self.pointers}
        plain = [column for column in range(self.numbers.shape[1]) if column not in hollow]
        read = set(self.numbers[:, plain].reshape(-1).tolist())
        for leaf in self.pointers.values():
            read |= set(range(leaf.columns.start, leaf.columns.stop))
        for numbers in (self.presence, *(numbers for numbers, _ in self.absent)):
            read |= set() if numbers is None else set(numbers.tolist())
        return read

    def gathered(self, rows: Numbers) -> Numbers:
        """Return (n, I, F) features."""
        values = rows[:, self.numbers]
        if self.shift is not None:
            values -= self.shift
        for column, fixed in self.fixed.items():
            values[:, :, column] = fixed
        for column, leaf in self.pointers.items():
            values[:, :, column] = _places(rows[:, leaf.columns] + leaf.firsts, self.count, is_list=bool(leaf.shape))
        return values

    def made_absolute(self, values: Numbers, actor: Numbers) -> Numbers:
        """Add the features (n, 1, F) of the actor to those of `values` that are relative to it, in place."""
        for column, of_actor in self.added:
            values[:, :, column] += actor[:, :1, of_actor]
        return values

    def presence_of(self, rows: Numbers) -> NDArray[np.bool_] | None:
        """Return (n, I) false where a row is no entity; None: all rows are."""
        present: NDArray[np.bool_] | None = None
        if self.presence is not None:
            present = rows[:, self.presence] != 0
        if self.absent:
            here = np.zeros((len(rows), self.count), np.bool_)
            for numbers, value in self.absent:
                here |= rows[:, numbers] != value
            present = here if present is None else present & here
        return present


def _places(named: NDArray[Any], count: int, *, is_list: bool) -> Numbers:
    """Return (n, count) whether each row is named by (n, 1), or its place among (n, L), -1 where it is not there."""
    hits = named[:, None, :] == np.arange(count)[None, :, None]  # (n, count, L)
    places: NDArray[Any] = np.where(hits.any(axis=2), hits.argmax(axis=2), -1) if is_list else hits[:, :, 0]
    return places.astype(np.float32)


def _feature(column: Column, leaf: Leaf, numbers: NDArray[np.int64]) -> tuple[Feature, float]:
    """Return the feature of a column, and what is subtracted from its numbers; `numbers` count within the leaf."""
    assert column.name is not None
    if column.kind == "angle":
        return Angle(column.name), 0.0
    if column.kind == "flag":
        return Flag(column.name), 0.0
    if column.kind == "category":
        return Category(column.name, column.num), float(column.first - leaf.firsts[numbers[0]])
    assert column.kind == "as declared"
    declared = [leaf.features[number] for number in numbers.tolist()]
    if all(isinstance(each, Flag) for each in declared):
        return Flag(column.name), 0.0
    nums = [each.num for each in declared if isinstance(each, Category)]
    return (Category(column.name, max(nums)) if nums else column.name), 0.0


def _side_by_side(one: _Type, other: _Type) -> _Type:
    """Return one row with the features of both; `other` is plain."""
    shift = None
    if one.shift is not None:
        shift = np.concatenate([one.shift, np.zeros(len(other.features), np.float32)])
    numbers = np.concatenate([one.numbers, other.numbers], axis=1)
    return _Type(1, one.features + other.features, numbers, shift, one.fixed, one.pointers, relative=one.relative)


def _name(feature: Feature) -> str:
    return feature if isinstance(feature, str) else feature.name


def _without_ignored(space: Any, view: View) -> tuple[frozenset[Any], Any]:
    """Return the keys of the outermost Dict that the view does not read, and the space without these."""
    if kind_of(space) != "Dict":
        return frozenset(), space
    members = dict(members_of(space))
    everywhere = [] if view.global_features is None else [view.global_features]
    read = {path.partition(".")[0] for each in (*view.entities.values(), *everywhere) for path in each.features}
    if view.action_mask is not None:
        read.add(view.action_mask.partition(".")[0])
    gone = frozenset(key for key in members if (view.ignore == "rest" and key not in read) or str(key) in view.ignore)
    return gone, PlainSpace(
        "Dict", spaces={key: each for key, each in members.items() if key not in gone}
    ) if gone else space
