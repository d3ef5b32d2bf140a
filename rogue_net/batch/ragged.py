"""Ragged tensors: sequences of different lengths stored end to end.

Shapes: B sequences (frames), `items` rows of all of them together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from rogue_net.batch.crossing import moved


class RaggedTensor(NamedTuple):
    """B sequences: sequence b is `values[offsets[b]:offsets[b + 1]]`."""

    values: Tensor  # (items, features)
    offsets: Tensor  # (B + 1,) int64, from 0 to items

    @property
    def lengths(self) -> Tensor:
        """(B,) int64, the items of each sequence."""
        return self.offsets.diff()

    @property
    def sequences(self) -> Tensor:
        """(items,) int64, the sequence of each item."""
        return sequence_of_item(self.offsets, len(self.values))

    def gather(self, sequences: Tensor) -> RaggedTensor:
        """The sequences numbered `sequences` (int64), in that order. Synchronises with the device."""
        return Gather(sequences)(self)

    def map(self, change: Callable[[Tensor], Tensor]) -> RaggedTensor:
        """Apply `change` to the values and to the offsets."""
        return RaggedTensor(change(self.values), change(self.offsets))


#: What a policy remembers of B environments: columns of rows, such as (m, width) numbers and the (m, 1) int64 ids of the entities
#: that they belong to, each with B sequences. An environment of which nothing is known has no rows.
State: TypeAlias = "dict[str, RaggedTensor | State]"


class Gather:
    """Gathers sequences of ragged tensors. Offsets that several of them share are gathered once, and stay shared.

    Args:
        sequences: (n,) int64, the numbers of the sequences to take, in the order that is wanted.
        all_of_them: `sequences` has every sequence exactly once, so the number of items stays the same. Otherwise it is
            looked up, which synchronises with the device.
    """

    def __init__(self, sequences: Tensor, *, all_of_them: bool = False) -> None:
        self.sequences, self.all_of_them = sequences, all_of_them
        self._known: dict[int, tuple[Tensor, Tensor, Tensor]] = {}  # by id of the offsets, which it keeps alive

    def __call__(self, ragged: RaggedTensor) -> RaggedTensor:
        """The gathered sequences."""
        offsets, items = self._find(ragged)
        return RaggedTensor(ragged.values.index_select(0, items), offsets)

    def items(self, ragged: RaggedTensor) -> Tensor:
        """(items,) int64, the items that the gathered sequences consist of."""
        return self._find(ragged)[1]

    def _find(self, ragged: RaggedTensor) -> tuple[Tensor, Tensor]:
        values, source = ragged
        if id(source) not in self._known:
            lengths = source.diff()[self.sequences]
            offsets = offsets_of(lengths)
            shift = source[self.sequences] - offsets[:-1]  # from an item's place in the result to that in the source
            count = len(values) if self.all_of_them else None
            shifts = torch.repeat_interleave(shift, lengths, output_size=count)
            self._known[id(source)] = source, offsets, torch.arange(len(shifts), device=source.device) + shifts
        _, offsets, items = self._known[id(source)]
        return offsets, items


class Cat:
    """Concatenates the sequences of ragged tensors. Offsets that several results share are computed once, and stay shared."""

    def __init__(self) -> None:
        self._known: dict[
            tuple[int, ...], tuple[list[Tensor], Tensor]
        ] = {}  # by ids of the parts, which it keeps alive

    def __call__(self, parts: Sequence[RaggedTensor]) -> RaggedTensor:
        """All sequences of the first part, then all of the second, and so on."""
        key = tuple(id(part.offsets) for part in parts)
        if key not in self._known:
            offsets = offsets_of(torch.cat([part.lengths for part in parts]))
            self._known[key] = [part.offsets for part in parts], offsets
        return RaggedTensor(torch.cat([part.values for part in parts]), self._known[key][1])


class Cuts:
    """Cuts ragged tensors of the same sequences into consecutive parts, which share the values' memory.

    Args:
        sizes: sequences of each part.
        offsets: offsets of all ragged tensors that are to be cut. The places to cut at are looked up for all of them
            together, which synchronises with the device once.
    """

    def __init__(self, sizes: Sequence[int], offsets: Sequence[Tensor]) -> None:
        self.sizes = list(sizes)
        self._offsets = {id(each): each for each in offsets}  # also keeps them, so that no other gets their number
        self._items: dict[int, list[int]] = {}
        if offsets:
            cuts = moved(torch.tensor([0, *accumulate(sizes)]), offsets[0].device)
            found = torch.stack([each.index_select(0, cuts) for each in self._offsets.values()]).tolist()
            self._items = dict(zip(self._offsets, found, strict=True))
        self._parts: dict[int, list[Tensor]] = {}  # offsets of each part, by id of the whole's

    def __call__(self, ragged: RaggedTensor) -> list[RaggedTensor]:
        """The parts."""
        values, offsets = ragged
        bounds = list(pairwise(self._items[id(offsets)]))
        if id(offsets) not in self._parts:
            sequences = pairwise([0, *accumulate(self.sizes)])
            self._parts[id(offsets)] = [
                offsets[first : last + 1] - low for (first, last), (low, _) in zip(sequences, bounds, strict=True)
            ]
        parts = self._parts[id(offsets)]
        return [RaggedTensor(values[low:high], part) for (low, high), part in zip(bounds, parts, strict=True)]

    def counts(self, offsets: Tensor) -> list[int]:
        """Items of each part."""
        return [high - low for low, high in pairwise(self._items[id(offsets)])]


def offsets_of(lengths: Tensor) -> Tensor:
    """Turn (B,) lengths into (B + 1,) offsets."""
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


def segment_sum(values: Tensor, segments: Tensor, num_segments: int) -> Tensor:
    """(num_segments,) sums of the (items,) `values`."""
    return values.new_zeros(num_segments).index_add_(0, segments, values)


def segment_max(values: Tensor, segments: Tensor, num_segments: int) -> Tensor:
    """(num_segments,) maxima of the (items,) `values`, -inf for an empty segment. Not differentiable."""
    floor = values.new_full((num_segments,), float("-inf"))
    return floor.scatter_reduce_(0, segments, values.detach(), "amax")
