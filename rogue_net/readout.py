"""What the heads take from the tokens: the rows of actors and actees, and the mean of every frame.

All of it is one autograd function. The gradient of every single gather would be as large as all tokens together, and adding
them up would take longer than the heads themselves.

Shapes: B frames, E tokens, D width, A actors of an action and N actees in all frames together.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rogue_net.layout import Layout
from rogue_net.obs_batch import ObsBatch

_FILLERS_AT_ONCE = 64  # tokens


class Readout(NamedTuple):
    """What the heads take from the tokens."""

    means: Tensor  # (B, D), see `mean_tokens`
    actors: dict[str, Tensor]  # action -> (A, D)
    actees: dict[str, Tensor]  # action that selects entities -> (N, D)

    @staticmethod
    def of(tokens: Tensor, batch: ObsBatch) -> Readout:
        """From (E, D) tokens."""
        acting = batch.action_tokens
        selecting = {name: each.actees for name, each in acting.items() if each.actees is not None}
        rows = [*(each.actors for each in acting.values()), *selecting.values()]
        means, *taken = _read(tokens, batch.layout, *rows)
        return Readout(
            means, dict(zip(acting, taken, strict=False)), dict(zip(selecting, taken[len(acting) :], strict=True))
        )


def mean_tokens(tokens: Tensor, layout: Layout) -> Tensor:
    """(B, D) mean of each frame's (E, D) tokens, hidden ones included; 0 for a frame without any."""
    return _read(tokens, layout)[0]


def _read(tokens: Tensor, layout: Layout, *indices: Tensor) -> tuple[Tensor, ...]:
    """The frames' means, and the rows at each of the indices."""
    if torch.is_grad_enabled():
        read: tuple[Tensor, ...] = _Read.apply(tokens, layout, *indices)  # type: ignore[no-untyped-call]
        return read
    everything = torch.arange(len(tokens), device=tokens.device)
    # several times as fast as index_add
    sums = torch.embedding_bag(tokens, everything, _bags(layout, len(tokens)))[0][: len(layout.lengths)]
    return sums / _counts(layout), *(tokens.index_select(0, each) for each in indices)


def _bags(layout: Layout, num_tokens: int) -> Tensor:
    """Where the tokens of each frame begin. What only fills up is added by parts, as a GPU adds up a bag in one thread."""
    if not layout.padded:
        return layout.offsets[:-1]
    ends = torch.arange(_FILLERS_AT_ONCE, num_tokens, _FILLERS_AT_ONCE, device=layout.offsets.device)
    return torch.cat([layout.offsets[:-1], (layout.offsets[-2] + ends).clamp(max=num_tokens)])


def _counts(layout: Layout) -> Tensor:
    """(B, 1) tokens to divide a sum by."""
    return layout.lengths.clamp(min=1).unsqueeze(1)


class _Read(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tokens: Tensor, layout: Layout, *indices: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.layout, ctx.shape = layout, tokens.shape
        ctx.save_for_backward(*indices)
        return _read(tokens, layout, *indices)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dmeans: Tensor | None, *drows: Tensor | None) -> tuple[Tensor | None, ...]:
        given = [(index, rows) for index, rows in zip(ctx.saved_tensors, drows, strict=True) if rows is not None]
        if dmeans is not None:
            dtokens = ctx.layout.spread(dmeans / _counts(ctx.layout))
        else:
            dtokens = given[0][1].new_zeros(ctx.shape)
        for index, rows in given:
            dtokens.index_add_(0, index, rows)
        return dtokens, None, *(None for _ in drows)
