"""Ragged buffers: sequences whose lengths differ, kept flat in NumPy.

Shapes: S sequences, I items (rows of all sequences together), F features.

    values   (I, ...)   any dtype, C-contiguous
    offsets  (S + 1,)   int64, sequence i is values[offsets[i]:offsets[i + 1]]

Both are ordinary arrays, so `torch.from_numpy(buffer.values)` shares their memory. Indexing copies: writing to the
result never changes the buffer that was indexed. Only `values`, `offsets` and iteration hand out the buffer's own memory.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, Generic, NoReturn, Self, SupportsIndex, TypeAlias, TypeVar, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "RaggedBuffer",
    "RaggedBufferBool",
    "RaggedBufferF32",
    "RaggedBufferI64",
    "as_lengths",
    "offsets_of",
    "rows_of",
]

Scalar = TypeVar("Scalar", bound=np.generic)
Index: TypeAlias = SupportsIndex | slice | Sequence[int] | Sequence[bool] | NDArray[np.integer[Any]] | NDArray[np.bool_]

_INT64 = np.dtype(np.int64)
_MAX_INT64 = np.iinfo(np.int64).max
_MAX_VALUES_IN_REPR = 60


class RaggedBuffer(Generic[Scalar]):
    """S sequences of any lengths, whose items all have the same shape and dtype.

    `RaggedBufferF32`, `RaggedBufferI64` and `RaggedBufferBool` hold items of F features; this class holds all others, and
    its `from_*` constructors return one of the three where it fits. `len()` and iteration are over sequences. `==` compares
    whole buffers, whatever their class; buffers are mutable and not hashable.

    Attributes:
        values: (I, ...) all items. Writing to the array changes the buffer.
        offsets: (S + 1,) start of each sequence and end of the last one. Do not write to it.
    """

    __slots__ = ("offsets", "values")
    _dtype: ClassVar[np.dtype[Any] | None] = None  # dtype of `values`; None allows any dtype and shape
    _castable: ClassVar[str]  # dtype kinds that convert into `_dtype` without loss (float64 to float32 counts as such)

    values: NDArray[Scalar]
    offsets: NDArray[np.int64]

    # ---- constructors

    def __init__(self, values: NDArray[Any], offsets: NDArray[np.int64]) -> None:
        """Wrap two arrays in O(1): nothing is copied, converted or searched.

        Args:
            values: (I, ...) C-contiguous; (I, F) of the class's dtype in the typed classes.
            offsets: (S + 1,) int64, from 0 to I. The caller promises that they never decrease.

        Raises:
            ValueError: a dtype, a shape, the memory order or the first or last offset is wrong.
        """
        if self._dtype is not None and (values.dtype != self._dtype or values.ndim != 2):
            raise ValueError(
                f"values are {_describe(values)}: a {type(self).__name__} needs {self._dtype} of shape (items, features);"
                " from_flattened converts"
            )
        if values.ndim == 0 or not values.flags.c_contiguous:
            raise ValueError(f"values are not contiguous {_describe(values)}: they must be C-contiguous, (items, ...)")
        if offsets.dtype != _INT64 or offsets.ndim != 1 or len(offsets) == 0:
            raise ValueError(f"offsets are {_describe(offsets)}: they must be int64 of shape (sequences + 1,)")
        if offsets[0] != 0 or offsets[-1] != len(values):
            raise ValueError(
                f"offsets go from {offsets[0]} to {offsets[-1]}: they must go from 0 to {len(values)} items"
            )
        self.values, self.offsets = values, offsets

    @classmethod
    def unchecked(cls, values: NDArray[Any], offsets: NDArray[np.int64]) -> Self:
        """Wrap two arrays without looking at them, for hot paths that have just made them. See `__init__` for the rules."""
        buffer = cls.__new__(cls)
        buffer.values, buffer.offsets = values, offsets
        return buffer

    @classmethod
    def from_offsets(cls, values: NDArray[Any], offsets: NDArray[np.int64]) -> Self:
        """Wrap two arrays as `__init__` does; `RaggedBuffer.from_offsets` returns the typed class that fits, if one does."""
        return cls._fitting(values)(values, offsets)

    @classmethod
    def from_flattened(cls, flattened: ArrayLike, lengths: ArrayLike) -> Self:
        """Copy and convert sequences that lie one after another in `flattened`.

        Args:
            flattened: (I, F) items, in plain `RaggedBuffer`s (I, ...). float64 and integers become float32 in an F32 buffer.
            lengths: (S,) integers >= 0 that add up to I.

        Raises:
            ValueError: the lengths do not add up, a shape is wrong, or a value would not survive the conversion.
        """
        array = _as_array(flattened, "the flattened values")
        if array.ndim == 0 or (cls._dtype is not None and array.ndim != 2):
            raise ValueError(f"flattened values are {_describe(array)}: they must have the shape (items, features)")
        offsets = offsets_of(as_lengths(lengths))
        if offsets[-1] != len(array):
            raise ValueError(f"the lengths add up to {offsets[-1]}, but there are {len(array)} items")
        return cls._converted(array, offsets)

    @classmethod
    def from_array(cls, array: ArrayLike) -> Self:
        """Copy and convert S sequences of equal length from a (S, length, F) array.

        Raises:
            ValueError: the shape is wrong, or a value would not survive the conversion.
        """
        array = _as_array(array, "the array")
        if array.ndim < 2 or (cls._dtype is not None and array.ndim != 3):
            raise ValueError(f"the array is {_describe(array)}: it must have the shape (sequences, length, features)")
        sequences, length, *shape = array.shape
        offsets = np.arange(sequences + 1, dtype=np.int64) * length
        return cls._converted(array.reshape(sequences * length, *shape), offsets)

    @classmethod
    def cat(cls, buffers: "Iterable[RaggedBuffer[Scalar]]") -> Self:
        """Join the sequences of all buffers, one buffer after another, in a copy.

        Raises:
            TypeError: something else than a buffer of this class was given, or the dtypes differ.
            ValueError: there are no buffers, or their items have different shapes.
        """
        parts = list(buffers)
        if not parts:
            raise ValueError("cat was given no buffers; it needs at least one")
        for part in parts:
            if not isinstance(part, cls):
                raise TypeError(
                    f"a {type(part).__name__} was given to {cls.__name__}.cat: it joins {cls.__name__}s only"
                )
            if part.dtype != parts[0].dtype:
                raise TypeError(f"buffers of {parts[0].dtype} and {part.dtype} cannot be joined: dtypes must be equal")
            if part.values.shape[1:] != parts[0].values.shape[1:]:
                first, other = parts[0].values.shape[1:], part.values.shape[1:]
                raise ValueError(
                    f"buffers with items of shape {first} and {other} cannot be joined: shapes must be equal"
                )
        values = np.concatenate([part.values for part in parts])
        return cls._fitting(values).unchecked(values, offsets_of(np.concatenate([part.size1() for part in parts])))

    @classmethod
    def _fitting(cls, values: NDArray[Any]) -> type[Self]:
        """Return this class, or for `RaggedBuffer` itself the typed class of exactly these values."""
        typed: Any = _TYPED.get(values.dtype.str) if cls is RaggedBuffer and values.ndim == 2 else None
        return typed or cls

    @classmethod
    def _converted(cls, array: NDArray[Any], offsets: NDArray[np.int64]) -> Self:
        """Copy the array into this class's dtype; `RaggedBuffer` itself takes the typed class for its kind of numbers."""
        typed: Any = _BY_KIND.get(array.dtype.kind) if cls is RaggedBuffer and array.ndim == 2 else None
        target: type[Self] = typed or cls
        dtype = target._dtype or array.dtype
        if target._dtype is not None and array.size:  # an empty list is float64 to NumPy
            too_large = array.dtype == np.uint64 and dtype == _INT64 and array.max() > _MAX_INT64
            if array.dtype.kind not in target._castable or too_large:
                raise ValueError(f"{_describe(array)} does not fit into {target.__name__}, which holds {dtype}")
        try:
            with np.errstate(over="raise"):
                converted = array.astype(dtype, order="C")
        except FloatingPointError:
            raise ValueError(f"{_describe(array)} holds numbers that are too large for {dtype}") from None
        return target.unchecked(converted, offsets)

    # ---- sizes and content

    @property
    def dtype(self) -> np.dtype[Scalar]:
        """The dtype of `values`."""
        return self.values.dtype

    def size0(self) -> int:
        """The number of sequences, as `len()`."""
        return len(self.offsets) - 1

    @overload
    def size1(self) -> NDArray[np.int64]: ...

    @overload
    def size1(self, sequence: SupportsIndex) -> int: ...

    def size1(self, sequence: SupportsIndex | None = None) -> NDArray[np.int64] | int:
        """The (S,) lengths of all sequences, or the length of one.

        Raises:
            IndexError: there is no such sequence.
        """
        if sequence is None:
            return self.offsets[1:] - self.offsets[:-1]  # half the time of np.diff
        (i,) = _resolve(sequence, len(self))
        return int(self.offsets[i + 1] - self.offsets[i])

    def size2(self) -> int:
        """The number of features of every item."""
        return int(self.values.shape[1])

    def items(self) -> int:
        """The number of items in all sequences together."""
        return len(self.values)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __iter__(self) -> Iterator[NDArray[Scalar]]:
        """Yield every sequence as a (length, ...) array that shares the buffer's memory."""
        for start, end in zip(self.offsets[:-1].tolist(), self.offsets[1:].tolist(), strict=True):
            yield self.values[start:end]

    def to_list(self) -> list[list[Any]]:
        """The content as plain numbers: sequences of items."""
        return [sequence.tolist() for sequence in self]

    def clone(self) -> Self:
        """An independent copy."""
        return self.unchecked(self.values.copy(), self.offsets.copy())

    def __getitem__(self, index: Index) -> Self:
        """Copy some sequences: one int, a slice, ints in a list or array, or one bool for each sequence.

        Negative numbers count from the end. An int gives a buffer of one sequence.

        Raises:
            IndexError: there is no such sequence, or the number of bools is not the number of sequences.
            TypeError: the index is something else.
        """
        size = len(self)
        if type(index) is int and -size <= index < size:
            i = index % size  # one sequence is contiguous: no gathering, 5 times as fast
            values = self.values[self.offsets[i] : self.offsets[i + 1]].copy()
            return self.unchecked(values, np.array([0, len(values)], dtype=np.int64))
        chosen = _resolve(index, size)
        starts = self.offsets[chosen]
        lengths = self.offsets[chosen + 1] - starts
        return self.unchecked(self.values[rows_of(starts, lengths)], offsets_of(lengths))

    def __array__(self, *args: object, **kwargs: object) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} is not rectangular: use its .values and .offsets")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).from_offsets, (self.values, self.offsets)

    def __repr__(self) -> str:
        shape = " * ".join(map(str, (self.size0(), "var", *self.values.shape[1:], self.dtype)))
        if self.values.size <= _MAX_VALUES_IN_REPR and self.size0() + self.items() <= _MAX_VALUES_IN_REPR:
            return f"{type(self).__name__}({self.to_list()}, '{shape}')"
        lengths = self.size1()
        return f"{type(self).__name__}({self.items()} items, lengths {lengths.min()} to {lengths.max()}, '{shape}')"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RaggedBuffer):
            return NotImplemented
        return (
            self.dtype == other.dtype
            and np.array_equal(self.offsets, other.offsets)
            and np.array_equal(self.values, other.values)
        )

    __hash__ = None  # type: ignore[assignment]


