"""From the scores of a query to its attention weights: s_ij to p_ij = exp(s_ij - m_i) / z_i."""

from __future__ import annotations

import math

import numpy as np

from rogue_net.kernels.cpu.compiling import inline, value
from rogue_net.kernels.cpu.simd import exp, first_lanes, load, spread, store, total

HIDDEN = np.float32(-1e30)  # the score of a key that must not be seen: its exp is 0


def rounded(length: int) -> int:
    """`length` rounded up to a multiple of any number of lanes: the room that the scores of a query need."""
    return math.ceil(length / 16) * 16


@inline
def mark_hidden(visible, first, length, penalty):  # type: ignore[no-untyped-def]
    """Write what is added to the scores of a visible query: 0 for visible keys, HIDDEN for others."""
    for j in range(length):
        penalty[j] = np.float32(0) if visible[first + j] else HIDDEN


@inline
def mask_scores(lanes, score, blind, penalty, j, length):  # type: ignore[no-untyped-def]
    """The scores of keys from j on, HIDDEN for those that a blind query must not see and those behind the last."""
    if blind:
        score = score + load(lanes, penalty, j)
    if j + value(lanes) > length:
        score = first_lanes(length - j, score, spread(lanes, HIDDEN))
    return score


@inline
def exponentiate(lanes, scores, at, length, top, softmax, kept):  # type: ignore[no-untyped-def]
    """Replace the scores from `at` on by exp(s - m), 0 behind the last; keeps m and 1 / z, and returns 1 / z."""
    weights = spread(lanes, np.float32(0))
    for j in range(at, at + length, value(lanes)):
        weight = exp(load(lanes, scores, j) - top)
        store(scores, j, weight)
        weights = weights + weight
    norm = np.float32(1) / total(weights)
    softmax[2 * kept], softmax[2 * kept + 1] = top, norm
    return norm
