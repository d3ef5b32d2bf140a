"""Memory of the fused transformer, used again and again.

The system hands out fresh memory page by page, which takes longer than much of what is done with it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

import torch

T = TypeVar("T")


class Lease(Generic[T]):
    """Something taken from a pool, given back when nobody holds the lease any more: an autograd graph keeps it alive."""

    def __init__(self, pool: Pool[T], key: object, size: int, memory: T) -> None:
        self.memory = memory
        self._pool, self._key, self._size = pool, key, size

    def __del__(self) -> None:
        self._pool.give_back(self._key, self._size, self.memory)


class Pool(Generic[T]):
    """Memory of different kinds (keys) and sizes. Safe among threads.

    Args:
        make: makes memory of a kind and size.
    """

    SPARE = 3  # of a kind, kept while nobody uses them

    def __init__(self, make: Callable[..., T]) -> None:
        self._make = make
        self._free: dict[object, list[tuple[int, T]]] = {}
        # Reentrant: the garbage collector may end a lease at any line, those that hold the lock included.
        self._lock = threading.RLock()

    def take(self, key: tuple[int, ...], size: int) -> Lease[T]:
        """Memory of a kind for at least `size` tokens; a larger one is made where none is free."""
        with self._lock:
            free = self._free.setdefault(key, [])
            fitting = [position for position, (room, _) in enumerate(free) if room >= size]
            if fitting:
                room, memory = free.pop(fitting[-1])
                return Lease(self, key, room, memory)
            free.clear()  # sizes grow: what is too small now stays so
        room = size + size // 4
        with torch.inference_mode(False):  # others could not write to what is made in that mode
            return Lease(self, key, room, self._make(room, *key))

    def give_back(self, key: object, size: int, memory: T) -> None:
        """Keep memory for the next one who asks."""
        with self._lock:
            free = self._free.setdefault(key, [])
            if len(free) < self.SPARE:
                free.append((size, memory))
