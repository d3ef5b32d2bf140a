"""Matrix products of narrow networks, whose result stands in registers: 6 rows by `lanes` columns of it at a time.

They are meant for tiles of 64 to 192 tokens, whose rows are in the cache.
"""

from __future__ import annotations

import numpy as np

from rogue_net.kernels.cpu.compiling import Const, Count, Floats, inline, piece, value
from rogue_net.kernels.cpu.simd import fma, load, spread, store

ROWS = 6  # of the result at a time
DEPTH = 4  # inputs whose gradients are summed at a time
EIGHT = Const(8)


@piece
def product(
    lanes: Const, x: Floats, weight: Floats, out: Floats, rows: Count, depth: Count, width: Count, add: Count
) -> None:
    """out (+)= x weight.

    Args:
        lanes: columns handled at once.
        x: (rows, depth).
        weight: (depth, width).
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
    """Rows i to i + 5 of the result, columns from j on."""
    x0 = i * depth
    x1, x2, x3, x4, x5 = x0 + depth, x0 + 2 * depth, x0 + 3 * depth, x0 + 4 * depth, x0 + 5 * depth
    y0 = i * width + j
    y1, y2, y3, y4, y5 = y0 + width, y0 + 2 * width, y0 + 3 * width, y0 + 4 * width, y0 + 5 * width
    zeros = spread(lanes, np.float32(0))
    sum0, sum1, sum2, sum3, sum4, sum5 = zeros, zeros, zeros, zeros, zeros, zeros
    at = j
    for k in range(depth):
        row = load(lanes, weight, at)
        at += width
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


@piece
def outer(lanes: Const, x: Floats, dy: Floats, dweight: Floats, rows: Count, depth: Count, width: Count) -> None:
    """dweight += xᵀ dy, the gradient of `product`.

    Args:
        lanes: columns handled at once.
        x: (rows, depth).
        dy: (rows, width).
        dweight: (depth, width).
        rows: how many.
        depth: inputs, a multiple of `DEPTH`.
        width: outputs, a multiple of 8.
    """
    wide = width - width % value(lanes)
    for i in range(0, depth, DEPTH):
        for j in range(0, wide, value(lanes)):
            _add_outer(lanes, x, dy, dweight, rows, i, j, depth, width)
        for j in range(wide, width, 8):
            _add_outer(EIGHT, x, dy, dweight, rows, i, j, depth, width)


@inline
def _add_outer(lanes, x, dy, dweight, rows, i, j, depth, width):  # type: ignore[no-untyped-def]
    """Rows i to i + 3 of the gradient, columns from j on."""
    w0 = i * width + j
    w1, w2, w3 = w0 + width, w0 + 2 * width, w0 + 3 * width
    sum0, sum1 = load(lanes, dweight, w0), load(lanes, dweight, w1)
    sum2, sum3 = load(lanes, dweight, w2), load(lanes, dweight, w3)
    at, to = i, j
    for _ in range(rows):
        row = load(lanes, dy, to)
        sum0 = fma(spread(lanes, x[at]), row, sum0)
        sum1 = fma(spread(lanes, x[at + 1]), row, sum1)
        sum2 = fma(spread(lanes, x[at + 2]), row, sum2)
        sum3 = fma(spread(lanes, x[at + 3]), row, sum3)
        at += depth
        to += width
    store(dweight, w0, sum0)
    store(dweight, w1, sum1)
    store(dweight, w2, sum2)
    store(dweight, w3, sum3)
