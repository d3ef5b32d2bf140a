"""Matrix products for tiles of some hundred tokens, whose result stands in registers: 6 rows by `lanes` columns of it at a time.

Weights are kept in panels: all inputs of the first 16 outputs, then all inputs of the next 16, and so on, so that a panel is read
in one piece whatever the width is; 8 outputs that are left are a panel of their own. Gradients of weights have the same order.
"""

from __future__ import annotations

import numpy as np

from rogue_net.kernels.cpu.compiling import Const, Count, Floats, inline, inner_kernel, value
from rogue_net.kernels.cpu.simd import fma, load, spread, store

ROWS = 6  # of the result at a time
DEPTH = 4  # inputs whose gradients are summed at a time; 8 where there are as many
LANES = 16  # outputs of a panel
DEEP = 64  # inputs from which it is worth to copy the outputs of a panel together
EIGHT = Const(8)


@inline
def place_of(i, o, depth, width):  # type: ignore[no-untyped-def]
    """Return the place of the weight from input i to output o in the panels of a (depth, width) weight."""
    panel = o - o % LANES
    lanes = min(width - panel, LANES)
    return panel * depth + i * lanes + o - panel


@inner_kernel
def product(
    lanes: Const, x: Floats, weight: Floats, out: Floats, rows: Count, depth: Count, width: Count, add: Count
) -> None:
    """Multiply, out (+)= x weight.

    Args:
        lanes: `LANES`.
        x: (rows, depth).
        weight: (depth, width), in panels.
        out: (rows, width).
        rows: rounded up to a multiple of `ROWS`: x and out have room for them, and what is in these rows of `out` is lost.
        depth: inputs.
        width: outputs, a multiple of 8.
        add: whether the product is added to `out`.
    """
    wide = width - width % value(lanes)
    for j in range(0, wide, value(lanes)):
        for i in range(0, rows, ROWS):
            _multiply(lanes, x, weight, out, i, j, depth, width, add)
    for j in range(wide, width, 8):
        for i in range(0, rows, ROWS):
            _multiply(EIGHT, x, weight, out, i, j, depth, width, add)


@inline
def _multiply(lanes, x, weight, out, i, j, depth, width, add):  # type: ignore[no-untyped-def]
    """Compute rows i to i + 5 of the result, columns from j on."""
    x0 = i * depth
    x1, x2, x3, x4, x5 = x0 + depth, x0 + 2 * depth, x0 + 3 * depth, x0 + 4 * depth, x0 + 5 * depth
    y0 = i * width + j
    y1, y2, y3, y4, y5 = y0 + width, y0 + 2 * width, y0 + 3 * width, y0 + 4 * width, y0 + 5 * width
    zeros = spread(lanes, np.float32(0))
    sum0, sum1, sum2, sum3, sum4, sum5 = zeros, zeros, zeros, zeros, zeros, zeros
    at = j * depth
    for k in range(depth):
        row = load(lanes, weight, at)
        at += value(lanes)
        sum0 = fma(spread(lanes, x[x0 + k]), row, sum0)
        sum1 = fma(spread(lanes, x[x1 + k]), row, sum1)
        sum2 = fma(spread(lanes, x[x2 + k]), row, sum2)
        sum3 = fma(spread(lanes, x[x3 + k]), row, sum3)
        sum4 = fma(spread(lanes, x[x4 + k]), row, sum4)
        sum5 = fma(spread(lanes, x[x5 + k]), row, sum5)
    if add:
        sum0, sum1 = sum0 + load(lanes, out, y0), sum1 + load(lanes, out, y1)
        sum2, sum3 = sum2 + load(lanes, out, y2), sum3 + load(lanes, out, y3)
        sum4, sum5 = sum4 + load(lanes, out, y4), sum5 + load(lanes, out, y5)
    store(out, y0, sum0)
    store(out, y1, sum1)
    store(out, y2, sum2)
    store(out, y3, sum3)
    store(out, y4, sum4)
    store(out, y5, sum5)


