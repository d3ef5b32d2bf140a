"""Arguments of the kernels of the compiled step: tables of a network and of frames, and memory of a thread.

Tables have a row for each linear layer, entity type, category and action. Addresses are those of arrays; places are indices in
the flat numbers of `Net`, or in the gradient.

Shapes: B frames, M of them in a minibatch, n tokens of a tile, F its frames, E those that are encoded, A actors of an action,
D width, H heads, K width of a head or of a query, C choices, T tokens that a tile has room for.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from rogue_net.kernels.cpu.attention import Scratch
from rogue_net.kernels.cpu.calling import shifted
from rogue_net.kernels.cpu.compiling import Const, Count, Flags, Floats, Ints, Number, Table, inline
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
    remember: Count
    remember_backward: Count
    decide_chained: Count
    decide_chained_backward: Count


class Linear(NamedTuple):
    """A linear layer, with the LayerNorm before it, if there is one. Sizes without `own` are padded."""

    weight: int  # place in `weights` as (inputs, outputs) in panels (`dense`), and of its gradient
    bias: int
    transposed: int  # place in `transposed` as (outputs, inputs); -1: it is not needed
    inputs: int
    outputs: int
    own_weight: int  # places in the parameters
    own_bias: int
    scale: int  # -1: there is no LayerNorm
    shift: int
    own_inputs: int
    own_outputs: int


class Parameter(NamedTuple):
    """A parameter of no linear layer."""

    place: int  # in the parameters
    gradient: int  # place of the gradient, and of a table of relative positions in `weights`
    size: int


class EntityType(NamedTuple):
    """An entity type: its entities in all frames, by addresses, and how they become tokens.

    Parameters are places in `Net.parameters`; names with a d are the places of their gradients behind those of linear layers.
    """

    inputs: int = 0  # (entities, stride) of the linear layer; `inputs.prepare` writes them
    ids: int = 0  # (entities, num_ids) of categories, likewise
    offsets: int = 0  # (B + 1)
    features: int = 0  # (entities, num_features)
    visible: int = 0  # (entities) flags; 0: all are
    num_features: int = 0  # without global ones
    joins: int = 0  # whether global features join them
    sources: int = 0  # columns of plain numbers, angles, flags and categories, see `inputs.sources_of`
    num_plain: int = 0
    num_angles: int = 0
    num_flags: int = 0
    num_ids: int = 0
    category: int = 0  # number of the first
    norm_offset: int = 0  # (num_plain) what plain numbers are normalized with
    norm_scale: int = 0
    stride: int = 0
    layer: int = -1  # number of the linear layer; -1: there is none
    scale: int = 0  # of the LayerNorm
    shift: int = 0
    dscale: int = 0
    dshift: int = 0
    vector: int = -1  # of a type without features; -1: it has some
    dvector: int = 0
    number: int = 0  # of the type in the network
    remembers: int = 0  # whether its entities do, see `remember.link`
    memory_ids: int = 0  # (entities); 0: the frame itself remembers
    remembered: int = 0  # (entities) number among those of all types that remember; -1: it does not
    previous: int = 0  # (entities) the token that it goes on from in the frame before; -1: none
    carried: int = 0  # (entities) row of the state that it goes on from, in the first frame of a sequence; -1: none


class Action(NamedTuple):
    """An action: its actors in all frames, by addresses, and its head."""

    actors: int = 0  # (A) indices in the frame
    actor_offsets: int = 0  # (B + 1)
    actions: int = 0  # (A) or (A, choices), what they did; or of each pair
    log_probs: int = 0  # (A) those of the policy that acted
    mask: int = 0  # flags of (A, choices), or of pairs; 0: all is open
    actees: int = 0  # indices in the frame, of those that may be selected
    actee_offsets: int = 0  # (B + 1); 0: nothing is selected
    pair_offsets: int = 0  # (B + 1) pairs of actors and actees; 0: neither the mask nor the action has any
    logits: int = 0  # place in `Tile.logits`, in units of the tile's room
    decide: int = 0  # kernels of its kind
    decide_backward: int = 0
    choices: int = 0  # or features of a query, or numbers
    layer: int = 0  # number of the first linear layer
    noise: int = 0  # what its name adds to keys of noise, see `heads.noise.name_key`
    parameter: int = -1  # place of the key of nobody or of stopping, or of log standard deviations; -1: there is none
    dparameter: int = 0  # place of the gradient
    bounds: int = 0  # (choices) `NumberBounds`
    quadrature: int = 0  # (2, nodes) nodes and weights, see `continuous`
    kind: int = 0  # one of those below
    is_global: int = 0
    # of sets, see `sets`
    per_pair: int = 0  # whether a set of entities is selected, and not one
    ordered: int = 0
    least: int = 0  # entities of an ordered set
    most: int = -1  # -1: all
    costs: int = 0  # (actees) and (A) of the budget, in all frames; 0: there is no budget
    budgets: int = 0
    left: int = 0  # places of the weight (choices) and bias of the share of the budget that is left
    left_bias: int = 0
    dleft: int = 0  # places of their gradients
    dleft_bias: int = 0
    # of chained actions, see `chained`
    reader: int = -1  # number of the reader's first linear layer; -1: the action is decided after no other
    in_turn: int = 0  # whether its actors decide in turn
    first_link: int = 0  # of the actions before it
    num_links: int = 0
    selection: int = -1  # the link to which `after_mask` belongs; -1: none
    after_mask: int = 0  # flags of (rows, choices); 0: none
    after_offsets: int = 0  # (B + 1) its rows
    open: int = 0  # flags of (A, choices) before earlier choices close some of them, see `mask`; 0: they close none
    told: int = -1  # place of the embedding of choices, or number of a linear layer: messages of its choices
    dtold: int = 0  # place of the embedding's gradient
    marks: int = -1  # number of the linear layer of messages to selected entities
    taken: int = -1  # places of the weight (D) and bias of how often an entity was selected before; -1: none
    taken_bias: int = 0
    dtaken: int = 0  # places of their gradients
    dtaken_bias: int = 0


#: Kinds of `Action`.
CHOICES, ENTITIES, NUMBERS = range(3)


class Link(NamedTuple):
    """An action that another one is decided after."""

    earlier: int  # number
    table: int  # flags of (its choices, choices of the later action), the combinations that are allowed; 0: all


class NumberBounds(NamedTuple):
    """The bounds of a number of a continuous action, see `rogue_net.heads.gaussian.Bounds`."""

    both: float
    one: float
    low: float
    high: float
    center: float
    radius: float
    limit: float
    log_radius: float
    edge: float
    sign: float
    step: float


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
    dvalue_weight: Count  # places of their gradients
    dvalue_bias: Count
    direct: Count  # place in the gradient behind those of linear layers
    memory: Count  # number of the first linear layer of the memory: gates, out; -1: there is none
    first_states: Count  # place in `parameters` of the (types, D) states of new entities
    dfirst_states: Count  # of its gradient
    value_mean: Number
    value_deviation: Number
    linears: Table[Linear]
    types: Table[EntityType]
    categories: Table[Parameter]  # their tables
    actions: Table[Action]
    links: Table[Link]
    parameters: Floats  # as the modules have them
    weights: Floats  # of linear layers, with the LayerNorm before folded in, and tables of relative positions
    transposed: Floats
    scheme: Scheme  # of relative positions


class TokenPositions(NamedTuple):
    """Positions of the E entities of all frames; for relative positions alone."""

    first: Ints  # (B) the first token of each frame
    positions: Floats  # (E, dimensions)
    facing: Floats  # (E, 2)
    types: Ints  # (E) -1 for entities without relative positions
    value_block: Count  # numbers from one type's rows to the next in the table of values


class Minibatch(NamedTuple):
    """The frames to learn from."""

    frames: Ints  # (M) numbers of frames
    originals: Ints  # (B) the first of the frames before that each equals, all of them: they are encoded once
    lengths: Ints  # (B) tokens of every frame
    sizes: Ints  # (B) what it takes of the room of a tile: the largest number of its tokens, actors, actees
    hides: Count  # whether any entity is hidden
    columns: Floats  # (columns, M) of the loss
    size: Count  # M
    geometry: TokenPositions
    starts: Flags  # (M) whether a frame begins a sequence; the others follow the one before by a step
    states: Floats  # (K, D) what was remembered before frames
    after: Floats  # result while acting: what entities remember, in the order of `EntityType.remembered`


class Choice(NamedTuple):
    """Way in which actors choose."""

    mode: Count  # one of those below
    keys: Ints  # (B) of the frames' noise, see `rogue_net.heads.noise.FrameKeys`


GIVEN, GREEDY, SAMPLED = range(3)  # what actors did is given, or the best choice is taken, or one is drawn


#: What a token's memory goes on from: nothing, as it has none; a token of its tile; a row of the state; its type's first state.
NOTHING, FROM_TOKEN, FROM_STATE, FROM_FIRST = range(4)


class MemoryActivations(NamedTuple):
    """Numbers of the memory's forward."""

    normalized: Floats  # (n, D)
    gates: Floats  # (n, 2 D) gates and candidates
    hidden: Floats  # (n, D)
    normalized2: Floats  # (n, D)
    inverse_std: Floats  # (n)
    inverse_std2: Floats  # (n)


