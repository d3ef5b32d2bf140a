"""Pickles and arrays, from one end of a channel to the other through shared memory."""

import os
import pickle
import socket
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from entity_gym.pools.processes.arena import Channel, create_arena
from tests.entity_gym.pools.kinds_of_pools import content


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    both = connected()
    yield both
    for end in both:
        end.close()
        end.close()  # may be called twice


def connected() -> tuple[Channel, Channel]:
    here, there = socket.socketpair()
    one, other = create_arena(), create_arena()
    return Channel(here, one, other), Channel(there, os.dup(other), os.dup(one))


def send(end: Channel, value: Any) -> None:
    buffers: list[pickle.PickleBuffer] = []
    end.send(pickle.dumps(value, protocol=5, buffer_callback=buffers.append), buffers)


def receive(end: Channel) -> Any:
    pickled, contents = end.receive()
    return pickle.loads(pickled, buffers=contents)


def some_array(dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    return np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)


some_arrays = st.builds(
    some_array,
    st.sampled_from(["f4", "i8", "?", "u1", "c8", ">i4", "U3", "f8"]),
    st.lists(st.integers(0, 5), max_size=3).map(tuple),
)


@given(sent=st.lists(st.tuples(st.text(), st.lists(some_arrays, max_size=4)), max_size=5))
def test_what_is_sent_is_received_and_stays_as_it_was(sent: list) -> None:
    one, other = connected()
    try:
        received = []
        for value in sent:
            send(one, value)
            received.append(receive(other))
        assert [(text, list(map(content, arrays))) for text, arrays in received] == [
            (text, list(map(content, arrays))) for text, arrays in sent
        ]
    finally:
        one.close()
        other.close()


def test_arrays_come_in_any_memory_order_and_can_be_written_to(ends: tuple[Channel, Channel]) -> None:
    grid = np.arange(12).reshape(3, 4)
    given_arrays = [grid.T, grid[:, ::2], grid[::-1], np.array(5.0)]
    send(ends[0], given_arrays)
    received = receive(ends[1])
    assert [array.tolist() for array in received] == [array.tolist() for array in given_arrays]
    for array in received:
        array[...] = 0
    assert grid[0, 1] == 1


def test_messages_use_the_same_memory_again(ends: tuple[Channel, Channel]) -> None:
    def turn() -> None:
        for mine, its in (ends, ends[::-1]):
            send(mine, np.zeros(50_000))
            receive(its)

    turn()
    before = [os.fstat(end._written._fd).st_size for end in ends]
    for _ in range(20):
        turn()
    assert [os.fstat(end._written._fd).st_size for end in ends] == before
    assert before[0] < 2 * 50_000 * 8


def test_an_end_that_is_gone_is_noticed_after_what_it_sent(ends: tuple[Channel, Channel]) -> None:
    ends[0].send(b"last words")
    ends[0].close()
    assert ends[1].receive()[0] == b"last words"
    with pytest.raises(EOFError):
        ends[1].receive()
    with pytest.raises(OSError, match="Broken pipe"):
        ends[1].send(b"")
