"""Messages between two processes: a pickle and the contents of its arrays, copied through memory that both processes map.

The shared memory is an open file without a name: it is freed when both processes have ended, however they end, and the size
of /dev/shm, small in many containers, does not limit it. A socket carries only two numbers for each message.

Messages take turns, so each lies at the beginning of the memory of its direction: first the pickle, with the
sizes of the arrays, then the contents of each array at a multiple of 64.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import pickle
import socket
import struct
import tempfile
from collections.abc import Sequence

import numpy as np

from entity_gym.pools.processes.pickling import Buffers

ALIGNMENT = 64  # bytes: a cache line, and enough for every dtype
MIN_BYTES = 1 << 16  # of an arena
GROWTH = 1.5  # room beyond what is needed now, so that sizes which creep upwards make an arena grow seldom
HEADER = struct.Struct("<2q")  # bytes of the message, and of its pickle


def create_arena() -> int:
    """Return a file descriptor of new, empty shared memory. The memory is freed when every process has closed it."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("entity_gym")
    with tempfile.TemporaryFile() as file:  # has no name either, and is removed when it is closed on Windows
        return os.dup(file.fileno())


class Arena:
    """Shared memory for the messages of one direction, as the writer or the reader of these messages."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._memory: mmap.mmap | None = None

    def put(self, pickled: bytes, buffers: Buffers) -> tuple[int, int]:
        """Copy a pickle and the contents of its arrays over the last message; returns the two numbers of `HEADER`."""
        contents = [buffer.raw() for buffer in buffers]
        header = pickle.dumps((pickled, [content.nbytes for content in contents]), protocol=5)
        start = _aligned(len(header))
        num_bytes = start + sum(_aligned(content.nbytes) for content in contents)
        if self._memory is None or len(self._memory) < num_bytes:
            size = max(MIN_BYTES, int(num_bytes * GROWTH))
            os.ftruncate(self._fd, size)
            self._memory = mmap.mmap(self._fd, size)
        self._memory[: len(header)] = header
        for content in contents:
            self._memory[start : start + content.nbytes] = content
            start += _aligned(content.nbytes)
        return num_bytes, len(header)

    def get(self, num_bytes: int, pickle_bytes: int) -> tuple[bytes, list[memoryview]]:
        """Return the pickle, and copies of the arrays' contents, which share one allocation."""
        if self._memory is None or len(self._memory) < num_bytes:
            self._memory = mmap.mmap(self._fd, os.fstat(self._fd).st_size)
        copied = np.frombuffer(self._memory, np.uint8, num_bytes).copy().data
        pickled, sizes = pickle.loads(copied[:pickle_bytes])
        start, contents = _aligned(pickle_bytes), []
        for size in sizes:
            contents.append(copied[start : start + size])
            start += _aligned(size)
        return pickled, contents

    def close(self) -> None:
        """Unmap the memory. May be called twice."""
        if self._memory is not None:
            self._memory.close()
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._memory = -1, None


class Channel:
    """One end of a connection between two processes. An end sends a message only after the other end has read the last one.

    Args:
        connection: this end of a pair of stream sockets.
        write_to: descriptor of the arena that this end writes to; closed by `close`, as are the others.
        read_from: descriptor of the arena that the other end writes to.
    """

    def __init__(self, connection: socket.socket, write_to: int, read_from: int) -> None:
        self.connection = connection
        self._written, self._read = Arena(write_to), Arena(read_from)

    def send(self, pickled: bytes, buffers: Buffers | None = None) -> None:
        """Send a pickle and the contents of its arrays.

        Raises:
            OSError: if the other end is closed.
        """
        self.connection.sendall(HEADER.pack(*self._written.put(pickled, buffers or [])))

    def receive(self) -> tuple[bytes, Sequence[memoryview]]:
        """Wait for the next message, and return the pickle and the contents of its arrays.

        Raises:
            EOFError, OSError: if the other end is closed and no message is left.
        """
        numbers = self.connection.recv(HEADER.size, socket.MSG_WAITALL)
        if len(numbers) < HEADER.size:
            raise EOFError
        return self._read.get(*HEADER.unpack(numbers))

    def close(self) -> None:
        """Hang up and unmap the memory. May be called twice."""
        self.hang_up()
        self.connection.close()
        self._written.close()
        self._read.close()

    def hang_up(self) -> None:
        """End the connection: whoever waits for a message, here or there, gets an EOFError."""
        with contextlib.suppress(OSError):  # the other end is gone already
            self.connection.shutdown(socket.SHUT_RDWR)  # a forked process may hold the socket open


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT
