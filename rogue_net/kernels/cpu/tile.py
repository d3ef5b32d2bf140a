"""A policy's step through one tile of whole frames: embedding, blocks and heads forward, the loss, and back through all of it.

A tile has some hundred tokens, so that everything about them stays in a core's cache. The steps are those of the modules in
`rogue_net.embedding`, `rogue_net.transformer` and `rogue_net.heads`; the loss is a kernel that is handed in. `program` has the
tables that say where everything is.

Shapes: n tokens of the tile, F frames, A actors of an action, D width, H heads, T tokens that a tile has room for.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from rogue_net.kernels.cpu.attention import Scratch
from rogue_net.kernels.cpu.calling import flags_at, floats_at, ints_at, invoke, shifted
from rogue_net.kernels.cpu.compiling import Const, Count, Flags, Floats, Ints, Number, inline, kernel, value
from rogue_net.kernels.cpu.dense import ROWS
from rogue_net.kernels.cpu.elementwise import EPSILON
from rogue_net.kernels.cpu.simd import exp, fma, load, spread, store, total, where_positive
from rogue_net.noise import FIRST, GOLDEN, SECOND

TINY = np.float32(np.finfo(np.float32).tiny)

BOUND = Const(0)  # in a call of `invoke`: a Const that the kernel at the address is compiled for
EIGHT = Const(8)
MASKED = np.float32(-1e30)  # logit of a choice that is not open: its probability is 0
CLOSED = np.float32(-1e29)  # above the log-probability of such a choice, below all others


class Kernels(NamedTuple):
    """Addresses of kernels, for one width of the network and of its heads."""

    product: Count
    outer: Count
    normalize: Count
    normalize_backward: Count
    gelu: Count
    gelu_backward: Count
    attend: Count
    attend_backward: Count
    embed: Count
    embed_backward: Count
    transform: Count
    transform_backward: Count
    decide: Count
    decide_backward: Count


# --- Tables: one row of int64 for each linear layer, entity type, category and action. Addresses are those of arrays.

#: A linear layer: its place in `weights` as (in, out), that of its bias, and its place in `turned` as (out, in); padded sizes.
WEIGHT, BIAS, TURNED, INPUTS, OUTPUTS = range(5)
LINEAR_COLUMNS = 5

#: An entity type: (entities, STRIDE) inputs, (B + 1) offsets, flags of visible entities (0: all are), number of its linear layer
#: (-1: none), ids (entities, NUM_IDS), number of the first category; places of scale, shift or vector in `parameters` and in the
#: gradient. VECTOR is -1 for a type with features.
VALUES, OFFSETS, VISIBLE, STRIDE, LINEAR, IDS, NUM_IDS, CATEGORY, SCALE, SHIFT, DSCALE, DSHIFT, VECTOR, DVECTOR = range(
    14
)
TYPE_COLUMNS = 14

#: A category: place of its table in `parameters` and in the gradient.
TABLE, DTABLE = range(2)
CATEGORY_COLUMNS = 2

#: An action: kind; actors (A) as indices in the frame with (B + 1) offsets, what they did, old log-probs; the mask (0: all is
#: open); number of choices, or of features of a query; number of the first linear layer; place of the logits in the tile. Select-
#: entity: actees with offsets, offsets of the mask's pairs; place of nobody's key in `parameters` and in the gradient, or -1.
(
    KIND, ACTORS, ACTOR_OFFSETS, ACTIONS, OLD_LOG_PROBS, MASK, CHOICES, LAYER, LOGITS,
    ACTEES, ACTEE_OFFSETS, PAIR_OFFSETS, NOBODY, DNOBODY,
) = range(14)  # fmt: skip
ACTION_COLUMNS = 14
CATEGORICAL, SELECT_ENTITY = range(2)


class Net(NamedTuple):
    """A network, as the kernels see it."""

    width: Count  # D
    num_heads: Count  # H
    num_blocks: Count
    num_types: Count
    num_actions: Count
    has_value: Count
    first_block: Count  # number of its first linear layer; a block has four: qkv, project, up, down
    value_weight: Count  # place in `parameters` of the value's weight (D) and bias
    value_bias: Count
    dvalue_weight: Count  # places in the gradient
    dvalue_bias: Count
    value_mean: Number
    value_deviation: Number
    linears: Ints
    types: Ints
    categories: Ints
    actions: Ints
    parameters: Floats  # as the modules have them
    weights: Floats  # of linear layers, with the LayerNorm before folded in
    turned: Floats


class Minibatch(NamedTuple):
    """The frames to learn from."""

    frames: Ints  # (M) numbers of frames
    lengths: Ints  # (B) tokens of every frame
    sizes: Ints  # (B) what it takes of the room of a tile: the largest number of its tokens, actors, actees
    hides: Count  # whether any entity is hidden
    columns: Floats  # (columns, M) of the loss
    size: Count  # M


class Choice(NamedTuple):
    """How actors choose."""

    mode: Count  # one of those below
    keys: Ints  # (B) of the frames' noise, see `rogue_net.noise.FrameKeys`


GIVEN, GREEDY, SAMPLED = range(3)  # what actors did is given, or the best choice is taken, or one is drawn


class Tile(NamedTuple):
    """Memory of one thread."""

    room: Count  # T, a multiple of 6
    offsets: Ints  # (F + 1) tokens of each frame
    next: Ints  # (F) the token of its next entity, while they are embedded
    visible: Flags  # (n)
    x: Floats  # (n, D) residual stream; on the way back its gradient
    tokens: Floats  # (n, D) output of the transformer; on the way back a gradient
    dqkv: Floats  # (n, 3 D)
    dhidden: Floats  # (n, 4 D)
    saved: Floats  # of every block, see `_block`
    inputs: Floats  # rows of the embedding: entities by type
    hidden: Floats  # (n, D)
    normalized: Floats  # (n, D)
    inverse_std: Floats  # (n)
    places: Ints  # (n) the token of each row
    sources: Ints  # (n) the entity of each row among all of its type
    type_rows: Ints  # (types + 1) the rows of each type
    actor_tokens: Ints  # of all actions, one action after another
    actor_frames: Ints
    actor_sources: Ints  # the actor among all of its action
    action_actors: Ints  # (actions + 1) the actors of each action
    log_probs: Floats  # of actors, as those that follow
    old_log_probs: Floats
    entropies: Floats
    dlog_probs: Floats
    dentropies: Floats
    logits: Floats  # log-probabilities of every action's choices
    rows: Floats  # (T, D) tokens of actors or actees
    queries: Floats  # (T, K)
    keys: Floats  # (T + 6, K)
    dkeys: Floats  # likewise
    actee_tokens: Ints  # (T)
    actee_starts: Ints  # (F + 1)
    means: Floats  # (F, D)
    values: Floats  # (F)
    dvalues: Floats  # (F)
    attention: Scratch


class Block(NamedTuple):
    """What a block's way back needs of its way forward."""

    normalized: Any
    inverse_std: Any
    qkv: Any
    softmax: Any
    attended: Any
    normalized2: Any
    inverse_std2: Any
    slope: Any
    activated: Any


