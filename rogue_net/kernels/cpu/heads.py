"""Functions for the kernels of several kinds of action: linear layers on tokens, log-probabilities of choices, keyed noise."""

from __future__ import annotations

import math

import numpy as np

from rogue_net.heads.noise import FIRST, GOLDEN, SECOND
from rogue_net.kernels.cpu.calling import ints_at, invoke, shifted
from rogue_net.kernels.cpu.compiling import Const, inline
from rogue_net.kernels.cpu.rows import add_bias, add_row, add_rows, gather
from rogue_net.kernels.cpu.simd import exp, spread, total
from rogue_net.kernels.cpu.tables import BOUND, SAMPLED, bias_of, num_encoded, transposed, weight_of

TINY = np.float32(np.finfo(np.float32).tiny)
EIGHT = Const(8)
MASKED = np.float32(-1e30)  # logit of a choice that is not open: its probability is 0
CLOSED = np.float32(-1e29)  # above the log-probability of such a choice, below all others


@inline
def linear_of(lanes, kernels, net, tile, places, start, end, layer, out):  # type: ignore[no-untyped-def]
    """Write a linear layer on the tokens at `places[start:end]` to `out`; the tokens are left in `tile.rows`."""
    width, padded = net.width, net.linears[layer].outputs
    gather(lanes, tile.tokens, places, start, end, tile.rows, width)
    invoke(kernels.product, BOUND, tile.rows, weight_of(net, layer), out, end - start, width, padded, 0)
    add_bias(out, bias_of(net, layer), 0, end - start, padded)


@inline
def linear_backward(lanes, kernels, net, tile, places, start, end, dout, layer, gradient):  # type: ignore[no-untyped-def]
    """Compute gradients of a linear layer on the tokens at `places[start:end]`: of weight, bias and x, from d(output)."""
    width = net.width
    gather(lanes, tile.tokens, places, start, end, tile.rows, width)
    rows_backward(kernels, net, tile, end - start, dout, layer, gradient)
    for number in range(start, end):
        add_row(lanes, tile.x, places[number] * width, tile.rows, (number - start) * width, width)


@inline
def rows_backward(kernels, net, tile, count, dout, layer, gradient):  # type: ignore[no-untyped-def]
    """Replace the rows in `tile.rows` by their gradient from a linear layer's, and add those of weight and bias."""
    padded, dweight = net.linears[layer].outputs, shifted(gradient, net.linears[layer].weight)
    invoke(kernels.outer, BOUND, tile.rows, dout, dweight, count, net.linears[layer].inputs, padded, tile.panel)
    add_rows(shifted(gradient, net.linears[layer].bias), dout, 0, count, padded)
    invoke(kernels.product, BOUND, dout, transposed(net, layer), tile.rows, count, padded, net.width, 0)


@inline
def queries_and_keys(lanes, kernels, net, action, batch, tile, low, high, start, end):  # type: ignore[no-untyped-def]
    """Write the queries of the actors `start:end` and the keys of the actees; returns the number of actees.

    Behind the last key stands a learned one, of nobody or of stopping, if the action has one.
    """
    padded = net.linears[action.layer].outputs
    offsets, indices = ints_at(action.actee_offsets), ints_at(action.actees)
    count = 0
    encoded = num_encoded(tile, high - low)
    for local in range(encoded):
        frame = batch.frames[low + tile.encoded[local]]
        tile.actee_starts[local] = count
        for source in range(offsets[frame], offsets[frame + 1]):
            tile.actee_tokens[count] = tile.offsets[local] + indices[source]
            count += 1
    tile.actee_starts[encoded] = count
    linear_of(lanes, kernels, net, tile, tile.actee_tokens, 0, count, action.layer + 1, tile.keys)
    if action.parameter >= 0:
        for k in range(padded):
            tile.keys[count * padded + k] = (
                net.parameters[action.parameter + k] if k < action.choices else np.float32(0)
            )
    linear_of(lanes, kernels, net, tile, tile.actor_tokens, start, end, action.layer, tile.queries)
    return count


@inline
def queries_and_keys_backward(lanes, kernels, net, action, tile, start, end, count, gradient):  # type: ignore[no-untyped-def]
    """Compute the gradient of `queries_and_keys` from d(queries), which stand in `tile.queries`, and `tile.dkeys`."""
    padded, direct = net.linears[action.layer].outputs, shifted(gradient, net.direct)
    for k in range(action.choices if action.parameter >= 0 else 0):
        direct[action.dparameter + k] += tile.dkeys[count * padded + k]
    linear_backward(lanes, kernels, net, tile, tile.actor_tokens, start, end, tile.queries, action.layer, gradient)
    linear_backward(lanes, kernels, net, tile, tile.actee_tokens, 0, count, tile.dkeys, action.layer + 1, gradient)


@inline
def first_pair(action, source, frame, num_actees):  # type: ignore[no-untyped-def]
    """The first of an actor's pairs, in the order of `Action.pair_offsets`."""
    return ints_at(action.pair_offsets)[frame] + (source - ints_at(action.actor_offsets)[frame]) * num_actees


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
        weight = exp_of(z)
        mass += weight
        mean += weight * z
        logits[at + c] = z
    log_mass = np.float32(math.log(mass))
    for c in range(count):
        logits[at + c] -= log_mass
    return log_mass - mean / mass


@inline
def exp_of(x):  # type: ignore[no-untyped-def]
    """Compute `exp` of one number."""
    return total(exp(spread(EIGHT, x))) * np.float32(0.125)


@inline
def slope_of(log_prob, chosen, dlog_prob, dentropy, entropy):  # type: ignore[no-untyped-def]
    """Compute the gradient of a logit: d log p(a) / dz_c = [c = a] - p_c,  dH / dz_c = -p_c (log p_c + H)."""
    p = exp_of(log_prob)
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
