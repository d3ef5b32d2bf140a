"""Entities from Gymnasium's observation spaces.

Fixed leaves of a space (`Box`, `Discrete`, `MultiDiscrete`, `MultiBinary`) are features: plain numbers, `Category`, and `Flag`.

Spaces are told apart by the names of their classes, so those of Gymnasium, of the older gym, and `PlainSpace` are all the same
here, and neither package is imported.

Shapes: F features, n entities.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from entity_gym.spaces import GLOBAL_ENTITY, MOST_CATEGORIES, Category, Entity, Feature, Flag, ObsSpace

#: A `Box` of more numbers than this is an image, which the network cannot read.
MOST_NUMBERS = 4096
#: The entity that has the features of the outermost space, and takes all actions.
AGENT = "Agent"

FIXED = ("Box", "Discrete", "MultiDiscrete", "MultiBinary")
GROUPS = ("Dict", "Tuple")
_KINDS = (*FIXED, *GROUPS, "Sequence", "Graph", "Text", "OneOf")

#: (n, F) float32 features of the entities of a type; (F,) for a type of which there is always one.
Features = NDArray[np.float32]


# ---- spaces


@dataclass(frozen=True)
class PlainSpace:
    """A space of no library: inferred from an observation, or converted from a spec.

    Attributes:
        kind: the class of Gymnasium's that it stands for: "Box", "Discrete", "Dict" or "Tuple".
        shape, dtype, low, high: of a Box.
        n, start: of a Discrete, the number of values and the first one.
        spaces: of a Dict (a mapping) or a Tuple.
    """

    kind: str
    shape: tuple[int, ...] = ()
    dtype: Any = np.float32
    low: Any = -np.inf
    high: Any = np.inf
    n: int = 0
    start: int = 0
    spaces: Any = ()


def kind_of(space: Any) -> str:
    """Return the name of the Gymnasium class that a space is of, such as "Box", or of its own class."""
    if isinstance(space, PlainSpace):
        return space.kind
    names = [cls.__name__ for cls in type(space).__mro__]
    return next((name for name in names if name in _KINDS), names[0])


def shape_of(space: Any) -> tuple[int, ...]:
    """Return the shape of a value of a fixed space."""
    kind = kind_of(space)
    if kind == "Discrete":
        return ()
    shape = getattr(space, "shape", None)
    if shape is None:  # of an old MultiBinary
        shape = np.shape(space.nvec) if kind == "MultiDiscrete" else np.atleast_1d(space.n)
    return tuple(int(size) for size in shape)


def members_of(space: Any) -> Iterator[tuple[Any, Any]]:
    """Yield (key, space) of the members of a Dict or Tuple; keys of a Tuple are positions."""
    held = space.spaces
    return iter(held.items() if isinstance(held, Mapping) else enumerate(held))


def infer_space(observation: Any, path: str = "") -> PlainSpace:
    """Return the space of numbers, arrays, and dictionaries and tuples of these, of which this is one observation.

    Raises:
        ValueError: for anything else, naming it.
    """
    if isinstance(observation, Mapping):
        members = {key: infer_space(item, join(path, str(key))) for key, item in observation.items()}
        return PlainSpace("Dict", spaces=members)
    if isinstance(observation, tuple) and any(isinstance(item, Mapping | tuple | np.ndarray) for item in observation):
        items = tuple(infer_space(item, join(path, str(k))) for k, item in enumerate(observation))
        return PlainSpace("Tuple", spaces=items)
    array = as_numbers(observation, path)
    return PlainSpace("Box", shape=array.shape, dtype=array.dtype)


def join(*parts: str) -> str:
    """Join names along a path: "robot.arm.0"."""
    return ".".join(part for part in parts if part)


def numbered(name: str, shape: Sequence[int], alone: str = "value") -> list[str]:
    """Return names of the numbers in an array of this shape: "x.0", "x.1", ..., or `name` itself for one number."""
    if not shape:
        return [name or alone]
    return [join(name, *map(str, index)) for index in np.ndindex(*shape)]


def as_numbers(value: Any, path: str) -> NDArray[Any]:
    """Return a value as an array of numbers or bools of any shape; raises ValueError for anything else."""
    if isinstance(value, np.ndarray):
        array = value
    elif value is None:
        raise ValueError(f"{_named(path)} is None; where there is nothing to show, show zeros, or an empty Sequence")
    else:
        try:
            array = np.asarray(value)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{_named(path)} is {value!r:.200}; it must be numbers: {error}") from None
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{_named(path)} is {value!r:.200}; it must be numbers")
    return array


def _named(path: str) -> str:
    return path or "the observation"


def _space_at(path: str) -> str:
    return f"the observation space at {path!r}" if path else "the observation space"


# ---- features of one entity


class Leaf:
    """Writes a value of a fixed space to the columns of the features of `entity` that begin with `start`.

    Attributes:
        path: of the space.
        shape: of a value.
        columns: of the features.
        features: name and kind of each.
    """

    def __init__(
        self, space: Any, path: str, name: str, entity: str, start: int, hint: str = "", most: int = MOST_NUMBERS
    ) -> None:
        self.path, self.entity, self.shape = path, entity, shape_of(space)
        size = int(np.prod(self.shape, dtype=np.int64))
        if size > most:
            raise ValueError(
                f"{_space_at(path)} is {size:,} numbers {self.shape}; at most {most:,} can be features: make fewer of "
                f"them in a wrapper{hint}"
            )
        self.columns = slice(start, start + size)
        names, kind = numbered(name, self.shape), kind_of(space)
        self.features: list[Feature] = list(names)
        self._first: NDArray[Any] | None = None  # (size,) first values, if any is not 0
        if kind == "MultiBinary":
            self.features = [Flag(each) for each in names]
        elif kind != "Box":
            self._num = np.atleast_1d(space.n if kind == "Discrete" else space.nvec).reshape(-1)
            if self._num.max(initial=0) > MOST_CATEGORIES:
                raise ValueError(
                    f"{_space_at(path)} has {self._num.max():,} values; at most {MOST_CATEGORIES:,} can be told apart: make it "
                    "a Box, or several smaller spaces, in a wrapper"
                )
            self.features = [Category(each, int(num)) for each, num in zip(names, self._num, strict=True)]
            first = np.broadcast_to(np.asarray(getattr(space, "start", 0)), self.shape).reshape(-1)
            self._first = first if first.any() else None

    @property
    def firsts(self) -> NDArray[Any]:
        """(size,) the smallest value of each number of a category, which is 0 as a feature; 0 for other numbers."""
        size = self.columns.stop - self.columns.start
        return np.zeros(size, np.int64) if self._first is None else self._first

    def write(self, value: Any, to: Mapping[str, Features]) -> None:
        """Write one value to features (F,), or n stacked values to (n, F)."""
        rows = to[self.entity]
        array = as_numbers(value, self.path)
        if rows.ndim == 1:
            if array.shape != self.shape:
                raise ValueError(f"{_named(self.path)} has shape {array.shape}; expected {self.shape}")
            if array.ndim > 1:
                array = array.reshape(-1)
            rows[self.columns] = array if self._is_plain(array) else self._converted(array.reshape(-1))
        elif len(rows) or array.shape[:1] != (0,):  # an empty list has no shape beyond that
            if array.shape != (len(rows), *self.shape):
                raise ValueError(f"{_named(self.path)} has shape {array.shape}; expected {(len(rows), *self.shape)}")
            array = array.reshape(len(rows), -1)
            rows[:, self.columns] = array if self._is_plain(array) else self._converted(array)

    def length(self, values: Any) -> int:
        """Return the number of stacked values."""
        array = as_numbers(values, self.path)
        if not array.ndim:
            raise ValueError(f"{_named(self.path)} is {values!r:.200}, one alone; expected a sequence of such")
        return len(array)

    def _is_plain(self, array: NDArray[Any]) -> bool:
        return self._first is None and array.dtype.char != "d"  # float64 may be more than float32 holds

    def _converted(self, values: NDArray[Any]) -> NDArray[Any]:
        if self._first is not None:
            counted: NDArray[Any] = values - self._first
            wrong = (counted < 0) | (counted >= self._num) | (counted % 1 != 0)
            if wrong.any():
                k = int(np.argwhere(wrong)[0][-1])
                raise ValueError(
                    f"{_named(self.path)} is {values[wrong][0]}; expected a whole number from {self._first[k]} to "
                    f"{self._first[k] + self._num[k] - 1}"
                )
            return counted
        with np.errstate(over="ignore"):
            narrow = values.astype(np.float32)
        too_large = np.isinf(narrow) & np.isfinite(values)
        if too_large.any():
            raise ValueError(
                f"{_named(self.path)} is {values[too_large][0]}, more than float32 can hold, as which features travel"
            )
        return narrow


class _Group:
    """Writes the members of a Dict or a Tuple."""

    def __init__(self, members: Mapping[Any, Any], path: str, is_tuple: bool) -> None:
        self.members, self.path, self.is_tuple = list(members.items()), path, is_tuple
        self._keys = list(members)

    def write(self, value: Any, to: MutableMapping[str, Features]) -> None:
        self._check(value)
        for key, node in self.members:
            node.write(value[key], to)

    def length(self, values: Any) -> int:
        """Return the number of stacked values; members with fewer are refused when they are written."""
        self._check(values)
        return max((node.length(values[key]) for key, node in self.members), default=0)

    def _check(self, value: Any) -> None:
        if self.is_tuple:
            if not isinstance(value, tuple | list) or len(value) != len(self.members):
                raise ValueError(f"{_named(self.path)} is {value!r:.200}; expected a tuple of {len(self.members)}")
        elif not isinstance(value, Mapping):
            raise ValueError(f"{_named(self.path)} is {value!r:.200}; expected a dictionary with the keys {self._keys}")
        elif len(value) != len(self.members) or any(key not in value for key in self._keys):
            raise ValueError(f"{_named(self.path)} has the keys {list(value)}; expected {self._keys}")


class FixedFeatures:
    """Features of one entity from a space of fixed leaves in Dicts and Tuples: "position.0", "arm.angle", or "0" of a Box.

    Args:
        space: of the values.
        path: of the space, for messages.
        most: largest number of numbers of a leaf.

    Attributes:
        features: F of them.
        leaves: path -> the leaf, in the order of their columns.

    Raises:
        ValueError: for a space that is not fixed, naming it.
    """

    def __init__(self, space: Any, path: str = "", most: int = MOST_NUMBERS) -> None:
        self.path, self._most = path, most
        self.leaves: dict[str, Leaf] = {}
        self._features: list[Feature] = []
        self._node = self._node_of(space, path, "")
        self.features = tuple(self._features)

    def write(self, value: Any, row: NDArray[np.float32]) -> None:
        """Write a value of the space into `row` (F,).

        Raises:
            ValueError: for a value outside the space, naming where; values out of bounds are not noticed.
        """
        self._node.write(value, {"": row})

    def rows(self, values: Any) -> Features:
        """Return (n, F) from a sequence of n values, or from one value with a leading dimension in every leaf.

        Raises:
            ValueError: as `write`, and for anything that is no sequence.
        """
        if not isinstance(values, Sequence | Mapping | np.ndarray) or isinstance(values, str):
            raise ValueError(f"{_named(self.path)} is {values!r:.200}; expected a sequence of values")
        node = self._node
        if isinstance(node, Leaf) and not isinstance(values, np.ndarray | Mapping) and len(values):
            try:  # arrays of one shape are faster as one array
                values = np.asarray(values)
            except (TypeError, ValueError):
                pass
        stacked = isinstance(values, np.ndarray | Mapping)
        if isinstance(node, _Group) and node.is_tuple and len(values):  # a tuple of stacks, or a sequence of tuples
            stacked |= all(isinstance(each, np.ndarray | Mapping) for each in values)
        rows = np.zeros((node.length(values) if stacked else len(values), len(self.features)), np.float32)
        if stacked:
            node.write(values, {"": rows})
            return rows
        for row, value in zip(rows, values, strict=True):
            node.write(value, {"": row})
        return rows

    def _node_of(self, space: Any, path: str, name: str) -> Leaf | _Group:
        kind = kind_of(space)
        if kind in FIXED:
            leaf = self.leaves[path] = Leaf(space, path, name, "", len(self._features), most=self._most)
            self._features += leaf.features
            return leaf
        if kind in GROUPS:
            inner = {
                key: self._node_of(each, join(path, str(key)), join(name, str(key))) for key, each in members_of(space)
            }
            return _Group(inner, path, kind == "Tuple")
        raise ValueError(
            f"{_space_at(path)} is a {kind}, inside of something that has a row of features for each entity: only "
            f"{', '.join((*FIXED, *GROUPS))} can be there; leave it out in a wrapper, or move it to the outside"
        )


# ---- entities


class GymObservations:
    """Entities from the observations of an environment.

    The fixed leaves of the outermost Dict or Tuple are the features of one entity `Agent`. Every Dict or Tuple inside it is one
    entity of a type of its own, called by its path. The elements of a Sequence are entities of a type called by its
    path, or "Item"; the nodes of a Graph in the same way, or "Node". The edges of a graph are entities `<type>.edge`: their own
    features, followed by those of their ends, "from.x" and "to.x".

    Args:
        space: of the observations.
        global_features: show the outermost leaves as global features. `Agent` remains, without features, to act.

    Attributes:
        counts: entity type -> 1 if there is always one, None if that varies; 1 for global features, as `__global__`.

    Raises:
        ValueError: for a space that has no such form, naming it and what to do.
    """

    def __init__(self, space: Any, *, global_features: bool = False) -> None:
        if not isinstance(global_features, bool | np.bool_):
            raise ValueError(f"global_features is {global_features!r}; it must be true or false")
        self.counts: dict[str, int | None] = {AGENT: 1}
        self._types: dict[str, list[Feature]] = {AGENT: []}
        outer = AGENT
        if global_features:
            outer = GLOBAL_ENTITY
            self.counts[outer], self._types[outer] = 1, []
        self._keys = [key for key, _ in members_of(space)] if kind_of(space) == "Dict" else []
        self._node = self._node_of(space, "", "", outer)
        given = {name: _entity(name, features) for name, features in self._types.items()}
        everywhere = given.pop(GLOBAL_ENTITY, Entity())
        self.obs_space = ObsSpace(given, everywhere.features, everywhere.kinds)
        if global_features and not everywhere.features:
            del self.counts[GLOBAL_ENTITY]

    def empty(self) -> dict[str, Features]:
        """Return type -> zeros: (F,) if there is always one, (0, F) if that varies."""
        shapes = {name: () if count == 1 else (0,) for name, count in self.counts.items()}
        return {name: np.zeros((*shape, len(self._types[name])), np.float32) for name, shape in shapes.items()}

    def write(self, observation: Any, to: MutableMapping[str, Features]) -> None:
        """Write an observation over the features in `to`, as `empty` returns them; types that vary get new arrays.

        Raises:
            ValueError: for an observation outside the space, naming where; values out of bounds are not noticed.
        """
        self._node.write(observation, to)

    def _node_of(self, space: Any, path: str, name: str, owner: str) -> Any:
        """Return what writes `space`, whose fixed leaves are features of `owner`, with names that begin with `name`."""
        kind = kind_of(space)
        if kind in FIXED:
            features = self._types[owner]
            hint = ", or say in a view what of it is an entity" if len(shape_of(space)) > 1 else ""
            leaf = Leaf(space, path, name, owner, len(features), hint)
            features += leaf.features
            return leaf
        if kind in GROUPS:
            if path:
                owner = self._new_type(path, 1)
            inner = {key: self._node_of(each, join(path, str(key)), str(key), owner) for key, each in members_of(space)}
            if path and not self._types[owner]:  # it holds only what has types of its own
                del self._types[owner], self.counts[owner]
            return _Group(inner, path, kind == "Tuple")
        if kind == "Sequence":
            return self._elements(space.feature_space, path, path or "Item")
        if kind == "Graph":
            nodes = self._elements(space.node_space, path, path or "Node")
            if space.edge_space is None:
                return _Graph(nodes, None)
            edges = FixedFeatures(space.edge_space, join(path, "edge"))
            ends = tuple(_renamed(feature, end) for end in ("from", "to") for feature in nodes.items.features)
            return _Graph(nodes, _Elements(self._new_type(f"{nodes.entity}.edge", None, edges.features + ends), edges))
        hint = "a wrapper such as gymnasium.wrappers.TransformObservation"
        if path in self._keys:
            others = json.dumps([key for key in self._keys if key != path]).replace('"', r"\"")
            hint = (
                "a wrapper; this one leaves it out: "
                f"""env.wrappers='["gymnasium.wrappers:FilterObservation(filter_keys={others})"]'"""
            )
        raise ValueError(
            f"{_space_at(path)} is a {kind}, which has no form as entities: leave it out, or turn it into numbers, in {hint}"
        )

    def _elements(self, space: Any, path: str, entity: str) -> _Elements:
        items = FixedFeatures(space, path)
        return _Elements(self._new_type(entity, None, items.features), items)

    def _new_type(self, name: str, count: int | None, features: Sequence[Feature] = ()) -> str:
        if name in self._types or name == GLOBAL_ENTITY:
            raise ValueError(
                f"the observation space has two things that would be the entity type {name!r}: rename a key in a wrapper"
            )
        self.counts[name] = count
        self._types[name] = list(features)
        return name


@dataclass(frozen=True)
class _Elements:
    """Writes a Sequence as entities."""

    entity: str
    items: FixedFeatures

    def write(self, value: Any, to: MutableMapping[str, Features]) -> None:
        to[self.entity] = self.items.rows(value)


@dataclass(frozen=True)
class _Graph:
    """Writes nodes, and edges if the space has any."""

    nodes: _Elements
    edges: _Elements | None

    def write(self, value: Any, to: MutableMapping[str, Features]) -> None:
        where = _named(self.nodes.items.path)
        if not all(hasattr(value, part) for part in ("nodes", "edges", "edge_links")):
            raise ValueError(f"{where} is {value!r:.200}; expected a GraphInstance")
        if value.nodes is None:
            raise ValueError(f"{where} has the nodes None; where there are none, show an empty array")
        nodes = to[self.nodes.entity] = self.nodes.items.rows(value.nodes)
        if self.edges is None:
            if value.edges is not None:
                raise ValueError(f"{where} has edges, and its space has no edge_space")
            return
        path = self.edges.items.path
        edges = self.edges.items.rows(() if value.edges is None else value.edges)
        links = as_numbers(np.zeros((0, 2), np.int64) if value.edge_links is None else value.edge_links, path)
        fits = links.shape == (len(edges), 2) and links.dtype.kind in "iu"
        if not fits or (links.size and not (links.min() >= 0 and links.max() < len(nodes))):
            raise ValueError(
                f"{_named(path)}: edge_links are {links.tolist()!r:.200}; expected two of the {len(nodes)} nodes for each of "
                f"the {len(edges)} edges"
            )
        to[self.edges.entity] = np.concatenate([edges, nodes[links[:, 0]], nodes[links[:, 1]]], axis=1)


def _entity(name: str, features: Sequence[Feature]) -> Entity:
    try:
        return Entity(features)
    except ValueError as error:
        raise ValueError(f"the observation space as features of {name!r}: {error}; rename a key in a wrapper") from None


def _renamed(feature: Feature, end: str) -> Feature:
    if isinstance(feature, Category):
        return Category(f"{end}.{feature.name}", feature.num)
    return f"{end}.{feature}" if isinstance(feature, str) else Flag(f"{end}.{feature.name}")
