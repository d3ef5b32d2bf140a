"""What a ragged buffer is. Wherever a list of lists says the same, the list is the specification."""

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from entity_gym.batch.ragged import (
    RaggedBuffer,
    RaggedBufferBool,
    RaggedBufferF32,
    RaggedBufferI64,
    cat,
    translate_rotate,
)

KINDS: list[type[RaggedBuffer[Any]]] = [RaggedBufferF32, RaggedBufferI64, RaggedBufferBool]
FIRST, SECOND, THIRD = [[0, 1], [2, 3], [4, 5]], [[6, 7]], [[8, 9], [10, 11]]


def i64(*sequences: list[Any], features: int = 2) -> RaggedBufferI64:
    buffer = RaggedBufferI64(features)
    for sequence in sequences:
        buffer.push(sequence)
    return buffer


def f32(*sequences: list[Any], features: int = 2) -> RaggedBufferF32:
    buffer = RaggedBufferF32(features)
    for sequence in sequences:
        buffer.push(sequence)
    return buffer


def three() -> RaggedBufferI64:
    """Three sequences of 3, 1 and 2 items with 2 features."""
    return i64(FIRST, SECOND, THIRD)


def counting(lengths: list[int], features: int = 1) -> RaggedBufferI64:
    """The numbers from 0 on, so that every value tells where it was."""
    items = sum(lengths)
    return RaggedBufferI64.from_flattened(np.arange(items * features).reshape(items, features), lengths)


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

    @pytest.mark.parametrize("kind", KINDS)
    def test_a_new_buffer_has_features_and_no_sequences(self, kind: type[RaggedBuffer[Any]]) -> None:
        buffer = kind(3)
        assert (buffer.size0(), buffer.items(), buffer.size2(), len(buffer)) == (0, 0, 3, 0)
        assert buffer.values.dtype == kind.dtype

    def test_from_flattened_cuts_by_lengths(self) -> None:
        buffer = RaggedBufferI64.from_flattened([[1], [2], [3]], [2, 0, 1])
        assert buffer.to_list() == [[[1], [2]], [], [[3]]]

    def test_from_array_makes_sequences_of_equal_length(self) -> None:
        assert RaggedBufferI64.from_array([[[1], [2]], [[3], [4]]]).to_list() == [[[1], [2]], [[3], [4]]]

    def test_from_array_and_from_flattened_copy(self) -> None:
        values = np.zeros((1, 2, 1), dtype=np.float32)
        buffers = [RaggedBufferF32.from_array(values), RaggedBufferF32.from_flattened(values[0], [2])]
        values += 1
        assert [buffer.values.sum() for buffer in buffers] == [0, 0]

    def test_from_offsets_shares_both_arrays(self) -> None:
        values, offsets = np.zeros((3, 2), dtype=np.float32), np.array([0, 1, 3])
        buffer = RaggedBufferF32.from_offsets(values, offsets)
        assert buffer.values is values
        assert buffer.offsets is offsets

    def test_pushing_to_a_buffer_with_shared_arrays_leaves_these_alone(self) -> None:
        values, offsets = np.zeros((4, 1), dtype=np.float32), np.array([0, 1, 2, 9])
        buffer = RaggedBufferF32.from_offsets(values[:2], offsets[:3])
        buffer.push([[5.0]])
        assert values.tolist() == [[0], [0], [0], [0]]
        assert offsets.tolist() == [0, 1, 2, 9]
        assert buffer.to_list() == [[[0.0]], [[0.0]], [[5.0]]]

    def test_fortran_order_means_the_same_values(self) -> None:
        values = np.asfortranarray([[1.0, 2.0], [3.0, 4.0]], dtype=np.float32)
        buffer = RaggedBufferF32.from_flattened(values, [2])
        assert buffer.to_list() == [[[1, 2], [3, 4]]]
        assert buffer.values.flags.c_contiguous

    def test_items_may_have_no_features(self) -> None:
        buffer = RaggedBufferF32.from_flattened(np.empty((3, 0)), [1, 2])
        assert (buffer.items(), buffer.size2(), buffer.to_list()) == (3, 0, [[[]], [[], []]])

    @pytest.mark.parametrize(
        ("dtype", "kind"),
        [
            (np.float32, RaggedBufferF32),
            (np.float64, RaggedBufferF32),
            (np.int64, RaggedBufferI64),
            (np.uint8, RaggedBufferI64),
            (np.bool_, RaggedBufferBool),
        ],
    )
    def test_the_base_class_picks_the_buffer_by_dtype(self, dtype: Any, kind: type[RaggedBuffer[Any]]) -> None:
        array = np.ones((1, 2, 1), dtype=dtype)
        assert type(RaggedBuffer.from_array(array)) is kind
        assert type(RaggedBuffer.from_flattened(array[0], [2])) is kind

    def test_torch_shares_the_memory(self) -> None:
        buffer = f32([[1.0, 2.0]])
        torch.from_numpy(buffer.values)[0, 0] = 7
        assert buffer.to_list() == [[[7.0, 2.0]]]
        assert torch.from_numpy(buffer.offsets).tolist() == [0, 1]

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
        with pytest.raises(ValueError, match=f"does not fit into {kind.__name__}"):
            kind(1).push(values)

    @pytest.mark.parametrize(
        ("values", "lengths", "message"),
        [
            ([[1.0]], [2], "the lengths add up to 2, but there are 1 items"),
            ([[1.0]], [2, -1], "the length of sequence 1 is -1"),
            ([[1.0]], [1.0], "lengths are float64"),
            ([1.0], [1], r"flattened values are float64 of shape \(1,\)"),
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

    def test_other_mistakes_are_named(self) -> None:
        with pytest.raises(ValueError, match="RaggedBuffer has no dtype: use RaggedBufferF32"):
            RaggedBuffer(2)
        with pytest.raises(ValueError, match="a buffer of -1 features"):
            RaggedBufferF32(-1)
        with pytest.raises(ValueError, match="no ragged buffer holds complex128"):
            RaggedBuffer.from_array(np.zeros((1, 1, 1), dtype=complex))
        with pytest.raises(
            ValueError, match=r"of shape \(1, 1\): it must have the shape \(sequences, length, features\)"
        ):
            RaggedBufferF32.from_array([[1.0]])


class TestGrowing:
    def test_push_appends_one_sequence(self) -> None:
        buffer = three()
        buffer.push([[12, 13]])
        assert buffer.to_list() == [FIRST, SECOND, THIRD, [[12, 13]]]

    def test_an_empty_sequence_may_be_pushed_in_three_ways(self) -> None:
        buffer = i64()
        buffer.push_empty()
        buffer.push([])
        buffer.push(np.empty((0, 2), dtype=np.int64))
        assert buffer.size1().tolist() == [0, 0, 0]

    @pytest.mark.parametrize("items", [[1, 2], [[1, 2, 3]], [[[1, 2]]], np.empty((0, 5), dtype=np.int64), 3])
    def test_a_push_of_the_wrong_shape_changes_nothing(self, items: Any) -> None:
        buffer = three()
        with pytest.raises(ValueError, match=r"the shape must be \(items, 2\)"):
            buffer.push(items)
        assert buffer == three()

    def test_many_pushes_move_the_values_only_now_and_then(self) -> None:
        buffer = i64(features=1)
        homes = set()
        for number in range(1000):
            buffer.push([[number]])
            homes.add(buffer.values.ctypes.data)
        assert len(homes) < 10
        assert buffer == counting([1] * 1000)

    def test_extend_appends_the_sequences_of_another_buffer(self) -> None:
        buffer = three()
        buffer.extend(i64(SECOND, []))
        assert buffer.to_list() == [FIRST, SECOND, THIRD, SECOND, []]

    def test_a_buffer_can_extend_itself(self) -> None:
        buffer = three()
        for _ in range(3):
            buffer.extend(buffer)
        assert buffer.to_list() == [FIRST, SECOND, THIRD] * 8

    def test_extend_needs_the_same_dtype_and_width(self) -> None:
        with pytest.raises(TypeError, match="a RaggedBufferF32 cannot be combined with a RaggedBufferI64"):
            three().extend(f32())  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="a list cannot be combined"):
            three().extend([])  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="a buffer has 1 features, another 2"):
            three().extend(i64(features=1))

    def test_clear_removes_everything_but_the_width(self) -> None:
        buffer = three()
        buffer.clear()
        assert (buffer.size0(), buffer.items(), buffer.size2()) == (0, 0, 2)
        buffer.push(SECOND)
        assert buffer.to_list() == [SECOND]

    def test_arrays_handed_out_before_a_clear_keep_their_content(self) -> None:
        buffer = three()
        values, offsets, derived = buffer.values, buffer.offsets, buffer + 0
        buffer.clear()
        buffer.push([[99, 99]] * 4)
        assert values.tolist() == FIRST + SECOND + THIRD
        assert offsets.tolist() == [0, 3, 4, 6]
        assert derived == three()

    @given(LENGTHS)
    def test_pushing_one_by_one_equals_from_flattened(self, lengths: list[int]) -> None:
        buffer = RaggedBufferI64(2)
        for sequence in counting(lengths, 2):
            buffer.push(sequence)
        assert buffer == counting(lengths, 2)


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
        copies = [buffer.clone(), buffer.materialize(), copy.deepcopy(buffer), buffer[:], buffer[0:3, :, :]]
        array = buffer.as_array()
        buffer += 1
        buffer.push_empty()
        assert all(each == three() for each in copies)
        assert array.tolist() == FIRST + SECOND + THIRD

    @pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
    @pytest.mark.parametrize("kind", KINDS)
    def test_a_pickled_buffer_comes_back_and_can_grow(self, kind: type[RaggedBuffer[Any]], protocol: int) -> None:
        buffer = kind.from_flattened(np.zeros((3, 2), dtype=bool), [1, 0, 2])
        buffer.push(np.ones((1, 2), dtype=bool))  # from here on the arrays have spare room
        back = pickle.loads(pickle.dumps(buffer, protocol))
        assert type(back) is kind
        assert back == buffer
        back.push(np.ones((1, 2), dtype=bool))
        assert back.size1().tolist() == [1, 0, 2, 1, 1]
        assert buffer.size1().tolist() == [1, 0, 2, 1]

    def test_a_pickle_holds_no_spare_room(self) -> None:
        buffer = RaggedBufferI64(1)
        for _ in range(1025):
            buffer.push([[1]])
        assert len(pickle.dumps(buffer)) < 1.1 * 8 * (1025 + 1026)

    @given(BUFFERS)
    def test_pickling_round_trips(self, buffer: RaggedBufferI64) -> None:
        assert pickle.loads(pickle.dumps(buffer)) == buffer
        assert copy.deepcopy(buffer) == buffer

    def test_small_buffers_print_their_content_and_large_ones_their_sizes(self) -> None:
        assert repr(i64(SECOND, [])) == "RaggedBufferI64([[[6, 7]], []], '2 * var * 2 * int64')"
        assert str(f32()) == "RaggedBufferF32([], '0 * var * 2 * float32')"
        large = repr(counting([1, 1000], 2))
        assert large == "RaggedBufferI64(1001 items, lengths 1 to 1000, '2 * var * 2 * int64')"

    def test_equality_compares_content_lengths_width_and_dtype(self) -> None:
        assert three() == three()
        assert three() != three() + 1
        assert counting([3, 1]) != counting([1, 3])
        assert i64(features=1) != i64(features=2)
        assert f32([[1, 2]]) != i64([[1, 2]])
        assert three() != 3
        assert (three() == [FIRST, SECOND, THIRD]) is False

    def test_a_buffer_is_mutable_and_therefore_not_hashable(self) -> None:
        with pytest.raises(TypeError, match="unhashable"):
            hash(three())

    def test_numpy_is_told_that_a_buffer_is_not_rectangular(self) -> None:
        with pytest.raises(TypeError, match="not rectangular: use .values"):
            np.asarray(three())


