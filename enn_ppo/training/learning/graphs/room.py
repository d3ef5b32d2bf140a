"""Capacity of recorded batches: that of the largest so far, and a little more."""

from __future__ import annotations

import logging

from torch import nn

from rogue_net import ObsBatch
from rogue_net.padding import Capacity
from rogue_net.relative_positions import RelativePositions

log = logging.getLogger(__name__)


class Room:
    """The capacity of what is recorded.

    Args:
        outgrown: what to say where it grows, such as "a step has outgrown its graph".

    Attributes:
        capacity: there is one as soon as a batch was asked for.
    """

    capacity: Capacity

    def __init__(self, outgrown: str) -> None:
        self._outgrown = outgrown
        self._has_capacity = False

    def fits(self, batch: ObsBatch, net: object) -> bool:
        """Whether a batch fits as it is. If not, it does afterwards, in more room, which is said.

        Args:
            batch: on any device.
            net: whom it is for. One with relative positions asks how many pairs of entities there are, which synchronises.
        """
        if self._has_capacity and self.capacity.fits(batch):
            return True
        needed = Capacity.of(batch, token_pairs=_counts_pairs(net))
        if self._has_capacity:
            needed = self.capacity.covering(needed)
            log.warning("%s; it is recorded again with room for %s", self._outgrown, needed.describe())
        self.capacity, self._has_capacity = needed, True
        return False


def _counts_pairs(net: object) -> bool:
    return isinstance(net, nn.Module) and any(isinstance(module, RelativePositions) for module in net.modules())
