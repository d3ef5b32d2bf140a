"""Our buffers against the package `ragged-buffer` 0.4.8, operation by operation, wherever that package is right."""

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from entity_gym.batch.interop import from_ragged_buffer, to_ragged_buffer
from entity_gym.batch.ragged import (
    RaggedBuffer,
    RaggedBufferBool,
    RaggedBufferF32,
    RaggedBufferI64,
    cat,
    translate_rotate,
)

LENGTHS = st.lists(st.integers(0, 5), min_size=1, max_size=8)
KINDS: list[type[RaggedBuffer[Any]]] = [RaggedBufferF32, RaggedBufferI64, RaggedBufferBool]


@pytest.fixture(scope="module")
def theirs() -> Any:
    return pytest.importorskip("ragged_buffer", reason="pip install --no-deps ragged-buffer (Python 3.9-3.11)")


def ours(lengths: list[int], features: int = 2, kind: type[RaggedBuffer[Any]] = RaggedBufferF32) -> RaggedBuffer[Any]:
    items = sum(lengths)
    values = np.arange(items * features).reshape(items, features)
    return kind.from_flattened(values % 3 == 0 if kind is RaggedBufferBool else values, lengths)


def agree(buffer: RaggedBuffer[Any], other: Any) -> None:
    back = from_ragged_buffer(other)
    assert type(back) is type(buffer)
    assert back.to_list() == buffer.to_list()
    assert back.size2() == buffer.size2()


@given(LENGTHS, st.sampled_from(KINDS), st.integers(0, 3))
def test_a_buffer_survives_the_way_there_and_back(theirs: Any, lengths: list[int], kind: Any, features: int) -> None:
    buffer = ours(lengths, features, kind)
    other = to_ragged_buffer(buffer)
    assert isinstance(other, getattr(theirs, kind.__name__))
    assert (other.size0(), other.size2(), other.items()) == (buffer.size0(), buffer.size2(), buffer.items())
    assert other.size1().tolist() == buffer.size1().tolist()
    agree(buffer, other)