class RaggedBufferF32(RaggedBuffer[np.float32]):
    """Ragged float32: items of F features."""

    __slots__ = ()
    _dtype = np.dtype(np.float32)
    _castable = "fiub"


class RaggedBufferI64(RaggedBuffer[np.int64]):
    """Ragged int64: items of F features."""

    __slots__ = ()
    _dtype = _INT64
    _castable = "iub"


class RaggedBufferBool(RaggedBuffer[np.bool_]):
    """Ragged bool: items of F features."""

    __slots__ = ()
    _dtype = np.dtype(np.bool_)
    _castable = "b"


_TYPED = {cls._dtype.str: cls for cls in (RaggedBufferF32, RaggedBufferI64, RaggedBufferBool)}
_BY_KIND = {"f": RaggedBufferF32, "i": RaggedBufferI64, "u": RaggedBufferI64, "b": RaggedBufferBool}


# ---- lengths, offsets and rows


def as_lengths(lengths: ArrayLike) -> NDArray[np.int64]:
    """Convert to (S,) int64 lengths.

    Raises:
        ValueError: they are not integers >= 0 in one dimension, or their sum exceeds int64.
    """
    array = _as_array(lengths, "the lengths")
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ValueError(f"lengths are {_describe(array)}: they must be integers of shape (sequences,)")
    if array.size and array.min() < 0:
        sequence = int(array.argmin())
        raise ValueError(f"the length of sequence {sequence} is {array[sequence]}: lengths must be 0 or more")
    if array.sum(dtype=np.float64) >= _MAX_INT64:
        raise ValueError(f"the lengths add up to {array.sum(dtype=np.float64):.3g}: no array holds so many items")
    return array.astype(np.int64, copy=False)


