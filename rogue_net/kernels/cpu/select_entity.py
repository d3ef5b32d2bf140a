"""The selection of an entity, or of nobody, on a tile: `rogue_net.heads.heads.SelectEntityHead`."""

from __future__ import annotations

import math

import numpy as np

from rogue_net.kernels.cpu.calling import flags_at, ints_at, shifted
from rogue_net.kernels.cpu.compiling import Const, Count, Floats, inline, inner_kernel
from rogue_net.kernels.cpu.heads import (
    CLOSED,
    EIGHT,
    MASKED,
    first_pair,
    log_softmax,
    noise_key,
    queries_and_keys,
    queries_and_keys_backward,
    score,
    slope_of,
)
from rogue_net.kernels.cpu.rows import add_scaled, clear, product_of
from rogue_net.kernels.cpu.simd import load, store
from rogue_net.kernels.cpu.tables import GIVEN, Choice, Kernels, Minibatch, Net, Tile


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
    count = queries_and_keys(lanes, kernels, net, action, batch, tile, low, high, start, end)
    padded = net.linears[action.layer].outputs
    scale = np.float32(1) / np.float32(math.sqrt(np.float32(action.choices)))
    logits = shifted(tile.logits, action.logits * tile.room)
    made, actees = ints_at(action.actions), ints_at(action.actees)
    actor_offsets, actee_offsets = ints_at(action.actor_offsets), ints_at(action.actee_offsets)
    mask, has_nobody = flags_at(action.mask), action.parameter >= 0
    at = 0
    for actor in range(start, end):
        local, source = tile.actor_frames[actor], tile.actor_sources[actor]
        frame = batch.frames[low + local]
        encoded = tile.encodings[local]
        first = tile.actee_starts[encoded]
        num_actees = tile.actee_starts[encoded + 1] - first
        choices = num_actees + 1 if has_nobody else num_actees
        pair = first_pair(action, source, frame, num_actees) if action.mask != 0 else 0
        chosen, num_open = -1, 0
        for c in range(choices):
            is_nobody = c == num_actees
            is_open = is_nobody or action.mask == 0 or mask[pair + c] != 0
            key = (count if is_nobody else first + c) * padded
            product = np.float32(0)
            if is_open:
                num_open += 1
                product = scale * product_of(EIGHT, tile.queries, (actor - start) * padded, tile.keys, key, padded)
            logits[at + c] = product if is_open else MASKED
            if choice.mode == GIVEN and _selected(actees, actee_offsets[frame], c, num_actees) == made[source]:
                chosen = c
        if action.taken >= 0:
            if source == actor_offsets[frame]:  # the first actor of the frame
                _clear_counts(tile.chains.times, num_actees)
            weight = net.parameters[action.taken_bias] + product_of(
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
    count = queries_and_keys(lanes, kernels, net, action, batch, tile, low, high, start, end)
    padded = net.linears[action.layer].outputs
    scale = np.float32(1) / np.float32(math.sqrt(np.float32(action.choices)))
    logits = shifted(tile.logits, action.logits * tile.room)
    made, actees = ints_at(action.actions), ints_at(action.actees)
    actor_offsets, actee_offsets = ints_at(action.actor_offsets), ints_at(action.actee_offsets)
    has_nobody = action.parameter >= 0
    clear(tile.dkeys, 0, (count + 1) * padded)
    at = 0
    for actor in range(start, end):
        local, source = tile.actor_frames[actor], tile.actor_sources[actor]
        frame = batch.frames[low + local]
        encoded = tile.encodings[local]
        first = tile.actee_starts[encoded]
        num_actees = tile.actee_starts[encoded + 1] - first
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
            add_scaled(EIGHT, tile.rows, query, tile.keys, key, slope, padded)
            add_scaled(EIGHT, tile.dkeys, key, tile.queries, query, slope, padded)
        if action.taken >= 0:
            _taken_backward(lanes, net, tile, action, tile.actor_tokens[actor] * net.width, dtaken, gradient)
            for c in range(num_actees):
                if actees[actee_offsets[frame] + c] == made[source]:
                    tile.chains.times[c] += 1
        at += choices
    for at in range(0, (end - start) * padded, 8):  # of the queries: `rows` is needed for tokens
        store(tile.queries, at, load(EIGHT, tile.rows, at))
    queries_and_keys_backward(lanes, kernels, net, action, tile, start, end, count, gradient)


@inline
def _taken_backward(lanes, net, tile, action, at, slope, gradient):  # type: ignore[no-untyped-def]
    """Add the gradients of the weight of how often entities were selected before, and of the actor's token."""
    direct = shifted(gradient, net.direct)
    direct[action.dtaken_bias] += slope
    add_scaled(lanes, direct, action.dtaken, tile.tokens, at, slope, net.width)
    add_scaled(lanes, tile.x, at, net.parameters, action.taken, slope, net.width)
