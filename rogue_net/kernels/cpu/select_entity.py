"""The selection of an entity, or of nobody, on a tile: `rogue_net.heads.heads.SelectEntityHead`."""

from __future__ import annotations

import math

import numpy as np

from rogue_net.kernels.cpu.calling import flags_at, ints_at, invoke, shifted
from rogue_net.kernels.cpu.compiling import Const, Count, Floats, inline, inner_kernel, value
from rogue_net.kernels.cpu.heads import CLOSED, EIGHT, MASKED, linear_backward, log_softmax, noise_key, score, slope_of
from rogue_net.kernels.cpu.rows import add_bias, clear, gather
from rogue_net.kernels.cpu.simd import fma, load, spread, store, total
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
    """Write q · k / sqrt(K) for every actee of the actor's frame, normalized; nobody is the last choice."""
    action = net.actions[number]
    start, end = tile.action_actors[number], tile.action_actors[number + 1]
    count = _queries_and_keys(lanes, kernels, net, action, batch, tile, low, high, start, end)
    padded = net.linears[action.layer].outputs
    scale = np.float32(1) / np.float32(math.sqrt(np.float32(action.choices)))
    logits = shifted(tile.logits, action.logits)
    made, actees = ints_at(action.actions), ints_at(action.actees)
    actor_offsets, actee_offsets = ints_at(action.actor_offsets), ints_at(action.actee_offsets)
    pair_offsets, mask = ints_at(action.pair_offsets), flags_at(action.mask)
    has_nobody = action.parameter >= 0
    at = 0
    for actor in range(start, end):
        local, source = tile.actor_frames[actor], tile.actor_sources[actor]
        frame = batch.frames[low + local]
        first = tile.actee_starts[local]
        num_actees = tile.actee_starts[local + 1] - first
        choices = num_actees + 1 if has_nobody else num_actees
        pair = pair_offsets[frame] + (source - actor_offsets[frame]) * num_actees if action.mask != 0 else 0
        chosen, num_open = -1, 0
        for c in range(choices):
            is_nobody = c == num_actees
            is_open = is_nobody or action.mask == 0 or mask[pair + c] != 0
            key = (count if is_nobody else first + c) * padded
            product = np.float32(0)
            if is_open:
                num_open += 1
                sums = spread(EIGHT, np.float32(0))
                for k in range(0, padded, 8):
                    query = load(EIGHT, tile.queries, (actor - start) * padded + k)
                    sums = fma(query, load(EIGHT, tile.keys, key + k), sums)
                product = total(sums) * scale
            logits[at + c] = product if is_open else MASKED
            if choice.mode == GIVEN and _selected(actees, actee_offsets[frame], c, num_actees) == made[source]:
                chosen = c
        if action.taken >= 0:
            if source == actor_offsets[frame]:  # the first actor of the frame
                _clear_counts(tile.chains.times, num_actees)
            weight = net.parameters[action.taken_bias] + _dot(
                lanes, tile.tokens, tile.actor_tokens[actor] * net.width, net.parameters, action.taken, net.width
            )
            for c in range(num_actees):
                if logits[at + c] > CLOSED:
                    logits[at + c] += weight * np.float32(tile.chains.times[c])
        if num_open == 0:  # nobody, for certain
            tile.entropies[actor], tile.log_probs[actor] = np.float32(0), np.float32(0)
            if choice.mode != GIVEN:
                made[source] = -1
            for c in range(choices):
                logits[at + c] = MASKED
            at += choices
            continue
        tile.entropies[actor] = log_softmax(logits, at, choices)
        if choice.mode != GIVEN:
            key = noise_key(action, batch, tile, choice, low, actor)
            highest = np.float32(-np.inf)
            for c in range(choices):
                found = score(choice, key, logits[at + c], _selected(actees, actee_offsets[frame], c, num_actees))
                if found > highest and logits[at + c] > CLOSED:
                    chosen, highest = c, found
            made[source] = _selected(actees, actee_offsets[frame], chosen, num_actees) if chosen >= 0 else -1
        if action.taken >= 0 and chosen >= 0 and chosen < num_actees:
            tile.chains.times[chosen] += 1
        if chosen >= 0:
            tile.log_probs[actor] = logits[at + chosen]
        else:  # no choice stands for what was done; while acting, the logits are NaN
            tile.log_probs[actor] = np.float32(0) if choice.mode == GIVEN else tile.entropies[actor]
        at += choices


@inline
def _clear_counts(counts, number):  # type: ignore[no-untyped-def]
    """Make counts 0."""
    for k in range(number):
        counts[k] = 0


@inline
def _dot(lanes, x, at, y, to, width):  # type: ignore[no-untyped-def]
    products = spread(lanes, np.float32(0))
    for d in range(0, width, value(lanes)):
        products = fma(load(lanes, x, at + d), load(lanes, y, to + d), products)
    return total(products)