class Chains(NamedTuple):
    """Memory for chained actions; nothing without them."""

    plain: Floats  # (n, D) tokens as the transformer leaves them, while a head reads others
    dplain: Floats  # (n, D) gradient of the tokens without that of the head
    messages: Floats  # (n, D) sums of messages; on the way back their gradient
    both: Floats  # (n, 2 D) tokens and messages
    hidden: Floats  # (n, D) of the reader
    told: Floats  # (n, D) messages of actors; on the way back their gradient
    inputs: Floats  # (n, K) numbers of a continuous action
    sums: Floats  # (D)
    selected: Ints  # tokens that the actors of an action have selected, actor by actor
    selections: Ints  # (actors + 1) where those of each actor begin
    actor_of: Ints  # (n) actor of an action that a token is; -1: none
    times: Ints  # (n) how often an actee was selected


class Sets(NamedTuple):
    """Memory for ordered sets; nothing without them. K is the width of keys."""

    first: Floats  # (T + 6, K) what queries see of actees: of that which was picked first
    last: Floats  # of that which was picked last
    each: Floats  # of all that were picked, by the mean over all actees
    dfirst: Floats  # their gradients
    dlast: Floats
    deach: Floats
    query: Floats  # (K) of the current pick
    sums: Floats  # (K) of `each` over the picks before; on the way back of `dqueries` over the picks after
    dqueries: Floats  # (T, K) of an actor's picks
    slopes: Floats  # (T + 8) of the current pick's logits, by the products of query and keys
    order: Ints  # (T) the number of the actee that each pick took
    columns: Ints  # (T + 1) the actees among which the current pick is made, n for stopping


