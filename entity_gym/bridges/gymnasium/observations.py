"""Gymnasium's observation spaces, and how their values are written into rows of numbers.

`FixedFeatures` writes a value whose numbers do not vary, however nested, into one row, and is all that a bridge needs whose
agents have no further entities:

    fixed = FixedFeatures(space)                  # fixed.features: R names and kinds
    fixed.write(observation, row)                 # row: (R,) float32

What of a row is an entity is said by `entity_gym.bridges.views.reading.ViewReader`.

Fixed leaves of a space (`Box`, `Discrete`, `MultiDiscrete`, `MultiBinary`) are features: plain numbers, `Category`, and `Flag`.
Spaces are told apart by the names of their classes, so those of Gymnasium and `PlainSpace` are the same here, and Gymnasium is
not imported.

Shapes: R numbers of a row, F features, n entities.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from entity_gym.spaces import MOST_CATEGORIES, Category, Feature, Flag

#: A `Box` of more numbers than this is an image, which the network cannot read.
MOST_NUMBERS = 4096
#: The entity that has the features of the outermost space, and takes all actions.
AGENT = "Agent"

FIXED = ("Box", "Discrete", "MultiDiscrete", "MultiBinary")
GROUPS = ("Dict", "Tuple")
_KINDS = (*FIXED, *GROUPS, "Sequence", "Graph", "Text", "OneOf")

#: (R,) the numbers of one value.
Row = NDArray[np.float32]
#: Entity type of a Sequence or Graph -> (n, F) features.
Varying = dict[str, NDArray[np.float32]]


# ---- spaces


@dataclass(frozen=True)
class PlainSpace:
    """A space of no library, such as one that is converted from a spec.

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
    return () if kind_of(space) == "Discrete" else tuple(int(size) for size in space.shape)


def members_of(space: Any) -> Iterator[tuple[Any, Any]]:
    """Yield (key, space) of the members of a Dict or Tuple; keys of a Tuple are positions."""
    held = space.spaces
    return iter(held.items() if isinstance(held, Mapping) else enumerate(held))


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


# ---- rows


