"""Messages between two processes: a small pickle and NumPy arrays, copied through memory that both processes map.

The shared memory is an open file without a name: it is freed when both processes have ended, however they end, and the size
of /dev/shm, small in many containers, does not limit it. A socket carries only five numbers for each message.

A message lies at a multiple of 64 in the shared memory: first the pickle, which also tells the types and shapes of the
arrays, then the contents of each array at a multiple of 64.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import pickle
import socket
import struct
import tempfile
from bisect import insort
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

ALIGNMENT = 64  # bytes: a cache line, and enough for every dtype
MIN_BYTES = 1 << 16  # of an arena
GROWTH = 1.5  # room beyond what is needed now, so that sizes which creep upwards make an arena grow seldom
HEADER = struct.Struct("<5q")  # last, number of messages received, and the place of the message

Array = NDArray[Any]


class Place(NamedTuple):
    """The bytes of a message in an arena."""

    offset: int
    num_bytes: int
    pickle_bytes: int  # of `num_bytes`


def create_arena() -> int:
    """Return a file descriptor of new, empty shared memory. The memory is freed when every process has closed it."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("entity_gym")
    with tempfile.TemporaryFile() as file:  # has no name either, and is removed when it is closed on Windows
        return os.dup(file.fileno())


class Arena:
    """Shared memory for the messages of one direction, as the writer or the reader of these messages.

    The writer lets it grow when there is no room left between unread messages.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._memory: mmap.mmap | None = None
        self._in_order: deque[Place] = deque()  # unread messages that this process wrote, the oldest first
        self._by_offset: list[Place] = []  # the same places

    def put(self, pickled: bytes, arrays: Sequence[Array]) -> Place:
        """Copy a pickled value and arrays of numbers into the arena, where they stay until they are released."""
        header = pickle.dumps((pickled, [(array.dtype.str, array.shape) for array in arrays]), protocol=5)
        start = _aligned(len(header))
        place = self._reserve(start + sum(_aligned(array.nbytes) for array in arrays), len(header))
        memory = self._memory
        assert memory is not None
        memory[place.offset : place.offset + len(header)] = header
        start += place.offset
        for array in arrays:
            np.ndarray(array.shape, array.dtype, memory, start)[...] = array
            start += _aligned(array.nbytes)
        return place

    def release(self) -> None:
        """Free the place of the oldest message: it was read."""
        self._by_offset.remove(self._in_order.popleft())

    def get(self, place: Place) -> tuple[bytes, list[Array]]:
        """Return the pickled value, and copies of the arrays, which share one allocation."""
        if self._memory is None or len(self._memory) < place.offset + place.num_bytes:
            self._memory = mmap.mmap(self._fd, os.fstat(self._fd).st_size)
        copied = np.frombuffer(self._memory, np.uint8, place.num_bytes, place.offset).copy().data
        pickled, layout = pickle.loads(copied[: place.pickle_bytes])
        start, arrays = _aligned(place.pickle_bytes), []
        for dtype, shape in layout:
            arrays.append(np.ndarray(shape, dtype, copied, start))
            start += _aligned(arrays[-1].nbytes)
        return pickled, arrays

    def close(self) -> None:
        """Unmap the memory. May be called twice."""
        if self._memory is not None:
            self._memory.close()
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._memory = -1, None

    def _reserve(self, num_bytes: int, pickle_bytes: int) -> Place:
        """Find the first gap that is large enough. Where requests and answers take turns it is at the beginning."""
        offset = 0
        for other in self._by_offset:
            if other.offset - offset >= num_bytes:
                break
            offset = other.offset + other.num_bytes
        place = Place(offset, num_bytes, pickle_bytes)
        insort(self._by_offset, place)
        self._in_order.append(place)
        if self._memory is None or len(self._memory) < offset + num_bytes:
            size = max(MIN_BYTES, int((offset + num_bytes) * GROWTH))
            os.ftruncate(self._fd, size)
            self._memory = mmap.mmap(self._fd, size)
        return place


class Channel:
    """One end of a connection between two processes, which sends messages and receives the other end's in order.

    Args:
        connection: this end of a pair of stream sockets.
        write_to: descriptor of the arena that this end writes to; closed by `close`, as are the others.
        read_from: descriptor of the arena that the other end writes to.
    """

    def __init__(self, connection: socket.socket, write_to: int, read_from: int) -> None:
        self.connection = connection
        self._written, self._read = Arena(write_to), Arena(read_from)
        self._received = 0  # since the last message to the other end, which may overwrite as many of its own

    def send(self, pickled: bytes, arrays: Sequence[Array] = (), *, last: bool = True) -> None:
        """Send a pickled value and arrays; `last` says that no other message follows that answers the same request.

        Raises:
            OSError: if the other end is closed.
        """
        place = self._written.put(pickled, arrays)
        received, self._received = self._received, 0
        self.connection.sendall(HEADER.pack(last, received, *place))

    def receive(self) -> tuple[bool, bytes, list[Array]]:
        """Wait for the next message, and return `last`, the pickled value and the arrays that were sent.

        Raises:
            EOFError, OSError: if the other end is closed and no message is left.
        """
        numbers = self.connection.recv(HEADER.size, socket.MSG_WAITALL)
        if len(numbers) < HEADER.size:
            raise EOFError
        last, received, *place = HEADER.unpack(numbers)
        for _ in range(received):
            self._written.release()
        self._received += 1
        return bool(last), *self._read.get(Place(*place))

    def close(self) -> None:
        """Hang up and unmap the memory. May be called twice."""
        with contextlib.suppress(OSError):  # the other end is gone already
            self.connection.shutdown(socket.SHUT_RDWR)  # a forked process may hold the socket open
        self.connection.close()
        self._written.close()
        self._read.close()


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT
