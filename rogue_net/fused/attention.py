"""Attention among the entities of a frame, forward and backward.

    s_ij = q_i · k_j / sqrt(K),   p_ij = exp(s_ij - m_i) / z_i,   m_i = max_j s_ij,   z_i = sum_j exp(s_ij - m_i),

    y_i = sum_j p_ij v_j

over the tokens j of i's frame that i may attend to: all of them if i is hidden, else those that are visible. Of the forward
pass only m and 1 / z are kept; the backward pass computes p again from them (Dao et al. 2022, arXiv 2205.14135, section 3.1):

    dv_j = sum_i p_ij dy_i,   ds_ij = p_ij (dy_i · v_j - dy_i · y_i),   dq_i = sum_j ds_ij k_j / sqrt(K),   dk_j likewise

Scores are computed for many keys at once, so keys (and, backward, values) are transposed first; everything else is done for
all K features of a token at once. Queries go in pairs, which share what is loaded for the keys, and give the CPU something to
do while it waits for the other's sums. The last query of an odd number of them is its own partner, with no weight.

Layouts, float32: `qkv` (E, 3 D) holds queries, keys and values; `y` (E, D), `softmax` (E, H, 2) m and 1 / z. K = D / H is
a multiple of 8.
"""

from __future__ import annotations

import math
from collections.abc import Callable
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
    bind,
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
TILE = 16  # queries between two steps, so that none of them waits for another's sums
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


class Kernels(NamedTuple):
    """The kernels for one shape of heads."""

    attend: Callable[..., None]
    attend_backward: Callable[..., None]

    @staticmethod
    @cache
    def of(head_width: int) -> Kernels:
        """For heads of K features."""
        shape = Shape.of(head_width)
        return Kernels(bind(forward, *shape), bind(backward, *shape))


def make_scratch(head_width: int, max_length: int) -> NDArray[np.float32]:
    """Memory that the kernels need for themselves, for frames of at most `max_length` tokens; one for each thread."""
    return np.empty((2 * head_width + 2 * TILE + 1) * rounded(max_length), np.float32)


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
def products(lanes, width, rows, at, at2, columns, block):  # type: ignore[no-untyped-def]
    """The products of the rows at `at` and `at2` with `lanes` transposed rows."""
    zeros = spread(lanes, np.float32(0))
    even, odd, even2, odd2 = zeros, zeros, zeros, zeros
    for d in range(0, value(width), 2):
        column = load(lanes, columns, block + d * value(lanes))
        column2 = load(lanes, columns, block + (d + 1) * value(lanes))
        even = fma(spread(lanes, rows[at + d]), column, even)
        odd = fma(spread(lanes, rows[at + d + 1]), column2, odd)
        even2 = fma(spread(lanes, rows[at2 + d]), column, even2)
        odd2 = fma(spread(lanes, rows[at2 + d + 1]), column2, odd2)
    return even + odd, even2 + odd2


@inline
def mark_hidden(visible, first, length, penalty, to):  # type: ignore[no-untyped-def]
    """Write what is added to the scores of a visible query: 0 for visible keys, HIDDEN for others."""
    for j in range(length):
        penalty[to + j] = np.float32(0) if visible[first + j] else HIDDEN


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
    penalty = scores + TILE * room
    for frame in range(low, high):
        first = offsets[frame] - offsets[low]
        length = offsets[frame + 1] - offsets[frame]
        add_bias(qkv, bias, first, length, 3 * size)
        if hides:
            mark_hidden(visible, offsets[frame], length, scratch, penalty)
        for head in range(num_heads):
            queries = first * 3 * size + head * value(width)
            transpose(lanes, width, qkv, queries + size, 3 * size, length, scratch, 0)
            for tile in range(0, length, TILE):
                end = min(tile + TILE, length)
                for i in range(tile, end, 2):
                    i2, at = min(i + 1, length - 1), scores + (i - tile) * room
                    blind, blind2 = hides and visible[offsets[frame] + i], hides and visible[offsets[frame] + i2]
                    query, query2 = queries + i * 3 * size, queries + i2 * 3 * size
                    top, top2 = spread(lanes, HIDDEN), spread(lanes, HIDDEN)
                    for j in range(0, length, value(lanes)):
                        score, score2 = products(lanes, width, qkv, query, query2, scratch, j * value(width))
                        score = mask_scores(lanes, score * scale, blind, scratch, penalty, j, length)
                        score2 = mask_scores(lanes, score2 * scale, blind2, scratch, penalty, j, length)
                        store(scratch, at + j, score)
                        store(scratch, at + room + j, score2)
                        top, top2 = maximum(top, score), maximum(top2, score2)
                    kept, kept2 = (first + i) * num_heads + head, (first + i2) * num_heads + head
                    softmax[2 * kept], softmax[2 * kept2] = largest(top), largest(top2)
                for i in range(tile, end):
                    kept = (first + i) * num_heads + head
                    exponentiate(lanes, scratch, scores + (i - tile) * room, length, softmax[2 * kept], softmax, kept)
                for i in range(tile, end, 2):
                    i2, at = min(i + 1, length - 1), scores + (i - tile) * room
                    kept, kept2 = (first + i) * num_heads + head, (first + i2) * num_heads + head
                    out, out2 = kept * value(width), kept2 * value(width)
                    norm, norm2 = softmax[2 * kept + 1], softmax[2 * kept2 + 1]
                    at2 = at + (i2 - i) * room
                    _average(
                        part,
                        width,
                        scratch,
                        at,
                        at2,
                        qkv,
                        queries + 2 * size,
                        3 * size,
                        length,
                        y,
                        out,
                        out2,
                        norm,
                        norm2,
                    )


