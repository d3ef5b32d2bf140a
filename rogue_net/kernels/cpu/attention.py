"""Attention among the entities of a frame, forward and backward.

    s_ij = q_i · k_j / sqrt(K),   p_ij = exp(s_ij - m_i) / z_i,   m_i = max_j s_ij,   z_i = sum_j exp(s_ij - m_i),

    y_i = sum_j p_ij v_j

over the tokens j of i's frame that i may attend to: all of them if i is hidden, else those that are visible. Of the forward
pass only m and 1 / z are kept; the backward pass computes p again from them (Dao et al. 2022, arXiv 2205.14135, section 3.1):

    dv_j = sum_i p_ij dy_i,   ds_ij = p_ij (dy_i · v_j - dy_i · y_i),   dq_i = sum_j ds_ij k_j / sqrt(K),   dk_j likewise

Scores are computed for many keys at once, so keys (and, backward, values) are transposed first; everything else is done for
all K features of a token at once. Queries go in pairs, which share what is loaded for the keys; the last of an odd number is
its own partner, without weight. And they go in tiles, a step for all of a tile before the next step, so that the CPU has
something to do while it waits for a sum.

Layouts, float32: `qkv` (E, 3 D) holds queries, keys and values; `y` (E, D), `softmax` (E, H, 2) m and 1 / z. K = D / H is
a multiple of 8.
"""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

import numpy as np

from rogue_net.kernels.cpu.compiling import Const, Count, Flags, Floats, Ints, inline, inner_kernel, value
from rogue_net.kernels.cpu.rows import add_bias, add_rows, clear, dot
from rogue_net.kernels.cpu.scores import HIDDEN, break_hidden, exponentiate, hide_broken, mark_hidden, mask_scores
from rogue_net.kernels.cpu.simd import exp, fma, largest, load, maximum, spread, store

TILE = 16  # queries; even
SHORT = 8  # tokens of frames that would leave half of more lanes idle
FEW, MANY = Const(8), Const(16)  # keys at once in short and long frames


@cache
def shape_of(head_width: int) -> tuple[Const, Const]:
    """Constants that the kernels are compiled for: K, and how many features of a head are handled at once, which divide K."""
    assert head_width % 8 == 0, head_width
    return Const(head_width), Const(next(part for part in (32, 16, 8) if head_width % part == 0))


class Scratch(NamedTuple):
    """Memory that the kernels need for themselves, for one head of a frame."""

    room: Count  # keys, rounded up to a multiple of the lanes
    keys: Floats  # (room, K) transposed
    values: Floats  # likewise
    weights: Floats  # (TILE, room) s, then p
    slopes: Floats  # (TILE, room) ds / sqrt(K)
    penalty: Floats  # (room,) what is added to the scores of visible queries


def scratch_sizes(head_width: int, room: int) -> list[int]:
    """The sizes of the arrays of `Scratch`."""
    return [room * head_width, room * head_width, TILE * room, TILE * room, room]


class Head(NamedTuple):
    """Place of a head of a frame in `qkv`."""

    queries: int  # the first token's
    keys: int
    values: int
    stride: int  # from token to token
    length: int  # tokens


class Pair(NamedTuple):
    """Two queries, by their places in the frame, and where they are in other arrays."""

    i: int
    i2: int
    query: int  # in `softmax`, whose pairs of numbers it counts
    query2: int
    at: int  # in the scratch's rows of scores
    at2: int


@inline
def pair_of(i, length, first, num_heads, head, tile, room):  # type: ignore[no-untyped-def]
    """The query i and the next, which is i itself behind the last."""
    i2 = min(i + 1, length - 1)
    query, query2 = (first + i) * num_heads + head, (first + i2) * num_heads + head
    return Pair(i, i2, query, query2, (i - tile) * room, (i + 1 - tile) * room)


