"""Attention with relative positions among the entities of a frame, forward and backward.

    s_ij = q_i · (k_j + a_ij) / sqrt(K),   y_i = sum_j p_ij (v_j + gate_j * b_ij)

with p = softmax(s) as in `rogue_net.kernels.cpu.attention`, and sums of rows of two tables that all heads share
(`rogue_net.relative.relative_positions`):

    a_ij = sum_m c_ijm keys[r_ijm],   b_ij = sum_m c_ijm values[r_ijm]

They are made for one query at a time, used by every head, and made again backward: memory is linear in entities. Backward,
q, k and v have the gradients of attention whose keys are k_j + a_ij and whose values are v_j + gate_j * b_ij, and

    da_ij = sum over heads of ds_ij q_i / sqrt(K),   g_ij = sum over heads of p_ij dy_i,
    dgate_j += g_ij * b_ij,   db_ij = g_ij * gate_j,   dkeys[r_ijm] += c_ijm da_ij,   dvalues[r_ijm] += c_ijm db_ij

Layouts are those of `rogue_net.kernels.cpu.attention`; tables and gates have K columns.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from rogue_net.kernels.cpu.compiling import Const, Count, Flags, Floats, Ints, inline, inner_kernel, value
from rogue_net.kernels.cpu.relative_terms import Places, Scheme, relate
from rogue_net.kernels.cpu.rows import add_bias, add_rows, clear, dot
from rogue_net.kernels.cpu.scores import HIDDEN, break_hidden, exponentiate, hide_broken, mark_hidden, mask_scores
from rogue_net.kernels.cpu.simd import LANES, exp, fma, largest, load, maximum, spread, store, total


class Scratch(NamedTuple):
    """Memory that the kernels need for themselves, for one query and the keys of its frame."""

    room: Count  # keys, rounded up to a multiple of the lanes
    components: Floats  # (n + 1, lanes) of the pairs at hand
    rows: Floats  # (M, room)
    coefficients: Floats  # (M, room)
    keys: Floats  # (room, K) a
    values: Floats  # (room, K) b
    gated: Floats  # (room, K) gate * b
    dkeys: Floats  # (room, K) da
    dvalues: Floats  # (room, K) g, then db
    weights: Floats  # (room,) s, then p
    slopes: Floats  # (room,) ds / sqrt(K)
    penalty: Floats  # (room,) what is added to the scores of visible queries


def scratch_sizes(dimensions: int, terms: int, head_width: int, room: int) -> list[int]:
    """The sizes of the arrays of `Scratch`, for n dimensions and M terms."""
    return [(dimensions + 1) * LANES, *2 * [terms * room], *5 * [room * head_width], *3 * [room]]


class Gradients(NamedTuple):
    """Results of `backward`. What belongs to no token is added to, the rest is written."""

    qkv: Floats  # (E, 3 D)
    bias: Floats  # (3 D), added to
    keys: Floats  # as the table, added to
    values: Floats  # as the table, added to
    gate: Floats  # (E, K)


@inline
def add_terms(part, width, table, terms, blocks, has_blocks, first, length, scratch, sums):  # type: ignore[no-untyped-def]
    """Write sum_m c_ijm table[r_ijm] of all keys j of one query into `sums`, (room, K)."""
    for j in range(length):
        for d in range(0, value(width), value(part)):
            at = has_blocks * blocks[first + j] + d
            row = load(part, table, at + int(scratch.rows[j]) * value(width)) * scratch.coefficients[j]
            for m in range(scratch.room + j, terms * scratch.room + j, scratch.room):
                more = load(part, table, at + int(scratch.rows[m]) * value(width))
                row = fma(more, spread(part, scratch.coefficients[m]), row)
            store(sums, j * value(width) + d, row)


@inner_kernel
def forward(
    lanes: Const,
    width: Const,
    part: Const,
    num_heads: Count,
    qkv: Floats,
    bias: Floats,
    scheme: Scheme,
    places: Places,
    keys: Floats,
    values: Floats,
    gate: Floats,
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
        scheme, places: of the whole batch, see there.
        keys, values: tables.
        gate: (E, K) of the frames.
        others: see `rogue_net.kernels.cpu.attention.forward`.
    """
    size = num_heads * value(width)
    stride = 3 * size
    scale = np.float32(1 / math.sqrt(value(width)))
    for frame in range(low, high):
        token, length = offsets[frame], offsets[frame + 1] - offsets[frame]
        first = token - offsets[low]
        add_bias(qkv, bias, first, length, stride)
        broken = 0
        if hides:
            mark_hidden(visible, token, length, scratch.penalty)
            broken = hide_broken(visible, token, length, qkv, first * stride + size, stride, 2 * size)
            broken += hide_broken(visible, token, length, gate, first * value(width), value(width), value(width))
        for i in range(length):
            blind = hides and visible[token + i]
            _relate_query(lanes, width, part, scheme, places, keys, values, gate, token, first, length, i, scratch)
            for head in range(num_heads):
                query = (first + i) * stride + head * value(width)
                key = first * stride + size + head * value(width)
                _products(part, width, qkv, query, key, stride, scratch, length)
                shift = _scores(lanes, scratch, length, scale, blind)
                inverse_sum = exponentiate(
                    lanes, scratch.weights, 0, length, shift, softmax, (first + i) * num_heads + head
                )
                to = (first + i) * size + head * value(width)
                _average(part, width, qkv, key + size, stride, scratch, length, inverse_sum, y, to)
        if broken:
            break_hidden(visible, token, length, y, first * size, size)


