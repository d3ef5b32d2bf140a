"""Memory for batches, used again once nobody holds it any more.

What a pool returns must stay as it is for as long as somebody has it. Fresh memory every time would do, but the operating
system hands it out page by page, which costs more than the steps themselves.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

_ALIGNMENT = 64  # bytes, a cache line
_MOST_BLOCKS = 8


class Block:
    """One piece of memory, divided into arrays.

    Attributes:
        arrays: the arrays, each as large as it was asked for.
        address: of the first byte. `ndarray.ctypes.data` takes as long as dozens of steps, so it is stored.
    """

    __slots__ = ("_memory", "_unused", "address", "arrays")

    def __init__(self, size: int, parts: Sequence[tuple[int, tuple[int, ...], np.dtype[Any]]]) -> None:
        self._memory: NDArray[np.uint8] = np.empty(size, dtype=np.uint8)
        self.address: int = self._memory.ctypes.data
        self.arrays = [np.ndarray(shape, dtype, self._memory, start) for start, shape, dtype in parts]
        self._unused = sys.getrefcount(self._memory)

    def is_free(self) -> bool:
        """True if all views of `arrays` are gone: a view refers to the memory, not to the array that it was taken from."""
        return sys.getrefcount(self._memory) == self._unused


class Recycler:
    """Hands out blocks of one form: that of an earlier batch if nobody has the batch any more.

    Args:
        arrays: shape and dtype of each array.

    Attributes:
        starts: where in a block each array begins, in bytes.
        size: bytes of a block.
    """

    def __init__(self, arrays: Sequence[tuple[tuple[int, ...], np.dtype[Any]]]) -> None:
        self.starts, self.size = [], 0
        for shape, dtype in arrays:
            self.starts.append(self.size)
            self.size += -(-math.prod(shape) * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT
        self._parts = [(start, *array) for start, array in zip(self.starts, arrays, strict=True)]
        self._blocks: list[Block] = []

    def take(self) -> Block:
        """A block that nothing else uses."""
        for block in self._blocks:
            if block.is_free():
                return block
        block = Block(self.size, self._parts)
        if len(self._blocks) < _MOST_BLOCKS:  # somebody keeps many batches: then each has its own memory
            self._blocks.append(block)
        return block
