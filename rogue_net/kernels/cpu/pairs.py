"""Products of queries and keys, pair by pair. Nothing but the products themselves is as long as there are pairs.

With pair p of actor i(p) and actee j(p),

    s_p = q_i(p) · k_j(p),    dq_i = Σ_{p: i(p) = i} ds_p k_j(p),    dk_j = Σ_{p: j(p) = j} ds_p q_i(p)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rogue_net.kernels.cpu.compiling import Const, Count, Floats, Ints, address, bind, kernel, value
from rogue_net.kernels.cpu.elementwise import Shape
from rogue_net.kernels.cpu.simd import fma, load, spread, store, total


@kernel
def forward(
    lanes: Const, width: Const, q: Floats, k: Floats, pairs: Count, actors: Ints, actees: Ints, products: Floats
) -> None:
    """Write the products.

    Args:
        lanes, width: see `Shape`; K is the width.
        q, k: (A, K) and (N, K).
        pairs: P.
        actors, actees: (P), rows of q and of k.
        products: result, (P).
    """
    for pair in range(pairs):
        i, j = actors[pair] * value(width), actees[pair] * value(width)
        sums = spread(lanes, np.float32(0))
        for d in range(0, value(width), value(lanes)):
            sums = fma(load(lanes, q, i + d), load(lanes, k, j + d), sums)
        products[pair] = total(sums)


@kernel
def backward(
    lanes: Const,
    width: Const,
    q: Floats,
    k: Floats,
    pairs: Count,
    actors: Ints,
    actees: Ints,
    dproducts: Floats,
    dq: Floats,
    dk: Floats,
) -> None:
    """Add the gradients to dq and dk, which are like q and k; for the others see `forward`."""
    for pair in range(pairs):
        i, j = actors[pair] * value(width), actees[pair] * value(width)
        gradient = spread(lanes, dproducts[pair])
        for d in range(0, value(width), value(lanes)):
            store(dq, i + d, fma(gradient, load(lanes, k, j + d), load(lanes, dq, i + d)))
            store(dk, j + d, fma(gradient, load(lanes, q, i + d), load(lanes, dk, j + d)))


class Kernels(NamedTuple):
    """Both kernels for one width."""

    forward: Callable[..., None]
    backward: Callable[..., None]

    @staticmethod
    @cache
    def of(width: int) -> Kernels:
        """For queries and keys of so many numbers."""
        shape = Shape.of(width)
        return Kernels(bind(forward, *shape), bind(backward, *shape))


class PairProducts(torch.autograd.Function):
    """What `rogue_net.pairs.pair_products` computes, for float32 on the CPU; K is a multiple of 8."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, actors: Tensor, actees: Tensor) -> Tensor:
        q, k, products = q.contiguous(), k.contiguous(), torch.empty(len(actors))
        ctx.save_for_backward(q, k, actors, actees)
        rows = (address(q), address(k), len(actors), address(actors), address(actees))
        Kernels.of(q.shape[1]).forward(*rows, address(products))
        return products

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dproducts: Tensor) -> tuple[Tensor, Tensor, None, None]:
        q, k, actors, actees = ctx.saved_tensors
        dproducts, dq, dk = dproducts.contiguous(), torch.zeros_like(q), torch.zeros_like(k)
        rows = (address(q), address(k), len(actors), address(actors), address(actees))
        Kernels.of(q.shape[1]).backward(*rows, address(dproducts), address(dq), address(dk))
        return dq, dk, None, None
