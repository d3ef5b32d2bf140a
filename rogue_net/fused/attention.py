"""Attention among the entities of a frame, forward and backward.

    s_ij = q_i · k_j / sqrt(K),   p_ij = exp(s_ij - m_i) / z_i,   m_i = max_j s_ij,   z_i = sum_j exp(s_ij - m_i),

    y_i = sum_j p_ij v_j

over the tokens j of i's frame that i may attend to: all of them if i is hidden, else those that are visible. Of the forward
pass only m and 1 / z are kept; the backward pass computes p again from them (Dao et al. 2022, arXiv 2205.14135, section 3.1):

    dv_j = sum_i p_ij dy_i,   ds_ij = p_ij (dy_i · v_j - dy_i · y_i),   dq_i = sum_j ds_ij k_j / sqrt(K),   dk_j likewise

Scores of one query are computed for many keys at once, so keys (and, backward, values) are transposed first. Everything else
is done for all K features of a token at once.

Layouts, float32: `qkv` (E, 3 D) holds queries, keys and values; `y` (E, D), `softmax` (E, H, 2) m and 1 / z. K = D / H is
a multiple of 8.
"""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rogue_net.fused.simd import (
    LANES,
    Const,
    Count,
    Flags,
    Floats,
    Ints,
    exp,
    first_lanes,
    fma,
    inline,
    kernel,
    largest,
    load,
    maximum,
    spread,
    store,
    total,
    value,
)

EIGHT = Const(8)
HIDDEN = np.float32(-1e30)  # the score of a key that must not be seen: its exp is 0


class Shape(NamedTuple):
    """What the kernels are compiled for."""

    lanes: Const  # keys handled at once
    width: Const  # K, features of a head
    part: Const  # features of a head handled at once; divides K

    @staticmethod
    @cache
    def of(head_width: int) -> Shape:
        """For heads of K features."""
        assert head_width % 8 == 0, head_width
        return Shape(
            Const(LANES), Const(head_width), Const(next(part for part in (32, 16, 8) if head_width % part == 0))
        )


def make_scratch(head_width: int, max_length: int) -> NDArray[np.float32]:
    """Memory that the kernels need for themselves, for frames of at most `max_length` tokens; one for each thread."""
    return np.empty((2 * head_width + 3) * rounded(max_length), np.float32)


def rounded(length: int) -> int:
    """`length` rounded up to a multiple of the lanes."""
    return math.ceil(length / LANES) * LANES


@inline
def transpose(lanes, width, rows, at, stride, length, columns, to):  # type: ignore[no-untyped-def]
    """Copy `length` rows of K features into blocks of `lanes` rows, feature by feature: (blocks, K, lanes)."""
    for block in range(0, length, value(lanes)):
        for j in range(block, min(block + value(lanes), length)):
            for d in range(value(width)):
                columns[to + block * value(width) + d * value(lanes) + j - block] = rows[at + j * stride + d]


@inline
def products(lanes, width, rows, at, columns, block):  # type: ignore[no-untyped-def]
    """The products of the row at `at` with `lanes` transposed rows."""
    even, odd = spread(lanes, np.float32(0)), spread(lanes, np.float32(0))
    for d in range(0, value(width), 2):
        even = fma(spread(lanes, rows[at + d]), load(lanes, columns, block + d * value(lanes)), even)
        odd = fma(spread(lanes, rows[at + d + 1]), load(lanes, columns, block + (d + 1) * value(lanes)), odd)
    return even + odd


@inline
def mark_hidden(visible, first, length, penalty, to):  # type: ignore[no-untyped-def]
    """Write what is added to the scores of a visible query: 0 for visible keys, HIDDEN for others."""
    for j in range(length):
        penalty[to + j] = np.float32(0) if visible[first + j] else HIDDEN