def saved_floats(width: int, num_heads: int) -> int:
    """Numbers that `Block` has for each token."""
    return 14 * width + 2 + 2 * num_heads


@inline
def _block(net, tile, number):  # type: ignore[no-untyped-def]
    """The memory of a block."""
    width, room = net.width, tile.room
    at = shifted(tile.saved, number * room * (14 * width + 2 + 2 * net.num_heads))
    return Block(
        at,
        shifted(at, room * 14 * width),
        shifted(at, room * width),
        shifted(at, room * (14 * width + 2)),
        shifted(at, room * 4 * width),
        shifted(at, room * 5 * width),
        shifted(at, room * (14 * width + 1)),
        shifted(at, room * 6 * width),
        shifted(at, room * 10 * width),
    )


@inline
def _linear(net, number, column):  # type: ignore[no-untyped-def]
    return net.linears[number * LINEAR_COLUMNS + column]


@inline
def _weight(net, number):  # type: ignore[no-untyped-def]
    return shifted(net.weights, _linear(net, number, WEIGHT))


@inline
def _bias(net, number):  # type: ignore[no-untyped-def]
    return shifted(net.weights, _linear(net, number, BIAS))


@inline
def _turned(net, number):  # type: ignore[no-untyped-def]
    return shifted(net.turned, _linear(net, number, TURNED))


# --- Embedding


@kernel
def embed(lanes: Const, kernels: Kernels, net: Net, batch: Minibatch, tile: Tile, low: Count, high: Count) -> None:
    """Write the tokens of the frames `low:high` of the minibatch to `tile.x`.

    token = LayerNorm(ReLU(W x + b + Σ_c table_c[id_c])), or for a type without features its vector.
    """
    width = net.width
    for position in range(low, high):
        tile.next[position - low] = tile.offsets[position - low]
    row = 0
    for number in range(net.num_types):
        of_type = shifted(net.types, number * TYPE_COLUMNS)
        offsets, stride = ints_at(of_type[OFFSETS]), of_type[STRIDE]
        values = floats_at(of_type[VALUES])
        tile.type_rows[number] = start = row
        for position in range(low, high):
            frame = batch.frames[position]
            token = tile.next[position - low]
            for entity in range(offsets[frame], offsets[frame + 1]):
                tile.places[row] = token
                tile.sources[row] = entity
                if batch.hides:
                    tile.visible[token] = flags_at(of_type[VISIBLE])[entity] if of_type[VISIBLE] else 1
                row += 1
                token += 1
            tile.next[position - low] = token
        if of_type[VECTOR] >= 0:
            for r in range(start, row):
                for d in range(0, width, value(lanes)):
                    store(tile.x, tile.places[r] * width + d, load(lanes, net.parameters, of_type[VECTOR] + d))
            continue
        inputs = _inputs(net, tile, number)
        hidden = shifted(tile.hidden, start * width)
        layer = of_type[LINEAR]
        if layer >= 0:
            for r in range(start, row):
                for i in range(stride):
                    inputs[(r - start) * stride + i] = values[tile.sources[r] * stride + i]
            invoke(kernels.product, BOUND, inputs, _weight(net, layer), hidden, row - start, stride, width, 0)
        for r in range(start, row):
            _look_up(lanes, net, of_type, tile, r, layer)
            _finish(lanes, net, of_type, tile, r)
    tile.type_rows[net.num_types] = row


