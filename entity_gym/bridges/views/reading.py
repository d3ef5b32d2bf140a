"""Entities from the observations of other libraries: the one reader of their spaces, with a view or without.

An observation is written into one row of R numbers, in the order of the leaves of its space; the entities of n observations are
gathered from n rows at once. A view says which numbers are an entity. Without a view, the fixed leaves of the outermost Dict or
Tuple are the features of one entity `Agent`; every Dict or Tuple inside it is one entity of a type called by its path; the
elements of a Sequence are entities, whose number varies, in arrays beside the row.

    reader = ViewReader(view, space)              # reader.obs_space: the entities; reader.size: R
    varying = reader.write(observation, row)      # row: (R,) float32; varying: {} without a Sequence
    seen = reader.read(rows, [varying, ...])      # type -> features and counts of n observations

Worlds of several agents give `num_agents`, and read a frame with `read_agents`.

Numbers that no observation has, such as the row of a cell, are derived from rows and stand behind their R numbers, so that every
feature is a column of numbers of the longer row.

Shapes: n observations, R numbers of each, I rows of a type, F features, C choices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions import ActionSpace, SelectEntityActionSpace
from entity_gym.bridges.gymnasium.actions import GymActions
from entity_gym.bridges.gymnasium.observations import (
    AGENT,
    FixedFeatures,
    Leaf,
    PlainSpace,
    Varying,
    kind_of,
    members_of,
)
from entity_gym.bridges.views.view import Column, EntityView, View
from entity_gym.errors import nearest
from entity_gym.spaces import GLOBAL_ENTITY, Angle, Category, Entity, Feature, Flag, ObsSpace

#: Largest number of numbers of a leaf that a view reads.
MOST_OF_A_LEAF = 2**16
#: Feature of agents whose group has several sides, and of what such an agent alone observes: the side.
SIDE = "side"

Numbers = NDArray[np.float32]
#: (I,) places in a row.
Places = NDArray[np.int64]


class Seen(NamedTuple):
    """The entities of a type in n observations, or, as one entity each, their global features."""

    values: Numbers  # (entities of all observations, F)
    counts: NDArray[np.int64]  # (n,)
    present: NDArray[np.bool_] | None = None  # (n, I) false where a row is no entity; None: all are


class ViewReader:
    """Reads entities from observations of a space.

    Args:
        view: what is an entity; None: what the space says, see above.
        space: of the observations, of one agent where there are several.
        num_agents: number of agents; None in worlds of one, which does not count them.
        num_sides: number of sides of the agents; with several, entities that are `per_agent` have the last feature `side`.

    Attributes:
        view: the view, or one without entities.
        size: R.
        obs_space: of the entities.
        actor: the type that takes the actions.
        left_out: names of the numbers that are shown nowhere.
        sums: (type, feature) of each feature to which the actor's feature of the same name is added.

    Raises:
        ValueError: for a space that has no such form, or a view that does not fit it, naming the column and what to do.
    """

    def __init__(self, view: View | None, space: Any, num_agents: int | None = None, num_sides: int = 1) -> None:
        self.view = View("the observation space", {}) if view is None else view
        self.actor = AGENT if view is None or view.actor is None else view.actor
        self._num_agents, self._num_sides = num_agents, num_sides
        self._gone: frozenset[Any] = frozenset()
        self._varying: dict[str, Numbers] = {}  # type whose number varies -> (0, F)
        self._types: dict[str, _Type] = {}
        self._derived: list[tuple[slice, Any]] = []  # places; their numbers, or what makes them of longer rows
        self.sums: list[tuple[str, str]] = []
        self.left_out: list[str] = []
        if view is None:
            self._fixed = FixedFeatures(space, varies=True)
        else:
            self._gone, space = _without_ignored(space, view)
            try:
                self._fixed = FixedFeatures(space, most=MOST_OF_A_LEAF)
            except ValueError as error:
                raise ValueError(f"{view.name}: {error}; or name it in ignore") from None
        self._names = [_name(feature) for feature in self._fixed.features]
        self.size = self._length = len(self._names)
        own = [] if num_agents is None else [each.per_agent for each in self.view.entities.values() if each.per_agent]
        self._names_of_agent = list(dict.fromkeys(name for name in own if isinstance(name, str)))
        # The number and the side of the agent, which `read_agents` fills in.
        self._of_agent = self._derive(2, np.zeros(2)) if own else np.zeros(0, np.int64)
        entities = self._read_space() if view is None else self._read_view(view)
        made: dict[str, Entity] = {}
        for name, features in entities.items():
            try:
                made[name] = Entity(features)
            except ValueError as error:
                raise ValueError(f"{self._where(name)}: {error}") from None
        everywhere = made.pop(GLOBAL_ENTITY, Entity())
        if not everywhere.features:
            self._types.pop(GLOBAL_ENTITY, None)
        self.obs_space = ObsSpace(made, everywhere.features, everywhere.kinds)

    # ---- observations

    def write(self, observation: Any, row: Numbers) -> Varying:
        """Write an observation into `row` (R,); return the features (n, F) of types whose number varies.

        Raises:
            ValueError: for an observation outside the space, naming where.
        """
        if self._gone and isinstance(observation, Mapping):
            observation = {key: value for key, value in observation.items() if key not in self._gone}
        varying: Varying = {}
        self._fixed.write(observation, row, varying)
        return varying

    def read(self, rows: Numbers, varying: Sequence[Varying] = ()) -> dict[str, Seen]:
        """Return type -> its entities in n observations, from their rows (n, R) and what `write` has returned of each.

        The global features, if there are any, are those of the type `GLOBAL_ENTITY`, the last.
        """
        rows, seen = self._longer(rows), {}
        for name in self.obs_space.entities:
            empty = self._varying.get(name)
            if empty is None:
                seen[name] = self._types[name].seen(rows)
            else:
                parts = [of_one[name] for of_one in varying]
                seen[name] = Seen(np.concatenate([empty, *parts]), np.array([len(part) for part in parts], np.int64))
        if GLOBAL_ENTITY in self._types:
            seen[GLOBAL_ENTITY] = self._types[GLOBAL_ENTITY].seen(rows)
        return seen

    def read_agents(
        self, rows: Numbers, first: int, numbers: Sequence[int], sides: Sequence[int]
    ) -> tuple[dict[str, Numbers], Numbers | None]:
        """Return the entities and global features of a frame of n agents, from their observations (n, R).

        Args:
            rows: of each agent; its first row of the actor's type is the agent itself.
            first: the agent whose observation has the entities of types that are not `per_agent`, and the global features.
            numbers: (n,) the number of each agent in the world.
            sides: (n,) the side of each agent.
        """
        rows = self._longer(rows)
        if len(self._of_agent):
            rows[:, self._of_agent] = np.array([numbers, sides]).T
        features = {}
        for name, each in self._types.items():
            own = name in self.view.entities and self.view.entities[name].per_agent
            features[name] = each.seen(rows if own else rows[first : first + 1]).values
        if len(rows):
            features[self.actor] = self._types[self.actor].gathered(rows)[:, 0]
        everywhere = features.pop(GLOBAL_ENTITY, None)
        if everywhere is not None:
            everywhere = everywhere[0] if len(rows) else np.zeros(everywhere.shape[1], np.float32)
        return features, everywhere

    # ---- actions

    def action_space(self, given: GymActions) -> dict[str, ActionSpace]:
        """Return the actions, with those that select an entity in place of choices.

        Raises:
            ValueError: an action does not exist, or has another number of choices than its type has rows.
        """
        view, space = self.view, dict(given.action_space)
        for action, name in view.select.items():
            if action not in space:
                raise ValueError(f"{view.name}: select names the action {action!r}; {nearest(action, space)}")
            its, count = given.counts[action], len(self._types[name].numbers)
            if its != count:
                raise ValueError(
                    f"{view.name}: the action {action!r} selects from {count} rows of {name}, so it must be a Discrete of "
                    f"{count}, or for sets a MultiBinary of {count}; it is a {space[action].kind} action of {its} choices"
                )
            if not space[action].selects:
                space[action] = SelectEntityActionSpace()
        return space

    def rows_of(self, entity_type: str, seen: Mapping[str, Seen], chosen: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return (n,) the row of each chosen entity (n,), an entity index inside the frame; row 0 for -1, nobody."""
        names = list(seen)
        within = chosen - sum(seen[name].counts for name in names[: names.index(entity_type)])
        present = seen[entity_type].present
        if present is None:
            return np.asarray(np.maximum(within, 0), np.int64)
        rows: NDArray[np.int64] = (np.cumsum(present, axis=1) == (within + 1)[:, None]).argmax(axis=1)
        return rows

    def flags_of(self, entity_type: str, seen: Mapping[str, Seen], chosen: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return (n, I) flags of the rows that sets select, from the flags of all entities of the type; 0 where there is none."""
        its = seen[entity_type]
        if its.present is None:
            return chosen.reshape(len(its.counts), len(self._types[entity_type].numbers))
        flags = np.zeros(its.present.shape, np.int64)
        flags[its.present] = chosen
        return flags

    # ---- derived numbers

    def _derive(self, count: int, numbers: Callable[[Numbers], Any] | NDArray[Any]) -> Places:
        """Return the places of derived numbers: (count,), or a function that makes (n, count) of longer rows."""
        places = slice(self._length, self._length + count)
        self._derived.append((places, numbers))
        self._length += count
        return np.arange(places.start, places.stop)

    def _longer(self, rows: Numbers) -> Numbers:
        """Return rows with the derived numbers."""
        if not self._derived:
            return rows
        longer = np.empty((len(rows), self._length), np.float32)
        longer[:, : self.size] = rows
        for places, numbers in self._derived:
            longer[:, places] = numbers(longer) if callable(numbers) else numbers
        return longer

    # ---- what is an entity

    def _read_space(self) -> dict[str, Sequence[Feature]]:
        """Make the types of a space without a view; return the features of all types."""
        entities: dict[str, Sequence[Feature]] = {AGENT: ()}
        for path, part in self._fixed.parts.items():
            name = path or AGENT
            if isinstance(part, tuple):
                self._varying[name], entities[name] = np.zeros((0, len(part)), np.float32), part
            elif part or not path:
                entities[name] = [feature for leaf in part for feature in leaf.features(leaf.key)]
                places = [place for leaf in part for place in range(leaf.columns.start, leaf.columns.stop)]
                self._types[name] = _Type(entities[name], np.array([places], np.int64))
        return entities

    def _read_view(self, view: View) -> dict[str, Sequence[Feature]]:
        """Make the types of a view; return the features of all types."""
        parts = {name: self._parts(name, each) for name, each in view.entities.items()}
        for leaf in self._fixed.leaves.values():
            _lay_out([part for of_type in parts.values() for part in of_type if part.leaf is leaf and not part.points])
        owner: dict[int, str] = {}  # place -> type that has it, "" if it shows the number nowhere
        for name in sorted(
            view.entities, key=lambda name: name != view.actor
        ):  # the actor first, which is added to others
            self._types[name] = self._type(name, view.entities[name], parts[name], owner)
        rest = self._rest(owner)
        if self._num_agents is not None and view.select:
            raise ValueError(f"{view.name}: select is for worlds of one agent")
        types = {name: self._types[name] for name in view.entities}
        if view.actor is None and AGENT in types:
            raise ValueError(f"{view.name}: entities has {AGENT!r}; name it as the actor, or call it something else")
        count = 1 if view.actor is None else len(types[view.actor].numbers)
        if count != 1 and self._num_agents is None:
            raise ValueError(
                f"{view.name}: the actor {view.actor} has {count} rows; the one that acts needs a type of its own, with count: 1"
            )
        of_rest = AGENT if view.actor is None else GLOBAL_ENTITY
        features = [(self._fixed.features[place], place) for place in rest]
        features += self._told_of_agent(of_rest)
        made = {of_rest: _Type([each for each, _ in features], np.array([[place for _, place in features]], np.int64))}
        self._types = made | types if view.actor is None else types | made
        return {name: each.features for name, each in self._types.items()}

    def _parts(self, name: str, view: EntityView) -> list[_Part]:
        """Return the leaves of a type with their columns."""
        where = self._where(name)
        if view.count == "agents" and self._num_agents is None:
            raise ValueError(f"{where}.count is agents; this world has one, and does not count them: give a number")
        count = self._rows_of(view)
        parts = []
        for path, columns in view.features.items():
            if columns == ():
                continue
            leaf = self._leaf(path, f"{where}.features")
            cells = leaf.shape if len(view.index) == len(leaf.shape) > 1 else leaf.shape[:-1]
            if len(leaf.shape) > 1:
                width = int(np.prod(leaf.shape[len(cells) :]))
            else:
                width = len(columns)
            points = [column.kind for column in columns] == ["pointer"]
            if not points and any(column.kind == "pointer" for column in columns):
                raise ValueError(f"{where}.features: a pointer must be the only column of its leaf")
            if not points and (len(columns) != width or not width):
                raise ValueError(
                    f"{where}.features has {len(columns)} names {[column.name for column in columns]}, and a row of "
                    f"{leaf.path or 'the observation'} {leaf.shape} has {width} columns: name each of them, null for those that "
                    "are left out"
                )
            parts.append(_Part(where, leaf, columns, cells, width, points, count))
        return parts

    def _rows_of(self, view: EntityView) -> int | None:
        """Return how many rows a type has; None: as many as fit."""
        if isinstance(view.count, tuple):
            return math.prod(view.count)
        return self._num_agents if view.count == "agents" else view.count

    def _type(self, name: str, view: EntityView, parts: Sequence[_Part], owner: dict[int, str]) -> _Type:
        """Make a type; adds the places of its rows to `owner`."""
        where, counts = self._where(name), {part.count for part in parts if not part.points}
        if not parts:  # nothing is known of its entities but that they are there
            counts = {self._rows_of(view) or 1}
        if len(counts) != 1:
            raise ValueError(
                f"{where}.features has leaves with {sorted(map(str, counts)) or 'no'} rows; they must have equally many"
            )
        count = int(counts.pop())  # type: ignore[arg-type]
        named = [column.name for part in parts for column in part.columns if column.name is not None]
        summed = [feature for feature in view.add_actor if feature not in view.index]
        for wanted in (*view.absent, *summed, *([view.presence] if view.presence else [])):
            if wanted not in named:
                raise ValueError(f"{where} names {wanted!r}, which is no column; {nearest(wanted, named)}")
        features: list[tuple[Feature, Places]] = []
        if view.index:
            main = next(part for part in parts if not part.points)
            rows = main.at // main.width + np.arange(count)
            numbers = np.unravel_index(rows, main.cells) if main.cells else (np.arange(count),)
            numbers = np.unravel_index(np.arange(count), view.count) if isinstance(view.count, tuple) else numbers
            if len(view.index) != len(numbers):
                raise ValueError(
                    f"{where}.index has {len(view.index)} names; the rows of {main.leaf.path or 'the observation'} "
                    f"{main.leaf.shape} have {len(numbers)} numbers"
                )
            for (index, begin), values in zip(view.index.items(), numbers, strict=True):
                its = self._derive(count, values + begin)
                features.append((index, self._added(name, index, its) if index in view.add_actor else its))
        presence, absent = None, []
        for part in parts:
            places = part.places(count)
            for k, column in enumerate(part.columns):
                its = places[0] if part.points else places[:, k]
                owner |= dict.fromkeys(its.tolist(), name if column.name else "")
                if column.name is not None and column.name == view.presence:
                    presence = its
                elif column.name is not None:
                    if column.name in view.absent:
                        absent.append((its, float(view.absent[column.name])))
                    feature, its = self._feature(column, part.leaf, its, count)
                    if column.name in view.add_actor:
                        its = self._added(name, column.name, its)
                    features.append((feature, its))
        features += [(feature, np.full(count, place)) for feature, place in self._told_of_agent(name)]
        made = np.array([its for _, its in features], np.int64).reshape(len(features), count)
        return _Type([feature for feature, _ in features], made.T.copy(), presence, absent)

    def _told_of_agent(self, name: str) -> list[tuple[Feature, int]]:
        """Return the features that say whose an entity of a type is, each with the place of its number."""
        own = name in self.view.entities and self._num_agents is not None and self.view.entities[name].per_agent
        names = self._names_of_agent if name == self.actor else [own] if isinstance(own, str) else []
        told: list[tuple[Feature, int]] = [(Category(each, self._num_agents or 1), self._of_agent[0]) for each in names]
        if own and name != self.actor and self._num_sides > 1:
            told.append((Category(SIDE, self._num_sides), self._of_agent[1]))
        return told

    def _added(self, name: str, feature: str, places: Places) -> Places:
        """Return the places of the sums of a type's feature and the actor's of the same name."""
        actor = self._types.get(self.actor)
        known = [] if actor is None else list(map(_name, actor.features))
        if actor is None or name == self.actor or feature not in known:
            raise ValueError(
                f"{self._where(name)}.add_actor names {feature!r}, which is no feature of the actor {self.actor} to be added; "
                f"{nearest(feature, known)}"
            )
        self.sums.append((name, feature))
        of_actor = actor.numbers[0, known.index(feature)]
        return self._derive(len(places), lambda rows: rows[:, places] + rows[:, of_actor, None])

    def _feature(self, column: Column, leaf: Leaf, places: Places, count: int) -> tuple[Feature, Places]:
        """Return the feature of a column, and the places (I,) of its numbers."""
        name = str(column.name)
        if column.kind == "pointer":

            def named(rows: Numbers) -> Any:
                hits = (rows[:, places] + leaf.firsts)[:, None, :] == np.arange(count)[:, None]  # (n, I, L)
                # Whether the only number names the row, or its place among the numbers, -1 where it is not there.
                return np.where(hits.any(axis=2), hits.argmax(axis=2), -1) if leaf.shape else hits[:, :, 0]

            return (name if leaf.shape else Flag(name)), self._derive(count, named)
        if column.kind == "category":
            return Category(name, column.num), places
        if column.kind == "angle":
            return Angle(name), places
        declared = [self._fixed.features[place] for place in places.tolist()]
        if column.kind == "flag" or all(isinstance(each, Flag) for each in declared):
            return Flag(name), places
        nums = [each.num for each in declared if isinstance(each, Category)]
        return (Category(name, max(nums)) if nums else name), places

    def _leaf(self, path: str, where: str) -> Leaf:
        leaves = self._fixed.leaves
        if path not in leaves:
            raise ValueError(f"{where} names {path!r}, which the observation has not; {nearest(path, leaves)}")
        return leaves[path]

    def _rest(self, owner: Mapping[int, str]) -> list[int]:
        """Return the places of the numbers that are in no entity, and set `left_out`."""
        ignored = set(range(self.size)) if self.view.ignore == "rest" else set()
        for each in () if self.view.ignore == "rest" else self.view.ignore:
            found = {k for k, name in enumerate(self._names) if name == each or name.startswith(f"{each}.")}
            if not found and each not in self._gone:
                raise ValueError(f"{self.view.name}: ignore names {each!r}; {nearest(each, self._names[:40])}")
            ignored |= found
        rest = [place for place in range(self.size) if place not in owner and place not in ignored]
        self.left_out = [name for place, name in enumerate(self._names) if not owner.get(place) and place not in rest]
        return rest

    def _where(self, name: str) -> str:
        if not self.view.entities:
            return f"the observation space as features of {name!r}"
        return f"{self.view.name}: entities.{name}"


# ---- one type


@dataclass
class _Part:
    """The columns of a type that come from one leaf.

    Attributes:
        where: the type in messages.
        cells: shape of the rows in the leaf; () if it is flat.
        width: how many numbers a row has.
        points: it holds numbers of rows instead of rows.
        count: number of rows; None: as many as fit.
        at: the first number of the leaf, where the rows of the type before end.
    """

    where: str
    leaf: Leaf
    columns: Sequence[Column]
    cells: tuple[int, ...]
    width: int
    points: bool
    count: int | None
    at: int = 0

    def places(self, count: int) -> Places:
        """Return (count, width) the places of the rows in an observation's row; (1, L) of a pointer."""
        places = np.arange(self.leaf.columns.start, self.leaf.columns.stop)
        if self.points:
            return places[None]
        return places[self.at :][: count * self.width].reshape(count, self.width)


def _lay_out(parts: Sequence[_Part]) -> None:
    """Fill in where the parts of one leaf are, and how many rows of one fit; raises ValueError if they do not fit."""
    end = 0
    for k, part in enumerate(parts):
        size, later = len(part.leaf.firsts), parts[k + 1 :]
        part.at, room = end, size - end
        if part.count is None:
            if several := [each.where for each in later if each.count is None]:
                raise ValueError(
                    f"{part.where} and {several[0]} have no count; at most one type may have as many as fit"
                )
            room -= sum(int(each.count or 0) * each.width for each in later)
            part.count = max(room, 0) // part.width if room % part.width == 0 else 0
        end += part.count * part.width
        if not part.count or end > size:
            rows = f"not {part.count}" if part.count else "no whole number of"
            raise ValueError(
                f"{part.where}: the {room} numbers of {part.leaf.path or 'the observation'} from {part.at} on are {rows} rows of "
                f"the features {[column.name for column in part.columns]}: name other features, or say count"
            )


@dataclass
class _Type:
    """Place of a type's rows in longer rows (n, ...).

    Attributes:
        features: F of them.
        numbers: (I, F) the place of each.
        presence: (I,) places of numbers of which each must not be 0.
        absent: (I,) places, and the number that all of these have where a row is no entity.
    """

    features: Sequence[Feature]
    numbers: Places
    presence: Places | None = None
    absent: Sequence[tuple[Places, float]] = ()

    def __post_init__(self) -> None:
        flat = self.numbers.reshape(-1)
        is_slice = len(flat) > 0 and bool((np.diff(flat) == 1).all())
        # Consecutive numbers are a slice, which is faster than an index.
        self._slice = slice(int(flat[0]), int(flat[-1]) + 1) if is_slice else None

    def gathered(self, rows: Numbers) -> Numbers:
        """Return (n, I, F) features."""
        if self._slice is not None:
            return rows[:, self._slice].reshape(len(rows), *self.numbers.shape)
        return rows[:, self.numbers]

    def seen(self, rows: Numbers) -> Seen:
        """Return the entities."""
        values = self.gathered(rows)
        if self.presence is None and not self.absent:
            values = values.reshape(len(rows) * len(self.numbers), len(self.features))
            return Seen(values, np.full(len(rows), len(self.numbers), np.int64))
        present = np.ones(values.shape[:2], np.bool_) if self.presence is None else rows[:, self.presence] != 0
        if self.absent:
            present &= np.any([rows[:, places] != number for places, number in self.absent], axis=0)
        return Seen(values[present], present.sum(axis=1), present)


def _name(feature: Feature) -> str:
    return feature if isinstance(feature, str) else feature.name


def _without_ignored(space: Any, view: View) -> tuple[frozenset[Any], Any]:
    """Return the keys of the outermost Dict that the view does not read, and the space without these."""
    if kind_of(space) != "Dict":
        return frozenset(), space
    members = members_of(space)
    read = {path.partition(".")[0] for path in view.paths()}
    gone = frozenset(key for key in members if (view.ignore == "rest" and key not in read) or str(key) in view.ignore)
    rest = PlainSpace("Dict", spaces={key: each for key, each in members.items() if key not in gone})
    return gone, rest if gone else space
