"""A network's parameters as flat numbers: linear layers as the products want them, gradients, and AdamW.

Linear layers are kept as (in, out) and (out, in), in the panels of `dense`, padded to multiples of 4 inputs and 8 outputs, with
the scale g and shift s of a LayerNorm before folded in, W (g n + s) + b = W' n + b' with W' = W diag(g), b' = b + W s; and back

    dW = dW' diag(g) + db' sᵀ,   db = db',   dg = diag(Wᵀ dW'),   ds = Wᵀ db'
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rogue_net.kernels.cpu.compiling import Const, Count, Floats, Number, Table, kernel
from rogue_net.kernels.cpu.dense import LANES, place_of
from rogue_net.kernels.cpu.simd import fma, load, spread, square_root, store, total
from rogue_net.kernels.cpu.tables import Linear, Parameter

EIGHT = Const(8)


@kernel
def fold(
    num_linears: Count,
    linears: Table[Linear],
    num_copies: Count,
    copies: Table[Parameter],
    parameters: Floats,
    weights: Floats,
    transposed: Floats,
) -> None:
    """Write linear layers as the products want them, and copies of other parameters."""
    for number in range(num_copies):
        copy = copies[number]
        for i in range(copy.size):
            weights[copy.gradient + i] = parameters[copy.place + i]
    for number in range(num_linears):
        each = linears[number]
        weight, bias, scale, shift = each.own_weight, each.own_bias, each.scale, each.shift
        inputs, depth, padded = each.own_inputs, each.inputs, each.outputs
        to, to_transposed = each.weight, each.transposed
        for o in range(each.own_outputs):
            constant = parameters[bias + o]
            first, step = place_of(0, o, depth, padded), min(padded - o + o % LANES, LANES)
            for i in range(inputs):
                w = parameters[weight + o * inputs + i]
                if scale >= 0:
                    constant += w * parameters[shift + i]
                    w *= parameters[scale + i]
                weights[to + first + i * step] = w
                if to_transposed >= 0:
                    transposed[to_transposed + place_of(o, i, padded, inputs)] = w
            weights[each.bias + o] = constant


@kernel
def unfold(
    num_linears: Count,
    linears: Table[Linear],
    num_copies: Count,
    copies: Table[Parameter],
    parameters: Floats,
    gradient: Floats,
    dparameters: Floats,
) -> None:
    """Add the gradients of weights, biases, LayerNorms and other parameters to `dparameters`."""
    for number in range(num_copies):
        copy = copies[number]
        for i in range(copy.size):
            dparameters[copy.place + i] += gradient[copy.gradient + i]
    for number in range(num_linears):
        each = linears[number]
        weight, bias, scale, shift = each.own_weight, each.own_bias, each.scale, each.shift
        inputs, depth, padded, to = each.own_inputs, each.inputs, each.outputs, each.weight
        for o in range(each.own_outputs):
            first, step = place_of(0, o, depth, padded), min(padded - o + o % LANES, LANES)
            dconstant = gradient[each.bias + o]
            dparameters[bias + o] += dconstant
            for i in range(inputs):
                dw = gradient[to + first + i * step]
                if scale >= 0:
                    w = parameters[weight + o * inputs + i]
                    dparameters[scale + i] += w * dw
                    dparameters[shift + i] += w * dconstant
                    dw = dw * parameters[scale + i] + dconstant * parameters[shift + i]
                dparameters[weight + o * inputs + i] += dw


@kernel
def add_up(others: Count, size: Count, gradients: Floats) -> None:
    """Add the gradients of the other threads to those of the first, in their order; each has `size` numbers, a multiple of 8."""
    for other in range(size, (others + 1) * size, size):
        for at in range(0, size, 8):
            store(gradients, at, load(EIGHT, gradients, at) + load(EIGHT, gradients, other + at))


@kernel
def squares(count: Count, numbers: Floats, result: Floats) -> None:
    """Sum of squares of `count` numbers, a multiple of 8."""
    sums = spread(EIGHT, np.float32(0))
    for at in range(0, count, 8):
        sums = fma(load(EIGHT, numbers, at), load(EIGHT, numbers, at), sums)
    result[0] = total(sums)


class Adam(NamedTuple):
    """An AdamW step."""

    scale: Number  # of the gradient, so that its norm is not too large
    rate: Number  # learning rate / (1 - beta1^t)
    keep: Number  # 1 - learning rate * weight decay
    beta1: Number
    beta2: Number
    rest1: Number  # 1 - beta1
    rest2: Number  # 1 - beta2
    correction: Number  # 1 / sqrt(1 - beta2^t)
    epsilon: Number


@kernel
def adam(count: Count, parameters: Floats, gradient: Floats, first: Floats, second: Floats, how: Adam) -> None:
    """AdamW (Loshchilov and Hutter 2019, arXiv 1711.05101, algorithm 2) of `count` parameters, a multiple of 8."""
    for at in range(0, count, 8):
        g = load(EIGHT, gradient, at) * how.scale
        m = load(EIGHT, first, at) * how.beta1 + g * how.rest1
        v = load(EIGHT, second, at) * how.beta2 + g * g * how.rest2
        store(first, at, m)
        store(second, at, v)
        step = m / (square_root(v) * how.correction + how.epsilon)
        store(parameters, at, load(EIGHT, parameters, at) * how.keep - step * how.rate)


def take(parts: Sequence[Tensor], tensors: Sequence[Tensor]) -> None:
    """Make tensors views of the parts of a flat one, with the numbers that they have."""
    with torch.no_grad():
        for part, own in zip(parts, tensors, strict=True):
            if own.data_ptr() != part.data_ptr():
                part.copy_(own)
                if not own.is_inference():  # what was made in that mode stays where it is, and is copied again
                    own.data = part