@inline
def transpose(lanes, width, rows, at, head, columns):  # type: ignore[no-untyped-def]
    """Copy a head's K features of all tokens into blocks of `lanes` tokens, feature by feature: (blocks, K, lanes)."""
    for block in range(0, head.length, value(lanes)):
        for j in range(block, min(block + value(lanes), head.length)):
            for d in range(value(width)):
                columns[block * value(width) + d * value(lanes) + j - block] = rows[at + j * head.stride + d]


@inline
def products(lanes, width, rows, at, at2, columns, j):  # type: ignore[no-untyped-def]
    """The products of two rows with the transposed rows from j on."""
    zeros = spread(lanes, np.float32(0))
    even, odd, even2, odd2 = zeros, zeros, zeros, zeros
    for d in range(0, value(width), 2):
        column = load(lanes, columns, j * value(width) + d * value(lanes))
        column2 = load(lanes, columns, j * value(width) + (d + 1) * value(lanes))
        even = fma(spread(lanes, rows[at + d]), column, even)
        odd = fma(spread(lanes, rows[at + d + 1]), column2, odd)
        even2 = fma(spread(lanes, rows[at2 + d]), column, even2)
        odd2 = fma(spread(lanes, rows[at2 + d + 1]), column2, odd2)
    return even + odd, even2 + odd2


@inner_kernel
def forward(
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
    scratch: Scratch,
) -> None:
    """Attend in the frames `low:high`; adds `bias` (3 D) to `qkv` on the way.

    Args:
        width, part: see `shape_of`.
        num_heads: H.
        qkv: products without their bias; changed in place.
        bias: (3 D).
        offsets: (B + 1) int64, the tokens of each frame.
        hides: whether anything is hidden.
        visible: (E) of the whole batch.
        low, high: the frames; the first one's first token stands in row 0 of all arrays.
        y: result.
        softmax: result.
        scratch: see `Scratch`; changed.
    """
    size = num_heads * value(width)
    for frame in range(low, high):
        token, length = offsets[frame], offsets[frame + 1] - offsets[frame]
        first = token - offsets[low]
        add_bias(qkv, bias, first, length, 3 * size)
        broken = 0
        if hides:
            mark_hidden(visible, token, length, scratch.penalty)
            broken = hide_broken(visible, token, length, qkv, first * 3 * size + size, 3 * size, 2 * size)
        if length <= SHORT:
            _attend(FEW, width, part, num_heads, qkv, hides, visible, token, first, length, y, softmax, scratch)
        else:
            _attend(MANY, width, part, num_heads, qkv, hides, visible, token, first, length, y, softmax, scratch)
        if broken:
            break_hidden(visible, token, length, y, first * size, size)


@inline
def _attend(  # type: ignore[no-untyped-def]
    lanes, width, part, num_heads, qkv, hides, visible, token, first, length, y, softmax, scratch
):
    """Attend in one frame, with `lanes` keys at once."""
    size = num_heads * value(width)
    for number in range(num_heads):
        start = first * 3 * size + number * value(width)
        head = Head(start, start + size, start + 2 * size, 3 * size, length)
        transpose(lanes, width, qkv, head.keys, head, scratch.keys)
        for tile in range(0, length, TILE):
            end = min(tile + TILE, length)
            for i in range(tile, end, 2):
                pair = pair_of(i, length, first, num_heads, number, tile, scratch.room)
                blind = hides and visible[token + pair.i]
                blind2 = hides and visible[token + pair.i2]
                _score(lanes, width, qkv, head, pair, blind, blind2, softmax, scratch)
            for i in range(tile, end):
                query = (first + i) * num_heads + number
                at = (i - tile) * scratch.room
                exponentiate(lanes, scratch.weights, at, length, softmax[2 * query], softmax, query)
            for i in range(tile, end, 2):
                pair = pair_of(i, length, first, num_heads, number, tile, scratch.room)
                _average(part, width, qkv, head, pair, softmax, scratch, y)


