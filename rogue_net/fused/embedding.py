"""What ends the embedding of every entity, forward and backward: ReLU, LayerNorm, and the way to its place among the tokens.

    h = relu(z),  n = (h - mean(h)) / sqrt(var(h) + 1e-5),  token = n scale + shift

One pass over memory instead of one for each. The backward pass computes n again: that is cheaper than to read it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from rogue_net.fused.elementwise import EPSILON, Shape
from rogue_net.fused.simd import (
    Const,
    Count,
    Floats,
    Ints,
    address,
    bind,
    fma,
    inline,
    kernel,
    load,
    spread,
    store,
    total,
    value,
    where_positive,
)


class Moments(NamedTuple):
    """Of the numbers in a row of relu(z)."""

    mean: np.float32
    inverse_std: np.float32


@inline
def relu(lanes: Const, z: Floats, at: int) -> Any:
    """relu of the numbers of z from `at` on; a NaN stays one."""
    numbers = load(lanes, z, at)
    return where_positive(numbers * np.float32(-1), spread(lanes, np.float32(0)), numbers)


@inline
def moments(lanes: Const, width: Const, z: Floats, at: int) -> Moments:
    """Mean and inverse standard deviation of relu(z) over the row from `at` on."""
    share = np.float32(1 / value(width))
    sums = spread(lanes, np.float32(0))
    for d in range(0, value(width), value(lanes)):
        sums = sums + relu(lanes, z, at + d)
    mean = total(sums) * share
    squares = spread(lanes, np.float32(0))
    for d in range(0, value(width), value(lanes)):
        deviation = relu(lanes, z, at + d) - mean
        squares = fma(deviation, deviation, squares)
    return Moments(mean, np.float32(1) / np.float32(math.sqrt(total(squares) * share + EPSILON)))


@kernel
def forward(
    lanes: Const, width: Const, z: Floats, scale: Floats, shift: Floats, rows: Count, places: Ints, tokens: Floats
) -> None:
    """Write the tokens of one entity type.

    Args:
        lanes, width: see `Shape`.
        z: (rows, width).
        scale, shift: (width).
        rows: how many.
        places: (rows), the token of each row.
        tokens: result, (E, width), of which the rows' tokens are written.
    """
    for row in range(rows):
        at, to = row * value(width), places[row] * value(width)
        mean, inverse = moments(lanes, width, z, at)
        for d in range(0, value(width), value(lanes)):
            n = (relu(lanes, z, at + d) - mean) * inverse
            store(tokens, to + d, fma(n, load(lanes, scale, d), load(lanes, shift, d)))


@kernel
def backward(
    lanes: Const,
    width: Const,
    z: Floats,
    scale: Floats,
    rows: Count,
    places: Ints,
    dtokens: Floats,
    dz: Floats,
    dscale: Floats,
    dshift: Floats,
) -> None:
    """dn = dtoken scale,  dh = (dn - mean(dn) - n mean(dn n)) / std,  dz = dh where z > 0.

    Args:
        dtokens: (E, width).
        dz: result, (rows, width).
        dscale, dshift: (width), to which the sums of dtoken n and of dtoken are added.
        others: see `forward`.
    """
    share = np.float32(1 / value(width))
    zero = spread(lanes, np.float32(0))
    for row in range(rows):
        at, to = row * value(width), places[row] * value(width)
        mean, inverse = moments(lanes, width, z, at)
        sums, products = zero, zero
        for d in range(0, value(width), value(lanes)):
            n = (relu(lanes, z, at + d) - mean) * inverse
            gradient = load(lanes, dtokens, to + d)
            store(dscale, d, fma(gradient, n, load(lanes, dscale, d)))
            store(dshift, d, load(lanes, dshift, d) + gradient)
            dn = gradient * load(lanes, scale, d)
            sums = sums + dn
            products = fma(dn, n, products)
        mean_dn, slope = total(sums) * share, total(products) * share
        for d in range(0, value(width), value(lanes)):
            n = (relu(lanes, z, at + d) - mean) * inverse
            dh = (load(lanes, dtokens, to + d) * load(lanes, scale, d) - mean_dn - n * slope) * inverse
            store(dz, at + d, where_positive(load(lanes, z, at + d) * np.float32(-1), zero, dh))


class Kernels(NamedTuple):
    """Both kernels for one width."""

    forward: Callable[..., None]
    backward: Callable[..., None]

    @staticmethod
    @cache
    def of(width: int) -> Kernels:
        """For tokens of so many features."""
        shape = Shape.of(width)
        return Kernels(bind(forward, *shape), bind(backward, *shape))


def finish(z: Sequence[Tensor], norms: Sequence[nn.LayerNorm], places: Sequence[Tensor], num_tokens: int) -> Tensor:
    """(E, D) tokens of entities; those that no entity here has its place at are left unwritten.

    Args:
        z: of each type (n, D) float32 on the CPU.
        norms: of each type.
        places: of each type (n,) int64, its tokens.
        num_tokens: E.
    """
    parameters = [parameter for norm in norms for parameter in (norm.weight, norm.bias)]
    width = norms[0].normalized_shape[0]
    tokens: Tensor = _Finish.apply(places, (num_tokens, width), *z, *parameters)
    return tokens


class _Finish(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, places: Sequence[Tensor], shape: tuple[int, int], *tensors: Tensor) -> Tensor:
        types = len(places)
        z, scales, shifts = tensors[:types], tensors[types::2], tensors[types + 1 :: 2]
        tokens = torch.empty(shape)
        run = Kernels.of(shape[1]).forward
        for each, scale, shift, place in zip(z, scales, shifts, places, strict=True):
            assert each.is_contiguous()
            run(address(each), address(scale), address(shift), len(each), address(place), address(tokens))
        ctx.save_for_backward(*z, *scales)
        ctx.places = places
        return tokens

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dtokens: Tensor) -> tuple[Tensor | None, ...]:
        types = len(ctx.places)
        z, scales = ctx.saved_tensors[:types], ctx.saved_tensors[types:]
        dtokens = dtokens.contiguous()
        run = Kernels.of(dtokens.shape[1]).backward
        dz = [torch.empty_like(each) for each in z]
        sums = torch.zeros(types, 2, dtokens.shape[1])
        for each, scale, place, gradient, (dscale, dshift) in zip(z, scales, ctx.places, dz, sums, strict=True):
            run(
                address(each), address(scale), len(each), address(place), address(dtokens), address(gradient),
                address(dscale), address(dshift),
            )  # fmt: skip
        return None, None, *dz, *sums.flatten(0, 1)