def offsets_of(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """(S + 1,) int64 cumulative lengths: sequence i of these (S,) lengths is `offsets[i]:offsets[i + 1]`."""
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def rows_of(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Concatenate the ranges `start, start + 1, ..., start + length - 1` of all sequences; both arguments are (S,)."""
    offsets = offsets_of(lengths)
    return np.arange(int(offsets[-1]), dtype=np.int64) + np.repeat(starts - offsets[:-1], lengths)


def _resolve(index: Any, size: int) -> NDArray[np.int64]:
    """The numbers, from 0, of the sequences that `index` names among `size`."""
    if isinstance(index, slice):
        return np.arange(*index.indices(size), dtype=np.int64)
    try:
        array = np.asarray(index)
    except ValueError:  # lists of different lengths
        array = np.array(None)
    if array.dtype.kind not in "iu" and not (array.dtype.kind == "b" and array.ndim == 1) and array.shape != (0,):
        raise TypeError(
            f"{index!r} is no index of sequences: ints, slices, and lists or 1-D arrays of ints or bools are"
        )
    if array.ndim > 1:
        raise IndexError(f"the index of sequences has the shape {array.shape}: it must have one dimension")
    if array.dtype.kind == "b":
        if len(array) != size:
            raise IndexError(f"there are {len(array)} bools for {size} sequences: there must be one for each")
        return np.flatnonzero(array)
    array = array.astype(np.int64).reshape(-1)
    outside = (array < -size) | (array >= size)
    if outside.any():
        allowed = f"{-size} to {size - 1}" if size else "none"
        raise IndexError(f"there is no sequence {array[outside][0]}: of {size}, {allowed} can be named")
    return np.where(array < 0, array + size, array)


def _as_array(given: ArrayLike, what: str) -> NDArray[Any]:
    try:
        return np.asarray(given)
    except ValueError as error:
        raise ValueError(f"{what} are {given!r:.200}: they must be numbers, and as many in every row") from error


def _describe(array: NDArray[Any]) -> str:
    return f"{array.dtype} of shape {array.shape}"
