"""Ragged buffers: wherever a list of lists says the same, the list is the specification."""

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from entity_gym.batch.ragged import RaggedBuffer, RaggedBufferBool, RaggedBufferF32, RaggedBufferI64, rows_of

KINDS: list[type[RaggedBuffer[Any]]] = [RaggedBufferF32, RaggedBufferI64, RaggedBufferBool]
FIRST, SECOND, THIRD = [[0, 1], [2, 3], [4, 5]], [[6, 7]], [[8, 9], [10, 11]]


def i64(*sequences: list[Any], features: int = 2) -> RaggedBufferI64:
    items = [item for sequence in sequences for item in sequence]
    return RaggedBufferI64.from_flattened(np.reshape(items, (len(items), features)), [len(each) for each in sequences])


def three() -> RaggedBufferI64:
    """Three sequences of 3, 1 and 2 items with 2 features."""
    return i64(FIRST, SECOND, THIRD)


def counting(lengths: list[int], features: int = 1) -> RaggedBufferI64:
    """The numbers from 0 on, so that every value tells where it was."""
    items = sum(lengths)
    return RaggedBufferI64.from_flattened(np.arange(items * features).reshape(items, features), lengths)


def pictures() -> RaggedBuffer[Any]:
    """Sequences of 2 and 1 items that are (2, 3) bytes each: no typed class holds them."""
    return RaggedBuffer.from_offsets(np.arange(18, dtype=np.uint8).reshape(3, 2, 3), np.array([0, 2, 3]))


LENGTHS = st.lists(st.integers(0, 5), max_size=8)
BUFFERS = st.builds(counting, LENGTHS, st.integers(1, 3))
BOUNDS = st.none() | st.integers(-8, 8)
SLICES = st.builds(slice, BOUNDS, BOUNDS, st.none() | st.integers(-3, 3).filter(bool))


