"""Rows of features from Gymnasium's spaces: what `gym_spaces` makes entities of, and others may use alone.

Fixed leaves of a space (`Box`, `Discrete`, `MultiDiscrete`, `MultiBinary`) are features: plain numbers, `Category`, and `Flag`.

Spaces are told apart by the names of their classes: those of Gymnasium, of the older gym, and `PlainSpace` are all the same here,
and neither package is imported.

Shapes: F features, n entities.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from entity_gym.spaces import MOST_CATEGORIES, Category, Feature, Flag

#: More numbers than this in one `Box` are no features but an image, which this network cannot read.
MOST_NUMBERS = 4096

FIXED = ("Box", "Discrete", "MultiDiscrete", "MultiBinary")
GROUPS = ("Dict", "Tuple")
_KINDS = (*FIXED, *GROUPS, "Sequence", "Graph", "Text", "OneOf")

Rows = NDArray[np.float32]  # (n, F)


@dataclass(frozen=True)
class PlainSpace:
    """A space that no library made: one that was inferred from an observation, or comes from elsewhere.

    Attributes:
        kind: the class of Gymnasium's that it stands for: "Box", "Discrete", "Dict" or "Tuple".
        shape: of a Box.
        dtype: of a Box.
        low, high: of a Box, arrays of its shape.
        n, start: of a Discrete, how many values and the first one.
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
    """The name of the class of Gymnasium's that a space is of, such as "Box"; of others the name of their own."""
    if isinstance(space, PlainSpace):
        return space.kind
    names = [cls.__name__ for cls in type(space).__mro__]
    return next((name for name in names if name in _KINDS), names[0])


def infer_space(observation: Any) -> PlainSpace:
    """The space that one observation is the only known point of: numbers, arrays, and dictionaries and tuples of these.

    Raises:
        ValueError: for anything else, naming it.
    """
    return _infer(observation, "")


def _infer(value: Any, path: str) -> PlainSpace:
    if isinstance(value, Mapping):
        return PlainSpace("Dict", spaces={key: _infer(item, join(path, str(key))) for key, item in value.items()})
    if isinstance(value, tuple) and any(isinstance(item, Mapping | tuple | np.ndarray) for item in value):
        return PlainSpace("Tuple", spaces=tuple(_infer(item, join(path, str(k))) for k, item in enumerate(value)))
    array = as_numbers(value, path)
    return PlainSpace("Box", shape=array.shape, dtype=array.dtype)


def join(*parts: str) -> str:
    """Names along a path, as one: "robot.arm.0"."""
    return ".".join(part for part in parts if part)


def numbered(name: str, shape: Sequence[int], alone: str = "value") -> list[str]:
    """Names of the numbers in an array of this shape: "x.0", "x.1", ..., or `name` itself where it is one number."""
    if not shape:
        return [name or alone]
    return [join(name, *map(str, index)) for index in np.ndindex(*shape)]


def named(path: str) -> str:
    """How messages call the value at `path`."""
    return path or "the observation"


def as_numbers(value: Any, path: str) -> NDArray[Any]:
    """A value of an observation as an array of numbers or bools, of any shape.

    Raises:
        ValueError: if it is something else.
    """
    if isinstance(value, np.ndarray):
        array = value
    elif value is None:
        raise ValueError(f"{named(path)} is None; where there is nothing to show, show zeros, or an empty Sequence")
    else:
        try:
            array = np.asarray(value)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{named(path)} is {value!r:.200}; it must be numbers: {error}") from None
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{named(path)} is {value!r:.200}; it must be numbers")
    return array


class Node(Protocol):
    """Writes a value of some space to where its features are."""

    def write(self, value: Any, to: Any) -> None:
        """Raises a ValueError for a value outside the space, as far as its shape goes."""