@inline
def _relate_query(  # type: ignore[no-untyped-def]
    lanes, width, part, scheme, places, keys, values, gate, token, first, length, i, scratch
):
    """Write a_ij, b_ij and gate_j * b_ij of query i for all keys into the scratch."""
    relate(lanes, scheme, places, token, length, i, scratch)
    add_terms(part, width, keys, scheme.terms, places.value_blocks, 0, token, length, scratch, scratch.keys)
    add_terms(part, width, values, scheme.terms, places.value_blocks, 1, token, length, scratch, scratch.values)
    for at in range(0, length * value(width), value(part)):
        store(scratch.gated, at, load(part, gate, first * value(width) + at) * load(part, scratch.values, at))


@inline
def _products(part, width, qkv, query, key, stride, scratch, length):  # type: ignore[no-untyped-def]
    """Write q_i · (k_j + a_ij) of one query and head for all keys into `scratch.weights`."""
    for d in range(0, value(width), value(part)):
        q = load(part, qkv, query + d)
        for j in range(length):
            k = load(part, qkv, key + j * stride + d)
            product = total(q * (k + load(part, scratch.keys, j * value(width) + d)))
            scratch.weights[j] = product + scratch.weights[j] if d else product


@inline
def _scores(lanes, scratch, length, scale, blind):  # type: ignore[no-untyped-def]
    """Make s_ij of the products; returns the largest."""
    max_score = spread(lanes, HIDDEN)
    for j in range(0, length, value(lanes)):
        score = mask_scores(lanes, load(lanes, scratch.weights, j) * scale, blind, scratch.penalty, j, length)
        store(scratch.weights, j, score)
        max_score = maximum(max_score, score)
    return largest(max_score)


@inline
def _average(part, width, qkv, first_value, stride, scratch, length, inverse_sum, y, to):  # type: ignore[no-untyped-def]
    """Write y_i = 1 / z_i sum_j w_ij (v_j + gate_j * b_ij)."""
    for d in range(0, value(width), value(part)):
        mean = spread(part, np.float32(0))
        for j in range(length):
            v = load(part, qkv, first_value + j * stride + d)
            related = v + load(part, scratch.gated, j * value(width) + d)
            mean = fma(spread(part, scratch.weights[j]), related, mean)
        store(y, to + d, mean * inverse_sum)


@inner_kernel
def backward(
    lanes: Const,
    width: Const,
    part: Const,
    num_heads: Count,
    qkv: Floats,
    scheme: Scheme,
    places: Places,
    keys: Floats,
    values: Floats,
    gate: Floats,
    offsets: Ints,
    hides: Count,
    visible: Flags,
    low: Count,
    high: Count,
    y: Floats,
    softmax: Floats,
    dy: Floats,
    gradients: Gradients,
    scratch: Scratch,
) -> None:
    """Compute the gradient of `forward`.

    Args:
        qkv: with the bias, as `forward` left it.
        y, softmax: its results.
        dy: gradient of y.
        gradients: result.
        others: see `forward`.
    """
    size = num_heads * value(width)
    stride = 3 * size
    scale = np.float32(1 / math.sqrt(value(width)))
    for frame in range(low, high):
        token, length = offsets[frame], offsets[frame + 1] - offsets[frame]
        first = token - offsets[low]
        clear(gradients.qkv, first * stride, length * stride)
        clear(gradients.gate, first * value(width), length * value(width))
        if hides:
            mark_hidden(visible, token, length, scratch.penalty)
        for i in range(length):
            blind = hides and visible[token + i]
            _relate_query(lanes, width, part, scheme, places, keys, values, gate, token, first, length, i, scratch)
            clear(scratch.dkeys, 0, length * value(width))
            clear(scratch.dvalues, 0, length * value(width))
            for head in range(num_heads):
                query = (first + i) * stride + head * value(width)
                key = first * stride + size + head * value(width)
                out = (first + i) * size + head * value(width)
                index = 2 * ((first + i) * num_heads + head)
                _products(part, width, qkv, query, key, stride, scratch, length)
                _changes(part, width, qkv, key + size, stride, scratch, length, dy, out)
                mean = dot(part, width, dy, y, out)
                _slopes(lanes, scratch, length, scale, blind, softmax[index], softmax[index + 1], mean)
                _spread_gradients(part, width, qkv, query, key, size, dy, out, length, gradients.qkv, scratch)
            _through_gates(part, gate, gradients.gate, first * value(width), length * value(width), scratch)
            blocks = places.value_blocks
            _scatter(part, width, scratch.dkeys, scheme.terms, blocks, 0, token, length, scratch, gradients.keys)
            _scatter(part, width, scratch.dvalues, scheme.terms, blocks, 1, token, length, scratch, gradients.values)
        add_rows(gradients.bias, gradients.qkv, first, length, stride)