@inline
def _score(lanes, width, qkv, head, pair, blind, blind2, softmax, scratch):  # type: ignore[no-untyped-def]
    """Write s_ij of two queries, and their m."""
    scale = np.float32(1 / math.sqrt(value(width)))
    query, query2 = head.queries + pair.i * head.stride, head.queries + pair.i2 * head.stride
    max_score, max_score2 = spread(lanes, HIDDEN), spread(lanes, HIDDEN)
    for j in range(0, head.length, value(lanes)):
        score, score2 = products(lanes, width, qkv, query, query2, scratch.keys, j)
        score = mask_scores(lanes, score * scale, blind, scratch.penalty, j, head.length)
        score2 = mask_scores(lanes, score2 * scale, blind2, scratch.penalty, j, head.length)
        store(scratch.weights, pair.at + j, score)
        store(scratch.weights, pair.at2 + j, score2)
        max_score, max_score2 = maximum(max_score, score), maximum(max_score2, score2)
    softmax[2 * pair.query], softmax[2 * pair.query2] = largest(max_score), largest(max_score2)


@inline
def _average(part, width, qkv, head, pair, softmax, scratch, y):  # type: ignore[no-untyped-def]
    """Write y_i = sum_j p_ij v_j of two queries; of one without a partner last, as both write to the same place."""
    inverse_sum, inverse_sum2 = softmax[2 * pair.query + 1], softmax[2 * pair.query2 + 1]
    for d in range(0, value(width), value(part)):
        zeros = spread(part, np.float32(0))
        even, odd, even2, odd2 = zeros, zeros, zeros, zeros  # no sum waits for the last one
        for j in range(0, head.length - 1, 2):
            row = load(part, qkv, head.values + j * head.stride + d)
            row2 = load(part, qkv, head.values + (j + 1) * head.stride + d)
            even = fma(spread(part, scratch.weights[pair.at + j]), row, even)
            odd = fma(spread(part, scratch.weights[pair.at + j + 1]), row2, odd)
            even2 = fma(spread(part, scratch.weights[pair.at2 + j]), row, even2)
            odd2 = fma(spread(part, scratch.weights[pair.at2 + j + 1]), row2, odd2)
        if head.length % 2 == 1:
            last = head.length - 1
            row = load(part, qkv, head.values + last * head.stride + d)
            even = fma(spread(part, scratch.weights[pair.at + last]), row, even)
            even2 = fma(spread(part, scratch.weights[pair.at2 + last]), row, even2)
        store(y, pair.query2 * value(width) + d, (even2 + odd2) * inverse_sum2)
        store(y, pair.query * value(width) + d, (even + odd) * inverse_sum)


@inner_kernel
def backward(
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
    scratch: Scratch,
) -> None:
    """Compute the gradient of `forward`.

    Args:
        qkv: with the bias, as `forward` left it.
        y, softmax: its results.
        dy: gradient of y.
        dqkv: result, gradient of qkv.
        dbias: (3 D), to which the sum of `dqkv` over tokens is added.
        others: see `forward`.
    """
    size = num_heads * value(width)
    for frame in range(low, high):
        token, length = offsets[frame], offsets[frame + 1] - offsets[frame]
        first = token - offsets[low]
        if hides:
            mark_hidden(visible, token, length, scratch.penalty)
        clear(dqkv, first * 3 * size, length * 3 * size)
        if length <= SHORT:
            _go_back(
                FEW, width, part, num_heads, qkv, hides, visible, token, first, length, y, softmax, dy, dqkv, scratch
            )
        else:
            _go_back(
                MANY, width, part, num_heads, qkv, hides, visible, token, first, length, y, softmax, dy, dqkv, scratch
            )
        add_rows(dbias, dqkv, first, length, 3 * size)


