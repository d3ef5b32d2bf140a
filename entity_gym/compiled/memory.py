"""Memory for batches, used again once nobody holds it any more.

What a pool returns must stay as it is for as long as somebody has it. Fresh memory every time would do, but the operating
system hands it out page by page, which costs more than the steps themselves.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

_ALIGNMENT = 64  # bytes, a cache line
_MOST_BLOCKS = 8


class Block(NamedTuple):
    """One piece of memory, divided into arrays.

    Attributes:
        memory: all of it; views of `arrays` refer to it, and not to the arrays that they were taken from.
        address: of the first byte. `ndarray.ctypes.data` takes as long as dozens of steps, so it is stored.
        arrays: each as large as it was asked for.
    """

    memory: NDArray[np.uint8]
    address: int
    arrays: list[NDArray[Any]]


class Recycler:
    """Hands out blocks of one form: that of an earlier batch if nobody has the batch any more.

    Args:
        arrays: shape and dtype of each array.

    Attributes:
        starts: where in a block each array begins, in bytes.
        size: bytes of a block.
    """

    def __init__(self, arrays: Sequence[tuple[tuple[int, ...], np.dtype[Any]]]) -> None:
        self.starts, self.size, self._arrays = [], 0, arrays
        for shape, dtype in arrays:
            self.starts.append(self.size)
            self.size += -(-math.prod(shape) * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT
        self._blocks: list[tuple[Block, int]] = []  # with the number of references while it is free

    def take(self) -> Block:
        """A block that nothing else uses."""
        for block, references in self._blocks:
            if sys.getrefcount(block.memory) == references:
                return block
        memory: NDArray[np.uint8] = np.empty(self.size, dtype=np.uint8)
        parts = zip(self.starts, self._arrays, strict=True)
        arrays = [np.ndarray(shape, dtype, memory, start) for start, (shape, dtype) in parts]
        block = Block(memory, memory.ctypes.data, arrays)
        del memory
        if len(self._blocks) < _MOST_BLOCKS:  # somebody keeps many batches: then each has its own memory
            self._blocks.append((block, sys.getrefcount(block.memory)))
        return block
