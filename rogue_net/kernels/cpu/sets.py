"""Selections of sets of entities on a tile: `rogue_net.heads.sets.IndependentSetHead`, without limits, and `OrderedSetHead`.

Shapes: n actees of an actor, K width of queries and keys, padded.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from rogue_net.heads.sets import DRAWS_OF_PICK, LARGEST_SCORE
from rogue_net.kernels.cpu.calling import flags_at, floats_at, ints_at, shifted
from rogue_net.kernels.cpu.compiling import Const, Count, Floats, inline, inner_kernel
from rogue_net.kernels.cpu.heads import (
    CLOSED,
    EIGHT,
    MASKED,
    exp_of,
    first_pair,
    linear_backward,
    linear_of,
    noise_key,
    queries_and_keys,
    queries_and_keys_backward,
    score,
)
from rogue_net.kernels.cpu.rows import add_row, add_scaled, clear, product_of
from rogue_net.kernels.cpu.simd import exp, first_lanes, fma, largest, load, maximum, minimum, spread, store, total
from rogue_net.kernels.cpu.tables import GIVEN, Choice, Kernels, Minibatch, Net, Tile

ONE, LARGEST = np.float32(1), np.float32(LARGEST_SCORE)


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
    """Write sets, where they are not given, and sums over the decisions on the way to them: log-probs and entropies."""
    action = net.actions[number]
    start, end = tile.action_actors[number], tile.action_actors[number + 1]
    count = queries_and_keys(lanes, kernels, net, action, batch, tile, low, high, start, end)
    if action.ordered:
        _write_seen(lanes, kernels, net, action, tile, count)
    logits = shifted(tile.logits, action.logits * tile.room)
    for actor in range(start, end):
        own = _own(net, action, batch, tile, low, start, actor, count)
        key = noise_key(action, batch, tile, choice, low, actor)
        if action.ordered:
            found = _pick(net, action, tile, choice, key, own, logits)
        else:
            found = _choose(action, tile, choice, key, own, logits)
            logits = shifted(logits, own.count)
        tile.log_probs[actor], tile.entropies[actor] = found


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
    action, sets = net.actions[number], tile.sets
    start, end = tile.action_actors[number], tile.action_actors[number + 1]
    # queries and keys again: the next action has overwritten them
    count = queries_and_keys(lanes, kernels, net, action, batch, tile, low, high, start, end)
    width, layer = net.linears[action.layer].outputs, action.layer
    clear(tile.dkeys, 0, (count + 1) * width)
    if action.ordered:
        _write_seen(lanes, kernels, net, action, tile, count)
        for gradients in (sets.dfirst, sets.dlast, sets.deach):
            clear(gradients, 0, count * width)
    logits = shifted(tile.logits, action.logits * tile.room)
    for actor in range(start, end):
        own = _own(net, action, batch, tile, low, start, actor, count)
        clear(tile.rows, 0, width)
        if action.ordered:
            _pick_backward(net, action, tile, own, actor, logits, gradient)
        else:
            _choose_backward(action, tile, own, actor, logits)
            logits = shifted(logits, own.count)
        clear(tile.queries, own.query, width)
        add_row(EIGHT, tile.queries, own.query, tile.rows, 0, width)
    queries_and_keys_backward(lanes, kernels, net, action, tile, start, end, count, gradient)
    if action.ordered:
        linear_backward(lanes, kernels, net, tile, tile.actee_tokens, 0, count, sets.dfirst, layer + 2, gradient)
        linear_backward(lanes, kernels, net, tile, tile.actee_tokens, 0, count, sets.dlast, layer + 3, gradient)
        linear_backward(lanes, kernels, net, tile, tile.actee_tokens, 0, count, sets.deach, layer + 4, gradient)


class Own(NamedTuple):
    """What belongs to an actor."""

    source: Any  # the actor among all of its action
    query: Any  # place of its query
    keys: Any  # place of its first key
    stop: Any  # place of the key of stopping
    actee: Any  # number of its first actee among all of the action
    pair: Any  # number of its first pair
    count: Any  # n
    width: Any  # K
    scale: Any  # 1 / sqrt(K), not padded


@inline
def _own(net, action, batch, tile, low, start, actor, count):  # type: ignore[no-untyped-def]
    source, local, width = tile.actor_sources[actor], tile.actor_frames[actor], net.linears[action.layer].outputs
    frame, encoded = batch.frames[low + local], tile.encodings[local]
    first = tile.actee_starts[encoded]
    num_actees = tile.actee_starts[encoded + 1] - first
    pair, actee = first_pair(action, source, frame, num_actees), ints_at(action.actee_offsets)[frame]
    scale = ONE / np.float32(math.sqrt(np.float32(action.choices)))
    return Own(source, (actor - start) * width, first * width, count * width, actee, pair, num_actees, width, scale)


@inline
def _is_open(action, pair):  # type: ignore[no-untyped-def]
    return action.mask == 0 or flags_at(action.mask)[pair] != 0


# --- Each actee by itself


@inline
def _choose(action, tile, choice, key, own, logits):  # type: ignore[no-untyped-def]
    """Put each open actee into the set with probability sigmoid(z); returns the log-prob and the entropy."""
    made, actees = ints_at(action.actions), ints_at(action.actees)
    log_prob, entropy = np.float32(0), np.float32(0)
    for c in range(own.count):
        product = product_of(EIGHT, tile.queries, own.query, tile.keys, own.keys + c * own.width, own.width)
        logits[c] = product * own.scale if _is_open(action, own.pair + c) else MASKED
        into, out = _log_sigmoid(logits[c]), _log_sigmoid(-logits[c])
        if choice.mode != GIVEN:
            entity = actees[own.actee + c]
            made[own.pair + c] = score(choice, key, into, 2 * entity + 1) > score(choice, key, out, 2 * entity)
        log_prob += into if made[own.pair + c] > 0 else out
        entropy -= exp_of(into) * into + exp_of(out) * out
    return log_prob, entropy


@inline
def _choose_backward(action, tile, own, actor, logits):  # type: ignore[no-untyped-def]
    """Add the gradient of the query to `tile.rows`, and those of keys: d log p / dz = [chosen] - p, dH / dz = -z p (1 - p)."""
    made = ints_at(action.actions)
    for c in range(own.count):
        z, key = logits[c], own.keys + c * own.width
        if z > CLOSED:
            p = exp_of(_log_sigmoid(z))
            chosen = np.float32(made[own.pair + c] > 0)
            slope = (chosen - p) * tile.dlog_probs[actor] - z * p * (ONE - p) * tile.dentropies[actor]
            add_scaled(EIGHT, tile.rows, 0, tile.keys, key, slope * own.scale, own.width)
            add_scaled(EIGHT, tile.dkeys, key, tile.queries, own.query, slope * own.scale, own.width)


@inline
def _log_sigmoid(z):  # type: ignore[no-untyped-def]
    return min(z, np.float32(0)) - np.float32(math.log1p(exp_of(-abs(z))))


# --- One actee after the other


@inline
def _write_seen(lanes, kernels, net, action, tile, count):  # type: ignore[no-untyped-def]
    """Write what queries see of actees that were picked."""
    tokens, sets = tile.actee_tokens, tile.sets
    linear_of(lanes, kernels, net, tile, tokens, 0, count, action.layer + 2, sets.first)
    linear_of(lanes, kernels, net, tile, tokens, 0, count, action.layer + 3, sets.last)
    linear_of(lanes, kernels, net, tile, tokens, 0, count, action.layer + 4, sets.each)


@inline
def _pick(net, action, tile, choice, key, own, logits):  # type: ignore[no-untyped-def]
    """Pick actees until stopping is picked; returns the log-prob and the entropy."""
    made, actees, columns = ints_at(action.actions), ints_at(action.actees), tile.sets.columns
    log_prob, entropy = np.float32(0), np.float32(0)
    remains = _budget(action, own)
    for c in range(own.count if choice.mode != GIVEN else 0):
        made[own.pair + c] = 0
    for pick in range(own.count + 1):
        chosen, found, count = _ask(net, action, tile, own, pick, remains, logits)
        entropy += _log_softmax(logits, count)
        if choice.mode != GIVEN:
            highest = np.float32(-np.inf)
            for k in range(count):
                entity = actees[own.actee + columns[k]] if columns[k] < own.count else -1
                scored = score(choice, key, logits[k], entity + pick * DRAWS_OF_PICK)
                if scored > highest:
                    chosen, found, highest = columns[k], k, scored
        log_prob += logits[found] if found >= 0 else MASKED
        if chosen == own.count:
            break
        if choice.mode != GIVEN:
            made[own.pair + chosen] = pick + 1
        remains = _take(action, tile, own, pick, chosen, remains)
    return log_prob, entropy


@inline
def _pick_backward(net, action, tile, own, actor, logits, gradient):  # type: ignore[no-untyped-def]
    """Pick the set again, and add the gradient of the query to `tile.rows`, and all others."""
    sets, width, direct = tile.sets, own.width, shifted(gradient, net.direct)
    dlog_prob, dentropy = tile.dlog_probs[actor], tile.dentropies[actor]
    remains, pick = _budget(action, own), 0
    for pick in range(own.count + 1):
        chosen, found, count = _ask(net, action, tile, own, pick, remains, logits)
        entropy = _log_softmax(logits, count)
        for k in range(0, count, 8):  # d log p(a) / dz_c = [c = a] - p_c,  dH / dz_c = -p_c (log p_c + H)
            log_p, slopes = load(EIGHT, logits, k), load(EIGHT, sets.slopes, k)
            p = exp(log_p)
            store(logits, k, (p * np.float32(-1) * dlog_prob - p * (log_p + entropy) * dentropy) * slopes)
        if found >= 0:
            logits[found] += dlog_prob * sets.slopes[found]
        at = pick * width
        clear(sets.dqueries, at, width)
        for k in range(count):
            key = _key(own, sets.columns[k])
            add_scaled(EIGHT, sets.dqueries, at, tile.keys, key, logits[k], width)
            add_scaled(EIGHT, tile.dkeys, key, sets.query, 0, logits[k], width)
        if action.costs != 0:
            left = _share_left(action, own, remains)
            for k in range(action.choices):
                direct[action.dleft + k] += left * sets.dqueries[at + k]
                direct[action.dleft_bias + k] += sets.dqueries[at + k]
        if chosen == own.count:
            break
        remains = _take(action, tile, own, pick, chosen, remains)
    clear(sets.sums, 0, width)
    for later in range(pick, 0, -1):  # the picks that see the one before
        taken = own.keys + sets.order[later - 1] * width
        add_row(EIGHT, sets.dlast, taken, sets.dqueries, later * width, width)
        add_row(EIGHT, sets.sums, 0, sets.dqueries, later * width, width)
        add_scaled(EIGHT, sets.deach, taken, sets.sums, 0, ONE / np.float32(own.count), width)
    if pick > 0:
        add_row(EIGHT, sets.dfirst, own.keys + sets.order[0] * width, sets.sums, 0, width)
    add_row(EIGHT, tile.rows, 0, sets.sums, 0, width)
    add_row(EIGHT, tile.rows, 0, sets.dqueries, 0, width)


@inline
def _ask(net, action, tile, own, pick, remains, logits):  # type: ignore[no-untyped-def]
    """Write what a pick may choose to `Sets.columns`, and the logits; returns what is given, where it stands, and their number.

    Where what is given may not be chosen, it stands at -1.
    """
    sets, width = tile.sets, own.width
    for k in range(0, width, 8):
        query = load(EIGHT, tile.queries, own.query + k)
        if pick > 0:
            last = own.keys + sets.order[pick - 1] * width
            query = query + load(EIGHT, sets.last, last + k) + load(EIGHT, sets.sums, k) / np.float32(own.count)
        store(sets.query, k, query)
    if action.costs != 0:
        left = _share_left(action, own, remains)
        for k in range(action.choices):
            sets.query[k] += net.parameters[action.left + k] * left + net.parameters[action.left_bias + k]
    made, costs, chosen, found, count, some = ints_at(action.actions), floats_at(action.costs), own.count, -1, 0, False
    for c in range(own.count):
        place = made[own.pair + c]
        is_open = (place <= 0 or place > pick) and _is_open(action, own.pair + c)
        if action.costs != 0:  # a given pick beyond the budget could be made
            is_open = is_open and (costs[own.actee + c] <= remains or place == pick + 1)
        if place == pick + 1:
            chosen = c
        some = some or is_open
        if is_open and (action.most < 0 or pick < action.most):
            sets.columns[count] = c
            found = count if chosen == c else found
            count += 1
    if not some or pick >= action.least:
        sets.columns[count] = own.count
        found = count if chosen == own.count else found
        count += 1
    for k in range(count):
        logits[k] = product_of(EIGHT, sets.query, 0, tile.keys, _key(own, sets.columns[k]), width)
    for k in range(0, count, 8):
        # z = 10 tanh(x) with tanh(x) = 1 - 2 / (exp(2 x) + 1)
        x = load(EIGHT, logits, k) * (own.scale * np.float32(2))
        t = spread(EIGHT, ONE) - spread(EIGHT, np.float32(2)) / (exp(minimum(spread(EIGHT, np.float32(80)), x)) + ONE)
        store(logits, k, t * LARGEST)
        store(sets.slopes, k, (spread(EIGHT, ONE) - t * t) * (LARGEST * own.scale))
    return chosen, found, count


@inline
def _key(own, column):  # type: ignore[no-untyped-def]
    """The place of a choice's key."""
    return own.keys + column * own.width if column < own.count else own.stop


