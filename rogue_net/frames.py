"""Which tokens of a batch are a frame, in the forms that attention needs; each is made once, when first asked for.

Shapes: E tokens, B frames, R rows of L packed tokens.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from entity_gym.batch.packing import pack
from rogue_net.obs_batch import ObsBatch
from rogue_net.ragged import sequence_of_item


class Bounds(NamedTuple):
    """The tokens of its frame for every token: `first:last`. Neither ever falls from one token to the next."""

    first: Tensor  # (E,) int32
    last: Tensor  # (E,) int32


class Frames:
    """The frames of a batch.

    Args:
        offsets: (B + 1,) int64, frame b's tokens are offsets[b]:offsets[b + 1].
        visible: (E,) bool, false for tokens that visible ones must not see; None: all are visible.
        num_tokens: E; None: looked up when it is needed, which synchronises.
        padded: whether the last frame is none: see `rogue_net/padding.py`.
        num_pairs: as many pairs as there are, or more, of tokens of one frame, each token with itself among them; None: looked
            up when it is needed, which synchronises.
    """

    def __init__(
        self,
        offsets: Tensor,
        visible: Tensor | None = None,
        num_tokens: int | None = None,
        padded: bool = False,
        num_pairs: int | None = None,
    ) -> None:
        self.offsets = offsets
        self.visible = visible
        self.padded = padded
        self._num_pairs = num_pairs
        self._num_tokens = num_tokens
        self._bounds: Bounds | None = None

    @staticmethod
    def of(batch: ObsBatch) -> Frames:
        """Those of a batch."""
        return Frames(batch.layout.offsets, batch.token_visible, batch.num_tokens, batch.padded, batch.num_token_pairs)

    @property
    def num_tokens(self) -> int:
        """E."""
        return int(self.offsets[-1]) if self._num_tokens is None else self._num_tokens

    @cached_property
    def host_offsets(self) -> NDArray[np.int64]:
        """The offsets in the host's memory. Synchronises with the device."""
        offsets: NDArray[np.int64] = self.offsets.contiguous().cpu().numpy()
        return offsets

    @cached_property
    def max_length(self) -> int:
        """Tokens of the longest frame; 0 without frames."""
        return int(np.diff(self.host_offsets).max(initial=0))

    @cached_property
    def numbers(self) -> Tensor:
        """(E,) int64, the frame of each token."""
        return sequence_of_item(self.offsets, self.num_tokens)

    @property
    def num_pairs(self) -> int:
        """See the argument."""
        if self._num_pairs is None:
            self._num_pairs = int(np.square(np.diff(self.host_offsets)).sum())
        return self._num_pairs

    def bounds(self, num_tokens: int) -> Bounds:
        """Where the frame of each token is. Never synchronises: the number of tokens is known to those who have them.

        Args:
            num_tokens: E. Tokens behind the last frame are allowed, and where the last one is none its tokens count as such;
                their frame is empty.
        """
        if self._bounds is None or len(self._bounds.first) != num_tokens:
            offsets = self.offsets[:-1] if self.padded else self.offsets
            tokens = torch.arange(num_tokens, device=offsets.device)
            frames = torch.searchsorted(offsets[1:].contiguous(), tokens, right=True)  # B behind the last frame
            limits = offsets.to(torch.int32)
            self._bounds = Bounds(limits[frames], torch.cat([limits[1:], limits[-1:]])[frames])
        return self._bounds

    @cached_property
    def rows(self) -> PackedRows:
        """The frames packed into rows."""
        return PackedRows(self)


class PackedRows:
    """Several frames packed into each row of a rectangle, and a mask that keeps them apart.

    Attributes:
        index: (R, L) int64, the token at each place of a row; 0 where there is none.
        inverse_index: (E,) int64, each token's place in the flattened rows.
        allowed: (R, 1, L, L) bool, whether the token at place i of a row may attend to the one at place j: both are of one
            frame, and j is visible or i is hidden too. A place always attends to itself, empty ones to nothing else.
    """

    def __init__(self, frames: Frames) -> None:
        packing = pack(np.diff(frames.host_offsets))  # rows are chosen on the host
        device = frames.offsets.device
        self.index = torch.from_numpy(packing.index).to(device)
        self.inverse_index = torch.from_numpy(packing.inverse_index).to(device)
        numbers = torch.from_numpy(packing.batch).to(device)  # NaN where there is no token, and NaN equals nothing
        allowed = numbers.unsqueeze(2) == numbers.unsqueeze(1)
        if frames.visible is not None:
            visible = frames.visible[self.index]
            allowed &= visible.unsqueeze(1) | ~visible.unsqueeze(2)
        allowed |= torch.eye(self.index.shape[1], dtype=torch.bool, device=device)
        self.allowed = allowed.unsqueeze(1)
