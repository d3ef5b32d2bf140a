"""Memory for results, used again once nobody holds it any more.

What a pool returns must stay as it is for as long as somebody has it. Fresh memory every time would do, but the operating
system hands it out page by page, which costs more than the steps themselves.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_MOST_BLOCKS = 8


class Block(NamedTuple):
    """A piece of memory, and its address: asking NumPy for that takes as long as dozens of steps."""

    memory: NDArray[np.uint8]
    address: int


def _new_block(size: int) -> Block:
    memory = np.empty(size, dtype=np.uint8)
    return Block(memory, memory.ctypes.data)


#: References to a block's memory when no array that was made from it is left, counted as `take` counts them.
_sample = _new_block(1)
_UNUSED = sys.getrefcount(_sample.memory)


class Recycler:
    """Keeps the blocks of earlier results. A block is free again when every array over its memory is gone."""

    def __init__(self) -> None:
        self._blocks: list[Block] = []

    def take(self, size: int) -> Block:
        """A block of at least `size` bytes that nothing else uses."""
        for index, block in enumerate(self._blocks):
            if sys.getrefcount(block.memory) == _UNUSED:
                if len(block.memory) < size:
                    self._blocks[index] = block = _new_block(size)
                return block
        block = _new_block(size)
        if len(self._blocks) < _MOST_BLOCKS:  # somebody keeps many results: then each has its own memory
            self._blocks.append(block)
        return block
