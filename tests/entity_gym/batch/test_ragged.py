"""Ragged buffers: wherever a list of lists says the same, the list is the specification."""

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from entity_gym.batch.columns import cat
from entity_gym.batch.ragged import RaggedBuffer, rows_of

FIRST, SECOND, THIRD = [[0, 1], [2, 3], [4, 5]], [[6, 7]], [[8, 9], [10, 11]]


def of(*sequences: list[Any], features: int = 2) -> RaggedBuffer[np.int64]:
    items = [item for sequence in sequences for item in sequence]
    flat = np.array(items, np.int64).reshape(len(items), features)
    return RaggedBuffer.from_flattened(flat, [len(each) for each in sequences])


def three() -> RaggedBuffer[np.int64]:
    """Three sequences of 3, 1 and 2 items with 2 features."""
    return of(FIRST, SECOND, THIRD)


def counting(lengths: list[int], features: int = 1) -> RaggedBuffer[np.int64]:
    """The numbers from 0 on, so that every value tells where it was."""
    items = sum(lengths)
    return RaggedBuffer.from_flattened(np.arange(items * features).reshape(items, features), lengths)


LENGTHS = st.lists(st.integers(0, 5), max_size=8)
BUFFERS = st.builds(counting, LENGTHS, st.integers(1, 3))
BOUNDS = st.none() | st.integers(-8, 8)
SLICES = st.builds(slice, BOUNDS, BOUNDS, st.none() | st.integers(-3, 3).filter(bool))