class TestIndexing:
    def test_an_int_gives_a_buffer_of_one_sequence(self) -> None:
        assert three()[0].to_list() == [FIRST]
        assert three()[np.int64(1)].to_list() == [SECOND]

    def test_a_negative_int_counts_from_the_end(self) -> None:
        assert three()[-1].to_list() == [THIRD]
        assert three()[np.array([-3, 1, -1])].to_list() == [FIRST, SECOND, THIRD]

    def test_a_list_or_array_gathers_and_may_repeat(self) -> None:
        assert three()[[2, 0, 2]].to_list() == [THIRD, FIRST, THIRD]
        assert three()[np.array([1], dtype=np.uint8)].to_list() == [SECOND]
        assert three()[[]].to_list() == []

    def test_bools_are_a_mask_and_not_the_numbers_0_and_1(self) -> None:
        assert three()[np.array([True, False, True])].to_list() == [FIRST, THIRD]
        assert three()[[False, False, False]].to_list() == []

    def test_slices_work_as_on_lists(self) -> None:
        assert three()[1:].to_list() == [SECOND, THIRD]
        assert three()[::-1].to_list() == [THIRD, SECOND, FIRST]
        assert three()[::-1, :, :].to_list() == [THIRD, SECOND, FIRST]

    def test_features_are_gathered_and_keep_their_axis(self) -> None:
        assert three()[:, :, 1].to_list() == [[[1], [3], [5]], [[7]], [[9], [11]]]
        assert three()[1, :, [1, 0, 1]].to_list() == [[[7, 6, 7]]]
        assert three()[1, :, ::-1].to_list() == [[[7, 6]]]
        assert three()[1, :, -1].to_list() == [[[7]]]
        assert three()[1, :, [True, False]].to_list() == [[[6]]]
        assert three()[:, :, []].values.shape == (6, 0)

    def test_positions_that_a_shorter_sequence_lacks_are_skipped(self) -> None:
        assert three()[:, 1, :].to_list() == [[[2, 3]], [], [[10, 11]]]
        assert three()[:, 1:3].to_list() == [[[2, 3], [4, 5]], [], [[10, 11]]]
        assert three()[:, [1, 0], :].to_list() == [[[2, 3], [0, 1]], [[6, 7]], [[10, 11], [8, 9]]]
        assert three()[:, 9, :].to_list() == [[], [], []]

    def test_negative_positions_count_from_the_end_of_each_sequence(self) -> None:
        assert three()[:, -1, :].to_list() == [[[4, 5]], [[6, 7]], [[10, 11]]]
        assert three()[:, -2:, :].to_list() == [[[2, 3], [4, 5]], [[6, 7]], [[8, 9], [10, 11]]]
        assert three()[:, [-2], :].to_list() == [[[2, 3]], [], [[8, 9]]]

    def test_bools_choose_positions_up_to_the_longest_chosen_sequence(self) -> None:
        assert three()[:, [False, True, True]].to_list() == [[[2, 3], [4, 5]], [], [[10, 11]]]
        assert three()[1:, [False, True]].to_list() == [[], [[10, 11]]]
        with pytest.raises(IndexError, match="there are 2 bools for 3 positions"):
            three()[:, [True, True]]

    def test_all_three_axes_are_indexed_at_once(self) -> None:
        assert three()[0, 1, 1].to_list() == [[[3]]]
        assert three()[[2, 0], [0, -1], [1]].to_list() == [[[9], [11]], [[1], [5]]]
        assert three()[-1, np.array([0, 1, 0]), np.array([0])].to_list() == [[[8], [10], [8]]]

    def test_empty_buffers_can_be_indexed(self) -> None:
        assert i64()[:].to_list() == []
        assert i64()[:, 0, :].to_list() == []
        assert i64([], [])[:, ::-1, 1].to_list() == [[], []]

    def test_writing_to_the_result_does_not_change_the_buffer(self) -> None:
        buffer = three()
        for part in (buffer[0], buffer[1:], buffer[:, :, :], buffer[:, :, 0]):
            part -= 100
            part.values[:] = 0
        assert buffer == three()

    @pytest.mark.parametrize("index", [3, -4, [0, 3], np.array([-4]), (3, 0, 0)])
    def test_a_sequence_that_is_not_there_is_an_index_error(self, index: Any) -> None:
        with pytest.raises(IndexError, match=r"there is no sequence (3|-4): of 3, -3 to 2 can be named"):
            three()[index]

    def test_a_feature_that_is_not_there_is_an_index_error(self) -> None:
        with pytest.raises(IndexError, match="there is no feature 5: of 2, -2 to 1 can be named"):
            three()[:, :, [5]]

    @pytest.mark.parametrize("index", [1.0, "0", None, True, [0.5], (0, "a"), (0, 0, True), slice("a")])
    def test_something_else_is_a_type_error(self, index: Any) -> None:
        with pytest.raises(TypeError):
            three()[index]

    def test_malformed_indices_are_named(self) -> None:
        with pytest.raises(IndexError, match="there are 2 bools for 3 sequences"):
            three()[[True, False]]
        with pytest.raises(IndexError, match="4 indices were given"):
            three()[0, 0, 0, 0]
        with pytest.raises(IndexError, match=r"has the shape \(1, 1\): it must have one dimension"):
            three()[np.array([[0]])]
        with pytest.raises(ValueError, match="the step of a slice of positions is 0"):
            three()[:, ::0, :]

    @given(BUFFERS, st.data())
    def test_any_combination_of_indices_means_what_it_means_on_lists(self, buffer: RaggedBufferI64, data: Any) -> None:
        def axis(size: int) -> st.SearchStrategy[Any]:
            masks = st.lists(st.booleans(), min_size=size, max_size=size)
            ints = st.integers(-size, size - 1)
            return SLICES | masks | ints | st.lists(ints, max_size=4) if size else SLICES | masks

        def pick(sequence: list[Any], index: Any) -> list[Any]:
            if isinstance(index, slice):
                return sequence[index]
            if isinstance(index, list) and any(isinstance(each, bool) for each in index):
                return [each for each, wanted in zip(sequence, index, strict=False) if wanted]
            wanted = index if isinstance(index, list) else [index]
            return [sequence[i] for i in wanted if -len(sequence) <= i < len(sequence)]

        sequences = data.draw(axis(len(buffer)), "sequences")
        chosen = pick(buffer.to_list(), sequences)
        positions = data.draw(axis(max(map(len, chosen), default=0)), "positions")
        features = data.draw(axis(buffer.size2()), "features")
        expected = [[pick(item, features) for item in pick(sequence, positions)] for sequence in chosen]
        assert buffer[sequences, positions, features].to_list() == expected

    def test_slice_bounds_may_be_astronomical(self) -> None:
        assert three()[:, -(10**30) : 10**30, :] == three()
        assert three()[:, :: 10**30, :].size1().tolist() == [1, 1, 1]
        assert three()[:, :: -(10**30), :].to_list() == [[[4, 5]], [[6, 7]], [[10, 11]]]

    @given(BUFFERS)
    def test_gathering_every_sequence_and_joining_gives_the_buffer_back(self, buffer: RaggedBufferI64) -> None:
        assert RaggedBufferI64.cat([buffer[:0], *(buffer[i] for i in range(len(buffer)))]) == buffer

    @given(BUFFERS, st.randoms())
    def test_a_permutation_and_its_inverse_cancel(self, buffer: RaggedBufferI64, random: Any) -> None:
        order = list(range(len(buffer)))
        random.shuffle(order)
        assert buffer[order][np.argsort(order)] == buffer


