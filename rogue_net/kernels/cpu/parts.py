"""How the frames of a batch are shared out: among threads, and then in chunks that go through the blocks together."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from rogue_net.frames import Frames
from rogue_net.kernels.cpu.compiling import address

PART = 512  # tokens that are worth another thread


class Chunk(NamedTuple):
    """Consecutive frames."""

    low: int
    high: int
    start: int  # their tokens
    end: int


def split(frames: Frames, size: int) -> list[list[Chunk]]:
    """The chunks of every thread, about as many tokens each; a chunk has at most `size` tokens, or is one frame with more.

    Depends on nothing but the frames and torch's number of threads, so that sums over chunks always round the same.
    """
    offsets = frames.host_offsets
    num_frames, num_tokens = len(offsets) - 1, int(offsets[-1])
    count = max(1, min(torch.get_num_threads(), num_tokens // PART))
    limits = [0, num_frames]
    if count > 1:
        limits[1:1] = np.searchsorted(offsets, np.linspace(0, num_tokens, count + 1)[1:-1]).tolist()
    return [_divide(frames, low, high, size) for low, high in zip(limits[:-1], limits[1:], strict=True) if low < high]


def _divide(frames: Frames, low: int, high: int, size: int) -> list[Chunk]:
    offsets, chunks = frames.host_offsets, []
    while low < high:
        end = int(np.searchsorted(offsets, offsets[low] + size, "right")) - 1
        end = min(max(end, low + 1), high)
        chunks.append(Chunk(low, end, int(offsets[low]), int(offsets[end])))
        low = end
    return chunks


def longest(chunks: list[Chunk]) -> int:
    """Tokens of the chunk that has most of them."""
    return max(chunk.end - chunk.start for chunk in chunks)


def hidden_from(frames: Frames) -> tuple[int, bool, int]:
    """What kernels take for frames: the address of their offsets, whether anything is hidden, and that of `visible`."""
    visible = frames.host_visible
    return address(frames.host_offsets), len(visible) > 0, address(visible)
