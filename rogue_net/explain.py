"""Explanations of a network's decisions: attention weights, distributions and values of a batch.

Shapes: B frames, E tokens of all frames, e tokens of one frame, n blocks, H heads, A actors of an action.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from rogue_net.attention import packed_weights
from rogue_net.batch.frames import Frames
from rogue_net.batch.obs_batch import ObsBatch
from rogue_net.batch.ragged import RaggedTensor, State
from rogue_net.heads.readout import Readout
from rogue_net.relative.relative_positions import Relative
from rogue_net.rogue_net import RogueNet
from rogue_net.transformer import Block


class Explanation(NamedTuple):
    """The forward pass of B frames, opened up."""

    #: For each frame (n, H, e, e): row i holds the weights with which token i attends to each token, and sums to 1. None: the
    #: network pools or has no blocks, or nobody asked for them.
    attention: list[Tensor] | None
    logits: dict[str, RaggedTensor]  # action -> as `ActResult.logits`
    entropies: dict[str, RaggedTensor]  # action -> B sequences of (A,) float32, in nats
    values: Tensor  # (B,) float32
    changes: RaggedTensor | None  # of what entities remember; see `Memory.changes`; None: the network remembers nothing


@torch.no_grad()
def explain(
    net: RogueNet,
    batch: ObsBatch,
    state: State | None = None,
    *,
    actions: Mapping[str, RaggedTensor] | None = None,
    attention: bool = True,
) -> Explanation:
    """Compute a batch as the reference does, and keep what it computes on its way.

    Tokens of a frame are in the order of its entity indices, as the network sees the frame.

    Args:
        net: the network.
        batch: B frames.
        state: what was remembered before them; see `RogueNet.act`.
        actions: action -> B sequences of what the actors do: later actions are explained after these. None: the greedy ones.
        attention: whether to keep the weights, as many as there are pairs of entities of a frame.

    Raises:
        ValueError: the batch does not fit the network.
    """
    batch = net.translation(batch)
    weights: list[Tensor] = []
    positions, memory = net.transformer.relative_positions, net.transformer.memory

    def keep_weights(block: Block, tokens: Tensor, relative: Relative | None) -> None:
        if block.pool is None:
            qkv, gated = block.attention_inputs(block.attention_norm(tokens), relative, positions)
            weights.append(packed_weights(qkv, batch.frames, gated))

    watch = keep_weights if attention else None
    tokens, after = net.transformer(net.embedding(batch), batch, state, watch=watch)
    readout = Readout(tokens, batch)
    decisions = net.decide(readout, actions, greedy=True)
    return Explanation(
        attention=_by_frame(torch.stack(weights), batch.frames) if weights else None,
        logits=net.ragged_logits(readout, decisions),
        entropies={name: made.entropies() for name, made in decisions.items()},
        values=net.value_head(readout.means),
        changes=None if memory is None or after is None else memory.changes(batch, state, after),
    )


def _by_frame(weights: Tensor, frames: Frames) -> list[Tensor]:
    """Cut (n, R, H, L, L) weights on packed rows into (n, H, e, e) weights of each frame."""
    row_length, offsets = weights.shape[-1], frames.host_offsets.tolist()
    found = []
    for start, stop in zip(offsets[:-1], offsets[1:], strict=True):
        places = frames.rows.inverse_index[start:stop]
        row = int(places[0]) // row_length if stop > start else 0
        columns = places - row * row_length  # a frame lies in one row
        of_row = weights[:, row] if stop > start else weights.new_zeros(*weights.shape[0:1], *weights.shape[2:])
        found.append(of_row[:, :, columns][:, :, :, columns])
    return found