class TestIndices:
    def test_indices_name_the_sequence_or_the_position_of_each_item(self) -> None:
        buffer = f32([[1, 1]], [], [[2, 2], [3, 3]])
        assert buffer.indices(0).to_list() == [[[0]], [], [[2], [2]]]
        assert buffer.indices(1).to_list() == [[[0]], [], [[0], [1]]]
        assert buffer.flat_indices().to_list() == [[[0]], [], [[1], [2]]]
        assert isinstance(buffer.indices(0), RaggedBufferI64)

    def test_there_are_no_indices_along_features(self) -> None:
        with pytest.raises(ValueError, match="dim is 2: indices exist for 0"):
            three().indices(2)


class TestArithmetic:
    def test_numbers_apply_to_every_value_from_either_side(self) -> None:
        buffer = f32([[1, 2]], [])
        assert (buffer + 1.5).to_list() == (1.5 + buffer).to_list() == [[[2.5, 3.5]], []]
        assert (buffer * 2).to_list() == (2 * buffer).to_list() == [[[2.0, 4.0]], []]
        assert (buffer - 1).to_list() == [[[0.0, 1.0]], []]
        assert (1 - buffer).to_list() == [[[0.0, -1.0]], []]
        assert (np.float64(2) * buffer).to_list() == [[[2.0, 4.0]], []]
        assert (np.int64(1) + i64([[1, 2]])).to_list() == [[[2, 3]]]

    @pytest.mark.parametrize("other", [0.1, np.float64(0.1), 1, np.float32(0.1)])
    def test_the_dtype_stays(self, other: Any) -> None:
        assert (f32([[1, 2]]) * other).values.dtype == np.float32
        assert (f32([[1, 2]]) * other).values[0, 0] == np.float32(other)

    def test_buffers_combine_item_by_item(self) -> None:
        assert (three() + three()) == three() * 2
        assert (three() - three()) == three() * 0
        assert (three() * three()).to_list()[1] == [[36, 49]]

    def test_sequences_of_length_1_are_repeated_on_either_side(self) -> None:
        one = i64([[10, 0]], [[20, 0]], [[30, 0]])
        expected = [[[10, 1], [12, 3], [14, 5]], [[26, 7]], [[38, 9], [40, 11]]]
        assert (three() + one).to_list() == expected
        assert (one + three()).to_list() == expected
        assert (one - three()).to_list()[1] == [[14, -7]]
        assert (three() - one).to_list()[1] == [[-14, 7]]

    def test_repeating_for_an_empty_sequence_gives_an_empty_sequence(self) -> None:
        ones = counting([1, 1]) + 1
        assert (ones + counting([0, 2])).to_list() == [[], [[2], [3]]]
        assert (counting([0, 2]) + ones).to_list() == [[], [[2], [3]]]

    def test_in_place_operations_write_to_the_same_values(self) -> None:
        buffer = three()
        alias = buffer
        values = buffer.values
        buffer += 1
        buffer *= i64([[1, 0]], [[1, 0]], [[1, 0]])
        buffer -= three()
        assert alias is buffer
        assert values is buffer.values
        assert buffer.to_list() == [[[1, -1], [1, -3], [1, -5]], [[1, -7]], [[1, -9], [1, -11]]]

    def test_in_place_the_left_side_cannot_be_repeated(self) -> None:
        ones = counting([1, 1])
        with pytest.raises(ValueError, match="in place: the lengths are .* only the right side may be repeated"):
            ones += counting([2, 1])
        assert ones == counting([1, 1])

    @pytest.mark.parametrize("lengths", [[3, 1], [1, 2, 2], [1, 1], [0, 1, 2]])
    def test_other_lengths_do_not_combine(self, lengths: list[int]) -> None:
        with pytest.raises(ValueError, match=r"the lengths are \[3, 1, 2\] and "):
            counting([3, 1, 2]) + counting(lengths)

    def test_other_widths_do_not_combine(self) -> None:
        with pytest.raises(ValueError, match="a buffer has 1 features, another 2"):
            three() + counting([3, 1, 2])

    def test_dtypes_do_not_mix(self) -> None:
        with pytest.raises(TypeError, match="a RaggedBufferF32 cannot be combined with a RaggedBufferI64"):
            i64() + f32()
        with pytest.raises(TypeError, match="holds integers: 1.5 of type float would be rounded"):
            three() + 1.5
        with pytest.raises(TypeError, match="RaggedBufferBool has no arithmetic"):
            RaggedBufferBool(1) + RaggedBufferBool(1)
        with pytest.raises(TypeError, match="unsupported operand"):
            three() + "1"
        with pytest.raises(TypeError, match="unsupported operand"):
            object() - three()
        with pytest.raises(TypeError):
            np.ones(2) - three()
        with pytest.raises(ValueError, match="does not fit into int64"):
            three() + 2**63

    @given(LENGTHS, st.integers(1, 3))
    def test_repeating_equals_writing_the_repeats_out(self, lengths: list[int], features: int) -> None:
        buffer, ones = counting(lengths, features), counting([1] * len(lengths), features) + 5
        written_out = ones[buffer.indices(0).values[:, 0]]  # one sequence for each item
        expected = buffer.values * written_out.values
        assert (buffer * ones).values.tolist() == (ones * buffer).values.tolist() == expected.tolist()


