"""Memory on a tile, forward and back: the steps of `rogue_net.memory`. A tile has whole sequences, in order of time.

`link` finds for every entity that remembers whom it goes on from, once for all frames; `embed` turns that into rows of a tile.
"""

from __future__ import annotations

import numpy as np

from rogue_net.kernels.cpu.blocks import add_outer
from rogue_net.kernels.cpu.calling import ints_at, invoke, shifted
from rogue_net.kernels.cpu.compiling import Const, Count, Floats, Ints, Table, inline, inner_kernel, kernel, value
from rogue_net.kernels.cpu.rows import add_row, clear
from rogue_net.kernels.cpu.simd import exp, load, minimum, spread, store
from rogue_net.kernels.cpu.tables import (
    BOUND,
    FROM_FIRST,
    FROM_STATE,
    FROM_TOKEN,
    NOTHING,
    EntityType,
    Kernels,
    Minibatch,
    Net,
    Tile,
    bias_of,
    transposed,
    weight_of,
)
from rogue_net.memory import FRAME


@kernel
def link(
    num_frames: Count,
    num_types: Count,
    types: Table[EntityType],
    before: Ints,
    known_offsets: Ints,
    known_types: Ints,
    known_ids: Ints,
    offsets: Ints,
    of_type: Ints,
    ids: Ints,
) -> None:
    """Number the entities that remember, and find whom each goes on from: `EntityType.remembered`, `previous` and `carried`.

    Args:
        num_frames: B.
        before: (B) the frame one step before, in the same episode; -1: there is none.
        known_offsets: (B + 1) of the state before each frame.
        known_types: (K) of the state, numbers of types.
        known_ids: (K) of the state.
        offsets: result, (B + 1) entities that remember.
        of_type: result, (M) their types.
        ids: result, (M).
    """
    count = 0
    for frame in range(num_frames):
        offsets[frame] = count
        earlier = before[frame]
        token = 0  # of the first entity of a type in the frame before
        known = known_offsets[frame]
        for number in range(num_types):
            row = types[number]
            places = ints_at(row.offsets)
            first, end = (places[earlier], places[earlier + 1]) if earlier >= 0 else (0, 0)
            if row.remembers:
                own = ints_at(row.memory_ids)
                remembered, previous, carried = ints_at(row.remembered), ints_at(row.previous), ints_at(row.carried)
                near = first  # entities mostly keep their order, so the next one is looked for behind the last
                for entity in range(places[frame], places[frame + 1]):
                    name = own[entity] if row.memory_ids != 0 else FRAME
                    previous[entity], carried[entity], remembered[entity] = -1, -1, -1
                    if name == -1:
                        continue
                    of_type[count], ids[count], remembered[entity] = row.number, name, count
                    count += 1
                    for step in range(end - first):
                        other = near + step if near + step < end else near + step - (end - first)
                        if row.memory_ids == 0 or own[other] == name:
                            previous[entity] = token + other - first
                            near = other + 1 if other + 1 < end else first
                            break
                    size = known_offsets[frame + 1] - known_offsets[frame]
                    for step in range(size):
                        other = known + step if known + step < known_offsets[frame + 1] else known + step - size
                        if known_ids[other] == name and known_types[other] == row.number:
                            carried[entity] = other
                            known = other + 1 if other + 1 < known_offsets[frame + 1] else known_offsets[frame]
                            break
            token += end - first
    offsets[num_frames] = count


@inline
def _origin(net, batch, tile, hidden, row):  # type: ignore[no-untyped-def]
    """The numbers that a token goes on from."""
    at = tile.origin_rows[row] * net.width
    if tile.origins[row] == FROM_TOKEN:
        return shifted(hidden, at)
    if tile.origins[row] == FROM_STATE:
        return shifted(batch.states, at)
    return shifted(net.parameters, net.first_states + at)