@inline
def _inputs(net, tile, number):  # type: ignore[no-untyped-def]
    """The memory for the inputs of a type: those of the types before it end there."""
    at = 0
    for earlier in range(number):
        of_type = shifted(net.types, earlier * TYPE_COLUMNS)
        rows = tile.type_rows[earlier + 1] - tile.type_rows[earlier]
        at += (rows + ROWS) * of_type[STRIDE]
    return shifted(tile.inputs, at)


@inline
def _look_up(lanes, net, of_type, tile, row, layer):  # type: ignore[no-untyped-def]
    """Add the bias and the rows of all categories to a row of `tile.hidden`, and apply ReLU; a NaN stays one."""
    width, at = net.width, row * net.width
    ids = ints_at(of_type[IDS])
    for d in range(0, width, value(lanes)):
        if layer >= 0:
            z = load(lanes, tile.hidden, at + d) + load(lanes, _bias(net, layer), d)
        else:
            z = spread(lanes, np.float32(0))
        for c in range(of_type[NUM_IDS]):
            table = net.categories[(of_type[CATEGORY] + c) * CATEGORY_COLUMNS + TABLE]
            index = ids[tile.sources[row] * of_type[NUM_IDS] + c]
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
        scale = load(lanes, net.parameters, of_type[SCALE] + d)
        store(tile.x, to + d, fma(n, scale, load(lanes, net.parameters, of_type[SHIFT] + d)))


@kernel
def embed_backward(lanes: Const, kernels: Kernels, net: Net, tile: Tile, gradient: Floats) -> None:
    """Add the gradients of the embedding, from that of its tokens in `tile.x`."""
    width = net.width
    for number in range(net.num_types):
        of_type = shifted(net.types, number * TYPE_COLUMNS)
        start, end = tile.type_rows[number], tile.type_rows[number + 1]
        if of_type[VECTOR] >= 0:
            for row in range(start, end):
                _add(lanes, gradient, of_type[DVECTOR], tile.x, tile.places[row] * width, width)
            continue
        layer, ids = of_type[LINEAR], ints_at(of_type[IDS])
        for row in range(start, end):
            _unfinish(lanes, net, of_type, tile, row, gradient)
            if layer >= 0:
                _add(lanes, gradient, _linear(net, layer, BIAS), tile.hidden, row * width, width)
            for c in range(of_type[NUM_IDS]):
                table = net.categories[(of_type[CATEGORY] + c) * CATEGORY_COLUMNS + DTABLE]
                index = ids[tile.sources[row] * of_type[NUM_IDS] + c]
                _add(lanes, gradient, table + index * width, tile.hidden, row * width, width)
        if layer >= 0:
            invoke(
                kernels.outer, BOUND, _inputs(net, tile, number), shifted(tile.hidden, start * width),
                shifted(gradient, _linear(net, layer, WEIGHT)), end - start, of_type[STRIDE], width,
            )  # fmt: skip


@inline
def _unfinish(lanes, net, of_type, tile, row, gradient):  # type: ignore[no-untyped-def]
    """Replace a row of `tile.hidden` by its gradient, dz = dh where z > 0, dh = (dn - mean(dn) - n mean(dn n)) / std."""
    width, at, to = net.width, row * net.width, tile.places[row] * net.width
    share = np.float32(1) / np.float32(width)
    zeros = spread(lanes, np.float32(0))
    sums, products = zeros, zeros
    for d in range(0, width, value(lanes)):
        dtoken, n = load(lanes, tile.x, to + d), load(lanes, tile.normalized, at + d)
        dscale, dshift = of_type[DSCALE] + d, of_type[DSHIFT] + d
        store(gradient, dscale, fma(dtoken, n, load(lanes, gradient, dscale)))
        store(gradient, dshift, load(lanes, gradient, dshift) + dtoken)
        dn = dtoken * load(lanes, net.parameters, of_type[SCALE] + d)
        sums = sums + dn
        products = fma(dn, n, products)
    mean, slope = total(sums) * share, total(products) * share
    inverse = tile.inverse_std[row]
    for d in range(0, width, value(lanes)):
        dn = load(lanes, tile.x, to + d) * load(lanes, net.parameters, of_type[SCALE] + d)
        dh = (dn - mean - load(lanes, tile.normalized, at + d) * slope) * inverse
        h = load(lanes, tile.hidden, at + d)
        store(tile.hidden, at + d, where_positive(h * np.float32(-1), zeros, dh))


@inline
def _add(lanes, sums, to, rows, at, width):  # type: ignore[no-untyped-def]
    """Add a row to sums."""
    for d in range(0, width, value(lanes)):
        store(sums, to + d, load(lanes, sums, to + d) + load(lanes, rows, at + d))


# --- Blocks