class Leaf:
    """A fixed space, whose values are written to some columns of a row.

    Attributes:
        path: of the space.
        key: the last part of the path, which names the leaf inside of its Dict or Tuple.
        shape: of a value.
        columns: of the row.
    """

    def __init__(self, space: Any, path: str, key: str, start: int, most: int, hint: str) -> None:
        self.path, self.key, self.shape = path, key, shape_of(space)
        size = int(np.prod(self.shape, dtype=np.int64))
        if size > most:
            raise ValueError(
                f"{_space_at(path)} is {size:,} numbers {self.shape}; at most {most:,} can be features: make fewer of "
                f"them in a wrapper{hint if len(self.shape) > 1 else ''}"
            )
        self.columns = slice(start, start + size)
        self._is_flag = kind_of(space) == "MultiBinary"
        self._num: NDArray[Any] | None = None  # (size,) numbers of categories
        self._first: NDArray[Any] | None = None  # (size,) first values, if any is not 0
        if kind_of(space) in ("Discrete", "MultiDiscrete"):
            self._num = np.atleast_1d(space.n if kind_of(space) == "Discrete" else space.nvec).reshape(-1)
            if self._num.max(initial=0) > MOST_CATEGORIES:
                raise ValueError(
                    f"{_space_at(path)} has {self._num.max():,} values; at most {MOST_CATEGORIES:,} can be told apart: make it "
                    "a Box, or several smaller spaces, in a wrapper"
                )
            first = np.broadcast_to(np.asarray(getattr(space, "start", 0)), self.shape).reshape(-1)
            self._first = first if first.any() else None

    def features(self, name: str) -> list[Feature]:
        """Return the features of a leaf of this name."""
        names = numbered(name, self.shape)
        if self._num is not None:
            return [Category(each, int(num)) for each, num in zip(names, self._num, strict=True)]
        return [Flag(each) for each in names] if self._is_flag else list(names)

    @property
    def firsts(self) -> NDArray[Any]:
        """(size,) the smallest value of each number of a category, which is 0 as a feature; 0 for other numbers."""
        size = self.columns.stop - self.columns.start
        return np.zeros(size, np.int64) if self._first is None else self._first

    def write(self, value: Any, row: Row, varying: Varying) -> None:
        array = as_numbers(value, self.path)
        if array.shape != self.shape:
            raise ValueError(f"{_named(self.path)} has shape {array.shape}; expected {self.shape}")
        if array.ndim > 1:
            array = array.reshape(-1)
        row[self.columns] = array if self._is_plain(array) else self._converted(array.reshape(-1))

    def rows(self, values: Any) -> NDArray[np.float32]:
        """Return (n, size) features of n stacked values."""
        array = as_numbers(values, self.path)
        if not array.ndim:
            raise ValueError(f"{_named(self.path)} is {values!r:.200}, one alone; expected a sequence of such")
        if len(array) and array.shape[1:] != self.shape:
            raise ValueError(f"{_named(self.path)} has shape {array.shape}; expected {(len(array), *self.shape)}")
        array = array.reshape(len(array), self.columns.stop - self.columns.start)
        return np.asarray(array if self._is_plain(array) else self._converted(array), np.float32)

    def unstacked(self, values: Any) -> list[Any]:
        """Return n values from n stacked ones."""
        return list(self.rows(values) if np.ndim(values) == 0 else values)

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
                    f"{self._first[k] + self._num[k] - 1}"  # type: ignore[index]
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

    def write(self, value: Any, row: Row, varying: Varying) -> None:
        self._check(value)
        for key, node in self.members:
            node.write(value[key], row, varying)

    def unstacked(self, values: Any) -> list[Any]:
        """Return n values from one with a leading dimension of n in every leaf."""
        self._check(values)
        parts = [node.unstacked(values[key]) for key, node in self.members]
        if len({len(part) for part in parts}) > 1:
            raise ValueError(
                f"{_named(self.path)} has parts of {[len(part) for part in parts]} values; expected equally many"
            )
        each = zip(*parts, strict=True)
        return list(each) if self.is_tuple else [dict(zip(self._keys, values, strict=True)) for values in each]

    def _check(self, value: Any) -> None:
        if self.is_tuple:
            if not isinstance(value, tuple | list) or len(value) != len(self.members):
                raise ValueError(f"{_named(self.path)} is {value!r:.200}; expected a tuple of {len(self.members)}")
        elif not isinstance(value, Mapping):
            raise ValueError(f"{_named(self.path)} is {value!r:.200}; expected a dictionary with the keys {self._keys}")
        elif len(value) != len(self.members) or any(key not in value for key in self._keys):
            raise ValueError(f"{_named(self.path)} has the keys {list(value)}; expected {self._keys}")


