"""Chained actions on a tile, forward and back: the steps of `rogue_net.heads.chains`.

The head of a chained action is the kernel of its kind, as of any action: while it works, `tile.tokens` holds the tokens as they
are read together with the messages of earlier choices, and its mask lacks what these close. Actors in turn are all computed as
often as a frame has actors, to choose; given actions are judged in one pass. Where actors in turn select entities, which may be
actors too, rows behind the tokens hold the actors as they hear those before them: whoever is selected must not hear of it.
"""

from __future__ import annotations

import numpy as np

from rogue_net.kernels.cpu.blocks import add_outer
from rogue_net.kernels.cpu.calling import flags_at, floats_at, ints_at, invoke, shifted
from rogue_net.kernels.cpu.compiling import Const, Count, Floats, inline, inner_kernel, value
from rogue_net.kernels.cpu.continuous import bounds_at
from rogue_net.kernels.cpu.heads import first_pair, linear_backward, linear_of, rows_backward
from rogue_net.kernels.cpu.rows import add_bias, add_row, add_rows, add_scaled, clear
from rogue_net.kernels.cpu.simd import load, spread, store, where_positive
from rogue_net.kernels.cpu.tables import (
    BOUND,
    CHOICES,
    ENTITIES,
    GIVEN,
    Choice,
    Kernels,
    Minibatch,
    Net,
    Tile,
    bias_of,
    transposed,
    weight_of,
)