@kernel
def forward(
    lanes: Const,
    width: Const,
    part: Const,
    num_heads: Count,
    qkv: Floats,
    bias: Floats,
    offsets: Ints,
    hides: Count,
    visible: Flags,
    low: Count,
    high: Count,
    y: Floats,
    softmax: Floats,
    scratch: Floats,
    room: Count,
) -> None:
    """Attend in the frames `low:high`; adds `bias` (3 D) to `qkv` on the way.

    Args:
        lanes, width, part: see `Shape`.
        num_heads: H.
        qkv: products without their bias; changed in place.
        bias: (3 D).
        offsets: (B + 1) int64, the tokens of each frame.
        hides: whether anything is hidden.
        visible: (E) of the whole batch.
        low, high: the frames; the first one's first token stands in row 0 of all arrays.
        y: result.
        softmax: result.
        scratch: see `make_scratch`.
        room: length of the longest frame, rounded up to a multiple of `lanes`.
    """
    size = num_heads * value(width)
    scale = np.float32(1 / math.sqrt(value(width)))
    scores = value(width) * room
    penalty = scores + room
    for frame in range(low, high):
        first = offsets[frame] - offsets[low]
        length = offsets[frame + 1] - offsets[frame]
        for at in range(first * 3 * size, (first + length) * 3 * size, 3 * size):
            for d in range(0, 3 * size, 8):
                store(qkv, at + d, load(EIGHT, qkv, at + d) + load(EIGHT, bias, d))
        if hides:
            mark_hidden(visible, offsets[frame], length, scratch, penalty)
        for head in range(num_heads):
            queries = first * 3 * size + head * value(width)
            transpose(lanes, width, qkv, queries + size, 3 * size, length, scratch, 0)
            for i in range(length):
                blind = hides and visible[offsets[frame] + i]
                query = queries + i * 3 * size
                shift = _scores(lanes, width, qkv, query, scratch, scores, penalty, length, scale, blind)
                norm = np.float32(1) / _exp(lanes, scratch, scores, length, shift)
                kept = 2 * ((first + i) * num_heads + head)
                softmax[kept], softmax[kept + 1] = shift, norm
                to = (first + i) * size + head * value(width)
                _average(part, width, scratch, scores, qkv, queries + 2 * size, 3 * size, length, norm, y, to)


@inline
def _scores(lanes, width, rows, query, scratch, scores, penalty, length, scale, blind):  # type: ignore[no-untyped-def]
    """Write s_ij of one query into `scratch[scores:]`; returns the largest."""
    top = spread(lanes, HIDDEN)
    for j in range(0, length, value(lanes)):
        score = products(lanes, width, rows, query, scratch, j * value(width)) * scale
        if blind:
            score = score + load(lanes, scratch, penalty + j)
        score = first_lanes(length - j, score, spread(lanes, HIDDEN))
        store(scratch, scores + j, score)
        top = maximum(top, score)
    return largest(top)


@inline
def _exp(lanes, scratch, scores, length, shift):  # type: ignore[no-untyped-def]
    """Replace scores by exp(s - shift), 0 behind the last; returns their sum."""
    weights = spread(lanes, np.float32(0))
    for j in range(0, length, value(lanes)):
        weight = exp(load(lanes, scratch, scores + j) - shift)
        store(scratch, scores + j, weight)
        weights = weights + weight
    return total(weights)


@inline
def _average(part, width, weights, at, rows, first, stride, length, norm, y, to):  # type: ignore[no-untyped-def]
    """y = norm sum_j w_j v_j."""
    for d in range(0, value(width), value(part)):
        even, odd = spread(part, np.float32(0)), spread(part, np.float32(0))
        for j in range(0, length - 1, 2):
            row = first + j * stride + d
            even = fma(spread(part, weights[at + j]), load(part, rows, row), even)
            odd = fma(spread(part, weights[at + j + 1]), load(part, rows, row + stride), odd)
        if length % 2:
            even = fma(
                spread(part, weights[at + length - 1]), load(part, rows, first + (length - 1) * stride + d), even
            )
        store(y, to + d, (even + odd) * norm)