class Leaf:
    """Fixed numbers: columns `start` ... `stop` - 1 of a row.

    Args:
        space: one of `FIXED`.
        path: of the space in the observation, for messages.
        name: of the feature, or the beginning of the names of several.
        start: the first column.
        rows: whether rows of the space might have been entities; for the message where it is too large.

    Attributes:
        features: one for each column.
    """

    def __init__(self, space: Any, path: str, name: str, start: int, rows: bool = False) -> None:
        self.path = path
        self.shape: tuple[int, ...] = shape_of(space)
        size = int(np.prod(self.shape, dtype=np.int64))
        if size > MOST_NUMBERS:
            or_rows = ", or name it in rows=(...) if each of its rows is a thing of its own" if rows else ""
            raise ValueError(
                f"{space_at(path)} is {size:,} numbers {self.shape}; at most {MOST_NUMBERS:,} can be features: make fewer of "
                f"them in a wrapper{or_rows}"
            )
        self.features = tuple(_features(space, path, numbered(name, self.shape)))
        self.start, self.stop = start, start + size
        firsts = np.broadcast_to(np.asarray(getattr(space, "start", 0)), self.shape) if _counts(space) else np.zeros(1)
        self._first: NDArray[Any] | None = firsts.reshape(-1) if firsts.any() else None
        self._num: NDArray[Any] = _counts_of(space) if self._first is not None else firsts

    def write(self, value: Any, to: NDArray[np.float32]) -> None:
        """Write one value into the row `to` (F,)."""
        array = as_numbers(value, self.path)
        if array.shape != self.shape:
            raise ValueError(f"{named(self.path)} has shape {array.shape}; expected {self.shape}")
        if array.ndim > 1:
            array = array.reshape(-1)
        to[self.start : self.stop] = array if self._is_plain(array) else self._converted(array.reshape(-1))

    def write_stack(self, values: Any, to: Rows) -> None:
        """Write n values, stacked (n, ...), into the rows `to` (n, F)."""
        array = as_numbers(values, self.path)
        if not len(to) and array.shape[:1] == (0,):  # an empty list does not know what it has none of
            return
        if array.shape != (len(to), *self.shape):
            raise ValueError(f"{named(self.path)} has shape {array.shape}; expected {(len(to), *self.shape)}")
        flat = array.reshape(len(to), -1)
        to[:, self.start : self.stop] = flat if self._is_plain(flat) else self._converted(flat)

    def length(self, values: Any) -> int:
        """How many values are stacked in `values`."""
        array = as_numbers(values, self.path)
        if not array.ndim:
            raise ValueError(f"{named(self.path)} is {values!r:.200}, one alone; expected a sequence of such")
        return len(array)

    def _is_plain(self, array: NDArray[Any]) -> bool:
        return self._first is None and array.dtype.char != "d"  # float64 may be more than float32 holds

    def _converted(self, values: NDArray[Any]) -> NDArray[Any]:
        """What values (..., F) are as features."""
        if self._first is not None:
            counted: NDArray[Any] = values - self._first
            wrong = (counted < 0) | (counted >= self._num) | (counted % 1 != 0)
            if wrong.any():
                k = int(np.argwhere(wrong)[0][-1])
                raise ValueError(
                    f"{named(self.path)} is {values[wrong][0]}; expected a whole number from {self._first[k]} to "
                    f"{self._first[k] + self._num[k] - 1}"
                )
            return counted
        with np.errstate(over="ignore"):
            narrow = values.astype(np.float32)
        too_large = np.isinf(narrow) & np.isfinite(values)
        if too_large.any():
            raise ValueError(
                f"{named(self.path)} is {values[too_large][0]}, more than float32 can hold, as which features travel"
            )
        return narrow


class Group:
    """A Dict or a Tuple, whose members write to the same place.

    Args:
        members: key -> node; in a Tuple keys are positions.
        path: for messages.
        is_tuple: which of the two it is.
    """

    def __init__(self, members: Mapping[Any, Node], path: str, is_tuple: bool) -> None:
        self.members = list(members.items())
        self.path = path
        self.is_tuple = is_tuple
        self._keys = list(members)

    def write(self, value: Any, to: Any) -> None:
        self.check(value)
        for key, node in self.members:
            node.write(value[key], to)

    def write_stack(self, values: Any, to: Rows) -> None:
        self.check(values)
        for key, node in self.members:
            node.write_stack(values[key], to)  # type: ignore[attr-defined]  # in a stack there are only leaves and groups

    def length(self, values: Any) -> int:
        """How many values are stacked in `values`; members that have fewer are refused when they are written."""
        self.check(values)
        return max((node.length(values[key]) for key, node in self.members), default=0)  # type: ignore[attr-defined]

    def check(self, value: Any) -> None:
        """Raise a ValueError unless `value` has the members that it must have."""
        if self.is_tuple:
            if not isinstance(value, tuple | list) or len(value) != len(self.members):
                raise ValueError(f"{named(self.path)} is {value!r:.200}; expected a tuple of {len(self.members)}")
        elif not isinstance(value, Mapping):
            raise ValueError(f"{named(self.path)} is {value!r:.200}; expected a dictionary with the keys {self._keys}")
        elif len(value) != len(self.members) or any(key not in value for key in self._keys):
            raise ValueError(f"{named(self.path)} has the keys {list(value)}; expected {self._keys}")


def members_of(space: Any) -> Iterator[tuple[Any, Any]]:
    """(key, space) of what a Dict or a Tuple holds; keys of a Tuple are positions."""
    held = space.spaces
    return iter(held.items() if isinstance(held, Mapping) else enumerate(held))


