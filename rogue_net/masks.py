"""Actors of a batch, and the actions that are open to them.

Shapes: B frames, A actors of all frames together, C choices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from rogue_net.ragged import Cat, Cuts, Gather, RaggedTensor, offsets_of

#: Makes one tensor out of another.
Change = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class CategoricalMask:
    """The actors of an action that selects no entities, and the choices open to them."""

    actors: RaggedTensor  # B sequences of (A, 1) int64, entity indices inside the frame
    mask: Tensor | None  # (A, C) bool over all frames' actors, true where open; None: everything is

    def gather(self, gather: Gather) -> CategoricalMask:
        """The masks of some frames."""
        mask = None if self.mask is None else self.mask.index_select(0, gather.items(self.actors))
        return CategoricalMask(gather(self.actors), mask)

    @property
    def offsets(self) -> list[Tensor]:
        """Offsets that `split` needs in its `Cuts`."""
        return [self.actors.offsets]

    def map(self, change: Change) -> CategoricalMask:
        """See `ObsBatch.map`."""
        return CategoricalMask(self.actors.map(change), None if self.mask is None else change(self.mask))

    def split(self, cuts: Cuts) -> list[CategoricalMask]:
        """The masks of consecutive parts."""
        actors = cuts(self.actors)
        if self.mask is None:
            return [CategoricalMask(part, None) for part in actors]
        rows = torch.split(self.mask, [len(part.values) for part in actors])
        return [CategoricalMask(part, mask) for part, mask in zip(actors, rows, strict=True)]


@dataclass(frozen=True)
class SelectEntityMask:
    """Actors that select an entity in each frame, and the entities that they can select."""

    actors: RaggedTensor  # B sequences of (A, 1) int64, entity indices inside the frame
    actees: RaggedTensor  # B sequences of (number of actees, 1) int64
    pairs: (
        RaggedTensor | None
    )  # B sequences of (A * number of actees, 1) bool, actor by actor; None: every pair is open
    #: Pairs of all frames, where the host knows; None: looked up when they are needed, which synchronises. In a padded batch
    #: it may be more than there are, and the rest belongs to the last actor; see `rogue_net/padding.py`.
    num_pairs: int | None = None
    padded: bool = False  # whether the last actor is none; see `ObsBatch.padded`

    def gather(self, gather: Gather) -> SelectEntityMask:
        """The masks of some frames."""
        pairs = None if self.pairs is None else gather(self.pairs)
        num_pairs = self.num_pairs if gather.all_of_them else None
        return SelectEntityMask(gather(self.actors), gather(self.actees), pairs, num_pairs)

    @property
    def offsets(self) -> list[Tensor]:
        """Offsets that `split` needs in its `Cuts`."""
        return [self.actors.offsets, self.actees.offsets, self.pair_offsets]

    @cached_property
    def pair_offsets(self) -> Tensor:
        """(B + 1,) int64: the pairs of frame b are offsets[b]:offsets[b + 1]."""
        return offsets_of(self.actors.lengths * self.actees.lengths) if self.pairs is None else self.pairs.offsets

    def map(self, change: Change) -> SelectEntityMask:
        """See `ObsBatch.map`."""
        pairs = None if self.pairs is None else self.pairs.map(change)
        return replace(self, actors=self.actors.map(change), actees=self.actees.map(change), pairs=pairs)

    def split(self, cuts: Cuts) -> list[SelectEntityMask]:
        """The masks of consecutive parts."""
        pairs = [None] * len(cuts.sizes) if self.pairs is None else cuts(self.pairs)
        parts = zip(cuts(self.actors), cuts(self.actees), pairs, cuts.counts(self.pair_offsets), strict=True)
        return [SelectEntityMask(*part) for part in parts]


ActionMask = CategoricalMask | SelectEntityMask


def cat_masks(masks: Sequence[ActionMask], cat: Cat) -> ActionMask:
    """All frames of the first mask, then all of the second, and so on; all are of one action."""
    actors = cat([mask.actors for mask in masks])
    if isinstance(masks[0], CategoricalMask):
        rows = [(mask.mask, len(mask.actors.values)) for mask in masks if isinstance(mask, CategoricalMask)]
        given = next((mask for mask, _ in rows if mask is not None), None)
        if given is None:
            return CategoricalMask(actors, None)
        filled = [given.new_ones(count, given.shape[1]) if mask is None else mask for mask, count in rows]
        return CategoricalMask(actors, torch.cat(filled))
    selects = [mask for mask in masks if isinstance(mask, SelectEntityMask)]
    actees = cat([mask.actees for mask in selects])
    counts = [mask.num_pairs for mask in selects if mask.num_pairs is not None]
    num_pairs = sum(counts) if len(counts) == len(selects) else None
    if all(mask.pairs is None for mask in selects):
        return SelectEntityMask(actors, actees, None, num_pairs)
    return SelectEntityMask(actors, actees, cat([_all_pairs(mask) for mask in selects]), num_pairs)


def _all_pairs(mask: SelectEntityMask) -> RaggedTensor:
    if mask.pairs is not None:
        return mask.pairs
    offsets = mask.pair_offsets
    # looking synchronises; only where some steps mask pairs and this one does not, and the host does not know
    total = int(offsets[-1]) if mask.num_pairs is None else mask.num_pairs
    return RaggedTensor(torch.ones(total, 1, dtype=torch.bool, device=offsets.device), offsets)
