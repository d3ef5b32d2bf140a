"""The embedding of every entity, forward and backward, in one pass over memory.

    z = Σ_i clip((x_i - offset_i) factor_i) W_i + b + more
    h = relu(z),  n = (h - mean(h)) / sqrt(var(h) + 1e-5),  token = n scale + shift

clip and what stands in it are for the first inputs, those that are normalized. The backward pass computes n again: that is
cheaper than to read it.
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

from rogue_net.kernels.cpu.compiling import Const, Count, Floats, Ints, Number, address, bind, inline, kernel, value
from rogue_net.kernels.cpu.elementwise import EPSILON, Shape
from rogue_net.kernels.cpu.simd import fma, load, spread, store, total, where_positive
from rogue_net.normalization import RunningNorm


class Moments(NamedTuple):
    """Of the numbers in a row of relu(z)."""

    mean: np.float32
    inverse_std: np.float32


class Inputs(NamedTuple):
    """What z is made of, for the entities of a type."""

    rows: Count  # n
    num: Count  # I
    normalized: Count  # of the inputs
    x: Floats  # (n, I)
    offset: Floats  # (normalized)
    factor: Floats  # (normalized)
    limit: Number
    weight: Floats  # (D, I) W, as the linear layer has it
    bias: Floats  # (D) if there is W
    has_weight: Count
    has_more: Count
    more: Floats  # (n, D) if there is more


@inline
def relu(lanes: Const, z: Floats, at: int) -> Any:
    """relu of the numbers of z from `at` on; a NaN stays one."""
    numbers = load(lanes, z, at)
    return where_positive(numbers * np.float32(-1), spread(lanes, np.float32(0)), numbers)


@inline
def moments(lanes: Const, width: Const, z: Floats, at: int) -> Moments:
    """Mean and inverse standard deviation of relu(z) over the row of z from `at` on."""
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


@inline
def normalized(inputs: Inputs, row: int, i: int) -> Any:
    """Input i of a row, as W gets it; a NaN stays one."""
    x = inputs.x[row * inputs.num + i]
    if i >= inputs.normalized:
        return x
    x = (x - inputs.offset[i]) * inputs.factor[i]
    if x > inputs.limit:
        return inputs.limit
    if x < -inputs.limit:
        return -inputs.limit
    return x


@inline
def turn_weight(width: Const, inputs: Inputs, memory: Floats) -> None:
    """Write W as (I, D), so that a vector holds what an input adds to neighbouring numbers; and b, 0 if there is none."""
    bias = inputs.num * value(width)
    for d in range(value(width)):
        for i in range(inputs.num):
            memory[i * value(width) + d] = inputs.weight[d * inputs.num + i]
        memory[bias + d] = inputs.bias[d] if inputs.has_weight else np.float32(0)


@inline
def add_up(lanes: Const, width: Const, inputs: Inputs, row: int, memory: Floats) -> None:
    """Write a row's z and its inputs as W gets them."""
    bias = inputs.num * value(width)
    z, x = bias + value(width), bias + 2 * value(width)
    for i in range(inputs.num):
        memory[x + i] = normalized(inputs, row, i)
    for d in range(0, value(width), value(lanes)):
        sums = load(lanes, memory, bias + d)
        for i in range(inputs.num):
            sums = fma(spread(lanes, memory[x + i]), load(lanes, memory, i * value(width) + d), sums)
        if inputs.has_more:
            sums = sums + load(lanes, inputs.more, row * value(width) + d)
        store(memory, z + d, sums)


@kernel
def forward(
    lanes: Const,
    width: Const,
    inputs: Inputs,
    scale: Floats,
    shift: Floats,
    places: Ints,
    tokens: Floats,
    memory: Floats,
) -> None:
    """Write the tokens of one entity type.

    Args:
        lanes, width: see `Shape`.
        inputs: of the type.
        scale, shift: (D).
        places: (n), the token of each row.
        tokens: result, (E, D), of which the rows' tokens are written.
        memory: to work in: (I, D) for W, (D) for b, (D) for a row's z, (I) for its inputs.
    """
    z = (inputs.num + 1) * value(width)
    turn_weight(width, inputs, memory)
    for row in range(inputs.rows):
        to = places[row] * value(width)
        add_up(lanes, width, inputs, row, memory)
        mean, inverse = moments(lanes, width, memory, z)
        for d in range(0, value(width), value(lanes)):
            n = (relu(lanes, memory, z + d) - mean) * inverse
            store(tokens, to + d, fma(n, load(lanes, scale, d), load(lanes, shift, d)))