class TestCat:
    def test_along_0_the_sequences_follow_one_another(self) -> None:
        assert RaggedBufferI64.cat([i64(FIRST, []), i64(), i64(SECOND)]).to_list() == [FIRST, [], SECOND]

    def test_along_1_each_sequence_grows(self) -> None:
        joined = RaggedBufferI64.cat([i64(FIRST, []), i64([], []), i64(SECOND, THIRD)], dim=1)
        assert joined.to_list() == [FIRST + SECOND, THIRD]

    def test_along_2_features_stand_side_by_side(self) -> None:
        joined = RaggedBufferI64.cat([i64(FIRST), counting([3]) + 90], dim=2)
        assert joined.to_list() == [[[0, 1, 90], [2, 3, 91], [4, 5, 92]]]

    def test_along_2_sequences_of_length_1_are_repeated_and_empty_ones_win(self) -> None:
        joined = cat([counting([2, 1, 1, 3]), counting([1, 2, 0, 0]) + 10], dim=2)
        assert joined.to_list() == [[[0, 10], [1, 10]], [[2, 11], [2, 12]], [], []]

    def test_one_buffer_joins_to_a_copy(self) -> None:
        for dim in range(3):
            buffer = three()
            joined = cat([buffer], dim)
            joined += 1
            assert buffer == three()

    @pytest.mark.parametrize("dim", [0, 1, 2])
    @pytest.mark.parametrize("kind", KINDS)
    def test_the_base_class_and_the_function_keep_the_dtype(self, kind: type[RaggedBuffer[Any]], dim: int) -> None:
        assert type(RaggedBuffer.cat([kind(1), kind(1)], dim)) is kind
        assert type(cat([kind(1)], dim)) is kind

    def test_mistakes_are_named(self) -> None:
        with pytest.raises(ValueError, match="cat needs at least one buffer"):
            RaggedBufferI64.cat([])
        with pytest.raises(ValueError, match="dim is 3: it must be 0"):
            three().cat([three()], dim=3)
        with pytest.raises(TypeError, match="a RaggedBufferF32 cannot be combined with a RaggedBufferI64"):
            RaggedBuffer.cat([i64(), f32()])  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="a RaggedBufferF32 was given to RaggedBufferI64.cat"):
            RaggedBufferI64.cat([f32()])  # type: ignore[list-item]
        with pytest.raises(TypeError, match="a list was given to RaggedBuffer.cat"):
            cat([[1]])  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="a buffer has 1 features, another 2"):
            cat([i64(), i64(features=1)], dim=1)
        with pytest.raises(ValueError, match=r"the buffers have \[3, 1\] sequences: along dim 2"):
            cat([three(), i64(FIRST)], dim=2)
        with pytest.raises(ValueError, match=r"sequence 1 has the lengths \[3, 2\] in the buffers"):
            cat([counting([1, 3]), counting([4, 2])], dim=2)

    @given(LENGTHS, st.data())
    def test_joining_along_1_equals_joining_lists(self, lengths: list[int], data: Any) -> None:
        others = data.draw(st.lists(st.integers(0, 4), min_size=len(lengths), max_size=len(lengths)))
        left, right = counting(lengths, 2), counting(others, 2) + 1000
        expected = [a + b for a, b in zip(left.to_list(), right.to_list(), strict=True)]
        assert cat([left, right], dim=1).to_list() == expected