@inline
def _log_softmax(logits, count):  # type: ignore[no-untyped-def]
    """Replace logits by log-probabilities, up to a multiple of 8; returns their entropy."""
    masked, last = spread(EIGHT, MASKED), (count - 1) // 8 * 8
    store(logits, last, first_lanes(count - last, load(EIGHT, logits, last), masked))
    highest = masked
    for k in range(0, count, 8):
        highest = maximum(highest, load(EIGHT, logits, k))
    most = largest(highest)
    masses, means = spread(EIGHT, np.float32(0)), spread(EIGHT, np.float32(0))  # Σ exp(z), Σ exp(z) z
    for k in range(0, count, 8):
        z = load(EIGHT, logits, k) - most
        weights = exp(z)
        masses, means = masses + weights, fma(weights, z, means)
        store(logits, k, z)
    mass = total(masses)
    log_mass = np.float32(math.log(mass))
    for k in range(0, count, 8):
        store(logits, k, load(EIGHT, logits, k) - log_mass)
    return log_mass - total(means) / mass


@inline
def _take(action, tile, own, pick, chosen, remains):  # type: ignore[no-untyped-def]
    """Let the queries that follow see a pick; returns what it leaves of the budget."""
    sets, taken = tile.sets, own.keys + chosen * own.width
    sets.order[pick] = chosen
    if pick == 0:
        clear(sets.sums, 0, own.width)
        add_row(EIGHT, tile.queries, own.query, sets.first, taken, own.width)
    add_row(EIGHT, sets.sums, 0, sets.each, taken, own.width)
    return remains - floats_at(action.costs)[own.actee + chosen] if action.costs != 0 else remains


@inline
def _budget(action, own):  # type: ignore[no-untyped-def]
    """The actor's budget, in float64: sums of costs are exact, in any order."""
    return np.float64(floats_at(action.budgets)[own.source]) if action.costs != 0 else 0.0


@inline
def _share_left(action, own, remains):  # type: ignore[no-untyped-def]
    """The share of the budget that is left; 0 if the given picks were dearer."""
    return np.float32(min(max(remains / max(_budget(action, own), 1e-6), 0.0), 1.0))