@kernel
def transform(
    lanes: Const, kernels: Kernels, net: Net, batch: Minibatch, tile: Tile, frames: Count, learning: Count
) -> None:
    """Send `tile.x` through all blocks; the result goes to `tile.tokens`.

    n = normalize(x);  qkv = n Wqkv';  y = attention(qkv);  x += y Wo
    n = normalize(x);  g = gelu(n W1');  x += g W2
    """
    width, rows = net.width, tile.offsets[frames]
    bias, has_bias = net.weights, 0
    for number in range(net.num_blocks):
        each = _block(net, tile, number)
        qkv = net.first_block + 4 * number
        project, up, down = qkv + 1, qkv + 2, qkv + 3
        invoke(kernels.normalize, BOUND, BOUND, tile.x, has_bias, bias, rows, each.normalized, each.inverse_std)
        invoke(kernels.product, BOUND, each.normalized, _weight(net, qkv), each.qkv, rows, width, 3 * width, 0)
        invoke(
            kernels.attend, BOUND, BOUND, net.num_heads, each.qkv, _bias(net, qkv), tile.offsets, batch.hides,
            tile.visible, 0, frames, each.attended, each.softmax, tile.attention,
        )  # fmt: skip
        invoke(kernels.product, BOUND, each.attended, _weight(net, project), tile.x, rows, width, width, 1)
        bias = _bias(net, project)
        invoke(kernels.normalize, BOUND, BOUND, tile.x, 1, bias, rows, each.normalized2, each.inverse_std2)
        invoke(kernels.product, BOUND, each.normalized2, _weight(net, up), each.slope, rows, width, 4 * width, 0)
        invoke(kernels.gelu, BOUND, BOUND, each.slope, _bias(net, up), rows, each.activated, learning)
        invoke(kernels.product, BOUND, each.activated, _weight(net, down), tile.x, rows, 4 * width, width, 1)
        bias, has_bias = _bias(net, down), 1
    for at in range(0, rows * width, width):
        for d in range(0, width, value(lanes)):
            numbers = load(lanes, tile.x, at + d)
            if has_bias:
                numbers = numbers + load(lanes, bias, d)
            store(tile.tokens, at + d, numbers)


@kernel
def transform_backward(
    lanes: Const, kernels: Kernels, net: Net, batch: Minibatch, tile: Tile, frames: Count, gradient: Floats
) -> None:
    """Send the gradient in `tile.x` back through all blocks, and add those of their weights."""
    width, rows, dtokens = net.width, tile.offsets[frames], tile.tokens
    if net.num_blocks > 0:
        last = _linear(net, net.first_block + 4 * net.num_blocks - 1, BIAS)
        for row in range(rows):
            _add(lanes, gradient, last, tile.x, row * width, width)
    for back in range(net.num_blocks):
        number = net.num_blocks - 1 - back
        each = _block(net, tile, number)
        qkv = net.first_block + 4 * number
        project, up, down = qkv + 1, qkv + 2, qkv + 3
        _outer(kernels, net, each.activated, tile.x, gradient, down, rows)
        invoke(kernels.product, BOUND, tile.x, _turned(net, down), tile.dhidden, rows, width, 4 * width, 0)
        invoke(
            kernels.gelu_backward, BOUND, BOUND, tile.dhidden, each.slope, rows,
            shifted(gradient, _linear(net, up, BIAS)),
        )  # fmt: skip
        _outer(kernels, net, each.normalized2, tile.dhidden, gradient, up, rows)
        invoke(kernels.product, BOUND, tile.dhidden, _turned(net, up), dtokens, rows, 4 * width, width, 0)
        invoke(
            kernels.normalize_backward, BOUND, BOUND, dtokens, each.normalized2, each.inverse_std2, rows, tile.x,
            shifted(gradient, _linear(net, project, BIAS)),
        )  # fmt: skip
        _outer(kernels, net, each.attended, tile.x, gradient, project, rows)
        invoke(kernels.product, BOUND, tile.x, _turned(net, project), dtokens, rows, width, width, 0)
        invoke(
            kernels.attend_backward, BOUND, BOUND, net.num_heads, each.qkv, tile.offsets, batch.hides, tile.visible,
            0, frames, each.attended, each.softmax, dtokens, tile.dqkv, shifted(gradient, _linear(net, qkv, BIAS)),
            tile.attention,
        )  # fmt: skip
        _outer(kernels, net, each.normalized, tile.dqkv, gradient, qkv, rows)
        invoke(kernels.product, BOUND, tile.dqkv, _turned(net, qkv), dtokens, rows, 3 * width, width, 0)
        # the bias that this normalization added: that of the block before; the first has none
        before = _linear(net, qkv - 1, BIAS) if number > 0 else -1
        dbias = shifted(gradient, before) if number > 0 else tile.dhidden
        invoke(
            kernels.normalize_backward, BOUND, BOUND, dtokens, each.normalized, each.inverse_std, rows, tile.x, dbias
        )


@inline
def _outer(kernels, net, x, dy, gradient, layer, rows):  # type: ignore[no-untyped-def]
    """Add the gradient of a linear layer's weight."""
    invoke(
        kernels.outer, BOUND, x, dy, shifted(gradient, _linear(net, layer, WEIGHT)), rows, _linear(net, layer, INPUTS),
        _linear(net, layer, OUTPUTS),
    )  # fmt: skip


# --- Heads


