"""From the scores of a query to its attention weights: s_ij to p_ij = exp(s_ij - m_i) / z_i."""

from __future__ import annotations

import numpy as np

from rogue_net.kernels.cpu.compiling import inline, value
from rogue_net.kernels.cpu.simd import exp, first_lanes, load, spread, store, total

HIDDEN = np.float32(-1e30)  # the score of a key that must not be seen: its exp is 0


@inline
def mark_hidden(visible, first, length, penalty):  # type: ignore[no-untyped-def]
    """Write what is added to the scores of a visible query: 0 for visible keys, HIDDEN for others."""
    for j in range(length):
        penalty[j] = np.float32(0) if visible[first + j] else HIDDEN


@inline
def hide_broken(visible, first, length, rows, at, stride, width):  # type: ignore[no-untyped-def]
    """Replace rows of hidden tokens that are not finite by 0, as a weight of 0 keeps no NaN out; returns how many there were."""
    count = 0
    for j in range(length):
        if not visible[first + j]:
            none = np.float32(0)
            for d in range(width):
                none += rows[at + j * stride + d] * np.float32(0)
            if not none == 0:
                count += 1
                for d in range(width):
                    rows[at + j * stride + d] = np.float32(0)
    return count


@inline
def break_hidden(visible, first, length, y, at, width):  # type: ignore[no-untyped-def]
    """Make the outputs of hidden tokens NaN: they saw one that is."""
    for j in range(length):
        if not visible[first + j]:
            for d in range(width):
                y[at + j * width + d] = np.float32(np.nan)


@inline
def mask_scores(lanes, score, blind, penalty, j, length):  # type: ignore[no-untyped-def]
    """The scores of keys from j on, HIDDEN for those that a blind query must not see and those behind the last."""
    if blind:
        score = score + load(lanes, penalty, j)
    if j + value(lanes) > length:
        score = first_lanes(length - j, score, spread(lanes, HIDDEN))
    return score


@inline
def exponentiate(lanes, scores, at, length, max_score, softmax, index):  # type: ignore[no-untyped-def]
    """Replace the scores from `at` on by exp(s - m), 0 behind the last; keeps m and 1 / z, and returns 1 / z."""
    weights = spread(lanes, np.float32(0))
    for j in range(at, at + length, value(lanes)):
        weight = exp(load(lanes, scores, j) - max_score)
        store(scores, j, weight)
        weights = weights + weight
    inverse_sum = np.float32(1) / total(weights)
    softmax[2 * index], softmax[2 * index + 1] = max_score, inverse_sum
    return inverse_sum
