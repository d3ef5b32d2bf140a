"""Pairs of actors and the entities that they may select, end to end: nothing here is padded.

Shapes: B frames, A actors and N actees of all frames together, P pairs, K width of queries and keys.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rogue_net.batch.obs_batch import ActionMask

#: Numbers of a query and a key that are multiplied at a time: few enough to stay in a core's cache, and on other devices enough
#: to keep them busy.
NUMBERS_AT_ONCE = 2**17
NUMBERS_AT_ONCE_ELSEWHERE = 2**25


class Pairs(NamedTuple):
    """Every actor with each actee of its frame, actor by actor."""

    actors: Tensor  # (P,) int64
    actees: Tensor  # (P,) int64, row of `mask.actees`; N stands for nobody, the last choice of every actor that has it
    is_open: Tensor | None  # (P,) bool; None: all are


def pairs_of(mask: ActionMask, nobody: bool) -> Pairs:
    """The pairs of all frames, with one more for each actor where `nobody` can be selected."""
    assert mask.actees is not None
    num_actees, num_actors = len(mask.actees.values), len(mask.actors.values)
    num_pairs = None if mask.num_pairs is None else mask.num_pairs + nobody * num_actors
    frame_of_actor = mask.actors.sequences
    choices = mask.actees.lengths.index_select(0, frame_of_actor) + nobody  # (A,)
    ends = choices.cumsum(0)
    # from the number of a pair to that of its actee
    shift = mask.actees.offsets.index_select(0, frame_of_actor) - (ends - choices)
    numbers = torch.arange(num_actors, device=choices.device)
    actors = torch.repeat_interleave(numbers, choices, output_size=num_pairs)
    actees = shift.index_select(0, actors)
    actees += torch.arange(len(actors), device=actors.device)
    is_open = None if mask.mask is None else mask.mask.values[:, 0]
    if nobody:
        actees.index_fill_(0, ends - 1, num_actees)
        if is_open is not None:
            is_open = torch.ones_like(actees, dtype=torch.bool).masked_scatter(actees < num_actees, is_open)
    return Pairs(actors, actees, is_open)


def pair_products(queries: Tensor, keys: Tensor, pairs: Pairs) -> Tensor:
    """(P,) products query · key, forward and backward in memory proportional to P + A + N, whatever K is.

    Args:
        queries: (A, K).
        keys: (N, K), or (N + 1, K) with nobody's at the end.
        pairs: which to multiply.
    """
    products: Tensor = _PairProducts.apply(queries, keys, pairs.actors, pairs.actees)  # type: ignore[no-untyped-call]
    return products


class _PairProducts(torch.autograd.Function):
    """Products (queries[i] * keys[j]).sum(1), some pairs at a time; the backward gathers queries and keys once more."""

    @staticmethod
    def forward(ctx: Any, queries: Tensor, keys: Tensor, i: Tensor, j: Tensor) -> Tensor:
        ctx.save_for_backward(queries, keys, i, j)
        products = queries.new_empty(len(i))
        for part in _parts(len(i), queries):
            torch.sum(queries.index_select(0, i[part]) * keys.index_select(0, j[part]), dim=1, out=products[part])
        return products

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        queries, keys, i, j = ctx.saved_tensors
        of_queries, of_keys = torch.zeros_like(queries), torch.zeros_like(keys)
        for part in _parts(len(i), queries):
            weights = gradient[part].unsqueeze(1)
            of_queries.index_add_(0, i[part], keys.index_select(0, j[part]).mul_(weights))
            of_keys.index_add_(0, j[part], queries.index_select(0, i[part]).mul_(weights))
        return of_queries, of_keys, None, None


def _parts(num_pairs: int, queries: Tensor) -> list[slice]:
    at_once = NUMBERS_AT_ONCE if queries.device.type == "cpu" else NUMBERS_AT_ONCE_ELSEWHERE
    size = max(1, at_once // queries.shape[1])
    return [slice(start, start + size) for start in range(0, num_pairs, size)]