@kernel
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
    """From `tile.tokens` to the values of the frames, to actions where they are not given, their log-probs, and entropies."""
    if net.has_value:
        for frame in range(high - low):
            tile.values[frame] = _value(lanes, net, tile, frame)
    actor = 0
    for number in range(net.num_actions):
        action = shifted(net.actions, number * ACTION_COLUMNS)
        tile.action_actors[number] = start = actor
        offsets, indices = ints_at(action[ACTOR_OFFSETS]), ints_at(action[ACTORS])
        old = floats_at(action[OLD_LOG_PROBS])
        for position in range(low, high):
            frame = batch.frames[position]
            for source in range(offsets[frame], offsets[frame + 1]):
                tile.actor_tokens[actor] = tile.offsets[position - low] + indices[source]
                tile.actor_frames[actor] = position - low
                tile.actor_sources[actor] = source
                if choice.mode == GIVEN:
                    tile.old_log_probs[actor] = old[source]
                actor += 1
        if actor > start:
            if action[KIND] == CATEGORICAL:
                _decide_categorical(lanes, kernels, net, action, batch, tile, low, start, actor, choice, number)
            else:
                _decide_select(lanes, kernels, net, action, batch, tile, low, high, start, actor, choice, number)
    tile.action_actors[net.num_actions] = actor


@inline
def _value(lanes, net, tile, frame):  # type: ignore[no-untyped-def]
    """mean + deviation (w · m + b) of the mean m of a frame's tokens, which is written to `tile.means`."""
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


@inline
def _gather(lanes, tokens, places, start, end, rows, width):  # type: ignore[no-untyped-def]
    """Copy the tokens at `places[start:end]` to `rows`."""
    for number in range(start, end):
        at, to = places[number] * width, (number - start) * width
        for d in range(0, width, value(lanes)):
            store(rows, to + d, load(lanes, tokens, at + d))


@inline
def _decide_categorical(lanes, kernels, net, action, batch, tile, low, start, end, choice, number):  # type: ignore[no-untyped-def]
    """Log-probs of all choices, of that which was made, and entropies, of the actors `start:end`."""
    layer, choices = action[LAYER], action[CHOICES]
    padded = _linear(net, layer, OUTPUTS)
    logits = shifted(tile.logits, action[LOGITS])
    bias, made = _bias(net, layer), ints_at(action[ACTIONS])
    mask = flags_at(action[MASK])
    _gather(lanes, tile.tokens, tile.actor_tokens, start, end, tile.rows, net.width)
    invoke(kernels.product, BOUND, tile.rows, _weight(net, layer), logits, end - start, net.width, padded, 0)
    for actor in range(start, end):
        at, source = (actor - start) * padded, tile.actor_sources[actor]
        num_open = 0
        for c in range(padded):
            is_open = c < choices and (action[MASK] == 0 or mask[source * choices + c] != 0)
            num_open += is_open
            logits[at + c] = logits[at + c] + bias[c] if is_open else MASKED
        if num_open == 0:  # there is no distribution
            logits[at] = np.float32(np.nan)
        tile.entropies[actor] = _log_softmax(logits, at, padded)
        if choice.mode != GIVEN:
            key = _key(action, batch, tile, choice, low, actor, number)
            best, highest = 0, np.float32(-np.inf)
            for c in range(choices):
                score = _score(choice, key, logits[at + c], c)
                if score > highest:
                    best, highest = c, score
            made[source] = best
        tile.log_probs[actor] = logits[at + made[source]]


@inline
def _key(action, batch, tile, choice, low, actor, number):  # type: ignore[no-untyped-def]
    """What an actor's noise is keyed by, see `rogue_net.noise.FrameKeys.of_actors`."""
    if choice.mode != SAMPLED:
        return 0
    index = ints_at(action[ACTORS])[tile.actor_sources[actor]]
    return choice.keys[batch.frames[low + tile.actor_frames[actor]]] + (number << 48) + index * SECOND


@inline
def _score(choice, key, log_prob, number):  # type: ignore[no-untyped-def]
    """A log-probability, and where actions are sampled, plus Gumbel noise; see `with_gumbel_noise`."""
    if choice.mode != SAMPLED:
        return log_prob
    bits = key + number * GOLDEN
    bits = (bits ^ ((bits >> 30) & (2**34 - 1))) * FIRST
    bits = (bits ^ ((bits >> 27) & (2**37 - 1))) * SECOND
    bits ^= (bits >> 31) & (2**33 - 1)
    bits = ((bits >> 24) & (2**40 - 1 - 2**15)) | 1
    uniform = np.float32(bits) * np.float32(2.0**-40)
    exponential = np.float32(-math.log1p(-uniform))
    return log_prob - np.float32(math.log(max(exponential, TINY)))


@inline
def _log_softmax(logits, at, count):  # type: ignore[no-untyped-def]
    """Replace `count` logits from `at` on by log-probabilities; returns their entropy. What is masked stays about -1e30."""
    highest = logits[at]
    for c in range(1, count):
        highest = max(highest, logits[at + c])
    mass, mean = np.float32(0), np.float32(0)  # Σ exp(z), Σ exp(z) z
    for c in range(count):
        z = logits[at + c] - highest
        weight = _exp(z)
        mass += weight
        mean += weight * z
        logits[at + c] = z
    log_mass = np.float32(math.log(mass))
    for c in range(count):
        logits[at + c] -= log_mass
    return log_mass - mean / mass


