"""Objects that hold arrays go from one process to another through memory that both see: arrays are copied, not pickled.

The memory is an open file without a name, so nothing of it can outlive the processes, however they end, and the size of
/dev/shm, small in many containers, does not limit it. A socket carries only the place of each object: seven numbers.

In memory, at an offset that is a multiple of 64, lies the pickle of everything but the arrays, and behind it the contents of
each array, at multiples of 64.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
import socket
import struct
import tempfile
from bisect import insort
from collections import deque
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from entity_gym.ragged import RaggedBuffer, RaggedBufferBool, RaggedBufferF32, RaggedBufferI64

ALIGNMENT = 64  # bytes: a cache line, and enough for every dtype
MIN_BYTES = 1 << 16  # of an arena
GROWTH = 1.5  # room beyond what was asked for, so that sizes which creep upwards grow it seldom
MESSAGE = struct.Struct("<7q")  # kind, request, last, received, and the parcel
BUFFERS: list[type[RaggedBuffer[Any]]] = [RaggedBufferF32, RaggedBufferI64, RaggedBufferBool]
NUMBER_OF_BUFFER = {cls: number for number, cls in enumerate(BUFFERS)}

#: Offset, type and shape of an array.
Place = tuple[int, str, tuple[int, ...]]


class Parcel(NamedTuple):
    """Where an object lies in an arena."""

    offset: int
    num_bytes: int
    pickle_bytes: int  # of these


class Message(NamedTuple):
    """An object that came through a channel, with the numbers that the other end gave it."""

    kind: int
    request: int
    last: bool
    value: Any
    error: Exception | None  # why the object could not be put together here


def create_arena() -> int:
    """A file descriptor of new, empty shared memory. It is freed when every process has closed it."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("entity_gym")
    with tempfile.TemporaryFile() as file:  # has no name either
        return os.dup(file.fileno())


class PlainPickler(pickle.Pickler):
    """Pickles as usual, and has the hook that others override."""

    def reducer_override(self, value: Any) -> Any:
        """How to pickle `value`, which is nothing that pickle knows of itself. NotImplemented: as usual."""
        return NotImplemented


class ArraysApart:
    """Makes a pickler leave arrays of numbers out, and collect them. Four times as fast as pickle's own way to do it."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=5)  # type: ignore[call-arg]
        self.file = file
        self.arrays: list[tuple[int, NDArray[Any]]] = []  # with their offsets
        self.end = 0

    def reducer_override(self, value: Any) -> Any:
        """How to pickle `value`: of arrays, their place."""
        kind = type(value)
        if kind is np.ndarray and value.dtype.kind in "biufc" and value.dtype.isnative:
            return array_at, self._place(value)
        number = NUMBER_OF_BUFFER.get(kind)
        if number is not None:
            return buffer_at, (number, self._place(value.values), self._place(value.offsets))
        return super().reducer_override(value)  # type: ignore[misc]

    def _place(self, array: NDArray[Any]) -> Place:
        offset = self.end
        self.arrays.append((offset, array))
        self.end = _aligned(offset + array.nbytes)
        return offset, array.dtype.char, array.shape


class ArrayPickler(ArraysApart, PlainPickler):
    """Pickles as usual, arrays apart."""


class ArrayUnpickler(pickle.Unpickler):
    """Puts objects together with their arrays, which share the memory `contents`."""

    def __init__(self, file: io.BytesIO, contents: memoryview) -> None:
        super().__init__(file)
        self._contents = contents

    def find_class(self, module: str, name: str) -> Any:
        """What a name in a pickle stands for: here, two functions know the memory."""
        if module == __name__ and name == "array_at":
            return self._array_at
        if module == __name__ and name == "buffer_at":
            return self._buffer_at
        return super().find_class(module, name)

    def _array_at(self, offset: int, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
        return np.ndarray(shape, dtype, self._contents, offset)

    def _buffer_at(self, number: int, values: Place, offsets: Place) -> RaggedBuffer[Any]:
        return BUFFERS[number]._of(self._array_at(*values), self._array_at(*offsets))


def array_at(offset: int, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """Stands in pickles for the array at an offset in the memory; see `ArrayUnpickler`."""
    raise pickle.UnpicklingError("this pickle is one half of an object: its arrays are somewhere else")


def buffer_at(number: int, values: Place, offsets: Place) -> RaggedBuffer[Any]:
    """Stands in pickles for a ragged buffer, as `array_at` for an array."""
    raise pickle.UnpicklingError("this pickle is one half of an object: its arrays are somewhere else")


class ArenaWriter:
    """Writes objects into an arena, which grows when there is no room left between those that are still to be read."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._memory: mmap.mmap | None = None
        self._in_order: deque[Parcel] = deque()  # not yet released, the oldest first
        self._by_offset: list[Parcel] = []  # the same

    def put(self, value: Any, pickler: type[ArraysApart] = ArrayPickler) -> Parcel:
        """Copy `value` into the arena. It stays there until it is released."""
        file = io.BytesIO()
        pickling = pickler(file)
        cast(pickle.Pickler, pickling).dump(value)
        pickled = file.getbuffer()
        arrays = _aligned(len(pickled))
        parcel = self._room(arrays + pickling.end, len(pickled))
        memory = self._memory
        assert memory is not None
        memory[parcel.offset : parcel.offset + len(pickled)] = pickled
        for offset, array in pickling.arrays:
            np.ndarray(array.shape, array.dtype, memory, parcel.offset + arrays + offset)[...] = array
        return parcel

    def release(self) -> None:
        """Free the place of the oldest object: it was read."""
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

    def get(self, parcel: Parcel) -> Any:
        """A copy of the object that was put there. Its arrays lie side by side in one piece of memory."""
        if self._memory is None or len(self._memory) < parcel.offset + parcel.num_bytes:
            self._memory = mmap.mmap(self._fd, os.fstat(self._fd).st_size)
        copied = np.frombuffer(self._memory, np.uint8, parcel.num_bytes, parcel.offset).copy()
        contents = copied.data[_aligned(parcel.pickle_bytes) :]
        return ArrayUnpickler(io.BytesIO(copied[: parcel.pickle_bytes].tobytes()), contents).load()

    def close(self) -> None:
        """Let go of the memory. May be called twice."""
        _close(self._fd, self._memory)
        self._fd, self._memory = -1, None


class Channel:
    """One end of a conversation between two processes: each sends objects, and receives the other's in their order.

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

    def send(
        self, kind: int, request: int, value: Any, *, last: bool = True, pickler: type[ArraysApart] = ArrayPickler
    ) -> None:
        """Send `value`, with two numbers and a flag that the two ends agree upon.

        Raises:
            OSError: if the other end is gone.
        """
        parcel = self._writer.put(value, pickler)
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
        try:
            value, error = self._reader.get(Parcel(*parcel)), None
        except Exception as raised:  # a module is missing, say; the conversation goes on all the same
            value, error = None, raised
        return Message(kind, request, bool(last), value, error)

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
