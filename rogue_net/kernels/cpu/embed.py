"""The embedding of a tile's entities, forward and back: the steps of `rogue_net.inputs.embedding`."""

from __future__ import annotations

import math

import numpy as np

from rogue_net.kernels.cpu.calling import flags_at, floats_at, ints_at, invoke, shifted
from rogue_net.kernels.cpu.compiling import Const, Count, Floats, inline, inner_kernel, value
from rogue_net.kernels.cpu.dense import ROWS
from rogue_net.kernels.cpu.elementwise import EPSILON
from rogue_net.kernels.cpu.rows import add_row
from rogue_net.kernels.cpu.simd import fma, load, spread, store, total, where_positive
from rogue_net.kernels.cpu.tables import (
    BOUND,
    FROM_FIRST,
    FROM_STATE,
    FROM_TOKEN,
    NOTHING,
    Kernels,
    Minibatch,
    Net,
    Tile,
    bias_of,
    num_encoded,
    weight_of,
)


@inner_kernel
def embed(lanes: Const, kernels: Kernels, net: Net, batch: Minibatch, tile: Tile, low: Count, high: Count) -> None:
    """Write the tokens of the frames `low:high` of the minibatch to `tile.x`.

    token = LayerNorm(ReLU(W x + b + Σ_c table_c[id_c])), or for a type without features its vector.
    """
    width, encoded = net.width, num_encoded(tile, high - low)
    for local in range(encoded):
        tile.next[local] = tile.offsets[local]
    row = 0
    for number in range(net.num_types):
        of_type = net.types[number]
        offsets, stride = ints_at(of_type.offsets), of_type.stride
        values = floats_at(of_type.inputs)
        tile.type_rows[number] = start = row
        for local in range(encoded):
            position = low + tile.encoded[local]
            frame = batch.frames[position]
            token = tile.next[local]
            for entity in range(offsets[frame], offsets[frame + 1]):
                tile.places[row] = token
                tile.sources[row] = entity
                if batch.hides:
                    tile.visible[token] = flags_at(of_type.visible)[entity] if of_type.visible else 1
                if net.memory >= 0:
                    _place_memory(batch, tile, of_type, position, low, entity, token)
                row += 1
                token += 1
            tile.next[local] = token
        if of_type.vector >= 0:
            for r in range(start, row):
                for d in range(0, width, value(lanes)):
                    store(tile.x, tile.places[r] * width + d, load(lanes, net.parameters, of_type.vector + d))
            continue
        inputs = _inputs(net, tile, number)
        hidden = shifted(tile.hidden, start * width)
        layer = of_type.layer
        if layer >= 0:
            for r in range(start, row):
                for i in range(stride):
                    inputs[(r - start) * stride + i] = values[tile.sources[r] * stride + i]
            invoke(kernels.product, BOUND, inputs, weight_of(net, layer), hidden, row - start, stride, width, 0)
        for r in range(start, row):
            _look_up(lanes, net, of_type, tile, r, layer)
            _finish(lanes, net, of_type, tile, r)
    tile.type_rows[net.num_types] = row


@inline
def _place_memory(batch, tile, of_type, position, low, entity, token):  # type: ignore[no-untyped-def]
    """Write what the memory of an entity's token goes on from, in the frame at a position of the minibatch."""
    tile.origins[token] = NOTHING
    if of_type.remembers == 0 or ints_at(of_type.remembered)[entity] < 0:
        return
    previous, carried = ints_at(of_type.previous)[entity], ints_at(of_type.carried)[entity]
    tile.origins[token], tile.origin_rows[token] = FROM_FIRST, of_type.number
    if batch.starts[position] == 0 and previous >= 0:
        tile.origins[token], tile.origin_rows[token] = FROM_TOKEN, tile.offsets[position - low - 1] + previous
    elif batch.starts[position] != 0 and carried >= 0:
        tile.origins[token], tile.origin_rows[token] = FROM_STATE, carried


@inline
def _inputs(net, tile, number):  # type: ignore[no-untyped-def]
    """The memory for the inputs of a type: those of the types before it end there."""
    at = 0
    for earlier in range(number):
        of_type = net.types[earlier]
        rows = tile.type_rows[earlier + 1] - tile.type_rows[earlier]
        at += (rows + ROWS) * of_type.stride
    return shifted(tile.inputs, at)


