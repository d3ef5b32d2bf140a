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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from entity_gym.spaces import Category, Feature, Flag

#: A `Box` of more numbers than this is an image, which the network cannot read.
MOST_NUMBERS = 4096
#: The entity that has the features of the outermost space, and takes all actions.
AGENT = "Agent"

FIXED = ("Box", "Discrete", "MultiDiscrete", "MultiBinary")
GROUPS = ("Dict", "Tuple")
_KINDS = (*FIXED, *GROUPS, "Sequence", "Graph", "Text", "OneOf")

#: (R,) the numbers of one value.
Row = NDArray[np.float32]
#: Entity type of a Sequence -> (n, F) features.
Varying = dict[str, NDArray[np.float32]]


# ---- spaces


@dataclass(frozen=True)
class PlainSpace:
    """A space of no library, such as one that is converted from a spec.

    Attributes:
        kind: the class of Gymnasium's that it stands for: "Box", "Discrete", "Dict" or "Tuple".
        shape, dtype, low, high: of a Box.
        n: of a Discrete, the number of values.
        spaces: of a Dict (a mapping) or a Tuple.
    """

    kind: str
    shape: tuple[int, ...] = ()
    dtype: Any = np.float32
    low: Any = -np.inf
    high: Any = np.inf
    n: int = 0
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


def members_of(space: Any) -> dict[Any, Any]:
    """Return key -> space of the members of a Dict or Tuple; keys of a Tuple are positions. Other spaces have none."""
    held = space.spaces if kind_of(space) in GROUPS else ()
    return dict(held.items() if isinstance(held, Mapping) else enumerate(held))


def join(*parts: str) -> str:
    """Join names along a path: "robot.arm.0"."""
    return ".".join(part for part in parts if part)


def numbered(name: str, shape: Sequence[int], alone: str = "value") -> list[str]:
    """Return names of the numbers in an array of this shape: "x.0", "x.1", ..., or `name` itself for one number."""
    if not shape:
        return [name or alone]
    return [join(name, *map(str, index)) for index in np.ndindex(*shape)]


# ---- rows


class Leaf:
    """A fixed space, whose values are written to some columns of a row.

    Attributes:
        path: of the space.
        key: the last part of the path, which names the leaf inside of its Dict or Tuple.
        shape: of a value.
        columns: of the row.
        firsts: (size,) the smallest value of each number of a category, which is 0 as a feature; 0 for other numbers.
    """

    def __init__(self, space: Any, path: str, key: str, start: int) -> None:
        self.path, self.key, self.shape = path, key, shape_of(space)
        self._where = path or "the observation"
        size = int(np.prod(self.shape, dtype=np.int64))
        self.columns = slice(start, start + size)
        self._is_flag = kind_of(space) == "MultiBinary"
        self._nums: list[int] = []  # numbers of categories
        if kind_of(space) in ("Discrete", "MultiDiscrete"):
            self._nums = np.reshape(space.n if kind_of(space) == "Discrete" else space.nvec, -1).tolist()
        first = getattr(space, "start", 0) if self._nums else 0
        self.firsts: NDArray[Any] = np.broadcast_to(first, self.shape).reshape(-1)
        self._is_shifted = bool(self.firsts.any())

    def features(self, name: str) -> list[Feature]:
        """Return the features of a leaf of this name."""
        names = numbered(name, self.shape)
        if self._nums:
            return [Category(each, num) for each, num in zip(names, self._nums, strict=True)]
        return [Flag(each) for each in names] if self._is_flag else list(names)

    def write(self, value: Any, row: Row, varying: Varying | None = None) -> None:
        array = self._numbers(value)
        if array.shape != self.shape:
            raise ValueError(f"{self._where} has shape {array.shape}; expected {self.shape}")
        if array.ndim > 1:
            array = array.reshape(-1)
        row[self.columns] = array - self.firsts if self._is_shifted else array

    def rows(self, values: Any) -> NDArray[np.float32]:
        """Return (n, size) features of n values."""
        array, n = self._numbers(values), len(values)
        if n and array.shape[1:] != self.shape:
            raise ValueError(f"{self._where} has shape {array.shape}; expected {(n, *self.shape)}")
        array = array.reshape(n, len(self.firsts))
        return np.asarray(array - self.firsts if self._is_shifted else array, np.float32)

    def _numbers(self, value: Any) -> NDArray[Any]:
        try:
            array = value if isinstance(value, np.ndarray) else np.asarray(value)
        except (TypeError, ValueError):  # lists of different lengths
            array = np.array(None)
        if array.dtype.kind not in "biuf":
            raise ValueError(f"{self._where} is {value!r:.200}; it must be numbers")
        return array


