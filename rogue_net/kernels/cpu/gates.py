"""The gates of relative values: act(z) and act'(z) for every token. Layouts as in `rogue_net.kernels.cpu.elementwise`."""

from __future__ import annotations

import math

import numpy as np

from rogue_net.kernels.cpu.compiling import Const, Count, Floats, piece, value
from rogue_net.kernels.cpu.elementwise import normal_cdf
from rogue_net.kernels.cpu.simd import absolute, exp, fma, load, spread, store, where_positive

_LINEAR, _RELU, _GELU, _SIGMOID = range(4)
KINDS = {"linear": _LINEAR, "relu": _RELU, "gelu": _GELU, "sigmoid": _SIGMOID}


@piece
def open_gates(lanes: Const, width: Const, kind: Count, gate: Floats, bias: Floats, rows: Count, slope: Floats) -> None:
    """Compute act(z) of z = gate + bias.

    `rogue_net.kernels.cpu.elementwise.gelu_backward` takes the slope back through any of them.

    Args:
        lanes, width: see `rogue_net.kernels.cpu.elementwise.Shape`.
        kind: act, one of `KINDS`.
        gate: (rows, width), changed in place to act(z).
        bias: (width).
        rows: how many.
        slope: result, act'(z).
    """
    one, zero = spread(lanes, np.float32(1)), spread(lanes, np.float32(0))
    for row in range(rows):
        for d in range(0, value(width), value(lanes)):
            at = row * value(width) + d
            z = load(lanes, gate, at) + load(lanes, bias, d)
            opened, change = z, one
            if kind == _RELU:
                change = where_positive(zero - z, zero, one)  # torch's choice: 0 at 0
                opened = z * change
            elif kind == _GELU:
                bell = exp(z * z * np.float32(-0.5))
                phi = normal_cdf(lanes, z)
                opened = z * phi
                change = fma(z * np.float32(1 / math.sqrt(2 * math.pi)), bell, phi)
            elif kind == _SIGMOID:
                small = exp(zero - absolute(z))
                opened = where_positive(z, one, small) / (small + one)
                change = opened * (one - opened)
            store(gate, at, opened)
            store(slope, at, change)
