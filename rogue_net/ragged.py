"""Ragged tensors: sequences of different lengths stored end to end.

Shapes: B sequences (frames), `items` rows of all of them together.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
from torch import Tensor


class RaggedTensor(NamedTuple):
    """B sequences: sequence b is `values[offsets[b]:offsets[b + 1]]`."""

    values: Tensor  # (items, features)
    offsets: Tensor  # (B + 1,) int64, from 0 to items

    @property
    def lengths(self) -> Tensor:
        """(B,) int64."""
        return self.offsets.diff()

    def gather(self, sequences: Tensor) -> RaggedTensor:
        """The sequences numbered `sequences` (int64), in that order."""
        offsets = offsets_of(self.lengths[sequences])
        items = gather_items(self.offsets, sequences, offsets)
        return RaggedTensor(self.values.index_select(0, items), offsets)

    def split(self, sizes: Sequence[int]) -> list[RaggedTensor]:
        """Consecutive parts of so many sequences each; they share the values' memory. Synchronises once."""
        cuts = [0, *accumulate(sizes)]
        items = self.offsets[cuts].tolist()
        return [
            RaggedTensor(self.values[low:high], self.offsets[first : last + 1] - low)
            for (first, last), (low, high) in zip(pairwise(cuts), pairwise(items), strict=True)
        ]


def offsets_of(lengths: Tensor) -> Tensor:
    """(B,) lengths to (B + 1,) offsets."""
    return torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])


def sequence_of_item(offsets: Tensor) -> Tensor:
    """(items,) int64: the sequence that each item belongs to."""
    lengths = offsets.diff()
    return torch.repeat_interleave(torch.arange(len(lengths), device=offsets.device), lengths)


def gather_items(offsets: Tensor, sequences: Tensor, gathered_offsets: Tensor) -> Tensor:
    """Which items the gathered sequences consist of, in order.

    Args:
        offsets: (B + 1,) of the ragged tensor gathered from.
        sequences: the sequences to take.
        gathered_offsets: the offsets of the result.
    """
    shift = offsets[sequences] - gathered_offsets[:-1]
    lengths = gathered_offsets.diff()
    shifts = torch.repeat_interleave(shift, lengths)
    return torch.arange(len(shifts), device=offsets.device) + shifts


def cat_ragged(parts: Sequence[RaggedTensor]) -> RaggedTensor:
    """All sequences of the first part, then all of the second, and so on."""
    lengths = torch.cat([part.lengths for part in parts])
    return RaggedTensor(torch.cat([part.values for part in parts]), offsets_of(lengths))


def segment_mean(values: Tensor, segments: Tensor, num_segments: int, counts: Tensor) -> Tensor:
    """(num_segments, D) mean of the rows of each segment, 0 for an empty one.

    Args:
        values: (items, D).
        segments: (items,) int64, the segment of each row.
        num_segments: how many there are.
        counts: (num_segments,) int64, rows in each.
    """
    sums = values.new_zeros(num_segments, values.shape[1]).index_add_(0, segments, values)
    return sums / counts.clamp(min=1).unsqueeze(1)


def segment_sum(values: Tensor, segments: Tensor, num_segments: int) -> Tensor:
    """(num_segments,) sums of the (items,) `values`."""
    return values.new_zeros(num_segments).index_add_(0, segments, values)


def segment_max(values: Tensor, segments: Tensor, num_segments: int) -> Tensor:
    """(num_segments,) maxima of the (items,) `values`, -inf for an empty segment. Not differentiable."""
    floor = values.new_full((num_segments,), float("-inf"))
    return floor.scatter_reduce_(0, segments, values.detach(), "amax")