@inline
def _exp(x):  # type: ignore[no-untyped-def]
    return total(exp(spread(EIGHT, x))) * np.float32(0.125)


@inline
def _slope(log_prob, chosen, dlog_prob, dentropy, entropy):  # type: ignore[no-untyped-def]
    """The gradient of a logit: d log p(a) / dz_c = [c = a] - p_c,  dH / dz_c = -p_c (log p_c + H)."""
    p = _exp(log_prob)
    gradient = -p * dlog_prob - p * (max(log_prob, np.float32(-200)) + entropy) * dentropy
    return gradient + dlog_prob if chosen else gradient


@inline
def _queries_and_keys(lanes, kernels, net, action, batch, tile, low, high, start, end):  # type: ignore[no-untyped-def]
    """Write the queries of the actors `start:end` and the keys of the actees, nobody's behind the last; returns their number."""
    width, layer = net.width, action[LAYER]
    padded = _linear(net, layer, OUTPUTS)
    offsets, indices = ints_at(action[ACTEE_OFFSETS]), ints_at(action[ACTEES])
    count = 0
    for position in range(low, high):
        frame = batch.frames[position]
        tile.actee_starts[position - low] = count
        for source in range(offsets[frame], offsets[frame + 1]):
            tile.actee_tokens[count] = tile.offsets[position - low] + indices[source]
            count += 1
    tile.actee_starts[high - low] = count
    _gather(lanes, tile.tokens, tile.actee_tokens, 0, count, tile.rows, width)
    invoke(kernels.product, BOUND, tile.rows, _weight(net, layer + 1), tile.keys, count, width, padded, 0)
    _add_bias(tile.keys, _bias(net, layer + 1), count, padded)
    if action[NOBODY] >= 0:
        for k in range(padded):
            tile.keys[count * padded + k] = net.parameters[action[NOBODY] + k] if k < action[CHOICES] else np.float32(0)
    _gather(lanes, tile.tokens, tile.actor_tokens, start, end, tile.rows, width)
    invoke(kernels.product, BOUND, tile.rows, _weight(net, layer), tile.queries, end - start, width, padded, 0)
    _add_bias(tile.queries, _bias(net, layer), end - start, padded)
    return count


@inline
def _add_bias(rows, bias, count, width):  # type: ignore[no-untyped-def]
    for at in range(0, count * width, width):
        for d in range(0, width, 8):
            store(rows, at + d, load(EIGHT, rows, at + d) + load(EIGHT, bias, d))


@inline
def _decide_select(lanes, kernels, net, action, batch, tile, low, high, start, end, choice, number):  # type: ignore[no-untyped-def]
    """The same of actors that select an entity: q · k / sqrt(K) for every actee of the frame; nobody is the last choice."""
    count = _queries_and_keys(lanes, kernels, net, action, batch, tile, low, high, start, end)
    padded = _linear(net, action[LAYER], OUTPUTS)
    scale = np.float32(1) / np.float32(math.sqrt(np.float32(action[CHOICES])))
    logits = shifted(tile.logits, action[LOGITS])
    made, actees = ints_at(action[ACTIONS]), ints_at(action[ACTEES])
    actor_offsets, actee_offsets = ints_at(action[ACTOR_OFFSETS]), ints_at(action[ACTEE_OFFSETS])
    pair_offsets, mask = ints_at(action[PAIR_OFFSETS]), flags_at(action[MASK])
    has_nobody = action[NOBODY] >= 0
    at = 0
    for actor in range(start, end):
        local, source = tile.actor_frames[actor], tile.actor_sources[actor]
        frame = batch.frames[low + local]
        first = tile.actee_starts[local]
        num_actees = tile.actee_starts[local + 1] - first
        choices = num_actees + 1 if has_nobody else num_actees
        pair = pair_offsets[frame] + (source - actor_offsets[frame]) * num_actees if action[MASK] != 0 else 0
        chosen, num_open = -1, 0
        for c in range(choices):
            is_nobody = c == num_actees
            is_open = is_nobody or action[MASK] == 0 or mask[pair + c] != 0
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
        if num_open == 0:  # nobody, for certain
            tile.entropies[actor], tile.log_probs[actor] = np.float32(0), np.float32(0)
            if choice.mode != GIVEN:
                made[source] = -1
            for c in range(choices):
                logits[at + c] = MASKED
            at += choices
            continue
        tile.entropies[actor] = _log_softmax(logits, at, choices)
        if choice.mode != GIVEN:
            key = _key(action, batch, tile, choice, low, actor, number)
            highest = np.float32(-np.inf)
            for c in range(choices):
                score = _score(choice, key, logits[at + c], _selected(actees, actee_offsets[frame], c, num_actees))
                if score > highest and logits[at + c] > CLOSED:
                    chosen, highest = c, score
            made[source] = _selected(actees, actee_offsets[frame], chosen, num_actees) if chosen >= 0 else -1
        if chosen >= 0:
            tile.log_probs[actor] = logits[at + chosen]
        else:  # no choice stands for what was done; while acting, the logits are NaN
            tile.log_probs[actor] = np.float32(0) if choice.mode == GIVEN else tile.entropies[actor]
        at += choices


