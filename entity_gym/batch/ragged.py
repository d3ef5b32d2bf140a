"""Ragged buffers: sequences whose lengths differ, kept flat in NumPy.

Shapes: S sequences, I items (rows of all sequences together), F features.

    values   (I, ...)   any dtype, C-contiguous
    offsets  (S + 1,)   int64, sequence i is values[offsets[i]:offsets[i + 1]]

Both are ordinary arrays, so `torch.from_numpy(buffer.values)` shares their memory. Indexing copies: writing to the
result never changes the buffer that was indexed. Only `values`, `offsets` and iteration hand out the buffer's own memory.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Generic, NoReturn, Self, SupportsIndex, TypeAlias, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

Scalar = TypeVar("Scalar", bound=np.generic)
Index: TypeAlias = SupportsIndex | slice | Sequence[int] | Sequence[bool] | NDArray[np.integer[Any]] | NDArray[np.bool_]

_MAX_VALUES_IN_REPR = 60


class RaggedBuffer(Generic[Scalar]):
    """S sequences of any lengths, whose items all have the same shape and dtype.

    In batches, items are (F,) float32 features, int64 indices or bool masks. `len()` and iteration are over sequences.
    `==` compares whole buffers; buffers are mutable and not hashable.

    Attributes:
        values: (I, ...) all items. Writing to the array changes the buffer.
        offsets: (S + 1,) start of each sequence and end of the last one. Do not write to it.
    """

    __slots__ = ("offsets", "values")

    values: NDArray[Scalar]
    offsets: NDArray[np.int64]

    # ---- constructors

    def __init__(self, values: NDArray[Scalar], offsets: NDArray[np.int64]) -> None:
        """Wrap two arrays in O(1): nothing is copied, converted or searched.

        Args:
            values: (I, ...) C-contiguous.
            offsets: (S + 1,) int64, from 0 to I. The caller promises that they never decrease.

        Raises:
            ValueError: a dtype, a shape, the memory order or the first or last offset is wrong.
        """
        if values.ndim == 0 or not values.flags.c_contiguous:
            raise ValueError(f"values are {_describe(values)}: they must be C-contiguous, of shape (items, ...)")
        if offsets.dtype != np.int64 or offsets.ndim != 1 or len(offsets) == 0:
            raise ValueError(f"offsets are {_describe(offsets)}: they must be int64 of shape (sequences + 1,)")
        if offsets[0] != 0 or offsets[-1] != len(values):
            raise ValueError(
                f"offsets go from {offsets[0]} to {offsets[-1]}: they must go from 0 to {len(values)} items"
            )
        self.values, self.offsets = values, offsets

    @classmethod
    def unchecked(cls, values: NDArray[Scalar], offsets: NDArray[np.int64]) -> Self:
        """Wrap two arrays without looking at them, for hot paths that have just made them. See `__init__` for the rules."""
        buffer = cls.__new__(cls)
        buffer.values, buffer.offsets = values, offsets
        return buffer

    @classmethod
    def from_flattened(cls, flattened: ArrayLike, lengths: ArrayLike) -> Self:
        """Copy sequences that lie one after another. Real numbers become float32, integers int64.

        Args:
            flattened: (I, ...) items.
            lengths: (S,) integers >= 0 that add up to I.

        Raises:
            ValueError: the lengths do not add up, a shape is wrong, or a number is too large for float32.
        """
        array, sizes = np.asarray(flattened), np.asarray(lengths)
        if array.ndim == 0:
            raise ValueError(f"flattened values are {_describe(array)}: they must have the shape (items, ...)")
        if sizes.ndim != 1 or (sizes.size and sizes.dtype.kind not in "iu"):
            raise ValueError(f"lengths are {_describe(sizes)}: they must be integers of shape (sequences,)")
        outside = (sizes < 0) | (sizes > len(array))
        if outside.any():
            sequence = int(outside.argmax())
            raise ValueError(
                f"the length of sequence {sequence} is {sizes[sequence]}, and there are {len(array)} items"
            )
        offsets = offsets_of(sizes.astype(np.int64))
        if offsets[-1] != len(array):
            raise ValueError(f"the lengths add up to {offsets[-1]}, but there are {len(array)} items")
        return cls.unchecked(_converted(array), offsets)

    @classmethod
    def from_array(cls, array: ArrayLike) -> Self:
        """Copy S sequences of equal length from a (S, length, ...) array. Numbers are converted as in `from_flattened`.

        Raises:
            ValueError: the shape is wrong, or a number is too large for float32.
        """
        array = np.asarray(array)
        if array.ndim < 2:
            raise ValueError(f"the array is {_describe(array)}: it must have the shape (sequences, length, ...)")
        sequences, length, *shape = array.shape
        offsets = np.arange(sequences + 1, dtype=np.int64) * length
        return cls.unchecked(_converted(array.reshape(sequences * length, *shape)), offsets)

    # ---- sizes and content

    @property
    def dtype(self) -> np.dtype[Scalar]:
        """The dtype of `values`."""
        return self.values.dtype

    def size1(self) -> NDArray[np.int64]:
        """The (S,) lengths of all sequences."""
        return self.offsets[1:] - self.offsets[:-1]  # half the time of np.diff

    def items(self) -> int:
        """The number of items in all sequences together."""
        return len(self.values)

    @property
    def sequences(self) -> NDArray[np.int64]:
        """(I,) the sequence of each item."""
        return np.repeat(np.arange(len(self)), self.size1())

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
            IndexError: there is no such sequence, the number of bools is not the number of sequences, or the index is
                something else.
        """
        chosen = np.arange(len(self))[index]
        if chosen.ndim == 0:  # one sequence is contiguous: no gathering, 5 times as fast
            values = self.values[self.offsets[chosen] : self.offsets[chosen + 1]].copy()
            return self.unchecked(values, np.array([0, len(values)], dtype=np.int64))
        if chosen.ndim > 1:
            raise IndexError(f"{index!r:.200} is no index of sequences: it must have one dimension")
        starts = self.offsets[chosen]
        lengths = self.offsets[chosen + 1] - starts
        return self.unchecked(self.values[rows_of(starts, lengths)], offsets_of(lengths))

    def __array__(self, *args: object, **kwargs: object) -> NoReturn:
        raise TypeError("a RaggedBuffer is not rectangular: use its .values and .offsets")

    def __repr__(self) -> str:
        shape = " * ".join(map(str, (len(self), "var", *self.values.shape[1:], self.dtype)))
        if self.values.size <= _MAX_VALUES_IN_REPR and len(self) + self.items() <= _MAX_VALUES_IN_REPR:
            return f"RaggedBuffer({self.to_list()}, '{shape}')"
        lengths = self.size1()
        return f"RaggedBuffer({self.items()} items, lengths {lengths.min()} to {lengths.max()}, '{shape}')"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RaggedBuffer):
            return NotImplemented
        return (
            self.dtype == other.dtype
            and np.array_equal(self.offsets, other.offsets)
            and np.array_equal(self.values, other.values)
        )

    __hash__ = None  # type: ignore[assignment]


def offsets_of(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """(S + 1,) int64 cumulative lengths: sequence i of these (S,) lengths is `offsets[i]:offsets[i + 1]`."""
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def rows_of(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Concatenate the ranges `start, start + 1, ..., start + length - 1` of all sequences; both arguments are (S,)."""
    offsets = offsets_of(lengths)
    return np.arange(int(offsets[-1]), dtype=np.int64) + np.repeat(starts - offsets[:-1], lengths)


def _converted(array: NDArray[Any]) -> NDArray[Any]:
    """Copy an array in C order: real numbers as float32, integers that fit as int64, all else in its own dtype."""
    dtype: Any = array.dtype
    if array.dtype.kind == "f":
        dtype = np.float32
    elif array.dtype.kind in "iu" and np.can_cast(array.dtype, np.int64):
        dtype = np.int64
    try:
        with np.errstate(over="raise"):
            return array.astype(dtype, order="C")
    except FloatingPointError:
        raise ValueError(f"{_describe(array)} holds numbers that are too large for float32") from None


def _describe(array: NDArray[Any]) -> str:
    return f"{array.dtype} of shape {array.shape}"
