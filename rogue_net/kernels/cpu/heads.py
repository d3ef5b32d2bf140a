"""Functions for the kernels of several kinds of action: linear layers on tokens, log-probabilities of choices, keyed noise."""

from __future__ import annotations

import math

import numpy as np

from rogue_net.heads.noise import FIRST, GOLDEN, SECOND
from rogue_net.kernels.cpu.calling import ints_at, invoke, shifted
from rogue_net.kernels.cpu.compiling import Const, inline
from rogue_net.kernels.cpu.rows import add_row, add_rows, gather
from rogue_net.kernels.cpu.simd import exp, spread, total
from rogue_net.kernels.cpu.tables import BOUND, SAMPLED, transposed

TINY = np.float32(np.finfo(np.float32).tiny)
EIGHT = Const(8)
MASKED = np.float32(-1e30)  # logit of a choice that is not open: its probability is 0
CLOSED = np.float32(-1e29)  # above the log-probability of such a choice, below all others


@inline
def linear_backward(lanes, kernels, net, tile, places, start, end, dout, layer, gradient):  # type: ignore[no-untyped-def]
    """Compute gradients of a linear layer on the tokens at `places[start:end]`: of weight, bias and x, from d(output)."""
    width, padded = net.width, net.linears[layer].outputs
    gather(lanes, tile.tokens, places, start, end, tile.rows, width)
    dweight = shifted(gradient, net.linears[layer].weight)
    invoke(kernels.outer, BOUND, tile.rows, dout, dweight, end - start, net.linears[layer].inputs, padded, tile.panel)
    add_rows(shifted(gradient, net.linears[layer].bias), dout, 0, end - start, padded)
    invoke(kernels.product, BOUND, dout, transposed(net, layer), tile.rows, end - start, padded, width, 0)
    for number in range(start, end):
        add_row(lanes, tile.x, places[number] * width, tile.rows, (number - start) * width, width)


# --- Choices


@inline
def log_softmax(logits, at, count):  # type: ignore[no-untyped-def]
    """Replace `count` logits from `at` on by log-probabilities; returns their entropy. What is masked stays about -1e30."""
    highest = logits[at]
    for c in range(1, count):
        highest = max(highest, logits[at + c])
    mass, mean = np.float32(0), np.float32(0)  # Σ exp(z), Σ exp(z) z
    for c in range(count):
        z = logits[at + c] - highest
        weight = _exp(z)
        mass += weight
        mean += weight * z
        logits[at + c] = z
    log_mass = np.float32(math.log(mass))
    for c in range(count):
        logits[at + c] -= log_mass
    return log_mass - mean / mass


@inline
def _exp(x):  # type: ignore[no-untyped-def]
    return total(exp(spread(EIGHT, x))) * np.float32(0.125)


@inline
def slope_of(log_prob, chosen, dlog_prob, dentropy, entropy):  # type: ignore[no-untyped-def]
    """Compute the gradient of a logit: d log p(a) / dz_c = [c = a] - p_c,  dH / dz_c = -p_c (log p_c + H)."""
    p = _exp(log_prob)
    gradient = -p * dlog_prob - p * (max(log_prob, np.float32(-200)) + entropy) * dentropy
    return gradient + dlog_prob if chosen else gradient


# --- Noise


@inline
def noise_key(action, batch, tile, choice, low, actor):  # type: ignore[no-untyped-def]
    """Key of an actor's noise, see `rogue_net.heads.noise.FrameKeys.of_actors`."""
    if choice.mode != SAMPLED:
        return 0
    index = ints_at(action.actors)[tile.actor_sources[actor]]
    return choice.keys[batch.frames[low + tile.actor_frames[actor]]] + action.noise + index * SECOND


@inline
def uniform(key, number):  # type: ignore[no-untyped-def]
    """Draw a uniform number, see `rogue_net.heads.noise.ActorKeys.uniform`."""
    bits = key + number * GOLDEN
    bits = (bits ^ ((bits >> 30) & (2**34 - 1))) * FIRST
    bits = (bits ^ ((bits >> 27) & (2**37 - 1))) * SECOND
    bits ^= (bits >> 31) & (2**33 - 1)
    bits = ((bits >> 24) & (2**40 - 1 - 2**15)) | 1
    return np.float32(bits) * np.float32(2.0**-40)


@inline
def score(choice, key, log_prob, number):  # type: ignore[no-untyped-def]
    """A log-probability, and where actions are sampled, plus Gumbel noise; see `with_gumbel_noise`."""
    if choice.mode != SAMPLED:
        return log_prob
    exponential = np.float32(-math.log1p(-uniform(key, number)))
    return log_prob - np.float32(math.log(max(exponential, TINY)))
