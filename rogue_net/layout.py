"""Where the entities of a batch stand among its tokens.

Shapes: B frames, E entities of all frames together (tokens).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import torch
from torch import Tensor

from rogue_net.ragged import RaggedTensor


@dataclass(frozen=True)
class Layout:
    """Where the entities of a batch stand among its tokens: by frame, then by entity index inside the frame."""

    offsets: Tensor  # (B + 1,) int64, frame b's tokens are offsets[b]:offsets[b + 1]
    lengths: Tensor  # (B,) int64, tokens in each frame
    order: Tensor  # (E,) int64, the token of each row where all entities of the first type come first, and so on
    positions: dict[str, Tensor]  # entity type -> (entities of the type,) int64, their tokens: the parts of `order`
    padded: bool = False  # whether the last frame is none; see `rogue_net/padding.py`

    @staticmethod
    def of(
        features: Mapping[str, RaggedTensor], num_frames: int, device: torch.device, *, padded: bool = False
    ) -> Layout:
        """Of entity type -> B sequences, an item for each entity."""
        counts = [len(ragged.values) for ragged in features.values()]
        by_type = [ragged.offsets for ragged in features.values()]
        if not by_type:
            none = torch.zeros(num_frames + 1, dtype=torch.int64, device=device)
            return Layout(none, none[1:], none[:0], {}, padded)
        offsets, lengths, order = _of_types(by_type, counts)
        positions = dict(zip(features, torch.split(order, counts), strict=True))
        return Layout(offsets, lengths, order, positions, padded)

    @cached_property
    def frames(self) -> Tensor:
        """(E,) int64, the frame of each token."""
        return self.spread(torch.arange(len(self.lengths), device=self.lengths.device))

    @cached_property
    def inverse(self) -> Tensor:
        """(E,) int64, the row of each token where `order` has the token of each row."""
        rows = torch.arange(len(self.order), device=self.order.device)
        return torch.empty_like(rows).scatter_(0, self.order, rows)

    def spread(self, rows: Tensor) -> Tensor:
        """Give each token its frame's of B `rows`."""
        return torch.repeat_interleave(rows, self.lengths, dim=0, output_size=len(self.order))


def _of_types(by_type: Sequence[Tensor], counts: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Where frames begin among the tokens, how many each has, and the token of each row; the device is asked for nothing.

    Args:
        by_type: (B + 1,) of each type, its offsets; at least one type.
        counts: entities of each type.

    Returns:
        (B + 1,), (B,) and (E,) int64.
    """
    starts = torch.stack(list(by_type))  # (types, B + 1)
    runs = starts.diff(
        dim=1
    )  # (types, B): entities of one type in one frame, a run, are neighbours among the tokens too
    offsets = starts.sum(0)
    first_token = offsets[:-1] + runs.cumsum(0) - runs
    rows_before = torch.stack([offsets.new_full((1,), rows) for rows in accumulate(counts[:-1], initial=0)])
    shift = first_token - (starts[:, :-1] + rows_before)
    shifts = torch.repeat_interleave(shift.flatten(), runs.flatten(), output_size=sum(counts))
    return offsets, offsets.diff(), torch.arange(sum(counts), device=offsets.device) + shifts