@dataclass(frozen=True)
class _Group:
    """Writes the members of a Dict or a Tuple."""

    members: Mapping[Any, Any]
    path: str
    is_tuple: bool

    def write(self, value: Any, row: Row, varying: Varying | None = None) -> None:
        if self.is_tuple:
            fits = isinstance(value, tuple | list) and len(value) == len(self.members)
        else:
            fits = isinstance(value, Mapping) and value.keys() == self.members.keys()
        if not fits:
            raise ValueError(
                f"{self.path or 'the observation'} is {value!r:.200}; expected "
                + (f"a tuple of {len(self.members)}" if self.is_tuple else f"the keys {list(self.members)}")
            )
        for key, node in self.members.items():
            node.write(value[key], row, varying)


@dataclass(frozen=True)
class _Elements:
    """Writes the elements of a Sequence as entities of a type."""

    entity: str
    items: FixedFeatures

    def write(self, value: Any, row: Row, varying: Varying | None = None) -> None:
        assert varying is not None
        varying[self.entity] = self.items.rows(value)


class FixedFeatures:
    """Writes values of a space of fixed leaves in Dicts and Tuples into rows.

    The features are called by the paths of their leaves: "position.0", "arm.angle", or "0" of a Box.

    Args:
        space: of the values.
        path: of the space, for messages.
        most: largest number of numbers of a leaf.
        varies: the outermost Dicts and Tuples may hold Sequences, which are written into arrays of their own.

    Attributes:
        features: R of them.
        write: writes a value of the space into `row` (R,), and what varies into `varying`. Raises ValueError for a value outside
            the space, naming where; values out of bounds are not noticed.
        leaves: path -> the leaf, in the order of their columns.
        parts: in the order of the space, path of a Dict or Tuple -> the leaves in it; name of a Sequence -> the features of each
            element.

    Raises:
        ValueError: for a space that is not fixed, naming it and what to do.
    """

    def __init__(self, space: Any, path: str = "", most: int = MOST_NUMBERS, *, varies: bool = False) -> None:
        self._path, self._most, self._varies = path, most, varies
        self.leaves: dict[str, Leaf] = {}
        self.parts: dict[str, list[Leaf] | tuple[Feature, ...]] = {path: []}
        self._features: list[Feature] = []
        self._node = self._node_of(space, path, path)
        self.write: Callable[..., None] = self._node.write
        self.features = tuple(self._features)

    def rows(self, values: Any) -> NDArray[np.float32]:
        """Return (n, R) from a sequence of n values; raises ValueError as `write`, and for anything that is no sequence."""
        if not isinstance(values, list | tuple | np.ndarray) or getattr(values, "shape", None) == ():
            raise ValueError(f"{self._path or 'the observation'} is {values!r:.200}; expected a sequence of values")
        if isinstance(self._node, Leaf):
            return self._node.rows(values)
        rows = np.zeros((len(values), len(self.features)), np.float32)
        for row, value in zip(rows, values, strict=True):
            self.write(value, row)
        return rows

    def _node_of(self, space: Any, path: str, group: str) -> Any:
        """Return the node that writes `space`, which is in the Dict or Tuple at the path `group`."""
        kind = kind_of(space)
        if kind in FIXED:
            size = int(np.prod(shape_of(space), dtype=np.int64))
            if size > self._most:
                raise self._refusal(path, f"{size:,} numbers; at most {self._most:,} can be features")
            leaf = Leaf(space, path, path[len(group) :].removeprefix("."), len(self._features))
            self.leaves[path] = leaf
            self._features += leaf.features(path[len(self._path) :].removeprefix("."))
            self.parts[group].append(leaf)  # type: ignore[union-attr]
            return leaf
        if kind in GROUPS:
            if path != self._path:
                self._add(path, [])
            members = members_of(space)
            nodes = {key: self._node_of(each, join(path, str(key)), path) for key, each in members.items()}
            return _Group(nodes, path, kind == "Tuple")
        if self._varies and kind == "Sequence":
            items, entity = FixedFeatures(space.feature_space, path), path or "Item"
            self._add(entity, items.features)
            return _Elements(entity, items)
        where = "no form as entities" if self._varies else "no form as features of one entity"
        raise self._refusal(path, f"a {kind}, which has {where}")

    def _refusal(self, path: str, reason: str) -> ValueError:
        return ValueError(
            f"the observation space{f' at {path!r}' if path else ''} is {reason}: leave it out, or make it fewer numbers, in a "
            "wrapper such as gymnasium.wrappers:FilterObservation"
        )

    def _add(self, name: str, part: list[Leaf] | tuple[Feature, ...]) -> None:
        if self._varies and name in (*self.parts, AGENT):
            raise ValueError(
                f"the observation space has two things that would be the entity type {name!r}: rename a key in a wrapper"
            )
        self.parts[name] = part
