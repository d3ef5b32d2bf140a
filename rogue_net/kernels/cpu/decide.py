"""The heads on a tile, forward and back: values, and the actions of each kind by kernels of its own.

A kind of action has two kernels, whose addresses stand in the table of actions: `decide` writes log-probs, entropies and, while
acting, actions; `decide_backward` adds the gradients of its weights and that of `tile.tokens` to `tile.x`.
"""

from __future__ import annotations

import numpy as np

from rogue_net.kernels.cpu.calling import floats_at, ints_at, invoke, shifted
from rogue_net.kernels.cpu.compiling import Const, Count, Floats, inline, inner_kernel, value
from rogue_net.kernels.cpu.rows import clear
from rogue_net.kernels.cpu.simd import fma, load, spread, store, total
from rogue_net.kernels.cpu.tables import BOUND, GIVEN, Choice, Kernels, Minibatch, Net, Tile, num_encoded


@inner_kernel
def decide(
    lanes: Const,
    kernels: Kernels,
    net: Net,
    batch: Minibatch,
    tile: Tile,
    low: Count,
    high: Count,
    choice: Choice,
) -> None:
    """Write values of the frames, actions where they are not given, their log-probs, and entropies."""
    if net.has_value:
        for frame in range(num_encoded(tile, high - low)):
            value_of_frame = _value(lanes, net, tile, frame)
            for local in range(tile.encoded[frame], tile.encoded[frame + 1]):
                tile.values[local] = value_of_frame
    actor = 0
    tile.action_actors[0] = 0
    for number in range(net.num_actions):
        action = net.actions[number]
        start = actor
        offsets, indices = ints_at(action.actor_offsets), ints_at(action.actors)
        old = floats_at(action.log_probs)
        for position in range(low, high):
            frame = batch.frames[position]
            for source in range(offsets[frame], offsets[frame + 1]):
                tile.actor_tokens[actor] = tile.offsets[tile.encodings[position - low]] + indices[source]
                tile.actor_frames[actor] = position - low
                tile.actor_sources[actor] = source
                if choice.mode == GIVEN:
                    tile.old_log_probs[actor] = old[source]
                actor += 1
        tile.action_actors[number + 1] = actor
        if actor > start:
            by = kernels.decide_chained if action.reader >= 0 else action.decide
            invoke(by, BOUND, kernels, net, batch, tile, low, high, number, choice)


@inline
def _value(lanes, net, tile, frame):  # type: ignore[no-untyped-def]
    """Value mean + deviation (w · m + b) of the mean m of a frame's tokens, which is written to `tile.means`."""
    width = net.width
    first, end = tile.offsets[frame], tile.offsets[frame + 1]
    share = np.float32(1) / np.float32(max(end - first, 1))
    products = spread(lanes, np.float32(0))
    for d in range(0, width, value(lanes)):
        sums = spread(lanes, np.float32(0))
        for token in range(first, end):
            sums = sums + load(lanes, tile.tokens, token * width + d)
        mean = sums * share
        store(tile.means, frame * width + d, mean)
        products = fma(mean, load(lanes, net.parameters, net.value_weight + d), products)
    return net.value_mean + net.value_deviation * (total(products) + net.parameters[net.value_bias])


@inner_kernel
def decide_backward(
    lanes: Const, kernels: Kernels, net: Net, batch: Minibatch, tile: Tile, low: Count, high: Count, gradient: Floats
) -> None:
    """Write the gradient of `tile.tokens` to `tile.x`, and add those of the heads' weights."""
    encoded = num_encoded(tile, high - low)
    clear(tile.x, 0, tile.offsets[encoded] * net.width)
    if net.has_value:
        for frame in range(encoded):
            _value_backward(lanes, net, tile, frame, gradient)
    for number in range(net.num_actions - 1, -1, -1):  # a head may have read what those before it decided
        if tile.action_actors[number + 1] > tile.action_actors[number]:
            action = net.actions[number]
            by = kernels.decide_chained_backward if action.reader >= 0 else action.decide_backward
            invoke(by, BOUND, kernels, net, batch, tile, low, high, number, gradient)


@inline
def _value_backward(lanes, net, tile, frame, gradient):  # type: ignore[no-untyped-def]
    width, first, end = net.width, tile.offsets[frame], tile.offsets[frame + 1]
    slope = np.float32(0)
    for local in range(tile.encoded[frame], tile.encoded[frame + 1]):
        slope += tile.dvalues[local] * net.value_deviation
    direct = shifted(gradient, net.direct)
    direct[net.dvalue_bias] += slope
    of_each = slope / np.float32(max(end - first, 1))
    for d in range(0, width, value(lanes)):
        mean, to = load(lanes, tile.means, frame * width + d), net.dvalue_weight + d
        store(direct, to, fma(mean, spread(lanes, slope), load(lanes, direct, to)))
        dtoken = load(lanes, net.parameters, net.value_weight + d) * of_each
        for token in range(first, end):
            store(tile.x, token * width + d, load(lanes, tile.x, token * width + d) + dtoken)