@inner_kernel
def outer(
    lanes: Const, x: Floats, dy: Floats, dweight: Floats, rows: Count, depth: Count, width: Count, panel: Floats
) -> None:
    """Add an outer product, dweight += xᵀ dy, the gradient of `product`.

    Args:
        lanes: `LANES`.
        x: (rows, depth).
        dy: (rows, width).
        dweight: (depth, width), in panels.
        depth: inputs, a multiple of `DEPTH`.
        width: outputs, a multiple of 8.
        panel: memory for (rows, `LANES`).
    """
    wide = width - width % value(lanes)
    for j in range(0, wide, value(lanes)):
        _outer_panel(lanes, x, dy, dweight, rows, j, depth, width, panel)
    for j in range(wide, width, 8):
        _outer_panel(EIGHT, x, dy, dweight, rows, j, depth, width, panel)


@inline
def _outer_panel(lanes, x, dy, dweight, rows, j, depth, width, panel):  # type: ignore[no-untyped-def]
    """Add the gradient of the panel of outputs from j on."""
    deep = depth - depth % 8
    if depth >= DEEP:
        for row in range(rows):
            store(panel, row * value(lanes), load(lanes, dy, row * width + j))
        for i in range(0, deep, 8):
            _add_wide_outer(lanes, x, panel, dweight, rows, i, j, depth)
        for i in range(deep, depth, DEPTH):
            _add_outer(lanes, x, panel, dweight, rows, i, j, depth, 0, value(lanes))
    else:
        for i in range(0, depth, DEPTH):
            _add_outer(lanes, x, dy, dweight, rows, i, j, depth, j, width)


@inline
def _add_outer(lanes, x, dy, dweight, rows, i, j, depth, to, step):  # type: ignore[no-untyped-def]
    """Add rows i to i + 3 of the gradient; those of `dy` begin at `to` and are `step` apart."""
    w0 = j * depth + i * value(lanes)
    w1, w2, w3 = w0 + value(lanes), w0 + 2 * value(lanes), w0 + 3 * value(lanes)
    sum0, sum1 = load(lanes, dweight, w0), load(lanes, dweight, w1)
    sum2, sum3 = load(lanes, dweight, w2), load(lanes, dweight, w3)
    at = i
    for _ in range(rows):
        row = load(lanes, dy, to)
        sum0 = fma(spread(lanes, x[at]), row, sum0)
        sum1 = fma(spread(lanes, x[at + 1]), row, sum1)
        sum2 = fma(spread(lanes, x[at + 2]), row, sum2)
        sum3 = fma(spread(lanes, x[at + 3]), row, sum3)
        at += depth
        to += step
    store(dweight, w0, sum0)
    store(dweight, w1, sum1)
    store(dweight, w2, sum2)
    store(dweight, w3, sum3)


@inline
def _add_wide_outer(lanes, x, panel, dweight, rows, i, j, depth):  # type: ignore[no-untyped-def]
    """Add rows i to i + 7 of the gradient."""
    w0 = j * depth + i * value(lanes)
    w1, w2, w3 = w0 + value(lanes), w0 + 2 * value(lanes), w0 + 3 * value(lanes)
    w4, w5, w6, w7 = w0 + 4 * value(lanes), w0 + 5 * value(lanes), w0 + 6 * value(lanes), w0 + 7 * value(lanes)
    sum0, sum1 = load(lanes, dweight, w0), load(lanes, dweight, w1)
    sum2, sum3 = load(lanes, dweight, w2), load(lanes, dweight, w3)
    sum4, sum5 = load(lanes, dweight, w4), load(lanes, dweight, w5)
    sum6, sum7 = load(lanes, dweight, w6), load(lanes, dweight, w7)
    at = i
    for to in range(0, rows * value(lanes), value(lanes)):
        row = load(lanes, panel, to)
        sum0 = fma(spread(lanes, x[at]), row, sum0)
        sum1 = fma(spread(lanes, x[at + 1]), row, sum1)
        sum2 = fma(spread(lanes, x[at + 2]), row, sum2)
        sum3 = fma(spread(lanes, x[at + 3]), row, sum3)
        sum4 = fma(spread(lanes, x[at + 4]), row, sum4)
        sum5 = fma(spread(lanes, x[at + 5]), row, sum5)
        sum6 = fma(spread(lanes, x[at + 6]), row, sum6)
        sum7 = fma(spread(lanes, x[at + 7]), row, sum7)
        at += depth
    store(dweight, w0, sum0)
    store(dweight, w1, sum1)
    store(dweight, w2, sum2)
    store(dweight, w3, sum3)
    store(dweight, w4, sum4)
    store(dweight, w5, sum5)
    store(dweight, w6, sum6)
    store(dweight, w7, sum7)
