"""Actors of a batch, and the choices or entities that are open to them.

Shapes: B frames, A actors of all frames together, C choices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from rogue_net.batch.ragged import Cat, Cuts, Gather, RaggedTensor, offsets_of

#: Makes one tensor out of another.
Change = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class ActionMask:
    """The actors of an action, and the choices, or the entities of their frame (actees), that are open to them."""

    actors: RaggedTensor  # B sequences of (A, 1) int64, entity indices inside the frame
    actees: RaggedTensor | None = None  # B sequences of (number of actees, 1) int64; None: the action selects no entity
    #: B sequences of (A, C) bool, true where open, with the offsets of the actors; with actees of (A * number of actees, 1),
    #: actor by actor. None: everything is open.
    mask: RaggedTensor | None = None
    #: Pairs of actors and actees in all frames, where the host knows; None: looked up when they are needed, which synchronises.
    num_pairs: int | None = None

    def gather(self, gather: Gather) -> ActionMask:
        """The masks of some frames."""
        actees = None if self.actees is None else gather(self.actees)
        mask = None if self.mask is None else gather(self.mask)
        return ActionMask(gather(self.actors), actees, mask, self.num_pairs if gather.all_of_them else None)

    def map(self, change: Change) -> ActionMask:
        """See `ObsBatch.map`."""
        actors = self.actors.map(change)
        actees = None if self.actees is None else self.actees.map(change)
        mask = None if self.mask is None else self.mask.map(change)
        return replace(self, actors=actors, actees=actees, mask=mask)

    def split(self, cuts: Cuts) -> list[ActionMask]:
        """The masks of consecutive parts."""
        nothing = [None] * len(cuts.sizes)
        actees = nothing if self.actees is None else cuts(self.actees)
        masks = nothing if self.mask is None else cuts(self.mask)
        counts = nothing if self.actees is None else cuts.counts(self.pair_offsets)
        return [ActionMask(*part) for part in zip(cuts(self.actors), actees, masks, counts, strict=True)]

    @property
    def offsets(self) -> list[Tensor]:
        """Offsets that `split` needs in its `Cuts`."""
        given = [each.offsets for each in (self.actors, self.actees, self.mask) if each is not None]
        return given if self.actees is None else [*given, self.pair_offsets]

    @cached_property
    def pair_offsets(self) -> Tensor:
        """(B + 1,) int64: the pairs of frame b are offsets[b]:offsets[b + 1]; of an action that selects entities."""
        assert self.actees is not None
        return offsets_of(self.actors.lengths * self.actees.lengths) if self.mask is None else self.mask.offsets

    def opened(self, choices: int) -> RaggedTensor:
        """The mask, true everywhere where there is none; (A, `choices`), or (pairs, 1)."""
        if self.mask is not None:
            return self.mask
        if self.actees is None:
            count, offsets = len(self.actors.values), self.actors.offsets
        else:
            offsets = self.pair_offsets
            # looking synchronises; only where some steps have a mask and this one has none, and the host does not know
            count = int(offsets[-1]) if self.num_pairs is None else self.num_pairs
        return RaggedTensor(torch.ones(count, choices, dtype=torch.bool, device=offsets.device), offsets)


def cat_masks(masks: Sequence[ActionMask], cat: Cat) -> ActionMask:
    """All frames of the first mask, then all of the second, and so on; all are of one action."""
    widths = [mask.mask.values.shape[1] for mask in masks if mask.mask is not None]
    actees = [mask.actees for mask in masks if mask.actees is not None]
    counts = [mask.num_pairs for mask in masks if mask.num_pairs is not None]
    return ActionMask(
        cat([mask.actors for mask in masks]),
        cat(actees) if actees else None,
        cat([mask.opened(widths[0]) for mask in masks]) if widths else None,
        sum(counts) if counts and len(counts) == len(masks) else None,
    )