@inline
def _queries_and_keys(lanes, kernels, net, action, batch, tile, low, high, start, end):  # type: ignore[no-untyped-def]
    """Write the queries of the actors `start:end` and the keys of the actees, nobody's behind the last; returns their number."""
    width, layer = net.width, action.layer
    padded = net.linears[layer].outputs
    offsets, indices = ints_at(action.actee_offsets), ints_at(action.actees)
    count = 0
    for position in range(low, high):
        frame = batch.frames[position]
        tile.actee_starts[position - low] = count
        for source in range(offsets[frame], offsets[frame + 1]):
            tile.actee_tokens[count] = tile.offsets[position - low] + indices[source]
            count += 1
    tile.actee_starts[high - low] = count
    gather(lanes, tile.tokens, tile.actee_tokens, 0, count, tile.rows, width)
    invoke(kernels.product, BOUND, tile.rows, weight_of(net, layer + 1), tile.keys, count, width, padded, 0)
    add_bias(tile.keys, bias_of(net, layer + 1), 0, count, padded)
    if action.parameter >= 0:
        for k in range(padded):
            tile.keys[count * padded + k] = (
                net.parameters[action.parameter + k] if k < action.choices else np.float32(0)
            )
    gather(lanes, tile.tokens, tile.actor_tokens, start, end, tile.rows, width)
    invoke(kernels.product, BOUND, tile.rows, weight_of(net, layer), tile.queries, end - start, width, padded, 0)
    add_bias(tile.queries, bias_of(net, layer), 0, end - start, padded)
    return count


@inline
def _selected(actees, first, c, num_actees):  # type: ignore[no-untyped-def]
    """The action that a choice stands for: the index of an entity, or -1 for nobody."""
    return -1 if c == num_actees else actees[first + c]


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
    # queries and keys again: the next action has overwritten them
    count = _queries_and_keys(lanes, kernels, net, action, batch, tile, low, high, start, end)
    layer = action.layer
    padded = net.linears[layer].outputs
    scale = np.float32(1) / np.float32(math.sqrt(np.float32(action.choices)))
    logits = shifted(tile.logits, action.logits)
    made, actees = ints_at(action.actions), ints_at(action.actees)
    actor_offsets, actee_offsets = ints_at(action.actor_offsets), ints_at(action.actee_offsets)
    has_nobody = action.parameter >= 0
    clear(tile.dkeys, 0, (count + 1) * padded)
    at = 0
    for actor in range(start, end):
        local, source = tile.actor_frames[actor], tile.actor_sources[actor]
        frame = batch.frames[low + local]
        first = tile.actee_starts[local]
        num_actees = tile.actee_starts[local + 1] - first
        choices = num_actees + 1 if has_nobody else num_actees
        query = (actor - start) * padded
        clear(tile.rows, query, padded)
        dtaken = np.float32(0)
        if action.taken >= 0 and source == actor_offsets[frame]:
            _clear_counts(tile.chains.times, num_actees)
        dlog_prob = np.float32(0)  # unless a choice stands for what was done
        for c in range(choices):
            if _selected(actees, actee_offsets[frame], c, num_actees) == made[source]:
                dlog_prob = tile.dlog_probs[actor]
        for c in range(choices):
            is_nobody = c == num_actees
            if logits[at + c] <= CLOSED:
                continue
            selected = _selected(actees, actee_offsets[frame], c, num_actees)
            slope = slope_of(
                logits[at + c], selected == made[source], dlog_prob, tile.dentropies[actor], tile.entropies[actor]
            )
            if action.taken >= 0 and not is_nobody:
                dtaken += slope * np.float32(tile.chains.times[c])
            slope *= scale
            key = (count if is_nobody else first + c) * padded
            for k in range(0, padded, 8):
                dquery = fma(spread(EIGHT, slope), load(EIGHT, tile.keys, key + k), load(EIGHT, tile.rows, query + k))
                store(tile.rows, query + k, dquery)
                dkey = fma(spread(EIGHT, slope), load(EIGHT, tile.queries, query + k), load(EIGHT, tile.dkeys, key + k))
                store(tile.dkeys, key + k, dkey)
        if action.taken >= 0:
            _taken_backward(lanes, net, tile, action, tile.actor_tokens[actor] * net.width, dtaken, gradient)
            for c in range(num_actees):
                if actees[actee_offsets[frame] + c] == made[source]:
                    tile.chains.times[c] += 1
        at += choices
    for at in range(0, (end - start) * padded, 8):  # of the queries: `rows` is needed for tokens
        store(tile.queries, at, load(EIGHT, tile.rows, at))
    if has_nobody:
        direct = shifted(gradient, net.direct)
        for k in range(action.choices):
            direct[action.dparameter + k] += tile.dkeys[count * padded + k]
    linear_backward(lanes, kernels, net, tile, tile.actor_tokens, start, end, tile.queries, layer, gradient)
    linear_backward(lanes, kernels, net, tile, tile.actee_tokens, 0, count, tile.dkeys, layer + 1, gradient)


@inline
def _taken_backward(lanes, net, tile, action, at, slope, gradient):  # type: ignore[no-untyped-def]
    """Add the gradients of the weight of how often entities were selected before, and of the actor's token."""
    direct, each = shifted(gradient, net.direct), spread(lanes, slope)
    direct[action.dtaken_bias] += slope
    for d in range(0, net.width, value(lanes)):
        to = action.dtaken + d
        store(direct, to, fma(each, load(lanes, tile.tokens, at + d), load(lanes, direct, to)))
        weight = load(lanes, net.parameters, action.taken + d)
        store(tile.x, at + d, fma(each, weight, load(lanes, tile.x, at + d)))