class TestPadpack:
    def test_items_with_more_than_one_feature_pack(self) -> None:
        packing = three().padpack()
        assert packing.index.tolist() == [[0, 1, 2], [3, 4, 5]]
        assert packing.batch.tolist() == [[0, 0, 0], [1, 2, 2]]

    def test_equal_lengths_and_empty_buffers_pack_too(self) -> None:
        assert counting([2, 2]).padpack().inverse_index.tolist() == [0, 1, 2, 3]
        assert i64().padpack().index.shape == (0, 0)

    @given(st.builds(counting, LENGTHS, st.integers(0, 3)))
    def test_packing_and_unpacking_gives_the_values_back(self, buffer: RaggedBufferI64) -> None:
        packing = buffer.padpack()
        packed = buffer.values[packing.index]  # (rows, columns, features)
        flat = packed.reshape(packing.index.size, buffer.size2())
        assert flat[packing.inverse_index].tolist() == buffer.values.tolist()


class TestTranslateRotate:
    def test_points_are_seen_from_the_origin_along_the_direction(self) -> None:
        source = f32([[1, 0], [2, 1]], [[5, 5]], [])
        origin = f32([[1, 1]], [[2, 2]], [[0, 0]])
        direction = f32([[0, 1]], [[0.6, 0.8]], [[1, 0]])
        # looking up: (0, -1) is 1 behind; (1, 0) is 1 to the right. Then (3, 3): 1.8 + 2.4 ahead, -2.4 + 1.8 aside
        result = translate_rotate(source, origin, direction)
        assert result.size1().tolist() == [2, 1, 0]
        np.testing.assert_allclose(result.values, np.array([[-1, 0], [0, -1], [4.2, -0.6]]), atol=1e-6)
        assert result.values.dtype == np.float32

    def test_the_points_themselves_stay(self) -> None:
        source = f32([[1, 0]])
        assert source.translate_rotate(f32([[1, 1]]), f32([[0, 1]])).to_list() == [[[-1.0, 0.0]]]
        assert source.to_list() == [[[1.0, 0.0]]]

    def test_mistakes_are_named(self) -> None:
        point = f32([[1, 0]])
        with pytest.raises(TypeError, match="origin is a RaggedBufferI64"):
            translate_rotate(point, i64([[1, 0]]), point)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="direction has 3 features"):
            translate_rotate(point, point, f32([[1, 0, 0]], features=3))
        with pytest.raises(ValueError, match=r"origin has the lengths \[2\]: it must have exactly one item"):
            translate_rotate(point, f32([[1, 0], [1, 0]]), point)
        with pytest.raises(ValueError, match="each of the 1 sequences"):
            translate_rotate(point, f32([[1, 0]], [[1, 0]]), point)