class TestConstruction:
    def test_values_and_offsets_hold_the_sequences_one_after_another(self) -> None:
        buffer = three()
        assert buffer.values.tolist() == FIRST + SECOND + THIRD
        assert buffer.offsets.tolist() == [0, 3, 4, 6]
        assert buffer.offsets.dtype == np.int64

    def test_from_array_and_from_flattened_copy(self) -> None:
        values = np.zeros((1, 2, 1), dtype=np.float32)
        buffers = [RaggedBufferF32.from_array(values), RaggedBufferF32.from_flattened(values[0], [2])]
        values += 1
        assert [buffer.values.sum() for buffer in buffers] == [0, 0]

    @pytest.mark.parametrize("make", [RaggedBufferF32, RaggedBufferF32.from_offsets, RaggedBufferF32.unchecked])
    def test_wrapping_shares_both_arrays(self, make: Any) -> None:
        values, offsets = np.zeros((3, 2), dtype=np.float32), np.array([0, 1, 3])
        buffer = make(values, offsets)
        assert buffer.values is values
        assert buffer.offsets is offsets

    def test_fortran_order_means_the_same_values(self) -> None:
        values = np.asfortranarray([[1.0, 2.0], [3.0, 4.0]], dtype=np.float32)
        buffer = RaggedBufferF32.from_flattened(values, [2])
        assert buffer.to_list() == [[[1, 2], [3, 4]]]
        assert buffer.values.flags.c_contiguous

    def test_items_may_have_no_features(self) -> None:
        buffer = RaggedBufferF32.from_flattened(np.empty((3, 0)), [1, 2])
        assert (buffer.items(), buffer.size2(), buffer.to_list()) == (3, 0, [[[]], [[], []]])

    @pytest.mark.parametrize(
        ("dtype", "converted", "wrapped"),
        [
            (np.float32, RaggedBufferF32, RaggedBufferF32),
            (np.float64, RaggedBufferF32, RaggedBuffer),
            (np.int64, RaggedBufferI64, RaggedBufferI64),
            (np.uint8, RaggedBufferI64, RaggedBuffer),
            (np.bool_, RaggedBufferBool, RaggedBufferBool),
            (np.complex64, RaggedBuffer, RaggedBuffer),
        ],
    )
    def test_the_base_class_returns_the_typed_class_that_fits(self, dtype: Any, converted: Any, wrapped: Any) -> None:
        array = np.ones((1, 2, 1), dtype=dtype)
        assert type(RaggedBuffer.from_array(array)) is converted
        assert type(RaggedBuffer.from_flattened(array[0], [2])) is converted
        assert type(RaggedBuffer.from_offsets(array[0], np.array([0, 2]))) is wrapped

    def test_items_of_any_shape_and_dtype_stay_as_they_are(self) -> None:
        for buffer in (pictures(), RaggedBuffer.from_flattened(np.arange(18, dtype=np.uint8).reshape(3, 2, 3), [2, 1])):
            assert (type(buffer), buffer.dtype, buffer.values.shape) == (RaggedBuffer, np.uint8, (3, 2, 3))
            assert buffer[1].to_list() == [[[[12, 13, 14], [15, 16, 17]]]]
        numbers = RaggedBuffer.from_offsets(np.arange(3, dtype=np.float32), np.array([0, 1, 3]))
        assert numbers[[1, 0]].to_list() == [[1, 2], [0]]

    @pytest.mark.parametrize("values", [[[1.5]], [[1]], [[True]], np.ones((1, 1)), np.ones((1, 1), dtype=np.int8)])
    def test_f32_takes_floats_integers_and_bools(self, values: Any) -> None:
        assert RaggedBufferF32.from_flattened(values, [1]).values.dtype == np.float32

    @pytest.mark.parametrize(
        ("kind", "values"),
        [
            (RaggedBufferI64, [[1.0]]),
            (RaggedBufferI64, np.array([[2**63]], dtype=np.uint64)),
            (RaggedBufferBool, [[1]]),
            (RaggedBufferBool, [[1.0]]),
            (RaggedBufferF32, [[1j]]),
            (RaggedBufferF32, [["1"]]),
        ],
    )
    def test_a_conversion_that_could_lose_something_is_refused(self, kind: Any, values: Any) -> None:
        with pytest.raises(ValueError, match=f"does not fit into {kind.__name__}"):
            kind.from_flattened(values, [1])

    @pytest.mark.parametrize(
        ("values", "lengths", "message"),
        [
            ([[1.0]], [2], "the lengths add up to 2, but there are 1 items"),
            ([[1.0]], [2, -1], "the length of sequence 1 is -1"),
            ([[1.0]], [1.0], "lengths are float64"),
            ([[1.0]], [[1], []], "the lengths are .* they must be numbers, and as many in every row"),
            ([[1.0], []], [2], "the flattened values are .* they must be numbers, and as many in every row"),
            ([[1e39]], [1], "holds numbers that are too large for float32"),
            ([1.0], [1], r"flattened values are float64 of shape \(1,\)"),
            (np.zeros((0, 1)), [2**62] * 4, "the lengths add up to 1.84e[+]19"),  # 0 in int64
            (np.zeros((1, 1)), np.array([2**64 - 1, 2], np.uint64), "the lengths add up to 1.84e[+]19"),  # 1 in int64
        ],
    )
    def test_from_flattened_names_what_does_not_fit(self, values: Any, lengths: Any, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            RaggedBufferF32.from_flattened(values, lengths)

    @pytest.mark.parametrize(
        ("values", "offsets", "message"),
        [
            (np.zeros((2, 1)), np.array([0, 2]), "values are float64"),
            (np.zeros(2, dtype=np.float32), np.array([0, 2]), r"values are float32 of shape \(2,\)"),
            (np.zeros((4, 2), dtype=np.float32)[::2], np.array([0, 2]), "values are not contiguous float32"),
            (np.zeros((2, 1), dtype=np.float32), np.array([0, 2], dtype=np.int32), "offsets are int32"),
            (np.zeros((2, 1), dtype=np.float32), np.array([], dtype=np.int64), r"offsets are int64 of shape \(0,\)"),
            (np.zeros((2, 1), dtype=np.float32), np.array([0, 1]), "offsets go from 0 to 1: .* from 0 to 2"),
            (np.zeros((2, 1), dtype=np.float32), np.array([1, 2]), "offsets go from 1 to 2"),
        ],
    )
    def test_from_offsets_names_what_does_not_fit(self, values: Any, offsets: Any, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            RaggedBufferF32.from_offsets(values, offsets)

    def test_an_array_without_sequences_is_refused(self) -> None:
        with pytest.raises(ValueError, match=r"of shape \(1, 1\): it must have the shape \(sequences, length, featu"):
            RaggedBufferF32.from_array([[1.0]])


class TestSizesAndContent:
    def test_the_sizes_count_sequences_items_and_features(self) -> None:
        buffer = three()
        assert (buffer.size0(), len(buffer), buffer.size2(), buffer.items()) == (3, 3, 2, 6)
        assert buffer.size1().tolist() == [3, 1, 2]
        assert (buffer.size1(0), buffer.size1(-1)) == (3, 2)

    def test_the_length_of_a_sequence_that_is_not_there_is_an_index_error(self) -> None:
        with pytest.raises(IndexError, match="there is no sequence 3: of 3, -3 to 2 can be named"):
            three().size1(3)
        with pytest.raises(IndexError, match="there is no sequence 0: of 0, none can be named"):
            i64().size1(0)

    def test_iteration_gives_each_sequence_as_an_array_and_ends(self) -> None:
        assert [sequence.tolist() for sequence in i64(FIRST, [], SECOND)] == [FIRST, [], SECOND]
        assert [sequence.shape for sequence in i64([], SECOND)] == [(0, 2), (1, 2)]

    def test_copies_are_independent(self) -> None:
        buffer = three()
        copies = [buffer.clone(), copy.deepcopy(buffer), buffer[:], buffer[[0, 1, 2]]]
        buffer.values[:] = 0
        assert all(each == three() for each in copies)

    @pytest.mark.parametrize("protocol", [2, pickle.HIGHEST_PROTOCOL])
    @pytest.mark.parametrize("buffer", [three(), RaggedBufferF32.from_array([[[1]]]), i64([], features=0), pictures()])
    def test_a_pickled_buffer_comes_back(self, buffer: RaggedBuffer[Any], protocol: int) -> None:
        back = pickle.loads(pickle.dumps(buffer, protocol))
        assert type(back) is type(buffer)
        assert back == buffer

    def test_small_buffers_print_their_content_and_large_ones_their_sizes(self) -> None:
        assert repr(i64(SECOND, [])) == "RaggedBufferI64([[[6, 7]], []], '2 * var * 2 * int64')"
        assert str(i64()) == "RaggedBufferI64([], '0 * var * 2 * int64')"
        large = repr(counting([1, 1000], 2))
        assert large == "RaggedBufferI64(1001 items, lengths 1 to 1000, '2 * var * 2 * int64')"
        assert repr(pictures()).endswith("'2 * var * 2 * 3 * uint8')")

    def test_equality_compares_content_lengths_width_and_dtype(self) -> None:
        assert three() == three()
        assert three() != i64(FIRST, SECOND, [[8, 9], [10, 12]])
        assert counting([3, 1]) != counting([1, 3])
        assert i64(features=1) != i64(features=2)
        assert RaggedBufferF32.from_array([[[1, 2]]]) != i64([[1, 2]])
        assert three() != 3
        assert (three() == [FIRST, SECOND, THIRD]) is False

    def test_a_buffer_is_mutable_and_therefore_not_hashable(self) -> None:
        with pytest.raises(TypeError, match="unhashable"):
            hash(three())

    def test_numpy_is_told_that_a_buffer_is_not_rectangular(self) -> None:
        with pytest.raises(TypeError, match="not rectangular: use its .values"):
            np.asarray(three())
        with pytest.raises(TypeError, match="not rectangular"):
            np.float32(1) * three()  # type: ignore[operator]


class TestIndexing:
    def test_a_negative_int_counts_from_the_end(self) -> None:
        assert three()[-1].to_list() == [THIRD]
        assert three()[np.array([-3, 1, -1])].to_list() == [FIRST, SECOND, THIRD]

    def test_bools_are_a_mask_and_not_the_numbers_0_and_1(self) -> None:
        assert three()[np.array([True, False, True])].to_list() == [FIRST, THIRD]
        assert three()[[False, False, False]].to_list() == []

    def test_the_result_has_the_class_of_the_buffer(self) -> None:
        for kind in KINDS:
            buffer = kind.from_array(np.ones((2, 1, 1), np.bool_))
            assert type(buffer[0]) is type(buffer[[1, 0]]) is kind

    def test_writing_to_the_result_does_not_change_the_buffer(self) -> None:
        buffer = three()
        for part in (buffer[0], buffer[1:], buffer[:], buffer[[1]]):
            part.values[:] = 0
        assert buffer == three()

    @pytest.mark.parametrize("index", [3, -4, [0, 3], np.array([-4])])
    def test_a_sequence_that_is_not_there_is_an_index_error(self, index: Any) -> None:
        with pytest.raises(IndexError, match=r"there is no sequence (3|-4): of 3, -3 to 2 can be named"):
            three()[index]

    @pytest.mark.parametrize("index", [1.0, "0", None, True, [0.5], [0, []], slice("a")])
    def test_something_else_is_a_type_error(self, index: Any) -> None:
        with pytest.raises(TypeError):
            three()[index]

    def test_malformed_indices_are_named(self) -> None:
        with pytest.raises(IndexError, match="there are 2 bools for 3 sequences"):
            three()[[True, False]]
        with pytest.raises(IndexError, match=r"has the shape \(1, 1\): it must have one dimension"):
            three()[np.array([[0]])]

    @given(BUFFERS, st.data())
    def test_any_index_means_what_it_means_on_lists(self, buffer: RaggedBufferI64, data: Any) -> None:
        size, lists = len(buffer), buffer.to_list()
        ints = st.lists(st.integers(-size, size - 1), max_size=4) if size else st.just([])
        index = data.draw(SLICES | ints | st.lists(st.booleans(), min_size=size, max_size=size))
        if isinstance(index, slice):
            expected = lists[index]
        elif index and isinstance(index[0], bool):
            expected = [each for each, wanted in zip(lists, index, strict=True) if wanted]
        else:
            expected = [lists[i] for i in index]
        assert buffer[index].to_list() == expected


class TestCat:
    def test_the_sequences_follow_one_another(self) -> None:
        assert RaggedBufferI64.cat([i64(FIRST, []), i64(), i64(SECOND)]).to_list() == [FIRST, [], SECOND]
        assert RaggedBuffer.cat([pictures(), pictures()]).to_list() == pictures().to_list() * 2

    def test_the_base_class_returns_the_class_of_the_parts(self) -> None:
        for kind in KINDS:
            part = kind.from_array(np.ones((2, 1, 1), np.bool_))
            assert type(RaggedBuffer.cat([part, part])) is kind

    def test_mistakes_are_named(self) -> None:
        f32 = RaggedBufferF32.from_array([[[1, 2]]])
        with pytest.raises(ValueError, match="cat was given no buffers"):
            RaggedBufferI64.cat([])
        with pytest.raises(TypeError, match="buffers of int64 and float32 cannot be joined"):
            RaggedBuffer.cat([i64(), f32])
        with pytest.raises(TypeError, match="a RaggedBufferF32 was given to RaggedBufferI64.cat"):
            RaggedBufferI64.cat([f32])  # type: ignore[list-item]
        with pytest.raises(TypeError, match="a list was given to RaggedBuffer.cat"):
            RaggedBuffer.cat([[1]])  # type: ignore[list-item]
        with pytest.raises(ValueError, match=r"items of shape \(2,\) and \(1,\) cannot be joined"):
            RaggedBuffer.cat([i64(), i64(features=1)])


@given(st.lists(st.tuples(st.integers(-9, 9), st.integers(0, 4)), max_size=6))
def test_rows_of_lists_the_range_of_every_sequence(ranges: list[tuple[int, int]]) -> None:
    starts, lengths = np.array(ranges, np.int64).reshape(-1, 2).T
    assert rows_of(starts, lengths).tolist() == [row for start, n in ranges for row in range(start, start + n)]
