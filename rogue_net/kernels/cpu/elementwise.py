"""Operations of a block on every token by itself, forward and backward: normalization, the MLP's activation, gates.

Layouts: rows of float32. Widths are multiples of 8. Biases of the matrix products before
are added here, where the numbers pass by anyway.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

from rogue_net.kernels.cpu.compiling import Const, Count, Floats, inline, inner_kernel, value
from rogue_net.kernels.cpu.simd import exp, fma, load, maximum, minimum, spread, store, total, where_positive


@cache
def shape_of(width: int) -> tuple[Const, Const]:
    """Constants that the kernels are compiled for: numbers handled at once, which divide the width, and the width of a row."""
    assert width % 8 == 0, width
    return Const(16 if width % 16 == 0 else 8), Const(width)


EPSILON = np.float32(1e-5)  # as in torch's LayerNorm


@inner_kernel
def normalize(
    lanes: Const,
    width: Const,
    x: Floats,
    add: Count,
    bias: Floats,
    rows: Count,
    normalized: Floats,
    inverse_std: Floats,
) -> None:
    """Normalize: x += bias, then n = (x - mean(x)) / sqrt(var(x) + 1e-5) over every row.

    The scale and shift of LayerNorm (Ba et al. 2016, arXiv 1607.06450, equation 3) are part of the linear layer that follows.

    Args:
        lanes, width: see `shape_of`.
        x: changed in place.
        add: whether there is a bias.
        bias: (width).
        normalized: result, n.
        inverse_std: result, (rows).
    """
    share = np.float32(1 / value(width))
    for row in range(rows):
        at = row * value(width)
        sums = spread(lanes, np.float32(0))
        for d in range(0, value(width), value(lanes)):
            numbers = load(lanes, x, at + d)
            if add:
                numbers = numbers + load(lanes, bias, d)
                store(x, at + d, numbers)
            sums = sums + numbers
        mean = total(sums) * share
        squares = spread(lanes, np.float32(0))
        for d in range(0, value(width), value(lanes)):
            deviation = load(lanes, x, at + d) - mean
            squares = fma(deviation, deviation, squares)
        inverse = np.float32(1) / np.float32(math.sqrt(total(squares) * share + EPSILON))
        inverse_std[row] = inverse
        for d in range(0, value(width), value(lanes)):
            store(normalized, at + d, (load(lanes, x, at + d) - mean) * inverse)


@inner_kernel
def normalize_backward(
    lanes: Const,
    width: Const,
    dnormalized: Floats,
    normalized: Floats,
    inverse_std: Floats,
    rows: Count,
    dx: Floats,
    dbias: Floats,
) -> None:
    """Compute the gradient of `normalize`: dx += (dn - mean(dn) - n mean(dn n)) / std; then dbias += the sum of dx over rows.

    Args:
        dnormalized: dn.
        normalized, inverse_std: as `normalize` left them.
        dx: gradient of x after `normalize`, to which that through the normalization is added.
        dbias: (width).
        others: see `normalize`.
    """
    share = np.float32(1 / value(width))
    for row in range(rows):
        at = row * value(width)
        sums, products = spread(lanes, np.float32(0)), spread(lanes, np.float32(0))
        for d in range(0, value(width), value(lanes)):
            gradient = load(lanes, dnormalized, at + d)
            sums = sums + gradient
            products = fma(gradient, load(lanes, normalized, at + d), products)
        mean, slope = total(sums) * share, total(products) * share
        inverse = inverse_std[row]
        for d in range(0, value(width), value(lanes)):
            centered = load(lanes, dnormalized, at + d) - mean - load(lanes, normalized, at + d) * slope
            gradient = load(lanes, dx, at + d) + centered * inverse
            store(dx, at + d, gradient)
            store(dbias, d, load(lanes, dbias, d) + gradient)


@inline
def normal_cdf(lanes: Const, x: Any) -> Any:
    """The standard normal distribution function Phi(x) = (1 + erf(x / sqrt 2)) / 2, within 3e-7.

    erf(u) = u P(u²) / Q(u²), a rational approximation on [-4, 4] with polynomials of degree 6 and 4; beyond, erf is 1 in
    float32. Coefficients: the Eigen library, `generic_fast_erf_float`.
    """
    u = maximum(spread(lanes, np.float32(-4)), x * np.float32(math.sqrt(0.5)))
    u = minimum(spread(lanes, np.float32(4)), u)
    square = u * u
    p = square * np.float32(-2.72614225801306e-10) + np.float32(2.77068142495902e-08)
    p = p * square + np.float32(-2.10102402082508e-06)
    p = p * square + np.float32(-5.69250639462346e-05)
    p = p * square + np.float32(-7.34990630326855e-04)
    p = p * square + np.float32(-2.95459980854025e-03)
    p = p * square + np.float32(-1.60960333262415e-02)
    q = square * np.float32(-1.45660718464996e-05) + np.float32(-2.13374055278905e-04)
    q = q * square + np.float32(-1.68282697438203e-03)
    q = q * square + np.float32(-7.37332916720468e-03)
    q = q * square + np.float32(-1.42647390514189e-02)
    return u * p / q * np.float32(0.5) + np.float32(0.5)


@inner_kernel
def gelu(
    lanes: Const, width: Const, hidden: Floats, bias: Floats, rows: Count, activated: Floats, keep_slope: Count
) -> None:
    """Apply GELU: gelu(z) = z Phi(z) of z = hidden + bias (Hendrycks and Gimpel 2016, arXiv 1606.08415, section 2).

    Args:
        hidden: changed in place to gelu'(z) = Phi(z) + z phi(z), if `keep_slope`.
        bias: (width).
        activated: result.
        others: see `normalize`.
    """
    for row in range(rows):
        at = row * value(width)
        for d in range(0, value(width), value(lanes)):
            z = load(lanes, hidden, at + d) + load(lanes, bias, d)
            phi = normal_cdf(lanes, z)
            store(activated, at + d, z * phi)
            if keep_slope:
                bell = exp(z * z * np.float32(-0.5))
                store(hidden, at + d, fma(z * np.float32(1 / math.sqrt(2 * math.pi)), bell, phi))


@inner_kernel
def gelu_backward(lanes: Const, width: Const, gradient: Floats, slope: Floats, rows: Count, dbias: Floats) -> None:
    """Compute the gradient of an activation: gradient *= slope; dbias += its sum over rows.

    Args:
        gradient: of `activated`; changed in place to that of z.
        slope: as `gelu` left it in `hidden`, or `open_gates` in `slope`.
        dbias: (width).
        others: see `normalize`.
    """
    for row in range(rows):
        at = row * value(width)
        for d in range(0, value(width), value(lanes)):
            product = load(lanes, gradient, at + d) * load(lanes, slope, at + d)
            store(gradient, at + d, product)
            store(dbias, d, load(lanes, dbias, d) + product)


@inner_kernel
def open_gates(lanes: Const, width: Const, gate: Floats, bias: Floats, rows: Count, slope: Floats) -> None:
    """Compute the gates of relative values, relu(z) of z = gate + bias; `gelu_backward` computes their gradient.

    Args:
        gate: (rows, width), changed in place to relu(z).
        bias: (width).
        slope: result, 1 where z > 0, else 0.
        others: see `normalize`.
    """
    one, zero = spread(lanes, np.float32(1)), spread(lanes, np.float32(0))
    for row in range(rows):
        for d in range(0, value(width), value(lanes)):
            at = row * value(width) + d
            z = load(lanes, gate, at) + load(lanes, bias, d)
            is_open = where_positive(zero - z, zero, one)  # torch's choice: 0 at 0
            store(gate, at, z * is_open)
            store(slope, at, is_open)
