"""Ragged buffers: arrays of sequences whose lengths differ, kept flat in NumPy.

Shapes: S sequences, I items (rows of all sequences), F features.

    values   (I, F)    float32, int64 or bool, C-contiguous
    offsets  (S + 1,)  int64, sequence i is values[offsets[i]:offsets[i + 1]]

Both are ordinary arrays, so `torch.from_numpy(buffer.values)` shares their memory. Indexing copies: writing to the
result never changes the buffer it came from. Only `values`, `offsets` and iteration hand out the buffer's own memory.
"""

import operator
from collections.abc import Iterable, Iterator, Sequence
from numbers import Integral, Real
from typing import Any, ClassVar, Generic, NoReturn, Self, SupportsIndex, TypeAlias, TypeVar, cast, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from entity_gym.batch.packing import Packing, as_lengths, is_everything, offsets_of, pack, resolve, rows_at, rows_of
from entity_gym.batch.ragged_ops import (
    appended,
    brief,
    cat_features,
    cat_items,
    cat_sequences,
    describe,
    mismatch,
    three,
)

__all__ = ["RaggedBuffer", "RaggedBufferBool", "RaggedBufferF32", "RaggedBufferI64", "cat", "translate_rotate"]

Scalar = TypeVar("Scalar", bound=np.generic)
Index: TypeAlias = SupportsIndex | slice | Sequence[int] | Sequence[bool] | NDArray[np.integer[Any]] | NDArray[np.bool_]

_INT64 = np.dtype(np.int64)
_MAX_VALUES_IN_REPR = 60


