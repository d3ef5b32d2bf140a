"""Where the items of sequences of unequal length lie, flat or packed into a rectangle: pure functions of lengths.

Shapes: S sequences, I items (the sum of all lengths), R packed rows, L columns (the longest sequence).
"""

import heapq
import operator
from typing import Any, NamedTuple, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray

_FAR = 2**62  # slice bounds are clipped to this, so that adding a length cannot overflow


class Packing(NamedTuple):
    """Where every item of a ragged buffer lies in a rectangle of R rows and L columns.

    `values[index]` is the packed (R, L, F) array, whose padding repeats item 0, and
    `packed.reshape(R * L, F)[inverse_index]` gives `values` back. Two cells belong to the same sequence exactly where
    their `batch` is equal; NaN equals nothing.
    """

    index: NDArray[np.int64]  # type: ignore[assignment] # hides tuple.index; (R, L), the item in each cell, 0 where padded
    batch: NDArray[np.float32]  # (R, L), the sequence of each cell, NaN where padded; exact up to 2**24 sequences
    inverse_index: NDArray[np.int64]  # (I,), the flat cell `row * L + column` of each item


def pack(lengths: ArrayLike) -> Packing:
    """Lay sequences side by side in as few rows as a greedy rule finds, each in consecutive cells of one row.

    In order, every sequence goes to the row with the most free cells, the lowest such row if several have as many; if
    it does not fit there, it opens a new row, as wide as the longest sequence. Sequences without items take no room.
    The time is O(I + S log R).

    Args:
        lengths: (S,) integers >= 0, the items of each sequence.

    Returns:
        A `Packing`; with no items at all its rectangle is (0, 0).

    Raises:
        ValueError: if `lengths` are not whole numbers >= 0 in one dimension.
    """
    lengths = as_lengths(lengths)
    width = int(lengths.max(initial=0))
    cells, num_rows = _first_cells(lengths.tolist(), width)
    inverse_index = rows_of(np.array(cells, dtype=np.int64), lengths)

    index = np.zeros(num_rows * width, dtype=np.int64)
    index[inverse_index] = np.arange(len(inverse_index))
    batch = np.full(num_rows * width, np.nan, dtype=np.float32)
    batch[inverse_index] = np.repeat(np.arange(len(lengths)), lengths)
    return Packing(index.reshape(num_rows, width), batch.reshape(num_rows, width), inverse_index)


def _first_cells(lengths: list[int], width: int) -> tuple[list[int], int]:
    """The flat cell at which each sequence starts, and the number of rows used."""
    cells = []
    rows: list[tuple[int, int]] = []  # heap of (-free cells, row): the first is the emptiest, then the lowest row
    num_rows = 0
    for length in lengths:
        if length == 0:
            cells.append(0)
        elif rows and -rows[0][0] >= length:
            used, row = rows[0]
            cells.append((row + 1) * width + used)
            heapq.heapreplace(rows, (used + length, row))
        else:
            cells.append(num_rows * width)
            heapq.heappush(rows, (length - width, num_rows))
            num_rows += 1
    return cells, num_rows


def as_lengths(lengths: ArrayLike) -> NDArray[np.int64]:
    """`lengths` as a (S,) int64 array.

    Raises:
        ValueError: if they are not whole numbers >= 0 in one dimension.
    """
    array = np.asarray(lengths)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ValueError(
            f"lengths are {array.dtype} of shape {array.shape}: they must be integers of shape (sequences,)"
        )
    if array.size and array.min() < 0:
        sequence = int(array.argmin())
        raise ValueError(f"the length of sequence {sequence} is {array[sequence]}: lengths must be 0 or more")
    return array.astype(np.int64, copy=False)


def offsets_of(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """(S + 1,) int64: sequence `i` of these (S,) lengths is `offsets[i]:offsets[i + 1]`."""
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def rows_of(
    starts: NDArray[np.int64], lengths: NDArray[np.int64], steps: int | NDArray[np.int64] = 1
) -> NDArray[np.int64]:
    """Of each sequence the `length` rows `start, start + step, start + 2 step, ...`, one sequence after another.

    Args:
        starts: (S,) first row of each sequence.
        lengths: (S,) rows of each sequence.
        steps: one step, or (S,); step 0 repeats the first row.
    """
    offsets = offsets_of(lengths)
    positions = np.arange(int(offsets[-1]), dtype=np.int64) - np.repeat(offsets[:-1], lengths)
    if isinstance(steps, np.ndarray):
        steps = np.repeat(steps, lengths)
    return np.repeat(starts, lengths) + positions * steps


def is_everything(index: Any) -> bool:
    """Whether `index` is the slice `:`. Comparing outright would compare an array element by element."""
    return isinstance(index, slice) and index == slice(None)


def resolve(index: Any, size: int, axis: str) -> NDArray[np.int64]:
    """The places along an axis of `size` that `index` names, from 0."""
    if isinstance(index, slice):
        return np.arange(*index.indices(size), dtype=np.int64)
    array = _index_array(index, size, axis)
    outside = (array < -size) | (array >= size)
    if outside.any():
        allowed = f"{-size} to {size - 1}" if size else "none"
        raise IndexError(f"there is no {axis} {array[outside][0]}: of {size}, {allowed} can be named")
    return np.where(array < 0, array + size, array)


def _index_array(index: Any, size: int, axis: str) -> NDArray[np.int64]:
    """A list, array, int or mask as a 1-D array of ints, which may be negative or too large."""
    array = np.asarray(index)
    if array.dtype.kind not in "iu" and not (array.dtype.kind == "b" and array.ndim == 1) and array.shape != (0,):
        raise TypeError(f"{index!r} is no index of {axis}s: ints, slices, and lists or 1-D arrays of ints or bools are")
    if array.ndim > 1:
        raise IndexError(f"the index of {axis}s has the shape {array.shape}: it must have one dimension")
    if array.dtype.kind == "b":
        if len(array) != size:
            raise IndexError(f"there are {len(array)} bools for {size} {axis}s: there must be one for each")
        return np.flatnonzero(array)
    return array.astype(np.int64).reshape(-1)


def rows_at(
    index: Any, starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The rows of `values` at some positions of some sequences, and how many each sequence has.

    Args:
        index: what the user gave for the positions.
        starts: (S,) first row of each sequence.
        lengths: (S,) rows of each sequence.
    """
    if not isinstance(index, slice):
        positions = _index_array(index, int(lengths.max(initial=0)), "position")
        positions = np.where(positions < 0, positions + lengths[:, None], positions)  # (S, positions)
        there = (positions >= 0) & (positions < lengths[:, None])
        return (starts[:, None] + positions)[there], there.sum(axis=1)
    if is_everything(index):
        return rows_of(starts, lengths), lengths
    step = 1 if index.step is None else _clipped(index.step)
    if step == 0:
        raise ValueError("the step of a slice of positions is 0: it must be positive or negative")
    lowest, highest = (0, lengths) if step > 0 else (-1, lengths - 1)

    def edge(bound: SupportsIndex | None, default: int | NDArray[np.int64]) -> NDArray[np.int64]:
        if bound is None:
            return np.broadcast_to(default, lengths.shape)
        number = _clipped(bound)
        return np.clip(lengths + number if number < 0 else number, lowest, highest)

    first = edge(index.start, lowest if step > 0 else highest)
    last = edge(index.stop, highest if step > 0 else lowest)
    counts = np.maximum(0, -((first - last) // step))  # the quotient rounded up, for both directions
    return rows_of(starts + first, counts, step), counts


def _clipped(bound: SupportsIndex) -> int:
    return max(-_FAR, min(operator.index(bound), _FAR))
