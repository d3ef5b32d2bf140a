"""What padpack promises: a greedy layout in which every item has one cell and every sequence lies in one piece."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rogue_net.batch import packing as packer
from rogue_net.batch.packing import Packing

LENGTHS = st.lists(st.integers(0, 9), max_size=30)


def pack(lengths: list[int]) -> Packing:
    return packer.pack(np.array(lengths, np.int64))


def rows(lengths: list[int]) -> list[list[int]]:
    """The sequences in each packed row, from left to right."""
    batch = pack(lengths).batch
    return [list(dict.fromkeys(row[~np.isnan(row)].astype(int).tolist())) for row in batch]


def greedy(lengths: list[int]) -> list[list[int]]:
    """The rule as it is told, without a heap."""
    width = max(lengths, default=0)
    free: list[int] = []
    content: list[list[int]] = []
    for sequence, length in enumerate(lengths):
        if length == 0:
            continue
        row = free.index(max(free)) if free else -1
        if row < 0 or free[row] < length:
            free.append(width)
            content.append([])
            row = len(free) - 1
        free[row] -= length
        content[row].append(sequence)
    return content


@given(LENGTHS)
def test_each_sequence_goes_to_the_emptiest_row_if_it_fits_there(lengths: list[int]) -> None:
    assert rows(lengths) == greedy(lengths)


@given(LENGTHS)
def test_every_item_has_exactly_one_cell_and_comes_back(lengths: list[int]) -> None:
    packing = pack(lengths)
    items = sum(lengths)
    assert packing.index.shape == packing.batch.shape
    assert np.isfinite(packing.batch).sum() == items  # so no two sequences overlap
    assert len(set(packing.inverse_index.tolist())) == items
    assert packing.index.ravel()[packing.inverse_index].tolist() == list(range(items))
    assert (packing.index[np.isnan(packing.batch)] == 0).all()


@given(LENGTHS)
def test_every_sequence_lies_in_consecutive_cells_of_one_row(lengths: list[int]) -> None:
    packing = pack(lengths)
    cells = np.split(packing.inverse_index, np.cumsum(lengths)[:-1]) if lengths else []
    for sequence, own in enumerate(cells):
        assert (np.diff(own) == 1).all()
        assert len(set((own // max(lengths)).tolist())) <= 1 if max(lengths) else len(own) == 0
        assert (packing.batch.ravel()[own] == sequence).all()