@inline
def _look_up(lanes, net, of_type, tile, row, layer):  # type: ignore[no-untyped-def]
    """Add the bias and the rows of all categories to a row of `tile.hidden`, and apply ReLU; a NaN stays one."""
    width, at = net.width, row * net.width
    ids = ints_at(of_type.ids)
    for d in range(0, width, value(lanes)):
        if layer >= 0:
            z = load(lanes, tile.hidden, at + d) + load(lanes, bias_of(net, layer), d)
        else:
            z = spread(lanes, np.float32(0))
        for c in range(of_type.num_ids):
            table = net.categories[of_type.category + c].place
            index = ids[tile.sources[row] * of_type.num_ids + c]
            z = z + load(lanes, net.parameters, table + index * width + d)
        store(tile.hidden, at + d, where_positive(z * np.float32(-1), spread(lanes, np.float32(0)), z))


@inline
def _finish(lanes, net, of_type, tile, row):  # type: ignore[no-untyped-def]
    """Normalize a row of `tile.hidden`, scale and shift it, and write the token."""
    width, at = net.width, row * net.width
    share = np.float32(1) / np.float32(width)
    sums = spread(lanes, np.float32(0))
    for d in range(0, width, value(lanes)):
        sums = sums + load(lanes, tile.hidden, at + d)
    mean = total(sums) * share
    squares = spread(lanes, np.float32(0))
    for d in range(0, width, value(lanes)):
        deviation = load(lanes, tile.hidden, at + d) - mean
        squares = fma(deviation, deviation, squares)
    inverse = np.float32(1) / np.float32(math.sqrt(total(squares) * share + EPSILON))
    tile.inverse_std[row] = inverse
    to = tile.places[row] * width
    for d in range(0, width, value(lanes)):
        n = (load(lanes, tile.hidden, at + d) - mean) * inverse
        store(tile.normalized, at + d, n)
        scale = load(lanes, net.parameters, of_type.scale + d)
        store(tile.x, to + d, fma(n, scale, load(lanes, net.parameters, of_type.shift + d)))


@inner_kernel
def embed_backward(lanes: Const, kernels: Kernels, net: Net, tile: Tile, gradient: Floats) -> None:
    """Add the gradients of the embedding, from that of its tokens in `tile.x`."""
    width, direct = net.width, shifted(gradient, net.direct)
    for number in range(net.num_types):
        of_type = net.types[number]
        start, end = tile.type_rows[number], tile.type_rows[number + 1]
        if of_type.vector >= 0:
            for row in range(start, end):
                add_row(lanes, direct, of_type.dvector, tile.x, tile.places[row] * width, width)
            continue
        layer, ids = of_type.layer, ints_at(of_type.ids)
        for row in range(start, end):
            _unfinish(lanes, net, of_type, tile, row, direct)
            if layer >= 0:
                add_row(lanes, gradient, net.linears[layer].bias, tile.hidden, row * width, width)
            for c in range(of_type.num_ids):
                table = net.categories[of_type.category + c].gradient
                index = ids[tile.sources[row] * of_type.num_ids + c]
                add_row(lanes, direct, table + index * width, tile.hidden, row * width, width)
        if layer >= 0:
            invoke(
                kernels.outer, BOUND, _inputs(net, tile, number), shifted(tile.hidden, start * width),
                shifted(gradient, net.linears[layer].weight), end - start, of_type.stride, width,
                tile.panel,
            )  # fmt: skip


@inline
def _unfinish(lanes, net, of_type, tile, row, direct):  # type: ignore[no-untyped-def]
    """Replace a row of `tile.hidden` by its gradient, dz = dh where z > 0, dh = (dn - mean(dn) - n mean(dn n)) / std."""
    width, at, to = net.width, row * net.width, tile.places[row] * net.width
    share = np.float32(1) / np.float32(width)
    zeros = spread(lanes, np.float32(0))
    sums, products = zeros, zeros
    for d in range(0, width, value(lanes)):
        dtoken, n = load(lanes, tile.x, to + d), load(lanes, tile.normalized, at + d)
        dscale, dshift = of_type.dscale + d, of_type.dshift + d
        store(direct, dscale, fma(dtoken, n, load(lanes, direct, dscale)))
        store(direct, dshift, load(lanes, direct, dshift) + dtoken)
        dn = dtoken * load(lanes, net.parameters, of_type.scale + d)
        sums = sums + dn
        products = fma(dn, n, products)
    mean, slope = total(sums) * share, total(products) * share
    inverse = tile.inverse_std[row]
    for d in range(0, width, value(lanes)):
        dn = load(lanes, tile.x, to + d) * load(lanes, net.parameters, of_type.scale + d)
        dh = (dn - mean - load(lanes, tile.normalized, at + d) * slope) * inverse
        h = load(lanes, tile.hidden, at + d)
        store(tile.hidden, at + d, where_positive(h * np.float32(-1), zeros, dh))