@kernel
def backward(
    lanes: Const,
    width: Const,
    inputs: Inputs,
    scale: Floats,
    places: Ints,
    dtokens: Floats,
    memory: Floats,
    dmore: Floats,
    dparameters: Floats,
) -> None:
    """dn = dtoken scale,  dh = (dn - mean(dn) - n mean(dn n)) / std,  dz = dh where z > 0.

    Args:
        dtokens: (E, D).
        dmore: result, (n, D) dz, if there is more.
        dparameters: (I + 3, D), to which the gradients of W, b, scale and shift are added.
        others: see `forward`.
    """
    share = np.float32(1 / value(width))
    zero = spread(lanes, np.float32(0))
    dbias = inputs.num * value(width)
    z, x = dbias + value(width), dbias + 2 * value(width)
    turn_weight(width, inputs, memory)
    dscale, dshift = dbias + value(width), dbias + 2 * value(width)
    for row in range(inputs.rows):
        to = places[row] * value(width)
        add_up(lanes, width, inputs, row, memory)
        mean, inverse = moments(lanes, width, memory, z)
        sums, products = zero, zero
        for d in range(0, value(width), value(lanes)):
            n = (relu(lanes, memory, z + d) - mean) * inverse
            gradient = load(lanes, dtokens, to + d)
            store(dparameters, dscale + d, fma(gradient, n, load(lanes, dparameters, dscale + d)))
            store(dparameters, dshift + d, load(lanes, dparameters, dshift + d) + gradient)
            dn = gradient * load(lanes, scale, d)
            sums = sums + dn
            products = fma(dn, n, products)
        mean_dn, slope = total(sums) * share, total(products) * share
        for d in range(0, value(width), value(lanes)):
            n = (relu(lanes, memory, z + d) - mean) * inverse
            dh = (load(lanes, dtokens, to + d) * load(lanes, scale, d) - mean_dn - n * slope) * inverse
            dz = where_positive(load(lanes, memory, z + d) * np.float32(-1), zero, dh)
            store(dparameters, dbias + d, load(lanes, dparameters, dbias + d) + dz)
            for i in range(inputs.num):
                at = i * value(width) + d
                store(dparameters, at, fma(spread(lanes, memory[x + i]), dz, load(lanes, dparameters, at)))
            if inputs.has_more:
                store(dmore, row * value(width) + d, dz)


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


class Entities(NamedTuple):
    """Those of one type."""

    inputs: Tensor  # (n, I) float32 on the CPU
    norm: RunningNorm | None  # of the first inputs
    linear: nn.Linear | None  # None: no inputs
    more: Tensor | None  # (n, D) to add to what the linear layer makes of the inputs
    finish: nn.LayerNorm
    places: Tensor  # (n,) int64, their tokens


def embed(types: Sequence[Entities], num_tokens: int) -> Tensor:
    """(E, D) tokens of entities; those that no entity here has its place at are left unwritten."""
    shape = (num_tokens, types[0].finish.normalized_shape[0])
    if not torch.is_grad_enabled():
        return _forward(types, shape)
    parameters: list[Tensor | None] = []
    for each in types:
        layer = (None, None) if each.linear is None else (each.linear.weight, each.linear.bias)
        parameters += [*layer, each.finish.weight, each.finish.bias, each.more]
    tokens: Tensor = _Embed.apply(types, shape, *parameters)
    return tokens


def _forward(types: Sequence[Entities], shape: tuple[int, int]) -> Tensor:
    tokens, run = torch.empty(shape), Kernels.of(shape[1]).forward
    for each in types:
        memory = _memory(each)
        run(
            _inputs(each), address(each.finish.weight), address(each.finish.bias), address(each.places),
            address(tokens), address(memory),
        )  # fmt: skip
    return tokens


class _Embed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, types: Sequence[Entities], shape: tuple[int, int], *parameters: Tensor | None) -> Tensor:
        ctx.types = types
        used = [(each.inputs, None if each.norm is None else each.norm.offset) for each in types]
        ctx.save_for_backward(*parameters, *(tensor for pair in used for tensor in pair))
        return _forward(types, shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dtokens: Tensor) -> tuple[Tensor | None, ...]:
        _ = ctx.saved_tensors  # raises if a parameter, a feature or a statistic was changed since
        dtokens = dtokens.contiguous()
        width = dtokens.shape[1]
        gradients: list[Tensor | None] = []
        for each in ctx.types:
            memory, sums = _memory(each), torch.zeros(each.inputs.shape[1] + 3, width)
            dmore = None if each.more is None else torch.empty_like(each.more)
            Kernels.of(width).backward(
                _inputs(each), address(each.finish.weight), address(each.places), address(dtokens), address(memory),
                0 if dmore is None else address(dmore), address(sums),
            )  # fmt: skip
            dweight, (dbias, dscale, dshift) = sums[:-3], sums[-3:]
            layer = (None, None) if each.linear is None else (dweight.t(), dbias)
            gradients += [*layer, dscale, dshift, dmore]
        return None, None, *gradients


def _inputs(entities: Entities) -> Inputs:
    fields: Any = Inputs  # from outside, an address where a kernel has numbers
    x, norm, linear, more, _, _ = entities
    assert x.dtype == torch.float32 and x.is_contiguous() and (linear is None or linear.weight.is_contiguous())
    made: Inputs = fields(
        rows=x.shape[0],
        num=x.shape[1],
        normalized=0 if norm is None else len(norm.offset),
        x=address(x),
        offset=0 if norm is None else address(norm.offset),
        factor=0 if norm is None else address(norm.scale),
        limit=RunningNorm.LIMIT,
        weight=0 if linear is None else address(linear.weight),
        bias=0 if linear is None else address(linear.bias),
        has_weight=linear is not None,
        has_more=more is not None,
        more=0 if more is None else address(more),
    )
    return made


def _memory(entities: Entities) -> Tensor:
    """For the kernels to work in."""
    count, width = entities.inputs.shape[1], entities.finish.normalized_shape[0]
    return torch.empty((count + 2) * width + count)
