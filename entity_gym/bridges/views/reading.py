"""Entities from the observations of other libraries: the one reader of their spaces, with a view or without.

An observation is written into one row of R numbers, in the order of the leaves of its space; the entities of n observations are
gathered from n rows at once. A view says which numbers are an entity. Without a view, the fixed leaves of the outermost Dict or
Tuple are the features of one entity `Agent`; every Dict or Tuple inside it is one entity of a type called by its path; the
elements of a Sequence and the nodes and edges of a Graph are entities, whose number varies, in arrays beside the row.

    reader = ViewReader(view, space)              # reader.obs_space: the entities; reader.size: R
    varying = reader.write(observation, row)      # row: (R,) float32; varying: {} without a Sequence or Graph
    seen = reader.read(rows, [varying, ...])      # type -> features and counts of n observations

Worlds of several agents give `num_agents`, and read a frame with `read_agents`.

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
    Varying,
    join,
    kind_of,
    members_of,
)
from entity_gym.bridges.views.view import Column, EntityView, View
from entity_gym.errors import nearest
from entity_gym.spaces import GLOBAL_ENTITY, Angle, Category, Entity, Feature, Flag, ObsSpace

#: Largest number of numbers of a leaf that a view reads.
MOST_OF_A_LEAF = 2**16

Numbers = NDArray[np.float32]


class Seen(NamedTuple):
    """The entities of a type in n observations."""

    values: Numbers  # (entities of all observations, F)
    counts: NDArray[np.int64]  # (n,)
    present: NDArray[np.bool_] | None = None  # (n, I) false where a row is no entity; None: all are


class ViewReader:
    """Reads entities from observations of a space.

    Args:
        view: what is an entity; None: what the space says, see above.
        space: of the observations, of one agent where there are several.
        num_agents: number of agents; None in worlds of one, which does not count them.
        global_features: without a view, the outermost leaves are global features; `Agent` remains, without features, to act.

    Attributes:
        view: the view, or one without entities.
        size: R.
        obs_space: of the entities.
        actor: the type that takes the actions.
        left_out: names of the numbers that are shown nowhere.
        num_rows: type -> number of rows, whether or not they are entities; types that vary have none.
        sums: (type, feature) of each feature to which the actor's feature of the same name is added.

    Raises:
        ValueError: for a space that has no such form, or a view that does not fit it, naming the column and what to do.
    """

    def __init__(
        self, view: View | None, space: Any, num_agents: int | None = None, *, global_features: bool = False
    ) -> None:
        if not isinstance(global_features, bool | np.bool_):
            raise ValueError(f"global_features is {global_features!r}; it must be true or false")
        self.view = View("the observation space", {}) if view is None else view
        self.actor = AGENT if view is None or view.actor is None else view.actor
        self._num_agents = num_agents
        self._gone: frozenset[Any] = frozenset()
        self._varying: dict[str, Numbers] = {}  # type whose number varies -> (0, F)
        self._mask: Leaf | None = None
        self._types: dict[str, _Type] = {}
        if view is None:
            self._fixed = FixedFeatures(space, varies=True)
            entities = self._read_space(global_features)
        else:
            self._gone, space = _without_ignored(space, view)
            try:
                self._fixed = FixedFeatures(space, most=MOST_OF_A_LEAF)
            except ValueError as error:
                raise ValueError(f"{view.name}: {error}; or name it in ignore") from None
            self._names = [_name(feature) for feature in self._fixed.features]
            self._read_view(view)
            entities = {name: tuple(each.features) for name, each in self._types.items()}
        self.size = len(self._fixed.features)
        shown = {number for each in self._types.values() for number in each.read()}
        shown |= set() if self._mask is None else set(range(self._mask.columns.start, self._mask.columns.stop))
        self.left_out = [_name(each) for k, each in enumerate(self._fixed.features) if k not in shown]
        self._global = self._types.pop(GLOBAL_ENTITY, None)
        self.num_rows = {name: each.count for name, each in self._types.items()}
        made: dict[str, Entity] = {}
        for name, features in entities.items():
            try:
                made[name] = Entity(features)
            except ValueError as error:
                if view is not None:
                    raise ValueError(f"{self._where(name)}: {error}") from None
                raise ValueError(
                    f"the observation space as features of {name!r}: {error}; rename a key in a wrapper"
                ) from None
        everywhere = made.pop(GLOBAL_ENTITY, Entity())
        self.obs_space = ObsSpace(made, everywhere.features, everywhere.kinds)
        self.sums = [
            (name, _name(each.features[column])) for name, each in self._types.items() for column, _ in each.added
        ]

    # ---- observations

    def write(self, observation: Any, row: Numbers) -> Varying:
        """Write an observation into `row` (R,); return the features (n, F) of types whose number varies.

        Raises:
            ValueError: for an observation outside the space, naming where.
        """
        if self._gone and isinstance(observation, Mapping):
            observation = {key: value for key, value in observation.items() if key not in self._gone}
        varying: Varying = {}
        self._fixed.node.write(observation, row, varying)
        return varying

    def read(self, rows: Numbers, varying: Sequence[Varying] = ()) -> dict[str, Seen]:
        """Return type -> its entities in n observations, from their rows (n, R) and what `write` has returned of each."""
        seen = {}
        for name in self.obs_space.entities:
            empty = self._varying.get(name)
            if empty is None:
                seen[name] = self._types[name].seen(rows)
            else:
                parts = [of_one[name] for of_one in varying]
                seen[name] = Seen(np.concatenate([empty, *parts]), np.array([len(part) for part in parts], np.int64))
        return seen

    def global_features(self, rows: Numbers) -> Numbers | None:
        """Return (n, number of global features); None where there are none."""
        return None if self._global is None or not self._global.features else self._global.gathered(rows)[:, 0]

    def read_agents(self, rows: Numbers, first: int) -> tuple[dict[str, Numbers], Numbers | None]:
        """Return the entities and global features of a frame of n agents, from their observations (n, R).

        Args:
            rows: of each agent; its first row of the actor's type is the agent itself.
            first: the agent whose observation has the entities of types that are not `per_agent`, and the global features.
        """
        one = rows[first : first + 1]
        features = {}
        for name, each in self._types.items():
            own = name in self.view.entities and self.view.entities[name].per_agent
            features[name] = each.seen(rows if own else one).values
        if len(rows):
            features[self.actor] = self._types[self.actor].gathered(rows)[:, 0]
        everywhere = self.global_features(one)
        if everywhere is not None:
            everywhere = everywhere[0] if len(one) else np.zeros(everywhere.shape[1], np.float32)
        return features, everywhere

    def open_choices(self, rows: Numbers) -> NDArray[np.bool_] | None:
        """Return (n, C) true where the view's mask leaves a choice open; None without such a mask."""
        return None if self._mask is None else rows[:, self._mask.columns] != 0

    # ---- actions

    def action_space(self, given: Mapping[str, ActionSpace]) -> dict[str, ActionSpace]:
        """Return the actions, with those that select an entity in place of choices.

        Raises:
            ValueError: an action does not exist, or has another number of choices than its type has rows.
        """
        view, space = self.view, dict(given)
        wanted = [(action, self.num_rows[name], f"{name} has", "rows") for action, name in view.select.items()]
        if self._mask is not None:
            if len(given) != 1:
                raise ValueError(
                    f"{view.name}: action_mask closes choices of the only action; there are {', '.join(given)}"
                )
            wanted.append((next(iter(given)), int(np.prod(self._mask.shape)), "action_mask has", "numbers"))
        for action, count, what, unit in wanted:
            if action not in given:
                raise ValueError(f"{view.name}: select names the action {action!r}; {nearest(action, given)}")
            its = given[action]
            if not isinstance(its, CategoricalActionSpace):
                raise ValueError(
                    f"{view.name}: the action {action!r} is not Discrete, so it cannot select or be masked"
                )
            if len(its.choices) != count:
                raise ValueError(
                    f"{view.name}: the action {action!r} has {len(its.choices)} choices, and {what} {count} {unit}"
                )
        return space | {action: SelectEntityActionSpace() for action in view.select}

    def rows_of(self, entity_type: str, seen: Mapping[str, Seen], chosen: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return (n,) the row of each chosen entity (n,), an entity index inside the frame; row 0 for -1, nobody."""
        names = list(seen)
        within = chosen - sum(seen[name].counts for name in names[: names.index(entity_type)])
        present = seen[entity_type].present
        if present is None:
            return np.asarray(np.maximum(within, 0), np.int64)
        rows: NDArray[np.int64] = (np.cumsum(present, axis=1) == (within + 1)[:, None]).argmax(axis=1)
        return rows

    # ---- what is an entity

    def _read_space(self, global_features: bool) -> dict[str, tuple[Feature, ...]]:
        """Make the types of a space without a view; return the features of all types, and of `GLOBAL_ENTITY`."""
        entities: dict[str, tuple[Feature, ...]] = {AGENT: ()}
        outer = GLOBAL_ENTITY if global_features else AGENT
        for path, part in self._fixed.parts.items():
            name = path or outer
            if isinstance(part, tuple):
                self._varying[name], entities[name] = np.zeros((0, len(part)), np.float32), part
            elif part or not path:
                features = [feature for leaf in part for feature in leaf.features(leaf.key)]
                numbers = [number for leaf in part for number in range(leaf.columns.start, leaf.columns.stop)]
                entities[name] = tuple(features)
                self._types[name] = _Type(1, features, np.array([numbers], np.int64).reshape(1, -1))
        self._types.setdefault(AGENT, _Type(1, [], np.zeros((1, 0), np.int64)))
        return entities

    def _read_view(self, view: View) -> None:
        """Make the types of a view."""
        owner: dict[int, str] = {}  # number of the row -> type that shows it
        ends: dict[str, int] = {}  # leaf -> where the type before ended
        views = dict(view.entities)
        if view.global_features is not None:
            views[GLOBAL_ENTITY] = view.global_features
        for name in views:
            self._types[name] = made = self._read_type(name, views, ends)
            for number in sorted(made.taken):
                if number in owner:
                    raise ValueError(
                        f"{self._where(name)}: column {self._names[number]} of the observation is in {owner[number]} already; "
                        "each number can be in one entity: see start and count"
                    )
                owner[number] = name
        if view.action_mask is not None:
            self._mask = self._leaf(view.action_mask, f"{view.name}: action_mask")
            owner |= dict.fromkeys(range(self._mask.columns.start, self._mask.columns.stop), "action_mask")
        rest = self._rest(owner)
        if view.actor is None:
            if AGENT in self._types:
                raise ValueError(
                    f"{view.name}: entities has {AGENT!r}; name it as the actor, or call it something else"
                )
            self._types = {AGENT: rest, **self._types}
        elif self._types[self.actor].count != 1 and self._num_agents is None:
            raise ValueError(
                f"{view.name}: the actor {self.actor} has {self._types[self.actor].count} rows; the one that acts needs a type "
                "of its own, with count: 1"
            )
        elif rest.features:
            own = self._types.get(GLOBAL_ENTITY)
            self._types[GLOBAL_ENTITY] = rest if own is None else own.beside(rest)
        if self._num_agents is not None and (view.select or view.action_mask):
            raise ValueError(
                f"{view.name}: select and action_mask are for worlds of one agent; of several, each closes choices with the "
                "key action_mask of its observation or info"
            )
        actor = self._types[self.actor]
        plain = {
            _name(feature): actor.numbers[0, k] for k, feature in enumerate(actor.features) if k not in actor.hollow
        }
        for name, each in views.items():
            columns = {_name(feature): k for k, feature in enumerate(self._types[name].features)}
            for feature in each.add_actor:
                if feature not in plain or feature not in columns or name == self.actor:
                    known = [] if name == self.actor else [each for each in plain if each in columns]
                    raise ValueError(
                        f"{self._where(name)}.add_actor names {feature!r}, which is no feature of the actor {self.actor} to be "
                        f"added; {nearest(feature, known)}"
                    )
                self._types[name].added.append((columns[feature], int(plain[feature])))

    def _read_type(self, name: str, views: Mapping[str, EntityView], ends: dict[str, int]) -> _Type:
        view, where = views[name], self._where(name)
        count = self._count(name, view)
        parts = [self._part(path, columns, view, where) for path, columns in view.features.items() if columns != ()]
        counts = set() if parts else {count or 1}  # nothing is known of such entities but that they are there
        for part in parts:
            if part.points:
                continue
            path = part.leaf.path
            part.start = ends.get(path, 0) if view.start is None else view.start * part.scale
            its = count
            if its is None:
                room = self._end_of(name, part, views) - part.start
                if room <= 0 or room % part.width:
                    raise ValueError(
                        f"{where}: the {room // part.scale} {part.unit}s of {part.title} from {part.start // part.scale} on are "
                        f"no whole number of rows of {part.width} features {part.names}: name other features, or say count and "
                        "start"
                    )
                its = room // part.width
            ends[path] = stop = part.start + its * part.width
            if stop > part.size:
                raise ValueError(
                    f"{where}: {its} rows of {part.width} features from {part.unit} {part.start // part.scale} on end at "
                    f"{part.unit} {stop // part.scale - 1}; the last of {part.title} is {part.size // part.scale - 1}"
                )
            counts.add(its)
        if len(counts) != 1:
            told = "only pointers" if not counts else f"leaves with {sorted(counts)} rows"
            raise ValueError(f"{where}.features has {told}; its leaves must have equally many rows")
        return _Type.of(counts.pop(), parts, view, where)

    def _end_of(self, name: str, part: _Part, views: Mapping[str, EntityView]) -> int:
        """Return where the rows of a type of no given count must end, since types listed later follow it."""
        names, taken, path = list(views), 0, part.leaf.path
        for later in names[names.index(name) + 1 :]:
            view = views[later]
            if view.features.get(path, ()) == ():
                continue
            if view.start is not None:
                start = view.start * part.scale
                return (start if start >= part.start else part.size) - taken
            count = self._count(later, view)
            if count is None:
                raise ValueError(
                    f"{self._where(later)}: neither {name} nor {later} has a count; at most one may be as many as fit"
                )
            taken += count * self._part(path, view.features[path], view, self._where(later)).width
        return part.size - taken

    def _part(self, path: str, columns: Sequence[Column] | None, view: EntityView, where: str) -> _Part:
        return _Part(self._leaf(path, f"{where}.features"), columns, view, where, len(view.features) > 1)

    def _count(self, name: str, view: EntityView) -> int | None:
        if view.count == "agents" and self._num_agents is None:
            raise ValueError(
                f"{self._where(name)}.count is agents; this world has one, and does not count them: give a number"
            )
        return self._num_agents if view.count == "agents" else view.count

    def _leaf(self, path: str, where: str) -> Leaf:
        leaves = self._fixed.leaves
        if path not in leaves and path == "":
            raise ValueError(
                f"{where} is a list of columns, and the observation has several parts: {', '.join(leaves)}; write "
                f"features: {{{next(iter(leaves))}: [...]}}"
            )
        if path not in leaves:
            raise ValueError(f"{where} names {path!r}, which the observation has not; {nearest(path, leaves)}")
        return leaves[path]

    def _rest(self, taken: Mapping[int, str]) -> _Type:
        """Return the numbers that are in no entity, as one row."""
        if self.view.ignore == "rest":
            return _Type(1, [], np.zeros((1, 0), np.int64))
        gone = set(taken)
        for each in self.view.ignore:
            found = [k for k, name in enumerate(self._names) if name == each or name.startswith(f"{each}.")]
            if not found and each not in self._gone:
                raise ValueError(f"{self.view.name}: ignore names {each!r}; {nearest(each, self._names[:40])}")
            gone |= set(found)
        numbers = [k for k in range(len(self._names)) if k not in gone]
        if len(numbers) > MOST_NUMBERS:
            raise ValueError(
                f"{self.view.name}: {len(numbers):,} numbers are in no entity; at most {MOST_NUMBERS:,} can be features: name "
                "them, or ignore: rest"
            )
        return _Type(1, [self._fixed.features[k] for k in numbers], np.array([numbers], np.int64).reshape(1, -1))

    def _where(self, name: str) -> str:
        return f"{self.view.name}: " + ("global_features" if name == GLOBAL_ENTITY else f"entities.{name}")


# ---- one type


class _Part:
    """The columns of a type that come from one leaf.

    Attributes:
        start: the first number of the leaf, set by the reader.
        width: how many numbers a row has.
        size: how many numbers the leaf has.
        scale, unit: how many numbers one `start` of a view skips, a row, or a column of a flat leaf.
        points: it holds numbers of rows instead of rows.
        shape: of the rows in the leaf.
    """

    def __init__(
        self, leaf: Leaf, columns: Sequence[Column] | None, view: EntityView, where: str, several: bool
    ) -> None:
        self.leaf, self.start = leaf, 0
        self.title = f"the leaf {leaf.path!r}" if leaf.path else "the observation"
        self.size = int(np.prod(leaf.shape, dtype=np.int64))
        self.points = columns is not None and len(columns) == 1 and columns[0].kind == "pointer"
        if columns is not None and not self.points and any(column.kind == "pointer" for column in columns):
            raise ValueError(
                f"{where}.features: a pointer must be the only column of its leaf, and stands beside others"
            )
        if len(leaf.shape) > 1:
            by_cell = len(view.index) == len(leaf.shape)
            self.shape: tuple[int, ...] = leaf.shape if by_cell else leaf.shape[:-1]
            self.width = 1 if by_cell else leaf.shape[-1]
            self.scale, self.unit = self.width, "row"
        else:
            self.width = (
                (self.size // view.count if isinstance(view.count, int) else 1) if columns is None else len(columns)
            )
            self.shape, self.scale, self.unit = (), 1, "column"
        if columns is None:
            columns = [Column(join(leaf.path if several else "", str(k))) for k in range(self.width)]
        self.columns, self.names = columns, [column.name for column in columns]
        if not self.points and (len(columns) != self.width or not self.width):
            raise ValueError(
                f"{where}.features has {len(columns)} names {self.names}, and a row of {self.title} {leaf.shape} has "
                f"{self.width} columns: name each of them, null for those that are left out"
            )

    def numbers(self, count: int) -> NDArray[np.int64]:
        """Return (count, width) the numbers of the observation's row in these rows; (1, L) of a pointer."""
        columns = np.arange(self.leaf.columns.start, self.leaf.columns.stop)
        return columns[None] if self.points else columns[self.start :][: count * self.width].reshape(count, self.width)


@dataclass
class _Type:
    """How the rows of a type are gathered from observations (n, R).

    Attributes:
        count: I.
        features: F of them.
        numbers: (I, F) the number of an observation in each place.
        shift: (F,) subtracted from it; None: nothing is.
        fixed: feature -> (I,) its values, which are the same in every observation.
        pointers: feature -> the leaf that names rows.
        presence: (I,) numbers of which each must not be 0.
        absent: (I,) numbers, and the value that all of these have where a row is no entity.
        taken: all numbers of its rows and pointers.
        added: feature, and the number of the observation that is added to it.
    """

    count: int
    features: list[Feature]
    numbers: NDArray[np.int64]
    shift: Numbers | None = None
    fixed: dict[int, Numbers] = field(default_factory=dict)
    pointers: dict[int, Leaf] = field(default_factory=dict)
    presence: NDArray[np.int64] | None = None
    absent: list[tuple[NDArray[np.int64], float]] = field(default_factory=list)
    taken: set[int] = field(default_factory=set)
    added: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        flat = self.numbers.reshape(-1)
        is_slice = len(flat) > 0 and bool((np.diff(flat) == 1).all()) and not (self.hollow or self.shift is not None)
        # Consecutive numbers are a slice, which is faster than an index.
        self._slice = slice(int(flat[0]), int(flat[-1]) + 1) if is_slice else None

    @classmethod
    def of(cls, count: int, parts: Sequence[_Part], view: EntityView, where: str) -> _Type:
        """Make a type of `count` rows; raises ValueError for a name that is no column."""
        features: list[Feature] = []
        numbers: list[NDArray[np.int64]] = []
        shifts: list[float] = []
        fixed, pointers, presence, absent, taken = {}, {}, None, [], set[int]()
        if view.index:
            main = next(part for part in parts if not part.points)
            places = (
                np.unravel_index(main.start // main.width + np.arange(count), main.shape)
                if main.shape
                else [np.arange(count)]
            )
            if len(view.index) != len(places):
                raise ValueError(
                    f"{where}.index has {len(view.index)} names; the rows of {main.title} {main.leaf.shape} have "
                    f"{len(places)} numbers"
                )
            for name, values in zip(view.index, places, strict=True):
                fixed[len(features)] = values.astype(np.float32)
                features.append(name)
                numbers.append(np.zeros(count, np.int64))
                shifts.append(0.0)
        left = dict(view.absent)
        for part in parts:
            of_part = part.numbers(count)
            taken |= set(of_part.reshape(-1).tolist())
            for k, column in enumerate(part.columns):
                its = np.zeros(count, np.int64) if part.points else of_part[:, k]
                if column.name is None:
                    continue
                if column.name == view.presence:
                    presence = its
                    continue
                if column.name in left:
                    absent.append((its, float(left.pop(column.name))))
                feature, shift = _feature(column, part.leaf, its - part.leaf.columns.start)
                if part.points:
                    pointers[len(features)] = part.leaf
                features.append(feature)
                numbers.append(its)
                shifts.append(shift)
        names = [_name(feature) for feature in features]
        hidden = [] if presence is not None or view.presence is None else [view.presence]
        for what, wanted in (("absent", left), ("add_actor", view.add_actor), ("presence", hidden)):
            for name in wanted:
                if name not in names or what == "presence":
                    raise ValueError(f"{where}.{what} names {name!r}, which is no column; {nearest(name, names)}")
        return cls(
            count,
            features,
            np.stack(numbers, axis=1) if numbers else np.zeros((count, 0), np.int64),
            np.array(shifts, np.float32) if any(shifts) else None,
            fixed,
            pointers,
            presence,
            absent,
            taken,
        )

    def beside(self, rest: _Type) -> _Type:
        """Return one row with the features of both; those of `rest` are plain."""
        shift = None if self.shift is None else np.append(self.shift, np.zeros(len(rest.features), np.float32))
        numbers = np.concatenate([self.numbers, rest.numbers], axis=1)
        return _Type(1, self.features + rest.features, numbers, shift, self.fixed, self.pointers, taken=self.taken)

    @property
    def hollow(self) -> set[int]:
        """Features that are no numbers of the observation."""
        return {*self.fixed, *self.pointers}

    def read(self) -> set[int]:
        """Return the numbers of an observation that are read."""
        plain = [column for column in range(self.numbers.shape[1]) if column not in self.hollow]
        read = set(self.numbers[:, plain].reshape(-1).tolist())
        for leaf in self.pointers.values():
            read |= set(range(leaf.columns.start, leaf.columns.stop))
        for numbers in (self.presence, *(numbers for numbers, _ in self.absent)):
            read |= set() if numbers is None else set(numbers.tolist())
        return read

    def gathered(self, rows: Numbers) -> Numbers:
        """Return (n, I, F) features of observations (n, R)."""
        if self._slice is not None:
            values = rows[:, self._slice].reshape(len(rows), *self.numbers.shape)
            values = values.copy() if self.added else values
        else:
            values = rows[:, self.numbers]
        if self.shift is not None:
            values -= self.shift
        for column, fixed in self.fixed.items():
            values[:, :, column] = fixed
        for column, leaf in self.pointers.items():
            named = rows[:, leaf.columns] + leaf.firsts
            hits = named[:, None, :] == np.arange(self.count)[None, :, None]  # (n, I, L)
            # Whether the only number names the row, or its place among the numbers, -1 where it is not there.
            values[:, :, column] = np.where(hits.any(axis=2), hits.argmax(axis=2), -1) if leaf.shape else hits[:, :, 0]
        for column, number in self.added:
            values[:, :, column] += rows[:, number, None]
        return values

    def seen(self, rows: Numbers) -> Seen:
        """Return the entities of observations (n, R)."""
        values = self.gathered(rows)
        if self.presence is None and not self.absent:
            values = values.reshape(len(rows) * self.count, self.numbers.shape[1])
            return Seen(values, np.full(len(rows), self.count, np.int64))
        present = np.ones((len(rows), self.count), np.bool_) if self.presence is None else rows[:, self.presence] != 0
        if self.absent:
            present &= np.any([rows[:, numbers] != value for numbers, value in self.absent], axis=0)
        return Seen(values[present], present.sum(axis=1), present)


def _feature(column: Column, leaf: Leaf, numbers: NDArray[np.int64]) -> tuple[Feature, float]:
    """Return the feature of a column, and what is subtracted from its numbers; `numbers` count within the leaf."""
    assert column.name is not None
    if column.kind == "angle":
        return Angle(column.name), 0.0
    if column.kind == "flag" or (column.kind == "pointer" and not leaf.shape):
        return Flag(column.name), 0.0
    if column.kind == "category":
        return Category(column.name, column.num), float(column.first - leaf.firsts[numbers[0]])
    declared = leaf.features("")
    its = [] if column.kind == "pointer" else [declared[number] for number in numbers.tolist()]
    if its and all(isinstance(each, Flag) for each in its):
        return Flag(column.name), 0.0
    nums = [each.num for each in its if isinstance(each, Category)]
    return (Category(column.name, max(nums)) if nums else column.name), 0.0


def _name(feature: Feature) -> str:
    return feature if isinstance(feature, str) else feature.name


def _without_ignored(space: Any, view: View) -> tuple[frozenset[Any], Any]:
    """Return the keys of the outermost Dict that the view does not read, and the space without these."""
    if kind_of(space) != "Dict":
        return frozenset(), space
    members = dict(members_of(space))
    read = {path.partition(".")[0] for path in view.paths()}
    gone = frozenset(key for key in members if (view.ignore == "rest" and key not in read) or str(key) in view.ignore)
    rest = PlainSpace("Dict", spaces={key: each for key, each in members.items() if key not in gone})
    return gone, rest if gone else space
