"""Packing of sequences of unequal length into the rows of a rectangle.

Shapes: S sequences, I items (the sum of all lengths), R packed rows, L columns (the longest sequence).
"""

import heapq
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from entity_gym.batch.ragged import rows_of


class Packing(NamedTuple):
    """Positions of the items of a ragged buffer in a rectangle of R rows and L columns.

    `values[index]` is the packed (R, L, F) array, whose padding repeats item 0, and
    `packed.reshape(R * L, F)[inverse_index]` gives `values` back. Two cells belong to the same sequence exactly where
    their `batch` is equal; NaN equals nothing.
    """

    index: NDArray[np.int64]  # type: ignore[assignment] # hides tuple.index; (R, L), the item in each cell, 0 where padded
    batch: NDArray[np.float32]  # (R, L), the sequence of each cell, NaN where padded; exact up to 2**24 sequences
    inverse_index: NDArray[np.int64]  # (I,), the flat cell `row * L + column` of each item


def pack(lengths: NDArray[np.int64]) -> Packing:
    """Pack sequences greedily into few rows; each sequence lies in consecutive cells of one row.

    In order, every sequence goes to the row with the most free cells, or to the lowest one of several such rows. If it does
    not fit there, it opens a new row, as wide as the longest sequence. Sequences without items take no room.
    The time is O(I + S log R).

    Args:
        lengths: (S,) the items of each sequence.

    Returns:
        A `Packing`; with no items at all its rectangle is (0, 0).
    """
    width = int(lengths.max(initial=0))
    cells, num_rows = _first_cells(lengths.tolist(), width)
    inverse_index = rows_of(np.array(cells, dtype=np.int64), lengths)

    index = np.zeros(num_rows * width, dtype=np.int64)
    index[inverse_index] = np.arange(len(inverse_index))
    batch = np.full(num_rows * width, np.nan, dtype=np.float32)
    batch[inverse_index] = np.repeat(np.arange(len(lengths)), lengths)
    return Packing(index.reshape(num_rows, width), batch.reshape(num_rows, width), inverse_index)


def _first_cells(lengths: list[int], width: int) -> tuple[list[int], int]:
    """Return the flat cell at which each sequence starts, and the number of rows used."""
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