class FixedFeatures:
    """Writes values of a space of fixed leaves in Dicts and Tuples into rows.

    The features are called by the paths of their leaves: "position.0", "arm.angle", or "0" of a Box.

    Args:
        space: of the values.
        path: of the space, for messages.
        most: largest number of numbers of a leaf.
        varies: the outermost Dicts and Tuples may hold Sequences and Graphs, which are written into arrays of their own.

    Attributes:
        features: R of them.
        leaves: path -> the leaf, in the order of their columns.
        node: its `write(value, row, varying)` writes a value into `row` (R,), and what varies into `varying`.
        parts: in the order of the space, path of a Dict or Tuple -> the leaves in it; name of a Sequence, of the nodes or of the
            edges of a Graph -> the features of each element. The edges of `net` are `net.edge`, and have their own features,
            followed by those of their ends, "from.x" and "to.x".

    Raises:
        ValueError: for a space that is not fixed, naming it and what to do.
    """

    def __init__(self, space: Any, path: str = "", most: int = MOST_NUMBERS, *, varies: bool = False) -> None:
        self.path, self._most, self._varies = path, most, varies
        self.leaves: dict[str, Leaf] = {}
        self.parts: dict[str, list[Leaf] | tuple[Feature, ...]] = {path: []}
        self._features: list[Feature] = []
        self._keys = [str(key) for key, _ in members_of(space)] if kind_of(space) == "Dict" else []
        self.node = self._node_of(space, path, "", path)
        self.features = tuple(self._features)

    def write(self, value: Any, row: Row, varying: Varying | None = None) -> None:
        """Write a value of the space into `row` (R,), and what varies into `varying`.

        Raises:
            ValueError: for a value outside the space, naming where; values out of bounds are not noticed.
        """
        self.node.write(value, row, {} if varying is None else varying)

    def rows(self, values: Any) -> NDArray[np.float32]:
        """Return (n, R) from a sequence of n values, or from one value with a leading dimension in every leaf.

        Raises:
            ValueError: as `write`, and for anything that is no sequence.
        """
        if not isinstance(values, Sequence | Mapping | np.ndarray) or isinstance(values, str):
            raise ValueError(f"{_named(self.path)} is {values!r:.200}; expected a sequence of values")
        if isinstance(self.node, Leaf):
            return self.node.rows(values)
        # A tuple holds stacks or is a sequence of tuples.
        is_stack = isinstance(values, np.ndarray | Mapping) or (
            self.node.is_tuple and len(values) > 0 and all(isinstance(each, np.ndarray | Mapping) for each in values)
        )
        each_value = self.node.unstacked(values) if is_stack else values
        rows = np.zeros((len(each_value), len(self.features)), np.float32)
        for row, value in zip(rows, each_value, strict=True):
            self.node.write(value, row, {})
        return rows

    def _node_of(self, space: Any, path: str, name: str, group: str) -> Any:
        """Return what writes `space`, the member `name` of the Dict or Tuple at the path `group`."""
        kind = kind_of(space)
        if kind in FIXED:
            hint = ", or say in a view what of it is an entity" if self._varies else ""
            key = path[len(group) :].removeprefix(".")
            leaf = self.leaves[path] = Leaf(space, path, key, len(self._features), self._most, hint)
            self._features += leaf.features(name)
            self.parts[group].append(leaf)  # type: ignore[union-attr]
            return leaf
        if kind in GROUPS:
            if path != self.path:
                self._add(path, [])
            members = {
                key: self._node_of(each, join(path, str(key)), join(name, str(key)), path)
                for key, each in members_of(space)
            }
            return _Group(members, path, kind == "Tuple")
        if self._varies and kind == "Sequence":
            items = FixedFeatures(space.feature_space, path)
            return _Elements(self._add(path or "Item", items.features), items)
        if self._varies and kind == "Graph":
            items = FixedFeatures(space.node_space, path)
            nodes = _Elements(self._add(path or "Node", items.features), items)
            if space.edge_space is None:
                return _Graph(nodes, None)
            edges = FixedFeatures(space.edge_space, join(path, "edge"))
            ends = tuple(_renamed(feature, end) for end in ("from", "to") for feature in items.features)
            return _Graph(nodes, _Elements(self._add(f"{nodes.entity}.edge", edges.features + ends), edges))
        if not self._varies:
            raise ValueError(
                f"{_space_at(path)} is a {kind}, inside of something that has a row of features for each entity: only "
                f"{', '.join((*FIXED, *GROUPS))} can be there; leave it out in a wrapper, or move it to the outside"
            )
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

    def _add(self, name: str, part: list[Leaf] | tuple[Feature, ...]) -> str:
        if self._varies and name in (*self.parts, AGENT):
            raise ValueError(
                f"the observation space has two things that would be the entity type {name!r}: rename a key in a wrapper"
            )
        self.parts[name] = part
        return name


@dataclass(frozen=True)
class _Elements:
    """Writes a Sequence as entities."""

    entity: str
    items: FixedFeatures

    def write(self, value: Any, row: Row, varying: Varying) -> None:
        varying[self.entity] = self.items.rows(value)


@dataclass(frozen=True)
class _Graph:
    """Writes nodes, and edges if the space has any."""

    nodes: _Elements
    edges: _Elements | None

    def write(self, value: Any, row: Row, varying: Varying) -> None:
        where = _named(self.nodes.items.path)
        if not all(hasattr(value, part) for part in ("nodes", "edges", "edge_links")):
            raise ValueError(f"{where} is {value!r:.200}; expected a GraphInstance")
        if value.nodes is None:
            raise ValueError(f"{where} has the nodes None; where there are none, show an empty array")
        nodes = varying[self.nodes.entity] = self.nodes.items.rows(value.nodes)
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
        varying[self.edges.entity] = np.concatenate([edges, nodes[links[:, 0]], nodes[links[:, 1]]], axis=1)


def _renamed(feature: Feature, end: str) -> Feature:
    if isinstance(feature, Category):
        return Category(f"{end}.{feature.name}", feature.num)
    return f"{end}.{feature}" if isinstance(feature, str) else Flag(f"{end}.{feature.name}")