@inline
def _changes(part, width, qkv, first_value, stride, scratch, length, dy, out):  # type: ignore[no-untyped-def]
    """Write dy_i · (v_j + gate_j * b_ij) for all keys into `scratch.slopes`."""
    for d in range(0, value(width), value(part)):
        grad = load(part, dy, out + d)
        for j in range(length):
            v = load(part, qkv, first_value + j * stride + d)
            dweight = total(grad * (v + load(part, scratch.gated, j * value(width) + d)))
            scratch.slopes[j] = dweight + scratch.slopes[j] if d else dweight


@inline
def _slopes(lanes, scratch, length, scale, blind, shift, inverse_sum, mean):  # type: ignore[no-untyped-def]
    """Make p_ij of the products, and ds_ij / sqrt(K) = p_ij (dp_ij - mean) / sqrt(K) of the dp_ij."""
    for j in range(0, length, value(lanes)):
        score = mask_scores(lanes, load(lanes, scratch.weights, j) * scale, blind, scratch.penalty, j, length)
        weight = exp(score - shift) * inverse_sum
        store(scratch.weights, j, weight)
        store(scratch.slopes, j, weight * (load(lanes, scratch.slopes, j) - mean) * scale)


@inline
def _spread_gradients(part, width, qkv, query, key, size, dy, out, length, dqkv, scratch):  # type: ignore[no-untyped-def]
    """Add what query i and a head leave in dq_i, in dk_j and dv_j of all keys, and in da_ij and g_ij."""
    for d in range(0, value(width), value(part)):
        q, grad, dq = load(part, qkv, query + d), load(part, dy, out + d), spread(part, np.float32(0))
        at = key + d
        for j in range(length):
            slope, row = spread(part, scratch.slopes[j]), j * value(width) + d
            dk, dv = slope * q, spread(part, scratch.weights[j]) * grad
            dq = fma(slope, load(part, qkv, at) + load(part, scratch.keys, row), dq)
            store(dqkv, at, dk + load(part, dqkv, at))
            store(dqkv, at + size, dv + load(part, dqkv, at + size))
            store(scratch.dkeys, row, dk + load(part, scratch.dkeys, row))
            store(scratch.dvalues, row, dv + load(part, scratch.dvalues, row))
            at += 3 * size
        store(dqkv, query + d, dq)


@inline
def _through_gates(part, gate, dgate, first, count, scratch):  # type: ignore[no-untyped-def]
    """Add g_ij * b_ij to the gradients of gates, and make db_ij of g_ij."""
    for at in range(0, count, value(part)):
        g = load(part, scratch.dvalues, at)
        store(dgate, first + at, fma(g, load(part, scratch.values, at), load(part, dgate, first + at)))
        store(scratch.dvalues, at, g * load(part, gate, first + at))


@inline
def _scatter(part, width, numbers, terms, blocks, has_blocks, first, length, scratch, gradient):  # type: ignore[no-untyped-def]
    """Add c_ijm times the number of each key j to its rows r_ijm."""
    for m in range(0, terms * scratch.room, scratch.room):
        for j in range(length):
            coefficient = spread(part, scratch.coefficients[m + j])
            for d in range(0, value(width), value(part)):
                at = has_blocks * blocks[first + j] + int(scratch.rows[m + j]) * value(width) + d
                number = load(part, numbers, j * value(width) + d)
                store(gradient, at, fma(number, coefficient, load(part, gradient, at)))
