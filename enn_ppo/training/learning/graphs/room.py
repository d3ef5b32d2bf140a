"""Capacity of a graph's batches: the size of the largest batch so far, with a margin."""

from __future__ import annotations

import logging

from torch import nn

from rogue_net import ObsBatch
from rogue_net.batch.padding import Capacity
from rogue_net.relative.relative_positions import RelativePositions

log = logging.getLogger(__name__)


class Room:
    """The capacity of a recorded graph's batches.

    Args:
        outgrown: beginning of the warning when the capacity grows, such as "a step has outgrown its graph".

    Attributes:
        capacity: set by the first call of `fits`.
    """

    capacity: Capacity

    def __init__(self, outgrown: str) -> None:
        self._outgrown = outgrown
        self._has_capacity = False

    def fits(self, batch: ObsBatch, net: object) -> bool:
        """True if the batch fits the capacity. Otherwise grows it, logs the new sizes, and returns False: record the graph again.

        Args:
            batch: on any device.
            net: the graph's network; relative positions need the number of pairs of entities, which synchronises.
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