INDICES: dict[str, Callable[[Any], Any]] = {
    "[1]": lambda b: b[1],
    "[[2, 0, 2]]": lambda b: b[[2, 0, 2]],
    "[array]": lambda b: b[np.array([3, 1])],
    "[empty array]": lambda b: b[np.array([], dtype=np.int64)],
    "[0, :, :]": lambda b: b[0, :, :],
    "[[0, 2], :, :]": lambda b: b[[0, 2], :, :],
    "[1:3, :, :]": lambda b: b[1:3, :, :],
    "[:, 0, :]": lambda b: b[:, 0, :],
    "[:, 2, :]": lambda b: b[:, 2, :],
    "[:, 9, :]": lambda b: b[:, 9, :],
    "[:, [1], :]": lambda b: b[:, [1], :],
    "[:, [0, 0, 2], :]": lambda b: b[:, [0, 0, 2], :],  # falling positions lose items in theirs: see the next test
    "[:, 0:1, :]": lambda b: b[:, 0:1, :],
    "[:, 1:3, :]": lambda b: b[:, 1:3, :],
    "[:, 0:6:2, :]": lambda b: b[:, 0:6:2, :],
    "[:, :, 1]": lambda b: b[:, :, 1],
    "[:, :, [1, 0, 1]]": lambda b: b[:, :, [1, 0, 1]],
    "[:, :, 0:1]": lambda b: b[:, :, 0:1],
    "[:, :, []]": lambda b: b[:, :, []],
    "[[2, 0], [1, 0], [1]]": lambda b: b[[2, 0], [1, 0], [1]],
    "[0:1, 0, 1]": lambda b: b[0:1, 0, 1],
    "[0, :, 1]": lambda b: b[0, :, 1],
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", INDICES)
def test_indexing_agrees(theirs: Any, name: str, kind: Any) -> None:
    buffer = ours([3, 1, 0, 2], 2, kind)
    agree(INDICES[name](buffer), INDICES[name](to_ragged_buffer(buffer)))


def test_positions_behind_one_that_is_missing_are_kept_here_and_lost_there(theirs: Any) -> None:
    buffer = ours([3, 1], 1)
    assert buffer[:, [2, 0], :].to_list() == [[[2], [0]], [[3]]]
    assert from_ragged_buffer(to_ragged_buffer(buffer)[:, [2, 0], :]).to_list() == [[[2], [0]], []]


@pytest.mark.parametrize("kind", KINDS)
def test_growing_agrees(theirs: Any, kind: type[RaggedBuffer[Any]]) -> None:
    def grow(buffer: Any, other: Any) -> Any:
        buffer.push(np.ones((2, 2), dtype=kind.dtype))
        buffer.push(np.empty((0, 2), dtype=kind.dtype))
        buffer.push_empty()
        buffer.extend(other)
        return buffer

    start, other = ours([3, 0], 2, kind), ours([1, 2], 2, kind)
    agree(grow(start.clone(), other), grow(to_ragged_buffer(start), to_ragged_buffer(other)))


@pytest.mark.parametrize("kind", [RaggedBufferF32, RaggedBufferI64])
@pytest.mark.parametrize(
    ("left", "right"), [([3, 1, 0], [3, 1, 0]), ([3, 1, 0], [1, 1, 1]), ([1, 1, 1], [3, 0, 2]), ([0], [1]), ([], [])]
)
def test_arithmetic_of_buffers_agrees(theirs: Any, kind: Any, left: list[int], right: list[int]) -> None:
    a, b = ours(left, 2, kind), ours(right, 2, kind) + 7
    agree(a + b, to_ragged_buffer(a) + to_ragged_buffer(b))
    agree(a * b, to_ragged_buffer(a) * to_ragged_buffer(b))


@pytest.mark.parametrize(
    ("left", "right"), [([3], [2]), ([3], [0]), ([3, 1], [3]), ([3, 1, 1], [1, 1, 2]), ([3, 2], [1])]
)
def test_the_same_arithmetic_is_refused(theirs: Any, left: list[int], right: list[int]) -> None:
    a, b = ours(left), ours(right)
    with pytest.raises(ValueError, match="lengths"):
        a + b
    with pytest.raises(ValueError, match="Dimensions mismatch"):
        to_ragged_buffer(a) + to_ragged_buffer(b)


@given(LENGTHS)
def test_arithmetic_with_numbers_agrees(theirs: Any, lengths: list[int]) -> None:
    floats, integers = ours(lengths), ours(lengths, 2, RaggedBufferI64)
    agree(floats + 0.1, to_ragged_buffer(floats) + 0.1)
    agree(floats * 0.1, to_ragged_buffer(floats) * 0.1)
    agree(integers + 3, to_ragged_buffer(integers) + 3)
    agree(integers * -3, to_ragged_buffer(integers) * -3)


def test_subtraction_in_place_agrees_with_the_only_one_they_have(theirs: Any) -> None:
    buffer, origin = ours([3, 1, 2]), ours([1, 1, 1]) + 5
    other = to_ragged_buffer(buffer)
    view = other[:, :, :]
    view -= to_ragged_buffer(origin)[:, 0, :]
    buffer -= origin
    agree(buffer, other)


@given(LENGTHS, st.data())
@pytest.mark.parametrize("kind", KINDS)
def test_joining_along_every_dim_agrees(theirs: Any, kind: Any, lengths: list[int], data: Any) -> None:
    more = data.draw(st.lists(st.integers(0, 5), min_size=len(lengths), max_size=len(lengths)))
    one_or_same = [data.draw(st.sampled_from([0, 1, length])) for length in lengths]
    for dim, right in ((0, more), (1, more), (2, one_or_same), (2, lengths)):
        parts = [ours(lengths, 2, kind), ours(right, 2, kind)]
        agree(cat(parts, dim), theirs.cat([to_ragged_buffer(part) for part in parts], dim))


def test_joining_different_widths_along_features_agrees(theirs: Any) -> None:
    parts = [ours([3, 2, 1], 2), ours([1, 2, 4], 1), ours([3, 1, 0], 3)]
    agree(cat(parts, 2), theirs.cat([to_ragged_buffer(part) for part in parts], 2))


@given(LENGTHS, st.sampled_from(KINDS))
def test_indices_agree(theirs: Any, lengths: list[int], kind: Any) -> None:
    buffer = ours(lengths, 2, kind)
    other = to_ragged_buffer(buffer)
    agree(buffer.indices(0), other.indices(0))
    agree(buffer.indices(1), other.indices(1))
    agree(buffer.flat_indices(), other.flat_indices())


@given(st.lists(st.integers(0, 12), max_size=40))
def test_padpack_agrees_wherever_they_pack(theirs: Any, lengths: list[int]) -> None:
    buffer = ours(lengths, 1)
    expected = to_ragged_buffer(buffer).padpack()
    if expected is None:
        assert len(set(lengths)) <= 1  # their answer for empty buffers and equal lengths; ours is always a Packing
        return
    packing = buffer.padpack()
    for part, other in zip((packing.index, packing.batch, packing.inverse_index), expected, strict=True):
        assert np.asarray(part).dtype == other.dtype
        np.testing.assert_array_equal(part, other)


def test_translate_rotate_agrees(theirs: Any) -> None:
    rng = np.random.default_rng(0)
    lengths = [3, 0, 1, 5]
    source = RaggedBufferF32.from_flattened(rng.normal(size=(9, 2)), lengths)
    origin, direction = (RaggedBufferF32.from_flattened(rng.normal(size=(4, 2)), [1] * 4) for _ in range(2))
    other = to_ragged_buffer(source)
    views = [part[:, :, [0, 1]] for part in (other, to_ragged_buffer(origin), to_ragged_buffer(direction))]
    theirs.translate_rotate(*views)  # in place
    result = translate_rotate(source, origin, direction)
    np.testing.assert_allclose(result.values, other.as_array(), rtol=1e-5, atol=1e-6)


def test_equality_agrees(theirs: Any) -> None:
    buffers = [ours([3, 1]), ours([1, 3]), ours([3, 1]) + 1, ours([3, 1], 1), ours([4])]
    others = [to_ragged_buffer(buffer) for buffer in buffers]
    for i in range(len(buffers)):
        for j in range(len(buffers)):
            assert (buffers[i] == buffers[j]) == (others[i] == others[j])
            assert (buffers[i] != buffers[j]) == (others[i] != others[j])


def test_only_buffers_are_converted(theirs: Any) -> None:
    with pytest.raises(TypeError, match="a list was given"):
        to_ragged_buffer([1])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"entity_gym\.batch\.ragged\.RaggedBufferF32 was given"):
        from_ragged_buffer(ours([1]))


def test_without_the_package_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(importlib, "import_module", missing)
    for convert in (to_ragged_buffer, from_ragged_buffer):
        with pytest.raises(ImportError, match="pip install --no-deps ragged-buffer"):
            convert(ours([1]))