@inline
def _selected(actees, first, c, num_actees):  # type: ignore[no-untyped-def]
    """The action that a choice stands for: the index of an entity, or -1 for nobody."""
    return -1 if c == num_actees else actees[first + c]


@kernel
def decide_backward(
    lanes: Const, kernels: Kernels, net: Net, batch: Minibatch, tile: Tile, low: Count, high: Count, gradient: Floats
) -> None:
    """Write the gradient of `tile.tokens` to `tile.x`, and add those of the heads' weights."""
    width = net.width
    for at in range(0, tile.offsets[high - low] * width, value(lanes)):
        store(tile.x, at, spread(lanes, np.float32(0)))
    if net.has_value:
        for frame in range(high - low):
            _value_backward(lanes, net, tile, frame, gradient)
    for number in range(net.num_actions):
        action = shifted(net.actions, number * ACTION_COLUMNS)
        start, end = tile.action_actors[number], tile.action_actors[number + 1]
        if end > start:
            if action[KIND] == CATEGORICAL:
                _categorical_backward(lanes, kernels, net, action, tile, start, end, gradient)
            else:
                _select_backward(lanes, kernels, net, action, batch, tile, low, high, start, end, gradient)


@inline
def _value_backward(lanes, net, tile, frame, gradient):  # type: ignore[no-untyped-def]
    width, first, end = net.width, tile.offsets[frame], tile.offsets[frame + 1]
    slope = tile.dvalues[frame] * net.value_deviation
    gradient[net.dvalue_bias] += slope
    of_each = slope / np.float32(max(end - first, 1))
    for d in range(0, width, value(lanes)):
        mean, to = load(lanes, tile.means, frame * width + d), net.dvalue_weight + d
        store(gradient, to, fma(mean, spread(lanes, slope), load(lanes, gradient, to)))
        dtoken = load(lanes, net.parameters, net.value_weight + d) * of_each
        for token in range(first, end):
            store(tile.x, token * width + d, load(lanes, tile.x, token * width + d) + dtoken)


@inline
def _categorical_backward(lanes, kernels, net, action, tile, start, end, gradient):  # type: ignore[no-untyped-def]
    layer, made = action[LAYER], ints_at(action[ACTIONS])
    padded = _linear(net, layer, OUTPUTS)
    logits = shifted(tile.logits, action[LOGITS])
    for actor in range(start, end):
        at, chosen = (actor - start) * padded, made[tile.actor_sources[actor]]
        for c in range(padded):
            logits[at + c] = _slope(
                logits[at + c], c == chosen, tile.dlog_probs[actor], tile.dentropies[actor], tile.entropies[actor]
            )
    _linear_backward(lanes, kernels, net, tile, tile.actor_tokens, start, end, logits, layer, gradient)


@inline
def _linear_backward(lanes, kernels, net, tile, places, start, end, dout, layer, gradient):  # type: ignore[no-untyped-def]
    """Of a linear layer on the tokens at `places[start:end]`: from the gradient of what comes out to those of weight, bias, x."""
    width, padded = net.width, _linear(net, layer, OUTPUTS)
    _gather(lanes, tile.tokens, places, start, end, tile.rows, width)
    _outer(kernels, net, tile.rows, dout, gradient, layer, end - start)
    dbias = shifted(gradient, _linear(net, layer, BIAS))
    for row in range(end - start):
        _add(EIGHT, dbias, 0, dout, row * padded, padded)
    invoke(kernels.product, BOUND, dout, _turned(net, layer), tile.rows, end - start, padded, width, 0)
    for number in range(start, end):
        _add(lanes, tile.x, places[number] * width, tile.rows, (number - start) * width, width)


