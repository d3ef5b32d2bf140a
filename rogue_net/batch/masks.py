"""Actors of a batch, and the choices or entities that are open to them.

Shapes: B frames, A actors of all frames together, C choices.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from rogue_net.batch.ragged import RaggedTensor, offsets_of


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
