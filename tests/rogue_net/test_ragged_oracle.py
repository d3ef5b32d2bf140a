"""Our buffers and packing against the package `ragged-buffer` 0.4.8, wherever that package is right."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from entity_gym.batch import columns
from entity_gym.batch.ragged import RaggedBuffer
from rogue_net.batch.packing import pack

LENGTHS = st.lists(st.integers(0, 5), min_size=1, max_size=8)
#: Their class for each dtype.
THEIRS = {"float32": "RaggedBufferF32", "int64": "RaggedBufferI64", "bool": "RaggedBufferBool"}


@pytest.fixture(scope="module")
def package() -> Any:
    return pytest.importorskip("ragged_buffer", reason="pip install --no-deps ragged-buffer (Python 3.9-3.11)")


def ours(lengths: list[int], features: int = 2, dtype: str = "float32") -> RaggedBuffer[Any]:
    items = sum(lengths)
    values = np.arange(items * features).reshape(items, features)
    return RaggedBuffer.from_flattened((values % 3 if dtype == "bool" else values).astype(dtype), lengths)


def theirs(package: Any, buffer: RaggedBuffer[Any]) -> Any:
    return getattr(package, THEIRS[buffer.dtype.name]).from_flattened(buffer.values, buffer.size1())


def agree(buffer: RaggedBuffer[Any], other: Any) -> None:
    assert type(other).__name__ == THEIRS[buffer.dtype.name]
    whole = other.materialize()
    assert (whole.size0(), whole.size2(), whole.items()) == (len(buffer), buffer.values.shape[1], buffer.items())
    assert whole.size1().tolist() == buffer.size1().tolist()
    assert whole.as_array().reshape(buffer.values.shape).tolist() == buffer.values.tolist()


@given(LENGTHS, st.sampled_from(sorted(THEIRS)), st.integers(0, 3), st.data())
def test_sizes_indexing_and_joining_agree(
    package: Any, lengths: list[int], dtype: str, features: int, data: Any
) -> None:
    buffer = ours(lengths, features, dtype)
    other = theirs(package, buffer)
    agree(buffer, other)
    index = data.draw(st.lists(st.integers(0, len(lengths) - 1), max_size=4))
    for each in (0, index, np.array(index, dtype=np.int64)):
        agree(buffer[each], other[each])
    more = ours(data.draw(LENGTHS), features, dtype)
    agree(columns.cat([{"": buffer}, {"": more}])[""], package.cat([other, theirs(package, more)], 0))


@given(st.lists(st.integers(0, 12), max_size=40))
def test_packing_agrees_wherever_they_pack(package: Any, lengths: list[int]) -> None:
    expected = theirs(package, ours(lengths, 1)).padpack()
    if expected is None:
        assert len(set(lengths)) <= 1  # their answer for empty buffers and equal lengths; ours is always a Packing
        return
    for part, other in zip(pack(np.array(lengths, np.int64)), expected, strict=True):
        assert part.dtype == other.dtype
        np.testing.assert_array_equal(part, other)


def test_equality_agrees(package: Any) -> None:
    buffers = [ours([3, 1]), ours([1, 3]), ours([3, 1], 1), ours([4])]
    others = [theirs(package, buffer) for buffer in buffers]
    for i in range(len(buffers)):
        for j in range(len(buffers)):
            assert (buffers[i] == buffers[j]) == (others[i] == others[j])