@kernel
def backward(
    lanes: Const,
    width: Const,
    part: Const,
    num_heads: Count,
    qkv: Floats,
    offsets: Ints,
    hides: Count,
    visible: Flags,
    low: Count,
    high: Count,
    y: Floats,
    softmax: Floats,
    dy: Floats,
    dqkv: Floats,
    dbias: Floats,
    scratch: Floats,
    room: Count,
) -> None:
    """The gradient of `forward`.

    Args:
        qkv: with the bias, as `forward` left it.
        y, softmax: its results.
        dy: gradient of y.
        dqkv: result, gradient of qkv.
        dbias: (3 D), to which the sum of `dqkv` over tokens is added.
        others: see `forward`.
    """
    size = num_heads * value(width)
    scale = np.float32(1 / math.sqrt(value(width)))
    values = value(width) * room
    weights = 2 * values
    slopes = weights + room
    penalty = slopes + room
    for frame in range(low, high):
        first = offsets[frame] - offsets[low]
        length = offsets[frame + 1] - offsets[frame]
        if hides:
            mark_hidden(visible, offsets[frame], length, scratch, penalty)
        for at in range(first * 3 * size, (first + length) * 3 * size, 8):
            store(dqkv, at, spread(EIGHT, np.float32(0)))
        for head in range(num_heads):
            queries = first * 3 * size + head * value(width)
            transpose(lanes, width, qkv, queries + size, 3 * size, length, scratch, 0)
            transpose(lanes, width, qkv, queries + 2 * size, 3 * size, length, scratch, values)
            for i in range(length):
                blind = hides and visible[offsets[frame] + i]
                query = queries + i * 3 * size
                out = (first + i) * size + head * value(width)
                mean = _product(part, width, dy, out, y, out)
                kept = 2 * ((first + i) * num_heads + head)
                shift, norm = softmax[kept], softmax[kept + 1]
                for j in range(0, length, value(lanes)):
                    score = products(lanes, width, qkv, query, scratch, j * value(width)) * scale
                    if blind:
                        score = score + load(lanes, scratch, penalty + j)
                    weight = first_lanes(length - j, exp(score - shift) * norm, spread(lanes, np.float32(0)))
                    change = products(lanes, width, dy, out, scratch, values + j * value(width)) - mean
                    store(scratch, weights + j, weight)
                    store(scratch, slopes + j, weight * change * scale)
                _spread_gradients(
                    part, width, scratch, weights, slopes, length, qkv, dy, out, dqkv, query, queries, size
                )
        for at in range(first * 3 * size, (first + length) * 3 * size, 3 * size):
            for d in range(0, 3 * size, 8):
                store(dbias, d, load(EIGHT, dbias, d) + load(EIGHT, dqkv, at + d))


@inline
def _product(part, width, x, x_at, y, y_at):  # type: ignore[no-untyped-def]
    """x · y over the features of a head."""
    products = spread(part, np.float32(0))
    for d in range(0, value(width), value(part)):
        products = fma(load(part, x, x_at + d), load(part, y, y_at + d), products)
    return total(products)


@inline
def _spread_gradients(  # type: ignore[no-untyped-def]
    part, width, scratch, weights, slopes, length, qkv, dy, out, dqkv, query, queries, size
):
    """Add what query i leaves in dq_i, and in dk_j and dv_j of all keys."""
    for d in range(0, value(width), value(part)):
        q, grad, dq = load(part, qkv, query + d), load(part, dy, out + d), spread(part, np.float32(0))
        key = queries + size + d
        for j in range(length):
            slope = spread(part, scratch[slopes + j])
            dq = fma(slope, load(part, qkv, key), dq)
            store(dqkv, key, fma(slope, q, load(part, dqkv, key)))
            store(dqkv, key + size, fma(spread(part, scratch[weights + j]), grad, load(part, dqkv, key + size)))
            key += 3 * size
        store(dqkv, query + d, dq)
