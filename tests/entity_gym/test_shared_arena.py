"""Objects with arrays, from one end of a channel to the other through shared memory."""

import io
import os
import pickle
import socket
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from entity_gym.list_env import ListEnv
from entity_gym.ragged import RaggedBufferBool, RaggedBufferF32, RaggedBufferI64
from entity_gym.shared_arena import ArenaReader, ArenaWriter, ArrayPickler, Channel, create_arena
from tests.entity_gym.pools import content
from tests.worlds import Zoo


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    with_both = connected()
    yield with_both
    for end in with_both:
        end.close()
        end.close()  # may be called twice


def connected() -> tuple[Channel, Channel]:
    here, there = socket.socketpair()
    one, other = create_arena(), create_arena()
    return Channel(here, one, other), Channel(there, os.dup(other), os.dup(one))


plain_arrays = arrays.arrays(
    st.sampled_from([np.float32, np.int64, np.bool_, np.uint8, np.complex64, ">i4", "U3", np.float64]),
    arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5),
)
values = st.recursive(
    plain_arrays | st.integers() | st.text(max_size=3) | st.none(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=2), inner, max_size=4),
    max_leaves=10,
)


@given(sent=st.lists(values, max_size=5))
def test_what_is_sent_is_received(sent: list) -> None:
    one, other = connected()
    try:
        for number, value in enumerate(sent):
            one.send(7, number, value, last=number % 2 == 0)
        received = [other.receive() for _ in sent]
        assert [(m.kind, m.request, m.last, m.error) for m in received] == [
            (7, n, n % 2 == 0, None) for n in range(len(sent))
        ]
        assert [described(m.value) for m in received] == [described(value) for value in sent]
    finally:
        one.close()
        other.close()


def described(value: object) -> object:
    if isinstance(value, list):
        return [described(item) for item in value]
    if isinstance(value, dict):
        return {key: described(item) for key, item in value.items()}
    return content(value)


def test_arrays_come_in_any_memory_order_and_can_be_written_to(ends: tuple[Channel, Channel]) -> None:
    grid = np.arange(12).reshape(3, 4)
    frozen = np.arange(3)
    frozen.flags.writeable = False
    given = [grid.T, grid[:, ::2], grid[::-1], frozen, np.array(5.0), grid.view(np.recarray)]
    ends[0].send(0, 0, given)
    received = ends[1].receive().value
    assert [array.tolist() for array in received] == [array.tolist() for array in given]
    for array in received[:-1]:
        array[...] = 0
    assert grid[0, 1] == 1


def test_batches_of_observations_arrive_whole(ends: tuple[Channel, Channel]) -> None:
    env = ListEnv(Zoo, 5, seed=1)
    obs = env.reset()
    buffers = [RaggedBufferF32(0), RaggedBufferI64(3), RaggedBufferBool.from_array(np.ones((2, 1, 1), np.bool_))]
    ends[0].send(0, 0, (obs, buffers))
    got, got_buffers = ends[1].receive().value
    assert content(got) == content(obs)
    assert got_buffers == buffers and [type(b) for b in got_buffers] == [type(b) for b in buffers]


def test_contents_of_arrays_are_not_pickled() -> None:
    file = io.BytesIO()
    pickler = ArrayPickler(file)
    pickler.dump({"a": np.zeros(100_000), "b": RaggedBufferF32.from_array(np.zeros((100, 100, 1)))})
    assert len(file.getvalue()) < 500
    assert [array.nbytes for _, array in pickler.arrays] == [800_000, 40_000, 808]
    with pytest.raises(pickle.UnpicklingError, match="one half of an object"):
        pickle.loads(file.getvalue())


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3000)), max_size=40))
def test_what_has_not_been_read_is_not_overwritten(script: list[tuple[bool, int]]) -> None:
    fd = create_arena()
    writer, reader = ArenaWriter(fd), ArenaReader(os.dup(fd))
    unread: list = []
    for number, (read, size) in enumerate(script):
        if read and unread:
            value, parcel = unread.pop(0)
            assert reader.get(parcel).tolist() == value.tolist()
            writer.release()
        else:
            value = np.full(size, number)
            unread.append((value, writer.put(value)))
    for value, parcel in unread:
        assert reader.get(parcel).tolist() == value.tolist()
    writer.close()
    reader.close()


def test_requests_and_answers_that_take_turns_use_the_same_memory_again(ends: tuple[Channel, Channel]) -> None:
    def turn() -> None:
        ends[0].send(0, 0, np.zeros(50_000))
        ends[1].receive()
        ends[1].send(0, 0, np.zeros(50_000))
        ends[0].receive()

    turn()
    before = [os.fstat(end._writer._fd).st_size for end in ends]
    for _ in range(20):
        turn()
    assert [os.fstat(end._writer._fd).st_size for end in ends] == before == [600_192, 600_192]


def test_what_was_received_is_not_touched_by_what_comes_after(ends: tuple[Channel, Channel]) -> None:
    ends[0].send(0, 0, np.arange(5))
    first = ends[1].receive().value
    ends[1].send(0, 0, None)
    ends[0].receive()
    ends[0].send(0, 0, np.zeros(5))
    ends[1].receive()
    assert first.tolist() == [0, 1, 2, 3, 4]


class OnlyHere:
    def __reduce__(self) -> tuple:
        return int, ("no number",)


def test_an_object_that_cannot_be_put_together_leaves_the_conversation_intact(ends: tuple[Channel, Channel]) -> None:
    ends[0].send(0, 1, OnlyHere())
    ends[0].send(0, 2, "next")
    first, second = ends[1].receive(), ends[1].receive()
    assert (first.request, first.value, str(first.error)) == (
        1,
        None,
        "invalid literal for int() with base 10: 'no number'",
    )
    assert (second.value, second.error) == ("next", None)


def test_an_object_that_cannot_be_pickled_is_not_sent(ends: tuple[Channel, Channel]) -> None:
    with pytest.raises(TypeError, match="cannot pickle"):
        ends[0].send(0, 0, socket)
    ends[0].send(0, 0, "next")
    assert ends[1].receive().value == "next"


def test_an_end_that_is_gone_is_noticed_after_what_it_sent(ends: tuple[Channel, Channel]) -> None:
    ends[0].send(0, 0, "last words")
    ends[0].close()
    assert ends[1].receive().value == "last words"
    with pytest.raises(EOFError):
        ends[1].receive()
    with pytest.raises(OSError, match="Broken pipe"):
        ends[1].send(0, 0, None)
