"""Arguments of the kernels of the compiled step: tables of a network and of frames, and memory of a thread.

Tables have one row of int64 for each linear layer, entity type, category and action. Addresses are those of arrays; places are
indices in the flat numbers of `Net`, or in the gradient.

Shapes: B frames, M of them in a minibatch, n tokens of a tile, F its frames, A actors of an action, D width, H heads, K width of
a head or of a query, C choices, T tokens that a tile has room for.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from rogue_net.kernels.cpu.attention import Scratch
from rogue_net.kernels.cpu.calling import shifted
from rogue_net.kernels.cpu.compiling import Const, Count, Flags, Floats, Ints, Number, inline
from rogue_net.kernels.cpu.relative_attention import Scratch as RelativeScratch
from rogue_net.kernels.cpu.relative_terms import Places, Scheme

BOUND = Const(0)  # in a call of `invoke`: a Const that the kernel at the address is compiled for


class Kernels(NamedTuple):
    """Addresses of kernels, for one width of the network and of its heads; 0 for those that the network does not need."""

    product: Count
    outer: Count
    normalize: Count
    normalize_backward: Count
    gelu: Count
    gelu_backward: Count
    attend: Count
    attend_backward: Count
    relate: Count  # attention with relative positions
    relate_backward: Count
    open_gates: Count
    close_gates: Count
    embed: Count
    embed_backward: Count
    transform: Count
    transform_backward: Count
    decide: Count
    decide_backward: Count


#: A linear layer: its place in `weights` as (in, out), that of its bias, and its place in `transposed` as (out, in), both in
#: panels (`dense`); padded sizes.
WEIGHT, BIAS, TRANSPOSED, INPUTS, OUTPUTS = range(5)
LINEAR_COLUMNS = 5

#: An entity type: (entities, STRIDE) inputs, (B + 1) offsets, flags of visible entities (0: all are), number of its linear layer
#: (-1: none), ids (entities, NUM_IDS), number of the first category; places of scale, shift or vector in `parameters` and in the
#: gradient. VECTOR is -1 for a type with features. What inputs are made of, see `inputs.prepare`: features (entities,
#: NUM_FEATURES), whether global features join them, their columns, and what plain numbers are normalized with.
(
    VALUES, OFFSETS, VISIBLE, STRIDE, LINEAR, IDS, NUM_IDS, CATEGORY, SCALE, SHIFT, DSCALE, DSHIFT, VECTOR, DVECTOR,
    FEATURES, NUM_FEATURES, JOINS, SOURCES, NUM_PLAIN, NUM_ANGLES, NUM_FLAGS, NORM_OFFSET, NORM_SCALE,
) = range(23)  # fmt: skip
TYPE_COLUMNS = 23

#: A category: place of its table in `parameters` and in the gradient.
TABLE, DTABLE = range(2)
CATEGORY_COLUMNS = 2

#: An action: addresses of the kernels of its kind; actors (A) as indices in the frame with (B + 1) offsets, what they did, old
#: log-probs; the mask (0: all is open); number of choices, of features of a query, or of numbers; number of the first linear
#: layer; place of the logits in the tile; what its name adds to keys of noise, see `heads.noise.name_key`.
#: Select-entity: actees with offsets, and offsets of the mask's pairs. Place of a parameter of its own in `parameters` and in
#: the gradient, or -1: nobody's key, or log standard deviations. Numbers: their bounds, see `continuous`.
(
    DECIDE, DECIDE_BACKWARD, ACTORS, ACTOR_OFFSETS, ACTIONS, OLD_LOG_PROBS, MASK, CHOICES, LAYER, LOGITS, NOISE,
    ACTEES, ACTEE_OFFSETS, PAIR_OFFSETS, OWN, DOWN, BOUNDS,
) = range(17)  # fmt: skip
ACTION_COLUMNS = 17

#: How entities see each other.
ATTENTION, RELATIVE = range(2)


class Net(NamedTuple):
    """A network, as the kernels see it."""

    width: Count  # D
    num_heads: Count  # H
    head_width: Count  # K
    num_blocks: Count
    num_types: Count
    num_actions: Count
    has_value: Count
    mixing: Count  # one of those above
    first_block: Count  # number of its first linear layer; a block has four: qkv, project, up, down
    first_gate: Count  # number of the first block's linear layer of gates
    key_table: Count  # places of relative keys and values in `weights`
    value_table: Count
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
    weights: Floats  # of linear layers, with the LayerNorm before folded in, and tables of relative positions
    transposed: Floats
    scheme: Scheme  # of relative positions


class Geometry(NamedTuple):
    """Positions of the E entities of all frames; for relative positions alone."""

    first: Ints  # (B) the first token of each frame
    positions: Floats  # (E, dimensions)
    facing: Floats  # (E, 2)
    types: Ints  # (E) -1 for entities without relative positions
    value_block: Count  # numbers from one type's rows to the next in the table of values


class Minibatch(NamedTuple):
    """The frames to learn from."""

    frames: Ints  # (M) numbers of frames
    lengths: Ints  # (B) tokens of every frame
    sizes: Ints  # (B) what it takes of the room of a tile: the largest number of its tokens, actors, actees
    hides: Count  # whether any entity is hidden
    columns: Floats  # (columns, M) of the loss
    size: Count  # M
    geometry: Geometry


class Choice(NamedTuple):
    """How actors choose."""

    mode: Count  # one of those below
    keys: Ints  # (B) of the frames' noise, see `rogue_net.heads.noise.FrameKeys`


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
    dgate: Floats  # (n, K)
    saved: Floats  # of every block, see `block_of`
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
    logits: Floats  # log-probabilities of every action's choices, or means of its numbers
    rows: Floats  # (T, D) tokens of actors or actees
    panel: Floats  # (2 T, 16) of `dense.outer`
    queries: Floats  # (T, K)
    keys: Floats  # (T + 6, K)
    dkeys: Floats  # likewise
    actee_tokens: Ints  # (T)
    actee_starts: Ints  # (F + 1)
    means: Floats  # (F, D)
    values: Floats  # (F)
    dvalues: Floats  # (F)
    attention: Scratch
    entities: Places  # where they stand
    relative: RelativeScratch


class Block(NamedTuple):
    """Activations of a block that its backward needs."""

    normalized: Any  # (T, D)
    qkv: Any  # (T, 3 D)
    attended: Any  # (T, D)
    normalized2: Any  # (T, D)
    slope: Any  # (T, 4 D) of GELU
    activated: Any  # (T, 4 D)
    inverse_std: Any  # (T)
    inverse_std2: Any  # (T)
    softmax: Any  # (T, H, 2)
    more: Any  # (T, 2 K) gates of relative values and their slopes; nothing without relative positions


_WIDTHS = 14  # widths of a block's first six arrays


def saved_floats(width: int, num_heads: int, head_width: int, mixing: int) -> int:
    """Numbers that `Block` has for each token."""
    return _WIDTHS * width + 2 + 2 * num_heads + (2 * head_width if mixing == RELATIVE else 0)


@inline
def block_of(net, tile, number):  # type: ignore[no-untyped-def]
    """The memory of a block."""
    width, room = net.width, tile.room
    more = 2 * net.head_width if net.mixing == RELATIVE else 0
    at = shifted(tile.saved, number * room * (_WIDTHS * width + 2 + 2 * net.num_heads + more))
    rest = shifted(at, room * _WIDTHS * width)
    return Block(
        at,
        shifted(at, room * width),
        shifted(at, room * 4 * width),
        shifted(at, room * 5 * width),
        shifted(at, room * 6 * width),
        shifted(at, room * 10 * width),
        rest,
        shifted(rest, room),
        shifted(rest, 2 * room),
        shifted(rest, room * (2 + 2 * net.num_heads)),
    )


@inline
def linear(net, number, column):  # type: ignore[no-untyped-def]
    """An entry of the table of linear layers."""
    return net.linears[number * LINEAR_COLUMNS + column]


@inline
def weight_of(net, number):  # type: ignore[no-untyped-def]
    """(in, out) weight of a linear layer."""
    return shifted(net.weights, linear(net, number, WEIGHT))


@inline
def bias_of(net, number):  # type: ignore[no-untyped-def]
    """(out) bias of a linear layer."""
    return shifted(net.weights, linear(net, number, BIAS))


@inline
def transposed(net, number):  # type: ignore[no-untyped-def]
    """(out, in) weight of a linear layer."""
    return shifted(net.transposed, linear(net, number, TRANSPOSED))