class FixedFeatures:
    """One row of features from a space of fixed leaves, however nested: "position.0", "arm.angle", or "0" of an outermost Box.

    Args:
        space: of leaves, Dicts and Tuples.
        path: of the space, for messages.

    Attributes:
        features: F of them.

    Raises:
        ValueError: for a space that is not fixed, naming it.
    """

    def __init__(self, space: Any, path: str = "") -> None:
        self.path = path
        self._features: list[Feature] = []
        self._node = self._node_of(space, path, "")
        self.features = tuple(self._features)

    def __len__(self) -> int:
        return len(self.features)

    def write(self, value: Any, row: NDArray[np.float32]) -> None:
        """Write a value of the space into `row` (F,).

        Raises:
            ValueError: for one that is not in the space, naming where; values outside bounds are not noticed.
        """
        self._node.write(value, row)

    def rows(self, values: Any) -> Rows:
        """(n, F) from n values: a sequence of them, or one value with a leading dimension everywhere.

        Raises:
            ValueError: as `write`, and for what is no sequence.
        """
        if not isinstance(values, Sequence | Mapping | np.ndarray) or isinstance(values, str):
            raise ValueError(f"{named(self.path)} is {values!r:.200}; expected a sequence of values")
        if isinstance(self._node, Leaf):
            values = _stacked(values)
        stacked = isinstance(values, np.ndarray | Mapping) or self._is_stacked_tuple(values)
        rows = np.zeros((self._node.length(values) if stacked else len(values), len(self.features)), np.float32)
        if stacked:
            self._node.write_stack(values, rows)
            return rows
        for row, value in zip(rows, values, strict=True):
            self._node.write(value, row)
        return rows

    def _is_stacked_tuple(self, values: Any) -> bool:
        """Whether a tuple is one of stacks, rather than of values: only where values are tuples, and its members no such."""
        node = self._node
        is_tuple = isinstance(node, Group) and node.is_tuple
        return is_tuple and len(values) > 0 and all(isinstance(each, np.ndarray | Mapping) for each in values)

    def _node_of(self, space: Any, path: str, name: str) -> Leaf | Group:
        kind = kind_of(space)
        if kind in FIXED:
            leaf = Leaf(space, path, name, len(self._features))
            self._features += leaf.features
            return leaf
        if kind in GROUPS:
            inner: dict[Any, Node] = {
                key: self._node_of(each, join(path, str(key)), join(name, str(key))) for key, each in members_of(space)
            }
            return Group(inner, path, kind == "Tuple")
        raise ValueError(
            f"{space_at(path)} is a {kind}, inside of something that has a row of features for each entity: only "
            f"{', '.join((*FIXED, *GROUPS))} can be there; leave it out in a wrapper, or move it to the outside"
        )


def space_at(path: str) -> str:
    """How messages call a space."""
    return f"the observation space at {path!r}" if path else "the observation space"


def shape_of(space: Any) -> tuple[int, ...]:
    """The shape of a value of a fixed space."""
    kind = kind_of(space)
    if kind == "Discrete":
        return ()
    shape = getattr(space, "shape", None)
    if shape is None:  # of an old MultiBinary
        shape = np.shape(space.nvec) if kind == "MultiDiscrete" else np.atleast_1d(space.n)
    return tuple(int(size) for size in shape)


def _counts(space: Any) -> bool:
    """Whether its values are whole numbers that count from some start."""
    return kind_of(space) in ("Discrete", "MultiDiscrete")


def _counts_of(space: Any) -> NDArray[Any]:
    """How many values each number of a Discrete or MultiDiscrete has."""
    return np.atleast_1d(space.n if kind_of(space) == "Discrete" else space.nvec).reshape(-1)


def _features(space: Any, path: str, names: Sequence[str]) -> list[Feature]:
    kind = kind_of(space)
    if kind == "Box":
        return list(names)
    if kind == "MultiBinary":
        return [Flag(name) for name in names]
    counts = _counts_of(space).tolist()
    if max(counts, default=0) > MOST_CATEGORIES:
        raise ValueError(
            f"{space_at(path)} has {max(counts):,} values; at most {MOST_CATEGORIES:,} can be told apart: make it a Box, or "
            "several smaller spaces, in a wrapper"
        )
    return [Category(name, int(count)) for name, count in zip(names, counts, strict=True)]


def _stacked(values: Any) -> Any:
    """A sequence of arrays of one shape as one array; anything else as it is."""
    if isinstance(values, np.ndarray | Mapping) or not len(values):
        return values
    try:
        return np.asarray(values)
    except (TypeError, ValueError):
        return values
