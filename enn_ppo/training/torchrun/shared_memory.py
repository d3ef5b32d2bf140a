"""Gathering and adding numbers of the ranks of one host through shared memory.

Each rank has two slots in the memory, which it uses in turns. In an exchange it writes its numbers into a slot, sends a byte to
every other rank over a socket, waits for a byte from each of them, and then reads the slots of all ranks. It writes into the same
slot again in the exchange after the next. By then the others have sent the byte of the next exchange, as they do after reading.

The sockets of a rank that dies are closed, which ends the waiting of the others at once.

Shapes: K ranks.
"""

from __future__ import annotations

import mmap
import os
import shutil
import socket
import tempfile
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

ROOM = 2**18  # bytes of a slot: larger tensors take several exchanges
_FOLDER = "/dev/shm"
_BYTE = b"\0"


class SharedMemory:
    """The memory of K ranks, and the connections between them.

    Args:
        slots: (2, K, ROOM) uint8, the shared memory.
        connections: to every other rank.
        rank: of this process.

    All methods raise an OSError if another rank has died.
    """

    def __init__(self, slots: Tensor, connections: list[socket.socket], rank: int) -> None:
        self._slots, self._connections, self._rank = slots, connections, rank
        self._turn = 0

    def gather(self, values: Tensor) -> Tensor:
        """(K, ...) `values` of every rank, which must have the same shape and dtype."""
        own = values.contiguous().view(-1).view(torch.uint8)
        gathered = values.new_empty(len(self._slots[0]), *values.shape)
        rows = gathered.view(len(gathered), values.numel()).view(torch.uint8)
        for part, of_each in zip(torch.split(own, ROOM), torch.split(rows, ROOM, dim=1), strict=True):
            of_each.copy_(self._exchange(part))
        return gathered

    def sum(self, values: Tensor) -> Tensor:
        """Sum of `values` over ranks, in the order of ranks, so that it is bit for bit the same on every rank."""
        values = values.contiguous()
        flat, most = values.view(-1), ROOM // values.element_size()
        for start in range(0, len(flat), most):
            part = flat[start : start + most]
            first, *others = self._exchange(part.view(torch.uint8)).view(values.dtype)
            part.copy_(first)
            for other in others:
                part.add_(other)
        return values

    def _exchange(self, own: Tensor) -> Tensor:
        """(K, n) the n bytes of every rank, at most ROOM; valid until the next call."""
        slots = self._slots[self._turn, :, : len(own)]
        self._turn = 1 - self._turn
        slots[self._rank] = own
        for connection in self._connections:
            connection.send(_BYTE)
        for connection in self._connections:
            if not connection.recv(1):
                raise ConnectionResetError("another rank has closed its connection")
        return slots

    def close(self) -> None:
        """Close the connections, which ends exchanges that other ranks wait in. May be called twice."""
        for connection in self._connections:
            connection.close()


def connect(store: Store, rank: int, size: int, patience: timedelta, timeout: timedelta) -> SharedMemory | None:
    """Connect the ranks of one host. None on all ranks if the host has no shared memory left.

    Args:
        store: that only these ranks use.
        rank: of this process.
        size: number of ranks.
        patience: timeout of connecting.
        timeout: of exchanges.

    Raises:
        OSError: another rank has died or does not connect.
    """
    if rank == 0:
        store.set("folder", _make_folder(size))
    folder = store.get("folder").decode()
    if not folder:
        return None
    others = [other for other in range(size) if other != rank]
    with socket.socket(socket.AF_UNIX) as listener:
        listener.settimeout(patience.total_seconds())
        listener.bind(f"{folder}/{rank}")
        listener.listen(size)
        store.set(f"listens/{rank}", "")
        store.wait([f"listens/{other}" for other in others], patience)
        connections = [socket.socket(socket.AF_UNIX) for _ in range(rank)]
        for other, connection in enumerate(connections):
            connection.connect(f"{folder}/{other}")
        connections += [listener.accept()[0] for _ in range(size - 1 - rank)]
    for connection in connections:
        connection.settimeout(timeout.total_seconds())
    with open(f"{folder}/memory", "r+b") as file:
        memory = torch.frombuffer(mmap.mmap(file.fileno(), 0), dtype=torch.uint8)
    made = SharedMemory(memory.view(2, size, ROOM), connections, rank)
    made.gather(torch.zeros(1))  # all ranks have opened what is in the folder
    if rank == 0:
        shutil.rmtree(folder)
    return made


def _make_folder(size: int) -> str:
    """Make a folder with memory for `size` ranks, which only this user can read; an empty string if that is impossible."""
    folder = None
    try:
        folder = tempfile.mkdtemp(prefix="enn_ppo-", dir=_FOLDER)
        with Path(folder, "memory").open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, 2 * size * ROOM)  # or full memory would end the process later
    except OSError:
        if folder is not None:
            with suppress(OSError):
                shutil.rmtree(folder)
        return ""
    return folder
