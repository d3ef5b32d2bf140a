"""The blocks of a transformer on a tile, forward and back: the steps of `rogue_net.transformer`."""

from __future__ import annotations

import numpy as np

from rogue_net.kernels.cpu.calling import invoke, shifted
from rogue_net.kernels.cpu.compiling import Const, Count, Floats, inline, inner_kernel, value
from rogue_net.kernels.cpu.relative_attention import Gradients
from rogue_net.kernels.cpu.rows import add_row
from rogue_net.kernels.cpu.simd import load, store
from rogue_net.kernels.cpu.tables import (
    BOUND,
    RELATIVE,
    Kernels,
    Minibatch,
    Net,
    Tile,
    activations_of,
    bias_of,
    num_encoded,
    transposed,
    weight_of,
)


@inner_kernel
def transform(
    lanes: Const, kernels: Kernels, net: Net, batch: Minibatch, tile: Tile, low: Count, high: Count, learning: Count
) -> None:
    """Send `tile.x` through all blocks, and through the memory behind the first; the result goes to `tile.tokens`.

    n = normalize(x);  qkv = n Wqkv';  y = attention(qkv);  x += y Wo
    n = normalize(x);  g = gelu(n W1');  x += g W2
    """
    frames = num_encoded(tile, high - low)
    width, rows = net.width, tile.offsets[frames]
    bias, has_bias = net.weights, 0  # what the block before has left to add
    if net.memory >= 0 and net.num_blocks == 0:
        invoke(kernels.remember, BOUND, kernels, net, batch, tile, rows, has_bias, bias)
    if net.mixing == RELATIVE:
        _place(net, batch, tile, low, high)
    for number in range(net.num_blocks):
        each = activations_of(net, tile, number)
        qkv = net.first_block + 4 * number
        project, up, down = qkv + 1, qkv + 2, qkv + 3
        invoke(kernels.normalize, BOUND, BOUND, tile.x, has_bias, bias, rows, each.normalized, each.inverse_std)
        invoke(kernels.product, BOUND, each.normalized, weight_of(net, qkv), each.qkv, rows, width, 3 * width, 0)
        if net.mixing == RELATIVE:
            _gate(kernels, net, tile, each, number, rows)
            invoke(
                kernels.relate, BOUND, BOUND, BOUND, net.num_heads, each.qkv, bias_of(net, qkv), net.scheme, tile.entities,
                shifted(net.weights, net.key_table), shifted(net.weights, net.value_table), each.more, tile.offsets,
                batch.hides, tile.visible, 0, frames, each.attended, each.softmax, tile.relative,
            )  # fmt: skip
        else:
            invoke(
                kernels.attend, BOUND, BOUND, net.num_heads, each.qkv, bias_of(net, qkv), tile.offsets, batch.hides,
                tile.visible, 0, frames, each.attended, each.softmax, tile.attention,
            )  # fmt: skip
        invoke(kernels.product, BOUND, each.attended, weight_of(net, project), tile.x, rows, width, width, 1)
        bias = bias_of(net, project)
        invoke(kernels.normalize, BOUND, BOUND, tile.x, 1, bias, rows, each.normalized2, each.inverse_std2)
        invoke(kernels.product, BOUND, each.normalized2, weight_of(net, up), each.slope, rows, width, 4 * width, 0)
        invoke(kernels.gelu, BOUND, BOUND, each.slope, bias_of(net, up), rows, each.activated, learning)
        invoke(kernels.product, BOUND, each.activated, weight_of(net, down), tile.x, rows, 4 * width, width, 1)
        bias, has_bias = bias_of(net, down), 1
        if net.memory >= 0 and number == 0:
            invoke(kernels.remember, BOUND, kernels, net, batch, tile, rows, has_bias, bias)
            has_bias = 0
    for at in range(0, rows * width, width):
        for d in range(0, width, value(lanes)):
            numbers = load(lanes, tile.x, at + d)
            if has_bias:
                numbers = numbers + load(lanes, bias, d)
            store(tile.tokens, at + d, numbers)


