"""Small things that kernels do to rows of numbers; widths are multiples of 8."""

from __future__ import annotations

import numpy as np

from rogue_net.kernels.cpu.compiling import Const, inline, value
from rogue_net.kernels.cpu.simd import fma, load, spread, store, total

EIGHT = Const(8)


@inline
def add_bias(rows, bias, first, length, width):  # type: ignore[no-untyped-def]
    """Add a bias to `length` rows."""
    for at in range(first * width, (first + length) * width, width):
        for d in range(0, width, 8):
            store(rows, at + d, load(EIGHT, rows, at + d) + load(EIGHT, bias, d))


@inline
def add_rows(sums, rows, first, length, width):  # type: ignore[no-untyped-def]
    """Add `length` rows to their sums, the gradient of `add_bias`."""
    for at in range(first * width, (first + length) * width, width):
        for d in range(0, width, 8):
            store(sums, d, load(EIGHT, sums, d) + load(EIGHT, rows, at + d))


@inline
def clear(numbers, first, count):  # type: ignore[no-untyped-def]
    """Make numbers 0; `count` is a multiple of 8."""
    for at in range(first, first + count, 8):
        store(numbers, at, spread(EIGHT, np.float32(0)))


@inline
def dot(part, width, x, y, at):  # type: ignore[no-untyped-def]
    """Compute x · y over K features from `at` on."""
    products = spread(part, np.float32(0))
    for d in range(0, value(width), value(part)):
        products = fma(load(part, x, at + d), load(part, y, at + d), products)
    return total(products)


@inline
def add_row(lanes, sums, to, rows, at, width):  # type: ignore[no-untyped-def]
    """Add the row of `rows` that begins at `at` to the sums that begin at `to`."""
    for d in range(0, width, value(lanes)):
        store(sums, to + d, load(lanes, sums, to + d) + load(lanes, rows, at + d))


@inline
def add_scaled(lanes, sums, to, rows, at, scale, width):  # type: ignore[no-untyped-def]
    """Add the row of `rows` that begins at `at`, times `scale`, to the sums that begin at `to`."""
    for d in range(0, width, value(lanes)):
        store(sums, to + d, fma(spread(lanes, scale), load(lanes, rows, at + d), load(lanes, sums, to + d)))


@inline
def product_of(lanes, x, at, y, to, width):  # type: ignore[no-untyped-def]
    """Compute the product of the row of x that begins at `at` and that of y that begins at `to`."""
    products = spread(lanes, np.float32(0))
    for d in range(0, width, value(lanes)):
        products = fma(load(lanes, x, at + d), load(lanes, y, to + d), products)
    return total(products)


@inline
def gather(lanes, rows, places, start, end, chosen, width):  # type: ignore[no-untyped-def]
    """Copy the rows at `places[start:end]` to `chosen`."""
    for number in range(start, end):
        at, to = places[number] * width, (number - start) * width
        for d in range(0, width, value(lanes)):
            store(chosen, to + d, load(lanes, rows, at + d))
