"""A policy's step through tiles of whole frames: embedding, blocks and heads forward, the loss, and back through all of it.

A tile has some hundred tokens, so that everything about them stays in a core's cache. The steps are those of the modules in
`rogue_net.inputs`, `rogue_net.transformer` and `rogue_net.heads`; the loss is a kernel that is handed in. `program` fills the
tables that say where everything is.
"""

from __future__ import annotations

from rogue_net.kernels.cpu.calling import floats_at, invoke
from rogue_net.kernels.cpu.compiling import Count, Floats, inline, kernel
from rogue_net.kernels.cpu.dense import ROWS
from rogue_net.kernels.cpu.remember import keep_states
from rogue_net.kernels.cpu.tables import BOUND, GIVEN, Choice, Kernels, Minibatch, Net, Tile, num_encoded


@inline
def _fill(batch, tile, low, high):  # type: ignore[no-untyped-def]
    """The sequences from `low` on that fill a tile, at least one; returns where the last ends.

    Writes which frames are encoded, all but those that equal the one before, and where their tokens begin.
    """
    end, size, encoded = low, 0, 0
    tile.offsets[0] = 0
    while end < high:
        stop, of_sequence = end, 0
        while stop < high and (stop == end or batch.starts[stop] == 0):
            of_sequence += batch.sizes[batch.frames[stop]]
            stop += 1
        is_copy = end > low and batch.originals[batch.frames[end]] == batch.originals[batch.frames[end - 1]]
        tokens = tile.offsets[encoded] + (0 if is_copy else of_sequence)
        if end > low and (size + of_sequence > tile.room - ROWS or tokens > tile.usual - ROWS):
            break
        size += of_sequence
        while end < stop:
            if not is_copy:
                tile.encoded[encoded] = end - low
                tile.offsets[encoded + 1] = tile.offsets[encoded] + batch.lengths[batch.frames[end]]
                encoded += 1
            tile.encodings[end - low] = encoded - 1
            end += 1
    tile.encoded[encoded] = end - low
    return end


@kernel
def act(
    kernels: Kernels, net: Net, batch: Minibatch, tile: Tile, low: Count, high: Count, choice: Choice, values: Floats
) -> None:
    """Choose in the frames `low:high`, and write actions and log-probs to where the table of actions says.

    Args:
        low: position of the first frame.
        high: position behind the last.
        values: result, (B).
    """
    while low < high:
        end = _fill(batch, tile, low, high)
        invoke(kernels.embed, BOUND, kernels, net, batch, tile, low, end)
        invoke(kernels.transform, BOUND, kernels, net, batch, tile, low, end, 0)
        invoke(kernels.decide, BOUND, kernels, net, batch, tile, low, end, choice)
        if net.has_value:
            for position in range(low, end):
                values[batch.frames[position]] = tile.values[position - low]
        for number in range(net.num_types if net.memory >= 0 else 0):
            keep_states(net, batch, tile, number)
        for number in range(net.num_actions):
            log_probs = floats_at(net.actions[number].log_probs)
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
        loss: address of the kernel that computes the loss of a tile, see `enn_ppo.training.learning.compiled_loss.ppo`.
        settings: of the loss.
        low, high: positions in the minibatch.
        gradient: of the weights and, behind them, of other parameters.
        stats: of the loss, to which those of every tile are added.
    """
    while low < high:
        end = _fill(batch, tile, low, high)
        invoke(kernels.embed, BOUND, kernels, net, batch, tile, low, end)
        invoke(kernels.transform, BOUND, kernels, net, batch, tile, low, end, True)
        invoke(kernels.decide, BOUND, kernels, net, batch, tile, low, end, Choice(GIVEN, batch.frames))
        invoke(
            loss, settings, low, end, batch.size, batch.columns, tile.action_actors[net.num_actions],
            tile.actor_frames, tile.log_probs, tile.old_log_probs, tile.entropies, tile.values,
            tile.dlog_probs, tile.dentropies, tile.dvalues, stats,
        )  # fmt: skip
        invoke(kernels.decide_backward, BOUND, kernels, net, batch, tile, low, end, gradient)
        invoke(kernels.transform_backward, BOUND, kernels, net, batch, tile, num_encoded(tile, end - low), gradient)
        invoke(kernels.embed_backward, BOUND, kernels, net, tile, gradient)
        low = end