@inner_kernel
def decide_chained(
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
    """Decide an action after others, or its actors in turn; arguments as of the kernels of each kind."""
    action = net.actions[number]
    _close(net, batch, tile, low, high, number)
    passes = 1
    if action.in_turn and choice.mode != GIVEN:
        offsets = ints_at(action.actor_offsets)
        for position in range(low, high):
            frame = batch.frames[position]
            passes = max(passes, offsets[frame + 1] - offsets[frame])
    for turn in range(passes):
        with_own = action.in_turn != 0 and (choice.mode == GIVEN or turn > 0)
        _read(lanes, kernels, net, batch, tile, low, high, number, with_own)
        invoke(action.decide, BOUND, kernels, net, batch, tile, low, high, number, choice)
        _copy(lanes, tile.chains.plain, tile.tokens, tile.offsets[high - low] * net.width)
        _forget_own_rows(net, tile, number)


@inner_kernel
def decide_chained_backward(
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
    """Compute the gradient of `decide_chained`: add that of the tokens to `tile.x`."""
    action, each, width, num_tokens = net.actions[number], tile.chains, net.width, tile.offsets[high - low]
    layer, rows = action.reader, num_tokens + _num_own_rows(net, tile, number)
    size = rows * width
    _read(lanes, kernels, net, batch, tile, low, high, number, action.in_turn != 0)
    _copy(lanes, tile.x, each.dplain, num_tokens * width)
    clear(tile.x, 0, size)
    invoke(action.decide_backward, BOUND, kernels, net, batch, tile, low, high, number, gradient)
    _copy(lanes, each.plain, tile.tokens, num_tokens * width)
    # of the reader: tile.x is the gradient of the tokens as they were read
    dhidden, dboth = tile.dhidden, tile.dqkv
    add_outer(kernels, net, tile, each.hidden, tile.x, gradient, layer + 1, rows)
    add_rows(shifted(gradient, net.linears[layer + 1].bias), tile.x, 0, rows, width)
    invoke(kernels.product, BOUND, tile.x, transposed(net, layer + 1), dhidden, rows, width, width, 0)
    zeros = spread(lanes, np.float32(0))
    for at in range(0, size, value(lanes)):
        h = load(lanes, each.hidden, at)
        store(dhidden, at, where_positive(h * np.float32(-1), zeros, load(lanes, dhidden, at)))
    add_outer(kernels, net, tile, each.both, dhidden, gradient, layer, rows)
    add_rows(shifted(gradient, net.linears[layer].bias), dhidden, 0, rows, width)
    invoke(kernels.product, BOUND, dhidden, transposed(net, layer), dboth, rows, width, 2 * width, 0)
    for row in range(rows):
        at = row * width
        add_row(lanes, tile.x, at, dboth, 2 * at, width)
        for d in range(0, width, value(lanes)):
            store(each.messages, at + d, load(lanes, dboth, 2 * at + width + d))
    for at in range(0, num_tokens * width, width):
        add_row(lanes, tile.x, at, each.dplain, at, width)
    start = tile.action_actors[number]
    for k in range(rows - num_tokens):
        row, token = (num_tokens + k) * width, _token_of(action, tile, start + k) * width
        add_row(lanes, tile.x, token, tile.x, row, width)
        add_row(lanes, each.messages, token, each.messages, row, width)
    for k in range(action.num_links):
        earlier = net.links[action.first_link + k].earlier
        _tell_backward(lanes, kernels, net, batch, tile, low, high, number, earlier, gradient)
    if action.in_turn:
        _tell_backward(lanes, kernels, net, batch, tile, low, high, number, number, gradient)
    _forget_own_rows(net, tile, number)


@inline
def _copy(lanes, source, to, count):  # type: ignore[no-untyped-def]
    for at in range(0, count, value(lanes)):
        store(to, at, load(lanes, source, at))


# --- What a head reads


@inline
def _num_own_rows(net, tile, number):  # type: ignore[no-untyped-def]
    """The rows of an action's actors behind the tokens."""
    is_split = net.actions[number].in_turn != 0 and net.actions[number].kind == ENTITIES
    return tile.action_actors[number + 1] - tile.action_actors[number] if is_split else 0


@inline
def _token_of(action, tile, actor):  # type: ignore[no-untyped-def]
    """The token of an actor."""
    return tile.offsets[tile.actor_frames[actor]] + ints_at(action.actors)[tile.actor_sources[actor]]


@inline
def _forget_own_rows(net, tile, number):  # type: ignore[no-untyped-def]
    """Let the actors be at their tokens again."""
    start = tile.action_actors[number]
    for actor in range(start, start + _num_own_rows(net, tile, number)):
        tile.actor_tokens[actor] = _token_of(net.actions[number], tile, actor)


@inline
def _read(lanes, kernels, net, batch, tile, low, high, number, with_own):  # type: ignore[no-untyped-def]
    """Replace `tile.tokens` by x + W relu(V [x, m] + v) + w of the messages m, after a copy to `plain`."""
    action, each, width, rows = net.actions[number], tile.chains, net.width, tile.offsets[high - low]
    layer, start = action.reader, tile.action_actors[number]
    clear(each.messages, 0, rows * width)
    for k in range(action.num_links):
        _tell(lanes, kernels, net, batch, tile, low, high, number, net.links[action.first_link + k].earlier)
    for actor in range(start, start + _num_own_rows(net, tile, number)):
        token = tile.actor_tokens[actor] * width
        for d in range(0, width, value(lanes)):
            store(tile.tokens, rows * width + d, load(lanes, tile.tokens, token + d))
            store(each.messages, rows * width + d, load(lanes, each.messages, token + d))
        tile.actor_tokens[actor] = rows
        rows += 1
    if with_own:
        _tell(lanes, kernels, net, batch, tile, low, high, number, number)
    _copy(lanes, tile.tokens, each.plain, rows * width)
    for row in range(rows):
        at = row * width
        for d in range(0, width, value(lanes)):
            store(each.both, 2 * at + d, load(lanes, tile.tokens, at + d))
            store(each.both, 2 * at + width + d, load(lanes, each.messages, at + d))
    invoke(kernels.product, BOUND, each.both, weight_of(net, layer), each.hidden, rows, 2 * width, width, 0)
    bias, zeros = bias_of(net, layer), spread(lanes, np.float32(0))
    for at in range(0, rows * width, width):
        for d in range(0, width, value(lanes)):
            h = load(lanes, each.hidden, at + d) + load(lanes, bias, d)
            store(each.hidden, at + d, where_positive(h * np.float32(-1), zeros, h))
    invoke(kernels.product, BOUND, each.hidden, weight_of(net, layer + 1), tile.tokens, rows, width, width, 1)
    add_bias(tile.tokens, bias_of(net, layer + 1), 0, rows, width)


@inline
def _tell(lanes, kernels, net, batch, tile, low, high, number, earlier):  # type: ignore[no-untyped-def]
    """Add the messages of an action's choices, the action's own where its actors decide in turn, to those of the tokens."""
    action, each, width = net.actions[earlier], tile.chains, net.width
    start, end = tile.action_actors[earlier], tile.action_actors[earlier + 1]
    of_frames = number != earlier and (action.is_global != 0 or net.actions[number].is_global != 0)
    _messages(lanes, kernels, net, batch, tile, low, earlier)
    first = start
    while first < end:  # the actors of a frame
        frame, last = tile.actor_frames[first], first
        while last < end and tile.actor_frames[last] == frame:
            last += 1
        if of_frames:
            clear(each.sums, 0, width)
            for actor in range(first, last):
                add_row(lanes, each.sums, 0, each.told, (actor - start) * width, width)
            share = np.float32(1) / np.float32(last - first)
            for token in range(tile.offsets[frame], tile.offsets[frame + 1]):
                for d in range(0, width, value(lanes)):
                    at = token * width + d
                    store(each.messages, at, load(lanes, each.messages, at) + load(lanes, each.sums, d) * share)
        elif number == earlier:
            clear(each.sums, 0, width)
            for actor in range(first, last):
                add_row(lanes, each.messages, tile.actor_tokens[actor] * width, each.sums, 0, width)
                add_row(lanes, each.sums, 0, each.told, (actor - start) * width, width)
        else:
            for actor in range(first, last):
                add_row(
                    lanes, each.messages, tile.actor_tokens[actor] * width, each.told, (actor - start) * width, width
                )
        first = last
    if action.kind == ENTITIES and number != earlier and not of_frames:  # those who are selected are known as taken
        linear_of(lanes, kernels, net, tile, tile.actor_tokens, start, end, action.marks, each.told)
        for actor in range(start, end):
            for k in range(each.selections[actor - start], each.selections[actor - start + 1]):
                add_row(lanes, each.messages, each.selected[k] * width, each.told, (actor - start) * width, width)


@inline
def _messages(lanes, kernels, net, batch, tile, low, number):  # type: ignore[no-untyped-def]
    """Write the (A, D) messages of an action's actors to `told`, 0 for those that have selected nobody; and who is selected."""
    action, each, width = net.actions[number], tile.chains, net.width
    start, end = tile.action_actors[number], tile.action_actors[number + 1]
    if action.kind == CHOICES:
        made = ints_at(action.actions)
        for actor in range(start, end):
            at = action.told + _chosen(action, made[tile.actor_sources[actor]]) * width
            for d in range(0, width, value(lanes)):
                store(each.told, (actor - start) * width + d, load(lanes, net.parameters, at + d))
    elif action.kind == ENTITIES:
        _find_selected(batch, tile, low, action, start, end)
        _mean_selected(lanes, tile, width, end - start)
        invoke(kernels.product, BOUND, tile.rows, weight_of(net, action.told), each.told, end - start, width, width, 0)
        add_bias(each.told, bias_of(net, action.told), 0, end - start, width)
        for actor in range(end - start):
            if each.selections[actor] == each.selections[actor + 1]:
                clear(each.told, actor * width, width)
    else:
        inputs = _numbers(net, tile, action, start, end)
        depth = net.linears[action.told].inputs
        invoke(kernels.product, BOUND, inputs, weight_of(net, action.told), each.told, end - start, depth, width, 0)
        add_bias(each.told, bias_of(net, action.told), 0, end - start, width)


@inline
def _chosen(action, choice):  # type: ignore[no-untyped-def]
    """A given choice, within those of the action: nothing else may be read."""
    return min(max(choice, 0), action.choices - 1)


@inline
def _find_selected(batch, tile, low, action, start, end):  # type: ignore[no-untyped-def]
    """Write the tokens that each actor has selected to `selected`, within the actor's frame, and where they begin."""
    each, made, count = tile.chains, ints_at(action.actions), 0
    actees, actee_offsets = ints_at(action.actees), ints_at(action.actee_offsets)
    for actor in range(start, end):
        each.selections[actor - start] = count
        source, local = tile.actor_sources[actor], tile.actor_frames[actor]
        if action.per_pair:
            frame = batch.frames[low + local]
            first, num_actees = actee_offsets[frame], actee_offsets[frame + 1] - actee_offsets[frame]
            pair = first_pair(action, source, frame, num_actees)
            for c in range(num_actees):
                if made[pair + c] > 0:
                    each.selected[count] = tile.offsets[local] + actees[first + c]
                    count += 1
        elif made[source] >= 0:
            each.selected[count] = min(tile.offsets[local] + made[source], tile.offsets[local + 1] - 1)
            count += 1
    each.selections[end - start] = count


@inline
def _mean_selected(lanes, tile, width, count):  # type: ignore[no-untyped-def]
    """Write the mean of the tokens that each of `count` actors has selected to `tile.rows`; 0 where there are none."""
    each = tile.chains
    for actor in range(count):
        first, last = each.selections[actor], each.selections[actor + 1]
        clear(tile.rows, actor * width, width)
        for k in range(first, last):
            share = np.float32(1) / np.float32(last - first)
            add_scaled(lanes, tile.rows, actor * width, tile.tokens, each.selected[k] * width, share, width)


@inline
def _numbers(net, tile, action, start, end):  # type: ignore[no-untyped-def]
    """The numbers of a continuous action as its messages take them: those with two bounds are scaled to -1 to 1."""
    inputs, depth, values = tile.chains.inputs, net.linears[action.told].inputs, floats_at(action.actions)
    bounds = bounds_at(action.bounds)
    for actor in range(start, end):
        for k in range(depth):
            to = (actor - start) * depth + k
            inputs[to] = np.float32(0)
            if k < action.choices:
                number = values[tile.actor_sources[actor] * action.choices + k]
                if bounds[k].both != 0:
                    number = (number - bounds[k].center) / bounds[k].radius
                inputs[to] = number
    return inputs


@inline
def _tell_backward(lanes, kernels, net, batch, tile, low, high, number, earlier, gradient):  # type: ignore[no-untyped-def]
    """Add the gradients of an action's messages, from that in `messages`: of the modules that make them, and of the tokens."""
    action, each, width = net.actions[earlier], tile.chains, net.width
    start, end = tile.action_actors[earlier], tile.action_actors[earlier + 1]
    of_frames = number != earlier and (action.is_global != 0 or net.actions[number].is_global != 0)
    if end == start:
        return
    if action.kind == ENTITIES:
        _find_selected(batch, tile, low, action, start, end)
        if number != earlier and not of_frames:
            for actor in range(end - start):
                clear(each.told, actor * width, width)
                for k in range(each.selections[actor], each.selections[actor + 1]):
                    add_row(lanes, each.told, actor * width, each.messages, each.selected[k] * width, width)
            linear_backward(lanes, kernels, net, tile, tile.actor_tokens, start, end, each.told, action.marks, gradient)
    # of each actor's message
    last = end
    while last > start:
        frame, first = tile.actor_frames[last - 1], last - 1
        while first > start and tile.actor_frames[first - 1] == frame:
            first -= 1
        clear(each.sums, 0, width)
        if of_frames:
            share = np.float32(1) / np.float32(last - first)
            for token in range(tile.offsets[frame], tile.offsets[frame + 1]):
                for d in range(0, width, value(lanes)):
                    part = load(lanes, each.messages, token * width + d) * share
                    store(each.sums, d, load(lanes, each.sums, d) + part)
        for actor in range(last - 1, first - 1, -1):
            to, at = (actor - start) * width, tile.actor_tokens[actor] * width
            clear(each.told, to, width)
            if of_frames or number == earlier:
                add_row(lanes, each.told, to, each.sums, 0, width)
                if not of_frames:
                    add_row(lanes, each.sums, 0, each.messages, at, width)
            else:
                add_row(lanes, each.told, to, each.messages, at, width)
        last = first
    if action.kind == CHOICES:
        made, direct = ints_at(action.actions), shifted(gradient, net.direct)
        for actor in range(start, end):
            to = action.dtold + _chosen(action, made[tile.actor_sources[actor]]) * width
            add_row(lanes, direct, to, each.told, (actor - start) * width, width)
    elif action.kind == ENTITIES:
        for actor in range(end - start):
            if each.selections[actor] == each.selections[actor + 1]:
                clear(each.told, actor * width, width)
        _mean_selected(lanes, tile, width, end - start)
        rows_backward(kernels, net, tile, end - start, each.told, action.told, gradient)
        for actor in range(end - start):
            first, last = each.selections[actor], each.selections[actor + 1]
            for k in range(first, last):
                share = np.float32(1) / np.float32(last - first)
                add_scaled(lanes, tile.x, each.selected[k] * width, tile.rows, actor * width, share, width)
    else:
        inputs = _numbers(net, tile, action, start, end)
        add_outer(kernels, net, tile, inputs, each.told, gradient, action.told, end - start)
        add_rows(shifted(gradient, net.linears[action.told].bias), each.told, 0, end - start, width)


# --- What earlier choices close


@inline
def _close(net, batch, tile, low, high, number):  # type: ignore[no-untyped-def]
    """Write the mask of a categorical action: what the frame leaves open, and earlier choices do not close."""
    action = net.actions[number]
    if action.open == 0:
        return
    start, end, choices = tile.action_actors[number], tile.action_actors[number + 1], action.choices
    is_open, own = flags_at(action.mask), flags_at(action.open)
    for actor in range(start, end):
        source = tile.actor_sources[actor] * choices
        for c in range(choices):
            is_open[source + c] = own[source + c]
    for k in range(action.num_links):
        link = net.links[action.first_link + k]
        if link.table == 0 and (k != action.selection or action.after_offsets == 0):
            continue
        earlier = net.actions[link.earlier]
        made, table = ints_at(earlier.actions), flags_at(link.table)
        _find_actors(net, tile, high - low, link.earlier)
        for actor in range(start, end):
            source, frame = tile.actor_sources[actor], tile.actor_frames[actor]
            by = tile.chains.actor_of[tile.offsets[frame] if earlier.is_global else tile.actor_tokens[actor]]
            if by < 0:
                continue
            chosen = made[tile.actor_sources[by]]
            if link.table != 0:
                for c in range(choices):
                    if table[_chosen(earlier, chosen) * choices + c] == 0:
                        is_open[source * choices + c] = 0
            elif chosen >= 0:
                _close_after_selection(batch, tile, low, action, earlier, is_open, source, frame, chosen)


@inline
def _close_after_selection(batch, tile, low, action, earlier, is_open, source, frame, chosen):  # type: ignore[no-untyped-def]
    """Close what `mask_after` closes to an actor that has selected an entity."""
    number, choices = batch.frames[low + frame], action.choices
    rows, values = ints_at(action.after_offsets), flags_at(action.after_mask)
    if rows[number + 1] == rows[number]:
        return
    actees, offsets = ints_at(earlier.actees), ints_at(earlier.actee_offsets)
    first, end = offsets[number], offsets[number + 1]
    rank = source - ints_at(action.actor_offsets)[number]
    for place in range(first, end):
        if actees[place] == chosen:
            at = (rows[number] + rank * (end - first) + place - first) * choices
            for c in range(choices):
                if values[at + c] == 0:
                    is_open[source * choices + c] = 0


@inline
def _find_actors(net, tile, frames, number):  # type: ignore[no-untyped-def]
    """Write the actor of an action that each token is; of a global action, on the first token of each frame."""
    actor_of = tile.chains.actor_of
    for token in range(tile.offsets[frames]):
        actor_of[token] = -1
    for actor in range(tile.action_actors[number], tile.action_actors[number + 1]):
        if net.actions[number].is_global:
            actor_of[tile.offsets[tile.actor_frames[actor]]] = actor
        else:
            actor_of[tile.actor_tokens[actor]] = actor
