"""The frames of a batch: which tokens belong together, and which are hidden.

Shapes: E tokens, B frames, R rows of L packed tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import FunctionCtx

from rogue_net.batch.crossing import to_device
from rogue_net.batch.packing import pack
from rogue_net.batch.ragged import RaggedTensor, sequence_of_item


class Frames:
    """Frames of tokens. A token is an entity; the tokens of a frame are in the order of its entity indices.

    Entities are given type by type. Asks the device for nothing.

    Args:
        features: entity type -> B sequences, an item for each entity.
        visible: types that hide something -> B sequences of (n, 1) bool.
        num_frames: B.
        device: of the tensors.

    Attributes:
        num_tokens: E.
        offsets: (B + 1,) int64, frame b's tokens are offsets[b]:offsets[b + 1].
        order: (E,) int64, the token of each row where all entities of the first type come first, then all of the second.
        positions: entity type -> (entities of the type,) int64, their tokens.
        visible: (E,) bool, false for tokens that visible ones must not see; None: all are visible.
    """

    def __init__(
        self,
        features: Mapping[str, RaggedTensor],
        visible: Mapping[str, RaggedTensor],
        num_frames: int,
        device: torch.device,
    ) -> None:
        counts = [len(ragged.values) for ragged in features.values()]
        self.num_tokens = sum(counts)
        self.offsets = torch.zeros(num_frames + 1, dtype=torch.int64, device=device)
        self.order = self.offsets[:0]
        if features:
            self.offsets, self.order = _order([ragged.offsets for ragged in features.values()], counts)
        self.positions = dict(zip(features, torch.split(self.order, counts), strict=True))
        self.visible: Tensor | None = None
        if visible:
            self.visible = torch.ones(self.num_tokens, dtype=torch.bool, device=device)
            for name, ragged in visible.items():
                self.visible[self.positions[name]] = ragged.values[:, 0]

    @cached_property
    def lengths(self) -> Tensor:
        """(B,) int64, tokens in each frame."""
        return self.offsets.diff()

    @cached_property
    def of_token(self) -> Tensor:
        """(E,) int64, the frame of each token."""
        return sequence_of_item(self.offsets, self.num_tokens)

    @cached_property
    def inverse(self) -> Tensor:
        """(E,) int64, the row of each token where `order` has the token of each row."""
        rows = torch.arange(len(self.order), device=self.order.device)
        return torch.empty_like(rows).scatter_(0, self.order, rows)

    @cached_property
    def host_offsets(self) -> NDArray[np.int64]:
        """The offsets in the host's memory. Synchronises with the device."""
        offsets: NDArray[np.int64] = self.offsets.contiguous().cpu().numpy()
        return offsets

    def pairs(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """The tokens of the pairs numbered `start` to `stop`: (pairs,) int64 first and second of each.

        Pairs are of a token with each of its frame, token by token.
        """
        counts = self.lengths.index_select(0, self.of_token)  # (E,) pairs of each token
        first_pairs = counts.cumsum(0) - counts
        numbers = torch.arange(start, stop, device=self.offsets.device)
        first = torch.searchsorted(first_pairs, numbers, right=True) - 1
        second = self.offsets.index_select(0, self.of_token[first]) + numbers - first_pairs[first]
        return first, second

    def means(self, tokens: Tensor) -> Tensor:
        """(B, D) mean of each frame's (E, D) tokens, hidden ones included; 0 for a frame without any."""
        # the sums of a frame are in the order of its tokens, on any device
        sums = torch.segment_reduce(tokens, "sum", offsets=self.offsets, axis=0, unsafe=True)
        return sums / self.lengths.clamp(min=1).unsqueeze(1)

    @cached_property
    def rows(self) -> PackedRows:
        """The frames packed into rows."""
        return PackedRows(self)


def _order(by_type: list[Tensor], counts: list[int]) -> tuple[Tensor, Tensor]:
    """Offsets of the frames among the tokens, (B + 1,), and the token of each row, (E,).

    Args:
        by_type: (B + 1,) int64 offsets of each type; at least one type.
        counts: entities of each type.
    """
    starts = torch.stack(by_type)  # (types, B + 1)
    # (types, B): the entities of one type in one frame, a run, are neighbours among the tokens too
    runs = starts.diff(dim=1)
    offsets = starts.sum(0)
    first_token = offsets[:-1] + runs.cumsum(0) - runs
    rows_before = torch.stack([offsets.new_full((1,), rows) for rows in accumulate(counts[:-1], initial=0)])
    shift = first_token - (starts[:, :-1] + rows_before)
    shifts = torch.repeat_interleave(shift.flatten(), runs.flatten(), output_size=sum(counts))
    return offsets, torch.arange(sum(counts), device=offsets.device) + shifts


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
        chosen = [torch.from_numpy(each) for each in (packing.index, packing.inverse_index, packing.batch)]
        # the numbers of frames are NaN where there is no token, and NaN equals nothing
        self.index, self.inverse_index, numbers = to_device(chosen, device)
        allowed = numbers.unsqueeze(2) == numbers.unsqueeze(1)
        if frames.visible is not None:
            visible = frames.visible[self.index]
            allowed &= visible.unsqueeze(1) | ~visible.unsqueeze(2)
        allowed |= torch.eye(self.index.shape[1], dtype=torch.bool, device=device)
        self.allowed = allowed.unsqueeze(1)

    def pack(self, values: Tensor) -> Tensor:
        """Pack (E, ...) values of tokens as (R, L, ...). Numbers where there is no token must reach no result.

        Every token has one place, so the gradient is gathered from there. Indexing would add up the gradients of all places,
        empty ones included, on one token, one after the other: on a GPU most of an update's time.
        """
        packed: Tensor = _Gather.apply(values, self.index.flatten(), self.inverse_index)  # type: ignore[no-untyped-call]
        return packed.reshape(*self.index.shape, *values.shape[1:])

    def unpack(self, packed: Tensor) -> Tensor:
        """Return the (E, ...) values of tokens of (R, L, ...) packed ones."""
        return packed.flatten(0, 1).index_select(0, self.inverse_index)


class _Gather(torch.autograd.Function):
    """Gathers `values[places]`; `values[i]` stands at `place_of[i]` of the result, and nowhere else that counts."""

    @staticmethod
    def forward(ctx: FunctionCtx, values: Tensor, places: Tensor, place_of: Tensor) -> Tensor:
        ctx.save_for_backward(place_of)
        return values.index_select(0, places)

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor, None, None]:
        (place_of,) = ctx.saved_tensors  # type: ignore[attr-defined]
        return gradient.index_select(0, place_of), None, None
