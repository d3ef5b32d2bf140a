"""Ragged tensors: sequences of different lengths stored end to end.

Shapes: B sequences (frames), `items` rows of all of them together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from rogue_net.crossing import moved


class RaggedTensor(NamedTuple):
    """B sequences: sequence b is `values[offsets[b]:offsets[b + 1]]`."""

    values: Tensor  # (items, features)
    offsets: Tensor  # (B + 1,) int64, from 0 to items

    @property
    def lengths(self) -> Tensor:
        """(B,) int64."""
        return self.offsets.diff()

    @property
    def sequences(self) -> Tensor:
        """(items,) int64, the sequence of each item."""
        return sequence_of_item(self.offsets, len(self.values))

    def gather(self, sequences: Tensor, num_items: int | None = None) -> RaggedTensor:
        """The sequences numbered `sequences` (int64), in that order; for `num_items` see `gather_items`."""
        offsets = offsets_of(self.lengths[sequences])
        items = gather_items(self.offsets, sequences, offsets, num_items)
        return RaggedTensor(self.values.index_select(0, items), offsets)

    def map(self, change: Callable[[Tensor], Tensor]) -> RaggedTensor:
        """What `change` makes of the values and of the offsets."""
        return RaggedTensor(change(self.values), change(self.offsets))


class Cuts:
    """Cuts ragged tensors of the same sequences into consecutive parts, which share the values' memory.

    Where to cut the values is looked up for all of them at once: on another device than the CPU that synchronises.

    Args:
        sizes: sequences of each part.
        offsets: those of all that is to be cut.
    """

    def __init__(self, sizes: Sequence[int], offsets: Sequence[Tensor]) -> None:
        self.sizes = list(sizes)
        self._offsets = {id(each): each for each in offsets}  # also keeps them, so that no other gets their number
        cuts = moved(torch.tensor([0, *accumulate(sizes)]), offsets[0].device)
        found = torch.stack([each.index_select(0, cuts) for each in self._offsets.values()]).tolist()
        self._items = dict(zip(self._offsets, found, strict=True))

    def __call__(self, ragged: RaggedTensor) -> list[RaggedTensor]:
        """The parts."""
        values, offsets = ragged
        sequences = pairwise([0, *accumulate(self.sizes)])
        return [
            RaggedTensor(values[low:high], offsets[first : last + 1] - low)
            for (first, last), (low, high) in zip(sequences, pairwise(self._items[id(offsets)]), strict=True)
        ]

    def counts(self, offsets: Tensor) -> list[int]:
        """Items of each part."""
        return [high - low for low, high in pairwise(self._items[id(offsets)])]


def offsets_of(lengths: Tensor) -> Tensor:
    """(B,) lengths to (B + 1,) offsets."""
    return torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])


def sequence_of_item(offsets: Tensor, num_items: int) -> Tensor:
    """(items,) int64: the sequence that each item belongs to.

    Args:
        offsets: (B + 1,) int64.
        num_items: as many as the last offset says: the host knows it, and need not ask the device.
    """
    lengths = offsets.diff()
    numbers = torch.arange(len(lengths), device=offsets.device)
    return torch.repeat_interleave(numbers, lengths, output_size=num_items)


def gather_items(offsets: Tensor, sequences: Tensor, gathered_offsets: Tensor, num_items: int | None = None) -> Tensor:
    """Which items the gathered sequences consist of, in order.

    Args:
        offsets: (B + 1,) of the ragged tensor gathered from.
        sequences: the sequences to take.
        gathered_offsets: the offsets of the result.
        num_items: how many there are, where the host knows; None: looked up, which synchronises.
    """
    shift = offsets[sequences] - gathered_offsets[:-1]
    lengths = gathered_offsets.diff()
    shifts = torch.repeat_interleave(shift, lengths, output_size=num_items)
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