class Tile(NamedTuple):
    """Memory of one thread."""

    room: Count  # T, a multiple of 6
    usual: Count  # tokens that it holds at most, likewise; less than T where equal frames share theirs
    encoded: Ints  # (E + 1) the frames that are encoded, and F
    encodings: Ints  # (F) the encoded frame that each frame equals
    offsets: Ints  # (E + 1) tokens of each encoded frame
    next: Ints  # (E) the token of its next entity, while they are embedded
    visible: Flags  # (n)
    x: Floats  # (n, D) residual stream; on the way back its gradient
    tokens: Floats  # (n, D) output of the transformer; on the way back a gradient
    dqkv: Floats  # (n, 3 D)
    dhidden: Floats  # (n, 4 D)
    dgate: Floats  # (n, K)
    saved: Floats  # of every block, see `activations_of`
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
    actee_starts: Ints  # (E + 1)
    means: Floats  # (E, D)
    values: Floats  # (F)
    dvalues: Floats  # (F)
    origins: Ints  # (n) what the memory of a token goes on from: one of those above
    origin_rows: Ints  # (n) its row
    memory: MemoryActivations
    chains: Chains
    sets: Sets
    attention: Scratch
    entities: Places  # where they stand
    relative: RelativeScratch


class Activations(NamedTuple):
    """Numbers of a block's forward that its backward needs."""

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


_WIDTHS = 14  # widths of the first six arrays


def saved_floats(width: int, num_heads: int, head_width: int, mixing: int) -> int:
    """Numbers that `Activations` has for each token."""
    return _WIDTHS * width + 2 + 2 * num_heads + (2 * head_width if mixing == RELATIVE else 0)


@inline
def activations_of(net, tile, number):  # type: ignore[no-untyped-def]
    """The memory of a block's activations."""
    width, room = net.width, tile.room
    more = 2 * net.head_width if net.mixing == RELATIVE else 0
    at = shifted(tile.saved, number * room * (_WIDTHS * width + 2 + 2 * net.num_heads + more))
    rest = shifted(at, room * _WIDTHS * width)
    return Activations(
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
def num_encoded(tile, frames):  # type: ignore[no-untyped-def]
    """The number of encoded frames among so many frames of a tile."""
    return tile.encodings[frames - 1] + 1


@inline
def weight_of(net, layer):  # type: ignore[no-untyped-def]
    """(in, out) weight of a linear layer."""
    return shifted(net.weights, net.linears[layer].weight)


@inline
def bias_of(net, layer):  # type: ignore[no-untyped-def]
    """(out) bias of a linear layer."""
    return shifted(net.weights, net.linears[layer].bias)


@inline
def transposed(net, layer):  # type: ignore[no-untyped-def]
    """(out, in) weight of a linear layer."""
    return shifted(net.transposed, net.linears[layer].transposed)