@inline
def _go_back(  # type: ignore[no-untyped-def]
    lanes, width, part, num_heads, qkv, hides, visible, token, first, length, y, softmax, dy, dqkv, scratch
):
    """Compute the gradient of one frame, with `lanes` keys at once."""
    size = num_heads * value(width)
    for number in range(num_heads):
        query = first * 3 * size + number * value(width)
        head = Head(query, query + size, query + 2 * size, 3 * size, length)
        transpose(lanes, width, qkv, head.keys, head, scratch.keys)
        transpose(lanes, width, qkv, head.values, head, scratch.values)
        for tile in range(0, length, TILE):
            end = min(tile + TILE, length)
            for i in range(tile, end, 2):
                pair = pair_of(i, length, first, num_heads, number, tile, scratch.room)
                blind = hides and visible[token + pair.i]
                blind2 = hides and visible[token + pair.i2]
                _differentiate(lanes, width, part, qkv, head, pair, blind, blind2, y, softmax, dy, scratch)
            for i in range(tile, end, 2):
                pair = pair_of(i, length, first, num_heads, number, tile, scratch.room)
                _add_gradients(part, width, qkv, head, pair, dy, dqkv, scratch)


@inline
def _differentiate(lanes, width, part, qkv, head, pair, blind, blind2, y, softmax, dy, scratch):  # type: ignore[no-untyped-def]
    """Write p_ij and ds_ij / sqrt(K) of two queries."""
    scale = np.float32(1 / math.sqrt(value(width)))
    query, query2 = head.queries + pair.i * head.stride, head.queries + pair.i2 * head.stride
    out, out2 = pair.query * value(width), pair.query2 * value(width)
    mean, mean2 = dot(part, width, dy, y, out), dot(part, width, dy, y, out2)
    max_score, inverse_sum = softmax[2 * pair.query], softmax[2 * pair.query + 1]
    max_score2, inverse_sum2 = softmax[2 * pair.query2], softmax[2 * pair.query2 + 1] * np.float32(pair.i2 > pair.i)
    for j in range(0, head.length, value(lanes)):
        score, score2 = products(lanes, width, qkv, query, query2, scratch.keys, j)
        score = mask_scores(lanes, score * scale, blind, scratch.penalty, j, head.length)
        score2 = mask_scores(lanes, score2 * scale, blind2, scratch.penalty, j, head.length)
        weight, weight2 = exp(score - max_score) * inverse_sum, exp(score2 - max_score2) * inverse_sum2
        dweight, dweight2 = products(lanes, width, dy, out, out2, scratch.values, j)
        store(scratch.weights, pair.at + j, weight)
        store(scratch.weights, pair.at2 + j, weight2)
        store(scratch.slopes, pair.at + j, weight * (dweight - mean) * scale)
        store(scratch.slopes, pair.at2 + j, weight2 * (dweight2 - mean2) * scale)


@inline
def _add_gradients(part, width, qkv, head, pair, dy, dqkv, scratch):  # type: ignore[no-untyped-def]
    """Add what two queries leave in dk_j and dv_j of all keys; write their dq."""
    for d in range(0, value(width), value(part)):
        query, query2 = head.queries + pair.i * head.stride + d, head.queries + pair.i2 * head.stride + d
        q, q2 = load(part, qkv, query), load(part, qkv, query2)
        grad, grad2 = load(part, dy, pair.query * value(width) + d), load(part, dy, pair.query2 * value(width) + d)
        dq, dq2 = spread(part, np.float32(0)), spread(part, np.float32(0))
        for j in range(head.length):
            key, at_value = head.keys + j * head.stride + d, head.values + j * head.stride + d
            weight, weight2 = (spread(part, scratch.weights[pair.at + j]), spread(part, scratch.weights[pair.at2 + j]))
            slope, slope2 = spread(part, scratch.slopes[pair.at + j]), spread(part, scratch.slopes[pair.at2 + j])
            row = load(part, qkv, key)
            dq, dq2 = fma(slope, row, dq), fma(slope2, row, dq2)
            store(dqkv, key, fma(slope, q, fma(slope2, q2, load(part, dqkv, key))))
            store(dqkv, at_value, fma(weight, grad, fma(weight2, grad2, load(part, dqkv, at_value))))
        store(dqkv, query2, dq2)
        store(dqkv, query, dq)  # last, as a query without a partner writes to one place twice