@inline
def _select_backward(lanes, kernels, net, action, batch, tile, low, high, start, end, gradient):  # type: ignore[no-untyped-def]
    # queries and keys again: the next action has overwritten them
    count = _queries_and_keys(lanes, kernels, net, action, batch, tile, low, high, start, end)
    layer = action[LAYER]
    padded = _linear(net, layer, OUTPUTS)
    scale = np.float32(1) / np.float32(math.sqrt(np.float32(action[CHOICES])))
    logits = shifted(tile.logits, action[LOGITS])
    made, actees = ints_at(action[ACTIONS]), ints_at(action[ACTEES])
    actee_offsets = ints_at(action[ACTEE_OFFSETS])
    has_nobody = action[NOBODY] >= 0
    for at in range(0, (count + 1) * padded, 8):
        store(tile.dkeys, at, spread(EIGHT, np.float32(0)))
    at = 0
    for actor in range(start, end):
        local, source = tile.actor_frames[actor], tile.actor_sources[actor]
        frame = batch.frames[low + local]
        first = tile.actee_starts[local]
        num_actees = tile.actee_starts[local + 1] - first
        choices = num_actees + 1 if has_nobody else num_actees
        query = (actor - start) * padded
        for k in range(0, padded, 8):
            store(tile.rows, query + k, spread(EIGHT, np.float32(0)))
        dlog_prob = np.float32(0)  # unless a choice stands for what was done
        for c in range(choices):
            if _selected(actees, actee_offsets[frame], c, num_actees) == made[source]:
                dlog_prob = tile.dlog_probs[actor]
        for c in range(choices):
            is_nobody = c == num_actees
            if logits[at + c] <= CLOSED:
                continue
            selected = _selected(actees, actee_offsets[frame], c, num_actees)
            slope = scale * _slope(
                logits[at + c], selected == made[source], dlog_prob, tile.dentropies[actor], tile.entropies[actor]
            )  # fmt: skip
            key = (count if is_nobody else first + c) * padded
            for k in range(0, padded, 8):
                dquery = fma(spread(EIGHT, slope), load(EIGHT, tile.keys, key + k), load(EIGHT, tile.rows, query + k))
                store(tile.rows, query + k, dquery)
                dkey = fma(spread(EIGHT, slope), load(EIGHT, tile.queries, query + k), load(EIGHT, tile.dkeys, key + k))
                store(tile.dkeys, key + k, dkey)
        at += choices
    for at in range(0, (end - start) * padded, 8):  # of the queries: `rows` is needed for tokens
        store(tile.queries, at, load(EIGHT, tile.rows, at))
    if has_nobody:
        for k in range(action[CHOICES]):
            gradient[action[DNOBODY] + k] += tile.dkeys[count * padded + k]
    _linear_backward(lanes, kernels, net, tile, tile.actor_tokens, start, end, tile.queries, layer, gradient)
    _linear_backward(lanes, kernels, net, tile, tile.actee_tokens, 0, count, tile.dkeys, layer + 1, gradient)


# --- The whole step


@inline
def _fill(batch, tile, low, high):  # type: ignore[no-untyped-def]
    """The frames from `low` on that fill a tile, at least one: writes where their tokens begin, and returns where they end."""
    end, size = low, 0
    tile.offsets[0] = 0
    while end < high and (end == low or size + batch.sizes[batch.frames[end]] <= tile.room - ROWS):
        size += batch.sizes[batch.frames[end]]
        tile.offsets[end - low + 1] = tile.offsets[end - low] + batch.lengths[batch.frames[end]]
        end += 1
    return end


@kernel
def act(
    kernels: Kernels, net: Net, batch: Minibatch, tile: Tile, low: Count, high: Count, choice: Choice, values: Floats
) -> None:
    """Choose in the frames `low:high`, and write actions and log-probs to where the table of actions says.

    Args:
        kernels: see there.
        net: see there.
        batch: see there.
        tile: memory.
        low: position of the first frame.
        high: position behind the last.
        choice: see there.
        values: result, (B).
    """
    while low < high:
        end = _fill(batch, tile, low, high)
        invoke(kernels.embed, BOUND, kernels, net, batch, tile, low, end)
        invoke(kernels.transform, BOUND, kernels, net, batch, tile, end - low, 0)
        invoke(kernels.decide, BOUND, kernels, net, batch, tile, low, end, choice)
        if net.has_value:
            for position in range(low, end):
                values[batch.frames[position]] = tile.values[position - low]
        for number in range(net.num_actions):
            log_probs = floats_at(net.actions[number * ACTION_COLUMNS + OLD_LOG_PROBS])
            for actor in range(tile.action_actors[number], tile.action_actors[number + 1]):
                log_probs[tile.actor_sources[actor]] = tile.log_probs[actor]
        low = end


@kernel
def learn(
    kernels: Kernels,
    loss: Count,
    settings: Floats,
    net: Net,
    batch: Minibatch,
    tile: Tile,
    low: Count,
    high: Count,
    gradient: Floats,
    stats: Floats,
) -> None:
    """Add the gradient of the loss on the frames `low:high` of a minibatch, and what there is to log.

    Args:
        kernels: see there.
        loss: address of the kernel that computes the loss of a tile, see `enn_ppo.training.learning.compiled_loss.ppo`.
        settings: of the loss.
        net: see there.
        batch: see there.
        tile: memory.
        low, high: positions in the minibatch.
        gradient: of the weights and, behind them, of other parameters.
        stats: of the loss, to which those of every tile are added.
    """
    while low < high:
        end = _fill(batch, tile, low, high)
        invoke(kernels.embed, BOUND, kernels, net, batch, tile, low, end)
        invoke(kernels.transform, BOUND, kernels, net, batch, tile, end - low, 1)
        invoke(kernels.decide, BOUND, kernels, net, batch, tile, low, end, Choice(GIVEN, batch.frames))
        invoke(
            loss, settings, low, end, batch.size, batch.columns, tile.action_actors[net.num_actions],
            tile.actor_frames, tile.log_probs, tile.old_log_probs, tile.entropies, tile.values, tile.dlog_probs,
            tile.dentropies, tile.dvalues, stats,
        )  # fmt: skip
        invoke(kernels.decide_backward, BOUND, kernels, net, batch, tile, low, end, gradient)
        invoke(kernels.transform_backward, BOUND, kernels, net, batch, tile, end - low, gradient)
        invoke(kernels.embed_backward, BOUND, kernels, net, tile, gradient)
        low = end