class TestConstruction:
    def test_values_and_offsets_hold_the_sequences_one_after_another(self) -> None:
        buffer = three()
        assert buffer.values.tolist() == FIRST + SECOND + THIRD
        assert (buffer.offsets.tolist(), buffer.offsets.dtype) == ([0, 3, 4, 6], np.int64)

    def test_from_array_and_from_flattened_copy(self) -> None:
        values = np.zeros((1, 2, 1), dtype=np.float32)
        buffers = [RaggedBuffer.from_array(values), RaggedBuffer.from_flattened(values[0], [2])]
        values += 1
        assert [buffer.values.sum() for buffer in buffers] == [0, 0]

    @pytest.mark.parametrize("make", [RaggedBuffer, RaggedBuffer.unchecked])
    def test_wrapping_shares_both_arrays(self, make: Any) -> None:
        values, offsets = np.zeros((3, 2), dtype=np.float64), np.array([0, 1, 3])
        buffer = make(values, offsets)
        assert buffer.values is values
        assert buffer.offsets is offsets

    def test_real_numbers_become_float32_and_integers_int64(self) -> None:
        for given_dtype, dtype in (("f4", "f4"), ("f8", "f4"), ("i8", "i8"), ("u1", "i8"), ("?", "?"), ("c8", "c8")):
            array = np.ones((1, 2, 1), given_dtype)
            assert RaggedBuffer.from_array(array).dtype == RaggedBuffer.from_flattened(array[0], [2]).dtype == dtype
            assert RaggedBuffer(array[0], np.array([0, 2])).dtype == given_dtype
        assert RaggedBuffer.from_flattened(np.array([[2**63]], np.uint64), [1]).to_list() == [[[2**63]]]

    @pytest.mark.parametrize(
        ("values", "lengths", "message"),
        [
            ([[1.0], [1.0]], [1], "the lengths add up to 1, but there are 2 items"),
            ([[1.0]], [0.5], "they must be integers of shape"),
            ([[1.0]], [2], "the length of sequence 0 is 2, and there are 1 items"),
            ([[1.0]], [1, -1], "the length of sequence 1 is -1"),
            ([[1e39]], [1], "holds numbers that are too large for float32"),
            (1.0, [1], r"flattened values are float64 of shape \(\)"),
            (np.zeros((0, 1)), [2**62] * 4, "the length of sequence 0 is 46116"),  # their sum is 0 in int64
        ],
    )
    def test_from_flattened_names_what_does_not_fit(self, values: Any, lengths: Any, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            RaggedBuffer.from_flattened(values, lengths)

    @pytest.mark.parametrize(
        ("values", "offsets", "message"),
        [
            (np.zeros((4, 2))[::2], np.array([0, 2]), "values are float64 .* they must be C-contiguous"),
            (np.zeros((2, 1)), np.array([0, 2], dtype=np.int32), "offsets are int32"),
            (np.zeros((2, 1)), np.array([], dtype=np.int64), r"offsets are int64 of shape \(0,\)"),
            (np.zeros((2, 1)), np.array([0, 1]), "offsets go from 0 to 1: .* from 0 to 2"),
        ],
    )
    def test_the_constructor_names_what_does_not_fit(self, values: Any, offsets: Any, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            RaggedBuffer(values, offsets)


class TestSizesAndContent:
    def test_copies_and_parts_are_independent(self) -> None:
        buffer = three()
        for each in (buffer.clone(), copy.deepcopy(buffer), buffer[:], buffer[[0, 1, 2]]):
            assert each == three()
            each.values[:] = 0
        buffer[0].values[:] = 0
        assert buffer == three()

    @pytest.mark.parametrize("buffer", [three(), RaggedBuffer.from_array([[[1.0]]]), of([], features=0)])
    def test_a_pickled_buffer_comes_back(self, buffer: RaggedBuffer[Any]) -> None:
        assert pickle.loads(pickle.dumps(buffer)) == buffer

    def test_equality_compares_content_lengths_width_and_dtype(self) -> None:
        assert three() == three()
        assert three() != of(FIRST, SECOND, [[8, 9], [10, 12]])
        assert counting([3, 1]) != counting([1, 3])
        assert of(features=1) != of(features=2)
        assert RaggedBuffer.from_array([[[1.0, 2.0]]]) != of([[1, 2]])
        assert (three() == [FIRST, SECOND, THIRD]) is False
        with pytest.raises(TypeError, match="unhashable"):
            hash(three())

    def test_numpy_is_told_that_a_buffer_is_not_rectangular(self) -> None:
        with pytest.raises(TypeError, match="not rectangular: use its .values"):
            np.asarray(three())
        with pytest.raises(TypeError, match="not rectangular"):
            np.float32(1) * three()  # type: ignore[operator]


class TestIndexing:
    @pytest.mark.parametrize("index", [3, -4, [0, 3], np.array([-4]), [True, False], 1.0, "0", None, True, [0.5]])
    def test_what_names_no_sequences_is_an_index_error(self, index: Any) -> None:
        with pytest.raises(IndexError):
            three()[index]

    @given(BUFFERS, st.data())
    def test_any_index_means_what_it_means_on_lists(self, buffer: RaggedBuffer[np.int64], data: Any) -> None:
        size, lists = len(buffer), buffer.to_list()
        ints = st.lists(st.integers(-size, size - 1), max_size=4) if size else st.just([])
        index = data.draw(SLICES | ints | st.lists(st.booleans(), min_size=size, max_size=size))
        if isinstance(index, slice):
            expected = lists[index]
        elif index and isinstance(index[0], bool):
            expected = [each for each, wanted in zip(lists, index, strict=True) if wanted]
        else:
            expected = [lists[i] for i in index]
            assert all(buffer[i].to_list() == [lists[i]] for i in index)
        if isinstance(index, list) and data.draw(st.booleans()):
            index = np.array(index, np.bool_ if index and isinstance(index[0], bool) else np.int64)
        assert buffer[index].to_list() == expected


def test_cat_joins_the_sequences_of_buffers() -> None:
    assert cat([{"a": of(FIRST, [])}, {"a": of()}, {"a": of(SECOND)}]) == {"a": of(FIRST, [], SECOND)}


@given(st.lists(st.tuples(st.integers(-9, 9), st.integers(0, 4)), max_size=6))
def test_rows_of_lists_the_range_of_every_sequence(ranges: list[tuple[int, int]]) -> None:
    starts, lengths = np.array(ranges, np.int64).reshape(-1, 2).T
    assert rows_of(starts, lengths).tolist() == [row for start, n in ranges for row in range(start, start + n)]