@inline
def mask_scores(lanes, score, blind, scratch, penalty, j, length):  # type: ignore[no-untyped-def]
    """The scores of keys from j on, HIDDEN for those that a blind query must not see and those behind the last."""
    if blind:
        score = score + load(lanes, scratch, penalty + j)
    return first_lanes(length - j, score, spread(lanes, HIDDEN))


@inline
def exponentiate(lanes, scratch, scores, length, top, softmax, kept):  # type: ignore[no-untyped-def]
    """Replace scores by exp(s - m), 0 behind the last; keeps m and 1 / z, and returns 1 / z."""
    weights = spread(lanes, np.float32(0))
    for j in range(0, length, value(lanes)):
        weight = exp(load(lanes, scratch, scores + j) - top)
        store(scratch, scores + j, weight)
        weights = weights + weight
    norm = np.float32(1) / total(weights)
    softmax[2 * kept], softmax[2 * kept + 1] = top, norm
    return norm


@inline
def _average(  # type: ignore[no-untyped-def]
    part, width, weights, at, at2, rows, first, stride, length, y, out, out2, norm, norm2
):
    """Write y = norm sum_j w_j v_j of two queries."""
    for d in range(0, value(width), value(part)):
        mean, mean2 = spread(part, np.float32(0)), spread(part, np.float32(0))
        for j in range(length):
            row = load(part, rows, first + j * stride + d)
            mean = fma(spread(part, weights[at + j]), row, mean)
            mean2 = fma(spread(part, weights[at2 + j]), row, mean2)
        store(y, out + d, mean * norm)
        store(y, out2 + d, mean2 * norm2)


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
    weights2, slopes, slopes2, penalty = weights + room, weights + 2 * room, weights + 3 * room, weights + 4 * room
    for frame in range(low, high):
        first = offsets[frame] - offsets[low]
        length = offsets[frame + 1] - offsets[frame]
        if hides:
            mark_hidden(visible, offsets[frame], length, scratch, penalty)
        clear(dqkv, first * 3 * size, length * 3 * size)
        for head in range(num_heads):
            queries = first * 3 * size + head * value(width)
            transpose(lanes, width, qkv, queries + size, 3 * size, length, scratch, 0)
            transpose(lanes, width, qkv, queries + 2 * size, 3 * size, length, scratch, values)
            for i in range(0, length, 2):
                i2 = min(i + 1, length - 1)
                partner = np.float32(i2 > i)  # its weight
                blind, blind2 = hides and visible[offsets[frame] + i], hides and visible[offsets[frame] + i2]
                query, query2 = queries + i * 3 * size, queries + i2 * 3 * size
                out, out2 = (first + i) * size + head * value(width), (first + i2) * size + head * value(width)
                mean, mean2 = dot(part, width, dy, y, out), dot(part, width, dy, y, out2)
                kept, kept2 = 2 * ((first + i) * num_heads + head), 2 * ((first + i2) * num_heads + head)
                for j in range(0, length, value(lanes)):
                    score, score2 = products(lanes, width, qkv, query, query2, scratch, j * value(width))
                    score = mask_scores(lanes, score * scale, blind, scratch, penalty, j, length)
                    score2 = mask_scores(lanes, score2 * scale, blind2, scratch, penalty, j, length)
                    weight = exp(score - softmax[kept]) * softmax[kept + 1]
                    weight2 = exp(score2 - softmax[kept2]) * (softmax[kept2 + 1] * partner)
                    change, change2 = products(lanes, width, dy, out, out2, scratch, values + j * value(width))
                    store(scratch, weights + j, weight)
                    store(scratch, weights2 + j, weight2)
                    store(scratch, slopes + j, weight * (change - mean) * scale)
                    store(scratch, slopes2 + j, weight2 * (change2 - mean2) * scale)
                _add_gradients(
                    part, width, scratch, weights, room, length, qkv, dy, out, out2, dqkv, query, query2, queries, size
                )
        add_rows(dbias, dqkv, first, length, 3 * size)


@inline
def dot(part, width, x, y, at):  # type: ignore[no-untyped-def]
    """x · y over the features of a head."""
    products = spread(part, np.float32(0))
    for d in range(0, value(width), value(part)):
        products = fma(load(part, x, at + d), load(part, y, at + d), products)
    return total(products)


@inline
def _add_gradients(  # type: ignore[no-untyped-def]
    part, width, scratch, weights, room, length, qkv, dy, out, out2, dqkv, query, query2, queries, size
):
    """Add what two queries leave in their dq, and in dk_j and dv_j of all keys."""
    for d in range(0, value(width), value(part)):
        q, q2 = load(part, qkv, query + d), load(part, qkv, query2 + d)
        grad, grad2 = load(part, dy, out + d), load(part, dy, out2 + d)
        dq, dq2 = spread(part, np.float32(0)), spread(part, np.float32(0))
        for j in range(length):
            key = queries + size + d + j * 3 * size
            weight, weight2 = spread(part, scratch[weights + j]), spread(part, scratch[weights + room + j])
            slope, slope2 = spread(part, scratch[weights + 2 * room + j]), spread(part, scratch[weights + 3 * room + j])
            row = load(part, qkv, key)
            dq, dq2 = fma(slope, row, dq), fma(slope2, row, dq2)
            store(dqkv, key, fma(slope, q, fma(slope2, q2, load(part, dqkv, key))))
            store(dqkv, key + size, fma(weight, grad, fma(weight2, grad2, load(part, dqkv, key + size))))
        store(dqkv, query2 + d, dq2)
        store(dqkv, query + d, dq)  # after its partner's: they may be one