@inner_kernel
def transform_backward(
    lanes: Const, kernels: Kernels, net: Net, batch: Minibatch, tile: Tile, frames: Count, gradient: Floats
) -> None:
    """Send the gradient in `tile.x` back through all blocks, and add those of their weights."""
    width, rows, dtokens = net.width, tile.offsets[frames], tile.tokens
    remembers = net.memory >= 0
    if remembers and net.num_blocks == 0:
        invoke(kernels.remember_backward, BOUND, kernels, net, batch, tile, rows, tile.dgate, gradient)
    if net.num_blocks > (1 if remembers else 0):
        last = net.linears[net.first_block + 4 * net.num_blocks - 1].bias
        for row in range(rows):
            add_row(lanes, gradient, last, tile.x, row * width, width)
    for back in range(net.num_blocks):
        number = net.num_blocks - 1 - back
        each = activations_of(net, tile, number)
        qkv = net.first_block + 4 * number
        project, up, down = qkv + 1, qkv + 2, qkv + 3
        if remembers and number == 0:
            of_bias = shifted(gradient, net.linears[down].bias)
            invoke(kernels.remember_backward, BOUND, kernels, net, batch, tile, rows, of_bias, gradient)
        add_outer(kernels, net, tile, each.activated, tile.x, gradient, down, rows)
        invoke(kernels.product, BOUND, tile.x, transposed(net, down), tile.dhidden, rows, width, 4 * width, 0)
        dup = shifted(gradient, net.linears[up].bias)
        invoke(kernels.gelu_backward, BOUND, BOUND, tile.dhidden, each.slope, rows, dup)
        add_outer(kernels, net, tile, each.normalized2, tile.dhidden, gradient, up, rows)
        invoke(kernels.product, BOUND, tile.dhidden, transposed(net, up), dtokens, rows, 4 * width, width, 0)
        dproject = shifted(gradient, net.linears[project].bias)
        invoke(
            kernels.normalize_backward,
            BOUND,
            BOUND,
            dtokens,
            each.normalized2,
            each.inverse_std2,
            rows,
            tile.x,
            dproject,
        )
        add_outer(kernels, net, tile, each.attended, tile.x, gradient, project, rows)
        invoke(kernels.product, BOUND, tile.x, transposed(net, project), dtokens, rows, width, width, 0)
        if net.mixing == RELATIVE:
            found = Gradients(
                tile.dqkv, shifted(gradient, net.linears[qkv].bias), shifted(gradient, net.key_table),
                shifted(gradient, net.value_table), tile.dgate,
            )  # fmt: skip
            invoke(
                kernels.relate_backward, BOUND, BOUND, BOUND, net.num_heads, each.qkv, net.scheme, tile.entities,
                shifted(net.weights, net.key_table), shifted(net.weights, net.value_table), each.more, tile.offsets,
                batch.hides, tile.visible, 0, frames, each.attended, each.softmax, dtokens, found, tile.relative,
            )  # fmt: skip
        else:
            invoke(
                kernels.attend_backward, BOUND, BOUND, net.num_heads, each.qkv, tile.offsets, batch.hides, tile.visible,
                0, frames, each.attended, each.softmax, dtokens, tile.dqkv, shifted(gradient, net.linears[qkv].bias),
                tile.attention,
            )  # fmt: skip
        add_outer(kernels, net, tile, each.normalized, tile.dqkv, gradient, qkv, rows)
        invoke(kernels.product, BOUND, tile.dqkv, transposed(net, qkv), dtokens, rows, 3 * width, width, 0)
        if net.mixing == RELATIVE:
            _gate_backward(kernels, net, tile, each, number, rows, gradient)
        # the bias that this normalization added: that of the block before; the first has none, nor one behind the memory
        added = number > (1 if remembers else 0)
        dbias = shifted(gradient, net.linears[qkv - 1].bias) if added else tile.dhidden
        invoke(
            kernels.normalize_backward, BOUND, BOUND, dtokens, each.normalized, each.inverse_std, rows, tile.x, dbias
        )


@inline
def add_outer(kernels, net, tile, x, dy, gradient, layer, rows):  # type: ignore[no-untyped-def]
    """Add the gradient of a linear layer's weight."""
    invoke(
        kernels.outer, BOUND, x, dy, shifted(gradient, net.linears[layer].weight), rows, net.linears[layer].inputs,
        net.linears[layer].outputs, tile.panel,
    )  # fmt: skip


# --- Relative positions


@inline
def _place(net, batch, tile, low, high):  # type: ignore[no-untyped-def]
    """Copy where the entities of the encoded frames stand."""
    geometry, entities, dimensions = batch.geometry, tile.entities, net.scheme.dimensions
    to = 0
    for local in range(num_encoded(tile, high - low)):
        frame = batch.frames[low + tile.encoded[local]]
        for token in range(geometry.first[frame], geometry.first[frame] + batch.lengths[frame]):
            for d in range(dimensions):
                entities.positions[d * entities.room + to] = geometry.positions[token * dimensions + d]
            if net.scheme.turns:
                entities.facing[2 * to] = geometry.facing[2 * token]
                entities.facing[2 * to + 1] = geometry.facing[2 * token + 1]
            number = geometry.types[token]
            entities.counts[to] = np.float32(number >= 0)
            entities.value_blocks[to] = max(number, 0) * geometry.value_block
            to += 1


@inline
def _gate(kernels, net, tile, each, number, rows):  # type: ignore[no-untyped-def]
    """Write the gates of relative values to `each.more`, and their slopes behind them."""
    width, layer = net.head_width, net.first_gate + number
    invoke(kernels.product, BOUND, each.normalized, weight_of(net, layer), each.more, rows, net.width, width, 0)
    slopes = shifted(each.more, tile.room * width)
    invoke(kernels.open_gates, BOUND, BOUND, each.more, bias_of(net, layer), rows, slopes)


@inline
def _gate_backward(kernels, net, tile, each, number, rows, gradient):  # type: ignore[no-untyped-def]
    """Add to the gradient in `tile.tokens` what comes through the gates."""
    width, layer = net.head_width, net.first_gate + number
    slopes, dbias = shifted(each.more, tile.room * width), shifted(gradient, net.linears[layer].bias)
    invoke(kernels.close_gates, BOUND, BOUND, tile.dgate, slopes, rows, dbias)
    add_outer(kernels, net, tile, each.normalized, tile.dgate, gradient, layer, rows)
    invoke(kernels.product, BOUND, tile.dgate, transposed(net, layer), tile.tokens, rows, width, net.width, 1)