class RaggedBuffer(Generic[Scalar]):
    """An array of S sequences of any lengths, each item with the same F features.

    Use `RaggedBufferF32`, `RaggedBufferI64` or `RaggedBufferBool`; the `from_*` constructors of this class pick one by
    the dtype. `len()` and iteration are over sequences. Equality compares whole buffers; buffers are mutable and not
    hashable.
    """

    __slots__ = ("_offsets", "_offsets_storage", "_values", "_values_storage")
    __array_ufunc__ = None  # a NumPy scalar on the left leaves the operation to us
    dtype: ClassVar[np.dtype[Any]]
    _castable: ClassVar[str]  # dtype kinds that convert into this buffer's without loss (float64 -> float32 included)

    _values: NDArray[Scalar]
    _offsets: NDArray[np.int64]
    # Arrays with room to grow, of which the two above are the beginning; None until the first `push`.
    _values_storage: NDArray[Scalar] | None
    _offsets_storage: NDArray[np.int64] | None

    def __init__(self, features: SupportsIndex) -> None:
        """An empty buffer: no sequences, `features` >= 0 features per item."""
        if type(self) is RaggedBuffer:
            raise ValueError("RaggedBuffer has no dtype: use RaggedBufferF32, RaggedBufferI64 or RaggedBufferBool")
        width = operator.index(features)
        if width < 0:
            raise ValueError(f"a buffer of {width} features was asked for: there must be 0 or more")
        self._set(np.empty((0, width), dtype=self.dtype), np.zeros(1, dtype=np.int64))

    # ---- constructors

    @classmethod
    def from_offsets(cls, values: NDArray[Any], offsets: NDArray[np.int64]) -> Self:
        """A buffer that shares the memory of both arrays: O(1), nothing is copied and no sequence is looked at.

        Args:
            values: (I, F) C-contiguous, of this buffer's dtype.
            offsets: (S + 1,) int64, from 0 to I. That they never decrease is the caller's promise.

        Raises:
            ValueError: if a dtype, a shape, the memory order or the first or last offset is wrong.
        """
        if cls is RaggedArray or (
            cls is RaggedBuffer and (values.ndim != 2 or values.dtype not in (np.float32, np.int64, np.bool_))
        ):
            return cast(Self, RaggedArray(values, offsets))
        cls = cls._pick(values)
        if values.dtype != cls.dtype or values.ndim != 2 or not values.flags.c_contiguous:
            order = "" if values.flags.c_contiguous else "not contiguous "
            raise ValueError(
                f"values are {order}{describe(values)}: they must be C-contiguous {cls.dtype} of shape"
                " (items, features); from_flattened converts"
            )
        if offsets.dtype != _INT64 or offsets.ndim != 1 or len(offsets) == 0:
            raise ValueError(f"offsets are {describe(offsets)}: they must be int64 of shape (sequences + 1,)")
        if offsets[0] != 0 or offsets[-1] != len(values):
            raise ValueError(
                f"offsets go from {offsets[0]} to {offsets[-1]}: they must go from 0 to {len(values)} items"
            )
        return cls._of(values, offsets)

    @classmethod
    def from_flattened(cls, flattened: ArrayLike, lengths: ArrayLike) -> Self:
        """A buffer of the sequences that lie one after another in `flattened`, copied.

        Args:
            flattened: (I, F) items; float64 and integers become float32 in an F32 buffer.
            lengths: (S,) integers >= 0 that add up to I.

        Raises:
            ValueError: if the lengths do not add up, a shape is wrong, or a value would not survive the conversion.
        """
        array = np.asarray(flattened)
        cls = cls._pick(array)
        if array.ndim != 2:
            raise ValueError(f"flattened values are {describe(array)}: they must have the shape (items, features)")
        offsets = offsets_of(as_lengths(lengths))
        if offsets[-1] != len(array):
            raise ValueError(f"the lengths add up to {offsets[-1]}, but there are {len(array)} items")
        return cls._of(cls._convert(array), offsets)

    @classmethod
    def from_array(cls, array: ArrayLike) -> Self:
        """A buffer of S sequences of equal length from a (S, length, F) array, copied.

        Raises:
            ValueError: if the shape is another, or a value would not survive the conversion.
        """
        array = np.asarray(array)
        cls = cls._pick(array)
        if array.ndim != 3:
            raise ValueError(f"the array is {describe(array)}: it must have the shape (sequences, length, features)")
        sequences, length, features = array.shape
        offsets = np.arange(sequences + 1, dtype=np.int64) * length
        return cls._of(cls._convert(array).reshape(sequences * length, features), offsets)

    @classmethod
    def _of(cls, values: NDArray[Any], offsets: NDArray[np.int64]) -> Self:
        buffer = cls.__new__(cls)
        buffer._set(values, offsets)
        return buffer

    def _set(self, values: NDArray[Any], offsets: NDArray[np.int64]) -> None:
        self._values, self._offsets = values, offsets
        self._values_storage = self._offsets_storage = None

    @classmethod
    def _pick(cls, array: NDArray[Any]) -> type[Self]:
        """This class, or for `RaggedBuffer` itself the one that holds the array's kind of numbers."""
        if cls is not RaggedBuffer:
            return cls
        by_kind = {"f": RaggedBufferF32, "i": RaggedBufferI64, "u": RaggedBufferI64, "b": RaggedBufferBool}
        if array.dtype.kind not in by_kind:
            raise ValueError(f"no ragged buffer holds {array.dtype}: floats, integers and bools are allowed")
        return cast(type[Self], by_kind[array.dtype.kind])

    @classmethod
    def _convert(cls, array: NDArray[Any], *, copy: bool = True) -> NDArray[Scalar]:
        """A C-contiguous array of this buffer's dtype, or a ValueError if a value would be lost."""
        fits = array.dtype.kind in cls._castable or array.size == 0  # [] is float64 to NumPy
        if not fits or (
            array.dtype == np.uint64 and cls.dtype == _INT64 and array.max(initial=0) > np.iinfo(_INT64).max
        ):
            raise ValueError(f"{describe(array)} does not fit into {cls.__name__}, which holds {cls.dtype}")
        return array.astype(cls.dtype, order="C", copy=copy)

    # ---- contents and sizes

    @property
    def values(self) -> NDArray[Scalar]:
        """(I, F) all items, not a copy. Writing changes the buffer; what was pushed later is not in it."""
        return self._values

    @property
    def offsets(self) -> NDArray[np.int64]:
        """(S + 1,) where each sequence begins and the last one ends, not a copy. Do not write to it."""
        return self._offsets

    def size0(self) -> int:
        """The number of sequences, as `len()`."""
        return len(self._offsets) - 1

    @overload
    def size1(self) -> NDArray[np.int64]: ...

    @overload
    def size1(self, sequence: SupportsIndex) -> int: ...

    def size1(self, sequence: SupportsIndex | None = None) -> NDArray[np.int64] | int:
        """The (S,) lengths of all sequences, or the length of one.

        Raises:
            IndexError: if there is no such sequence.
        """
        if sequence is None:
            return np.diff(self._offsets)
        (i,) = resolve(sequence, self.size0(), "sequence")
        return int(self._offsets[i + 1] - self._offsets[i])

    def size2(self) -> int:
        """The number of features of every item."""
        return int(self._values.shape[1])

    def items(self) -> int:
        """The number of items in all sequences together."""
        return len(self._values)

    def __len__(self) -> int:
        """The number of sequences."""
        return len(self._offsets) - 1

    def __iter__(self) -> Iterator[NDArray[Scalar]]:
        """Every sequence as a (length, F) array that shares the buffer's memory."""
        for start, end in zip(self._offsets[:-1].tolist(), self._offsets[1:].tolist(), strict=True):
            yield self._values[start:end]

    def to_list(self) -> list[list[list[Any]]]:
        """The content as plain numbers: sequences of items of features."""
        return [sequence.tolist() for sequence in self]

    def as_array(self) -> NDArray[Scalar]:
        """(I, F) a copy of all items."""
        return self._values.copy()

    def __array__(self, *args: object, **kwargs: object) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} is not rectangular: use .values, or .padpack() to pad it")

    def clone(self) -> Self:
        """An independent copy."""
        return self._of(self._values.copy(), self._offsets.copy())

    def materialize(self) -> Self:
        """An independent copy, as `clone`: there are no views here that would need it."""
        return self.clone()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).from_offsets, (self._values, self._offsets)

    def __repr__(self) -> str:
        shape = f"{self.size0()} * var * {self.size2()} * {self.dtype}"
        if self._values.size <= _MAX_VALUES_IN_REPR and self.size0() + self.items() <= _MAX_VALUES_IN_REPR:
            return f"{type(self).__name__}({self.to_list()}, '{shape}')"
        lengths = self.size1()
        return f"{type(self).__name__}({self.items()} items, lengths {lengths.min()} to {lengths.max()}, '{shape}')"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RaggedBuffer):
            return NotImplemented
        return (
            self.dtype == other.dtype
            and np.array_equal(self._offsets, other._offsets)
            and np.array_equal(self._values, other._values)
        )

    __hash__ = None  # type: ignore[assignment]

    # ---- growing

    def push(self, items: ArrayLike) -> None:
        """Append one sequence of (length, F) items; an empty one may also be (0,). Amortised O(length).

        Raises:
            ValueError: if the shape is wrong or a value would not survive the conversion.
        """
        array = np.asarray(items)
        if array.ndim == 1 and array.size == 0:
            array = array.reshape(0, self.size2())
        if array.ndim != 2 or array.shape[1] != self.size2():
            raise ValueError(f"the pushed items are {describe(array)}: the shape must be (items, {self.size2()})")
        end = np.array([len(self._values) + len(array)], dtype=np.int64)
        self._append(self._convert(array, copy=False), end)

    def push_empty(self) -> None:
        """Append one sequence without items."""
        self._append(self._values[:0], np.array([len(self._values)], dtype=np.int64))

    def extend(self, other: "RaggedBuffer[Scalar]") -> None:
        """Append all sequences of `other`, which may be this buffer itself.

        Raises:
            TypeError: if `other` is not a buffer of the same dtype.
            ValueError: if it has another number of features.
        """
        _check_alike([self, other])
        self._append(other._values, len(self._values) + other._offsets[1:])

    def clear(self) -> None:
        """Remove all sequences. The capacity stays; the arrays handed out before keep their content."""
        values, offsets = self._values_storage, self._offsets_storage
        self._set(self._values[:0].copy(), np.zeros(1, dtype=np.int64))
        if values is not None and offsets is not None:
            self._values_storage, self._offsets_storage = np.empty_like(values), np.zeros_like(offsets)

    def _append(self, rows: NDArray[Scalar], ends: NDArray[np.int64]) -> None:
        self._values_storage, self._values = appended(self._values_storage, self._values, rows)
        self._offsets_storage, self._offsets = appended(self._offsets_storage, self._offsets, ends)

    # ---- indexing

    def __getitem__(self, index: Index | tuple[Index, ...]) -> Self:
        """A copy of some sequences, or with `[sequences, positions, features]` of some items and features of these.

        Each of the three is an int, a slice, a list or array of ints, or bools with one entry per sequence, position
        (up to the longest chosen sequence) or feature. Negative ones count from the end: positions from the end of each
        sequence. Every axis stays, also for ints: `buffer[i]` has one sequence. Positions that a shorter sequence lacks
        are skipped there, so `buffer[:, 2, :]` has 0 or 1 item per sequence.

        Raises:
            IndexError: if a sequence or feature is not there, or bools do not have the length of their axis.
            TypeError: if an index is something else.
        """
        sequences, positions, features = three(index)
        size = self.size0()
        if (
            type(sequences) is int
            and -size <= sequences < size
            and is_everything(positions)
            and is_everything(features)
        ):
            i = sequences % size  # one sequence is contiguous: no gathering, 5 times as fast
            values = self._values[self._offsets[i] : self._offsets[i + 1]].copy()
            return self._of(values, np.array([0, len(values)], dtype=np.int64))
        chosen = resolve(sequences, size, "sequence")
        starts = self._offsets[chosen]
        rows, lengths = rows_at(positions, starts, self._offsets[chosen + 1] - starts)
        if is_everything(features):
            return self._of(self._values[rows], offsets_of(lengths))
        columns = resolve(features, self.size2(), "feature")
        return self._of(self._values[rows[:, None], columns], offsets_of(lengths))

    def indices(self, dim: int) -> "RaggedBufferI64":
        """Of each item the sequence it is in (dim 0) or its position in the sequence (dim 1): (S, length, 1) int64.

        Raises:
            ValueError: if `dim` is neither 0 nor 1.
        """
        lengths = self.size1()
        if dim == 0:
            rows = np.repeat(np.arange(len(lengths), dtype=np.int64), lengths)
        elif dim == 1:
            rows = rows_of(np.zeros(len(lengths), dtype=np.int64), lengths)
        else:
            raise ValueError(f"dim is {dim!r}: indices exist for 0 (sequences) and 1 (positions)")
        return RaggedBufferI64._of(rows.reshape(-1, 1), self._offsets)

    def flat_indices(self) -> "RaggedBufferI64":
        """Of each item its row in `values`: (S, length, 1) int64."""
        return RaggedBufferI64._of(np.arange(self.items(), dtype=np.int64).reshape(-1, 1), self._offsets)

    def padpack(self) -> Packing:
        """Where each item goes when the sequences are laid side by side in a rectangle; see `packing.pack`."""
        return pack(self.size1())

    # ---- arithmetic

    def __add__(self, other: object) -> Self:
        return self._arithmetic(np.add, other)

    def __sub__(self, other: object) -> Self:
        return self._arithmetic(np.subtract, other)

    def __mul__(self, other: object) -> Self:
        return self._arithmetic(np.multiply, other)

    def __radd__(self, other: object) -> Self:
        return self._arithmetic(np.add, other)

    def __rsub__(self, other: object) -> Self:
        return self._arithmetic(np.subtract, other, reflected=True)

    def __rmul__(self, other: object) -> Self:
        return self._arithmetic(np.multiply, other)

    def __iadd__(self, other: object) -> Self:
        return self._in_place(np.add, other)

    def __isub__(self, other: object) -> Self:
        return self._in_place(np.subtract, other)

    def __imul__(self, other: object) -> Self:
        return self._in_place(np.multiply, other)

    def _arithmetic(self, operation: np.ufunc, other: object, *, reflected: bool = False) -> Self:
        """`self operation other`, item by item.

        A number applies to every value. Of two buffers the lengths must agree, or all sequences of one side have length
        1 and are repeated. Dtypes never mix: I64 takes no floats, and Bool has no arithmetic (TypeError).
        """
        operand = self._operand(other)
        if not isinstance(operand, RaggedBuffer):
            if operand is NotImplemented:
                return cast(Self, NotImplemented)
            pair = (operand, self._values) if reflected else (self._values, operand)
            return self._of(operation(*pair), self._offsets)
        if np.array_equal(self._offsets, operand._offsets):
            return self._of(operation(self._values, operand._values), self._offsets)
        lengths, others = self.size1(), operand.size1()
        if len(lengths) == len(others) and np.all(others == 1):
            return self._of(operation(self._values, np.repeat(operand._values, lengths, axis=0)), self._offsets)
        if len(lengths) == len(others) and np.all(lengths == 1):
            return self._of(operation(np.repeat(self._values, others, axis=0), operand._values), operand._offsets)
        raise ValueError(mismatch(lengths, others))

    def _in_place(self, operation: np.ufunc, other: object) -> Self:
        """As `_arithmetic`, written into `values`; the buffer itself cannot be the side that is repeated."""
        operand = self._operand(other)
        if operand is NotImplemented:
            return cast(Self, NotImplemented)
        if isinstance(operand, RaggedBuffer):
            lengths, others = self.size1(), operand.size1()
            if len(lengths) == len(others) and np.all(others == 1):
                operand = np.repeat(operand._values, lengths, axis=0)
            elif np.array_equal(lengths, others):
                operand = operand._values
            else:
                raise ValueError(f"in place: {mismatch(lengths, others)}; only the right side may be repeated here")
        operation(self._values, operand, out=self._values)
        return self

    def _operand(self, other: object) -> Any:
        """`other` if it is a buffer that can be combined with this one, as a scalar of our dtype, or NotImplemented."""
        if not isinstance(other, RaggedBuffer | Real):
            return NotImplemented
        if self.dtype == np.bool_:
            raise TypeError("RaggedBufferBool has no arithmetic: combine the .values with & and | instead")
        if isinstance(other, RaggedBuffer):
            _check_alike([self, other])
            return other
        if self.dtype == _INT64 and not isinstance(other, Integral):
            raise TypeError(
                f"RaggedBufferI64 holds integers: {other!r} of type {type(other).__name__} would be rounded"
            )
        try:
            return self.dtype.type(other)
        except OverflowError:
            raise ValueError(f"{other!r} does not fit into {self.dtype}") from None

    # ---- joining

    @classmethod
    def cat(cls, buffers: "Iterable[RaggedBuffer[Scalar]]", dim: int = 0) -> Self:
        """Join buffers: one more list of sequences (dim 0), longer sequences (dim 1) or more features (dim 2).

        Along dim 1, sequence i of the result is sequence i of every buffer, one after another. Along dim 2 the features
        stand side by side; a sequence of length 1 is repeated to the length of the others, and where one buffer's
        sequence is empty the result's is empty.

        Raises:
            TypeError: if the buffers have different dtypes.
            ValueError: if there are no buffers, `dim` is not 0, 1 or 2, or sizes do not agree.
        """
        parts = list(buffers)
        if not parts:
            raise ValueError("there is nothing to join: cat needs at least one buffer")
        if dim not in (0, 1, 2):
            raise ValueError(f"dim is {dim!r}: it must be 0 (sequences), 1 (items) or 2 (features)")
        for part in parts:
            if not isinstance(part, cls):
                raise TypeError(
                    f"a {type(part).__name__} was given to {cls.__name__}.cat: it joins only {cls.__name__}s"
                )
        _check_alike(parts, dim)
        if dim > 0 and len({part.size0() for part in parts}) > 1:
            counts = [part.size0() for part in parts]
            raise ValueError(f"the buffers have {counts} sequences: along dim {dim} they must have equally many")
        values, offsets = (cat_sequences, cat_items, cat_features)[dim](parts)
        return cast(Self, parts[0]._of(values, offsets))


