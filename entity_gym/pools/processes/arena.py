"""Arrays go from one process to another through memory that both see, next to a small pickle of what is no array.

The memory is an open file without a name, so nothing of it can outlive the processes, however they end, and the size of
/dev/shm, small in many containers, does not limit it. A socket carries only the place of each parcel: seven numbers.

In memory, at an offset that is a multiple of 64, lie the pickle, which also tells the types and shapes of the arrays, and
behind it the contents of each array, at multiples of 64.
"""

from __future__ import annotations

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
GROWTH = 1.5  # room beyond what was asked for, so that sizes which creep upwards grow it seldom
MESSAGE = struct.Struct("<7q")  # kind, request, last, received, and the parcel

Array = NDArray[Any]


class Parcel(NamedTuple):
    """Where something lies in an arena."""

    offset: int
    num_bytes: int
    pickle_bytes: int  # of these


class Message(NamedTuple):
    """What came through a channel, with the numbers that the other end gave it."""

    kind: int
    request: int
    last: bool
    value: Any
    arrays: list[Array]
    error: Exception | None  # why the value could not be put together here


def create_arena() -> int:
    """A file descriptor of new, empty shared memory. It is freed when every process has closed it."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("entity_gym")
    with tempfile.TemporaryFile() as file:  # has no name either
        return os.dup(file.fileno())


class ArenaWriter:
    """Writes into an arena, which grows when there is no room left between the parcels that are still to be read."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._memory: mmap.mmap | None = None
        self._in_order: deque[Parcel] = deque()  # not yet released, the oldest first
        self._by_offset: list[Parcel] = []  # the same

    def put(self, pickled: bytes, arrays: Sequence[Array]) -> Parcel:
        """Copy a pickled value and arrays of numbers into the arena. They stay there until they are released."""
        header = pickle.dumps((pickled, [(array.dtype.str, array.shape) for array in arrays]), protocol=5)
        start = _aligned(len(header))
        parcel = self._room(start + sum(_aligned(array.nbytes) for array in arrays), len(header))
        memory = self._memory
        assert memory is not None
        memory[parcel.offset : parcel.offset + len(header)] = header
        start += parcel.offset
        for array in arrays:
            np.ndarray(array.shape, array.dtype, memory, start)[...] = array
            start += _aligned(array.nbytes)
        return parcel

    def release(self) -> None:
        """Free the place of the oldest parcel: it was read."""
        self._by_offset.remove(self._in_order.popleft())

    def close(self) -> None:
        """Let go of the memory. May be called twice."""
        _close(self._fd, self._memory)
        self._fd, self._memory = -1, None

    def _room(self, num_bytes: int, pickle_bytes: int) -> Parcel:
        """The first gap that is large enough: the beginning, wherever requests and answers take turns."""
        offset = 0
        for other in self._by_offset:
            if other.offset - offset >= num_bytes:
                break
            offset = other.offset + other.num_bytes
        parcel = Parcel(offset, num_bytes, pickle_bytes)
        insort(self._by_offset, parcel)
        self._in_order.append(parcel)
        if self._memory is None or len(self._memory) < offset + num_bytes:
            size = max(MIN_BYTES, int((offset + num_bytes) * GROWTH))
            os.ftruncate(self._fd, size)
            self._memory = mmap.mmap(self._fd, size)
        return parcel


class ArenaReader:
    """Reads what an `ArenaWriter` in another process has written."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._memory: mmap.mmap | None = None

    def get(self, parcel: Parcel) -> tuple[bytes, list[Array]]:
        """The pickled value, and copies of the arrays, which lie side by side in one piece of memory."""
        if self._memory is None or len(self._memory) < parcel.offset + parcel.num_bytes:
            self._memory = mmap.mmap(self._fd, os.fstat(self._fd).st_size)
        copied = np.frombuffer(self._memory, np.uint8, parcel.num_bytes, parcel.offset).copy().data
        pickled, places = pickle.loads(copied[: parcel.pickle_bytes])
        start, arrays = _aligned(parcel.pickle_bytes), []
        for dtype, shape in places:
            arrays.append(np.ndarray(shape, dtype, copied, start))
            start += _aligned(arrays[-1].nbytes)
        return pickled, arrays

    def close(self) -> None:
        """Let go of the memory. May be called twice."""
        _close(self._fd, self._memory)
        self._fd, self._memory = -1, None


class Channel:
    """One end of a conversation between two processes: each sends, and receives what the other sent, in that order.

    Args:
        connection: this end of a pair of stream sockets.
        write_to: descriptor of the arena that this end writes to; closed by `close`, as are the others.
        read_from: that of the other end's arena.
    """

    def __init__(self, connection: socket.socket, write_to: int, read_from: int) -> None:
        self.connection = connection
        self._writer = ArenaWriter(write_to)
        self._reader = ArenaReader(read_from)
        self._received = 0  # since the last message to the other end, which learns from it what it may overwrite

    def send(self, kind: int, request: int, pickled: bytes, arrays: Sequence[Array] = (), *, last: bool = True) -> None:
        """Send a pickled value and arrays, with two numbers and a flag that the two ends agree upon.

        Raises:
            OSError: if the other end is gone.
        """
        parcel = self._writer.put(pickled, arrays)
        received, self._received = self._received, 0
        self.connection.sendall(MESSAGE.pack(kind, request, last, received, *parcel))

    def receive(self) -> Message:
        """Wait for what the other end sent next.

        Raises:
            EOFError, OSError: if the other end is gone and has left nothing.
        """
        numbers = self.connection.recv(MESSAGE.size, socket.MSG_WAITALL)
        if len(numbers) < MESSAGE.size:
            raise EOFError
        kind, request, last, received, *parcel = MESSAGE.unpack(numbers)
        for _ in range(received):
            self._writer.release()
        self._received += 1
        pickled, arrays = self._reader.get(Parcel(*parcel))
        try:
            value, error = pickle.loads(pickled), None
        except Exception as raised:  # a module is missing, say; the conversation goes on all the same
            value, error = None, raised
        return Message(kind, request, bool(last), value, arrays, error)

    def close(self) -> None:
        """Let go of the socket and the memory. May be called twice."""
        self.connection.close()
        self._writer.close()
        self._reader.close()


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT


def _close(fd: int, memory: mmap.mmap | None) -> None:
    if memory is not None:
        memory.close()
    if fd >= 0:
        os.close(fd)
