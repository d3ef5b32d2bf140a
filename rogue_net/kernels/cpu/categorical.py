"""Choices that are the same for every actor, on a tile: `rogue_net.heads.heads.CategoricalHead`."""

from __future__ import annotations

import numpy as np

from rogue_net.kernels.cpu.calling import flags_at, ints_at, invoke, shifted
from rogue_net.kernels.cpu.compiling import Const, Count, Floats, inner_kernel
from rogue_net.kernels.cpu.heads import MASKED, linear_backward, log_softmax, noise_key, score, slope_of
from rogue_net.kernels.cpu.rows import gather
from rogue_net.kernels.cpu.tables import BOUND, GIVEN, Choice, Kernels, Minibatch, Net, Tile, bias_of, weight_of


@inner_kernel
def decide(
    lanes: Const,
    kernels: Kernels,
    net: Net,
    batch: Minibatch,
    tile: Tile,
    low: Count,
    high: Count,
    number: Count,
    choice: Choice,
) -> None:
    """Write log-probs of all choices, of that which was made, and entropies."""
    action = net.actions[number]
    start, end = tile.action_actors[number], tile.action_actors[number + 1]
    layer, choices = action.layer, action.choices
    padded = net.linears[layer].outputs
    logits = shifted(tile.logits, action.logits * tile.room)
    bias, made = bias_of(net, layer), ints_at(action.actions)
    mask = flags_at(action.mask)
    gather(lanes, tile.tokens, tile.actor_tokens, start, end, tile.rows, net.width)
    invoke(kernels.product, BOUND, tile.rows, weight_of(net, layer), logits, end - start, net.width, padded, 0)
    for actor in range(start, end):
        at, source = (actor - start) * padded, tile.actor_sources[actor]
        num_open = 0
        for c in range(padded):
            is_open = c < choices and (action.mask == 0 or mask[source * choices + c] != 0)
            num_open += is_open
            logits[at + c] = logits[at + c] + bias[c] if is_open else MASKED
        if num_open == 0:  # there is no distribution
            logits[at] = np.float32(np.nan)
        tile.entropies[actor] = log_softmax(logits, at, padded)
        if choice.mode != GIVEN:
            key = noise_key(action, batch, tile, choice, low, actor)
            best, highest = 0, np.float32(-np.inf)
            for c in range(choices):
                found = score(choice, key, logits[at + c], c)
                if found > highest:
                    best, highest = c, found
            made[source] = best
        tile.log_probs[actor] = logits[at + made[source]]


@inner_kernel
def decide_backward(
    lanes: Const,
    kernels: Kernels,
    net: Net,
    batch: Minibatch,
    tile: Tile,
    low: Count,
    high: Count,
    number: Count,
    gradient: Floats,
) -> None:
    """Compute the gradient of `decide`."""
    action = net.actions[number]
    start, end = tile.action_actors[number], tile.action_actors[number + 1]
    layer, made = action.layer, ints_at(action.actions)
    padded = net.linears[layer].outputs
    logits = shifted(tile.logits, action.logits * tile.room)
    for actor in range(start, end):
        at, source = (actor - start) * padded, tile.actor_sources[actor]
        for c in range(padded):
            is_chosen = c == made[source]
            logits[at + c] = slope_of(
                logits[at + c], is_chosen, tile.dlog_probs[actor], tile.dentropies[actor], tile.entropies[actor]
            )
    linear_backward(lanes, kernels, net, tile, tile.actor_tokens, start, end, logits, layer, gradient)