class RaggedBufferF32(RaggedBuffer[np.float32]):
    """Ragged float32."""

    __slots__ = ()
    dtype = np.dtype(np.float32)
    _castable = "fiub"

    def translate_rotate(self, origin: "RaggedBufferF32", direction: "RaggedBufferF32") -> "RaggedBufferF32":
        """These points as seen from `origin` looking along `direction`; see the function `translate_rotate`."""
        return translate_rotate(self, origin, direction)


class RaggedBufferI64(RaggedBuffer[np.int64]):
    """Ragged int64."""

    __slots__ = ()
    dtype = _INT64
    _castable = "iub"


class RaggedBufferBool(RaggedBuffer[np.bool_]):
    """Ragged bool; no arithmetic."""

    __slots__ = ()
    dtype = np.dtype(np.bool_)
    _castable = "b"


def cat(buffers: Iterable[RaggedBuffer[Scalar]], dim: int = 0) -> RaggedBuffer[Scalar]:
    """Join buffers of one dtype along `dim`; see `RaggedBuffer.cat`."""
    return RaggedBuffer.cat(buffers, dim)


def translate_rotate(source: RaggedBufferF32, origin: RaggedBufferF32, direction: RaggedBufferF32) -> RaggedBufferF32:
    """Points of the plane in the frame of an observer at `origin` who looks along `direction`.

        (x, y) = source - origin,  (rx, ry) = direction
        result = (x rx + y ry, -x ry + y rx)

    With a direction of length 1 this is a rotation: x' is the distance ahead, y' the distance to the left.

    Args:
        source: (S, length, 2) points. Not changed.
        origin: (S, 1, 2), the observer of each sequence.
        direction: (S, 1, 2), where it looks; a length other than 1 scales the result.

    Raises:
        TypeError: if one of them is not a `RaggedBufferF32`.
        ValueError: if a shape is wrong.
    """
    for name, buffer in (("source", source), ("origin", origin), ("direction", direction)):
        if not isinstance(buffer, RaggedBufferF32):
            raise TypeError(f"{name} is a {type(buffer).__name__}: it must be a RaggedBufferF32")
        if buffer.size2() != 2:
            raise ValueError(f"{name} has {buffer.size2()} features: a point of the plane has 2")
        if name != "source" and (len(buffer) != len(source) or np.any(buffer.size1() != 1)):
            raise ValueError(
                f"{name} has the lengths {brief(buffer.size1())}: it must have exactly one item for each of the"
                f" {len(source)} sequences of the source"
            )
    lengths = source.size1()
    x, y = (source.values - np.repeat(origin.values, lengths, axis=0)).T
    rx, ry = np.repeat(direction.values, lengths, axis=0).T
    return RaggedBufferF32.from_offsets(np.stack([x * rx + y * ry, -x * ry + y * rx], axis=1), source.offsets)


def _check_alike(buffers: Sequence[RaggedBuffer[Any]], dim: int = 0) -> None:
    """The buffers have one dtype, and unless they are joined along features also one number of features."""
    first = buffers[0]
    for buffer in buffers:
        if not isinstance(buffer, RaggedBuffer) or buffer.dtype != first.dtype:
            given = type(buffer).__name__
            raise TypeError(f"a {given} cannot be combined with a {type(first).__name__}: dtypes must be the same")
        if dim != 2 and buffer.size2() != first.size2():
            raise ValueError(f"a buffer has {buffer.size2()} features, another {first.size2()}: they must be equal")


class RaggedArray(RaggedBuffer[Any]):
    """Sequences of rows of any shape and type."""

    __slots__ = ()

    def __init__(self, values: NDArray[Any], offsets: NDArray[np.int64]) -> None:
        self._set(values, offsets)

    @property
    def dtype(self) -> np.dtype[Any]:  # type: ignore[override]
        """The type of the rows."""
        return self._values.dtype

    @classmethod
    def cat(cls, buffers: "Iterable[RaggedBuffer[Any]]", dim: int = 0) -> Self:
        """Join lists of sequences, one after the other."""
        return cls._of(*cat_sequences(list(buffers)))