@inner_kernel
def remember(
    lanes: Const, kernels: Kernels, net: Net, batch: Minibatch, tile: Tile, rows: Count, has_bias: Count, bias: Floats
) -> None:
    """Send `tile.x` through the memory, after the bias that is still to be added to it.

    n = normalize(x);  z = sigmoid(n Wz');  c = n Wc';  h = h_before + z (c - h_before);  x += normalize(h) Wo'
    """
    width, gates, out, one = net.width, net.memory, net.memory + 1, spread(lanes, np.float32(1))
    each = tile.memory
    invoke(kernels.normalize, BOUND, BOUND, tile.x, has_bias, bias, rows, each.normalized, each.inverse_std)
    invoke(kernels.product, BOUND, each.normalized, weight_of(net, gates), each.gates, rows, width, 2 * width, 0)
    of_gate = bias_of(net, gates)
    of_candidate = shifted(of_gate, width)
    for row in range(rows):
        at, gate = row * width, 2 * row * width
        if tile.origins[row] == NOTHING:
            clear(each.hidden, at, width)
            continue
        before = _origin(net, batch, tile, each.hidden, row)
        for d in range(0, width, value(lanes)):
            x = load(lanes, each.gates, gate + d) + load(lanes, of_gate, d)
            z = one / (one + exp(minimum(spread(lanes, np.float32(80)), x * np.float32(-1))))
            c = load(lanes, each.gates, gate + width + d) + load(lanes, of_candidate, d)
            h = load(lanes, before, d)
            store(each.gates, gate + d, z)
            store(each.gates, gate + width + d, c)
            store(each.hidden, at + d, h + z * (c - h))
    invoke(kernels.normalize, BOUND, BOUND, each.hidden, 0, bias, rows, each.normalized2, each.inverse_std2)
    invoke(kernels.product, BOUND, each.normalized2, weight_of(net, out), tile.x, rows, width, width, 1)
    for row in range(rows):
        if tile.origins[row] != NOTHING:
            add_row(lanes, tile.x, row * width, bias_of(net, out), 0, width)


@inner_kernel
def remember_backward(
    lanes: Const, kernels: Kernels, net: Net, batch: Minibatch, tile: Tile, rows: Count, dbias: Floats, gradient: Floats
) -> None:
    """Send the gradient in `tile.x` back through the memory, and add those of its weights; `dbias`: of the bias added before it.

    Args:
        rows: tokens.
        dbias: (D).
        gradient: of the weights and, behind them, of other parameters.
    """
    width, gates, out, one = net.width, net.memory, net.memory + 1, spread(lanes, np.float32(1))
    each, dhidden, dgates, dnormalized = tile.memory, tile.dhidden, tile.dqkv, tile.tokens
    direct = shifted(gradient, net.direct)
    for row in range(rows):
        if tile.origins[row] != NOTHING:
            add_row(lanes, gradient, net.linears[out].bias, tile.x, row * width, width)
    add_outer(kernels, net, tile, each.normalized2, tile.x, gradient, out, rows)
    invoke(kernels.product, BOUND, tile.x, transposed(net, out), dnormalized, rows, width, width, 0)
    clear(dhidden, 0, rows * width)
    nowhere = shifted(dhidden, rows * width)  # of a bias that was not added
    clear(nowhere, 0, width)
    invoke(
        kernels.normalize_backward,
        BOUND,
        BOUND,
        dnormalized,
        each.normalized2,
        each.inverse_std2,
        rows,
        dhidden,
        nowhere,
    )
    for row in range(rows - 1, -1, -1):  # those that go on from a token come behind it
        at, gate = row * width, 2 * row * width
        if tile.origins[row] == NOTHING:
            clear(dgates, gate, 2 * width)
            continue
        before = _origin(net, batch, tile, each.hidden, row)
        place, origin = tile.origin_rows[row] * width, tile.origins[row]
        for d in range(0, width, value(lanes)):
            z, c = load(lanes, each.gates, gate + d), load(lanes, each.gates, gate + width + d)
            dh = load(lanes, dhidden, at + d)
            store(dgates, gate + d, dh * (c - load(lanes, before, d)) * z * (one - z))
            store(dgates, gate + width + d, dh * z)
            dbefore = dh * (one - z)
            if origin == FROM_TOKEN:
                store(dhidden, place + d, load(lanes, dhidden, place + d) + dbefore)
            elif origin == FROM_FIRST:
                to = net.dfirst_states + place + d
                store(direct, to, load(lanes, direct, to) + dbefore)
        add_row(lanes, gradient, net.linears[gates].bias, dgates, gate, 2 * width)
    add_outer(kernels, net, tile, each.normalized, dgates, gradient, gates, rows)
    invoke(kernels.product, BOUND, dgates, transposed(net, gates), dnormalized, rows, 2 * width, width, 0)
    invoke(
        kernels.normalize_backward, BOUND, BOUND, dnormalized, each.normalized, each.inverse_std, rows, tile.x, dbias
    )


@inline
def keep_states(net, batch, tile, number):  # type: ignore[no-untyped-def]
    """Write what the entities of a type remember to `batch.after`."""
    of_type = net.types[number]
    if of_type.remembers == 0:
        return
    remembered, width = ints_at(of_type.remembered), net.width
    for row in range(tile.type_rows[number], tile.type_rows[number + 1]):
        to, at = remembered[tile.sources[row]] * width, tile.places[row] * width
        if to >= 0:
            for d in range(width):
                batch.after[to + d] = tile.memory.hidden[at + d]
