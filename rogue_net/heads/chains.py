"""Chained actions: a head reads what was chosen before, so log p(a, b) = log p(a) + log p(b | a).

The head of an earlier action makes a message of each actor's choice. The message is added up on the tokens that the later head
reads: on the actor's own; on all tokens of the frame where the earlier action is global; and where only the later one is, the
mean over the earlier actors. The later head then reads each token together with its messages (`Reader`).

Shapes: B frames, E tokens, D width, A actors of an action in all frames, C choices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from entity_gym.actions import ActionSpace
from entity_gym.actions.chains import selection_before
from rogue_net.batch.obs_batch import ActionMask
from rogue_net.batch.ragged import RaggedTensor
from rogue_net.heads.readout import Readout


class Reader(nn.Module):
    """Token x with the messages m becomes x + W relu(V [x, m] + v) + w, where W and w are 0 at first.

    A head is linear in the token that it reads. Without the hidden layer, the effect of an earlier choice on the logits could
    not depend on what the actor observes.
    """

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(2 * d_model, d_model)
        self.project = nn.Linear(d_model, d_model)
        nn.init.zeros_(self.project.weight)
        nn.init.zeros_(self.project.bias)

    def forward(self, tokens: Tensor, messages: Tensor) -> Tensor:
        """Compute (n, D) of (n, D) tokens and (n, D) sums of their messages."""
        read: Tensor = self.project(self.hidden(torch.cat([tokens, messages], dim=1)).relu())
        return tokens + read


def on_actors(messages: Tensor, readout: Readout, action: str) -> Tensor:
    """(E, D), on the token of each actor of `action` its row of `messages`, (A, D); 0 elsewhere."""
    return torch.zeros_like(readout.tokens).index_add(0, readout.batch.action_tokens[action].actors, messages)


def on_frames(messages: Tensor, readout: Readout, action: str) -> Tensor:
    """(E, D), on every token of a frame the mean of the `messages`, (A, D), of the frame's actors; 0 where nobody acts."""
    actors, tokens = readout.batch.action_masks[action].actors, readout.tokens
    sums = tokens.new_zeros(len(readout.batch), tokens.shape[1]).index_add(0, actors.sequences, messages)
    means = sums / actors.lengths.clamp(min=1).unsqueeze(1)
    return means.index_select(0, readout.batch.frames.of_token)


def sums_before(rows: Tensor, ranks: Tensor, most: int, strides: Tensor | int = 1) -> Tensor:
    """(n, ...) sums of the rows that belong to earlier actors of the same frame.

    In log2(most) rounds (Hillis & Steele 1986, "Data parallel algorithms"). Every frame is added up in an order that
    depends on ranks alone, so its sums are the same to the bit in any batch.

    Args:
        rows: (n, ...).
        ranks: (n,) int64, the rank of each row's actor.
        most: the most actors of a frame.
        strides: distance from a row to that of the actor before, the same for all rows of a frame.
    """
    numbers = torch.arange(len(rows), device=rows.device)

    def from_before(sums: Tensor, distance: int) -> Tensor:
        has = (ranks >= distance).view(-1, *[1] * (rows.dim() - 1))
        return torch.where(has, sums.index_select(0, (numbers - distance * strides).clamp(min=0)), 0)

    sums, distance = rows, 1
    while distance < most - 1:
        sums = sums + from_before(sums, distance)
        distance *= 2
    return from_before(sums, 1)


def close_by_choices(
    action: str, action_space: Mapping[str, ActionSpace], readout: Readout, chosen: Mapping[str, RaggedTensor]
) -> ActionMask:
    """The mask of an action without the choices that earlier choices close.

    Args:
        action: its name.
        action_space: all actions by name.
        readout: of B frames.
        chosen: earlier action -> B sequences of what its actors do.
    """
    mask, space = readout.batch.action_masks[action], action_space[action]
    selection = None if mask.mask_after is None else selection_before(action, action_space)
    if not space.allowed and selection is None:
        return mask
    is_open = mask.opened(len(space.labels)).values
    for earlier, given in space.allowed.items():
        table = torch.tensor([*given, [True] * len(space.labels)], device=is_open.device)  # last: nothing was chosen
        choices = chosen[earlier].values[:, 0]
        choices = torch.cat([choices, choices.new_full((1,), len(given))])
        rows = rows_of(action, earlier, readout, is_global=action_space[earlier].is_global)
        is_open = is_open & table.index_select(0, choices.index_select(0, rows))
    if selection is not None:
        is_open = is_open & _open_after_selection(action, selection, readout, chosen[selection])
    return replace(mask, mask=RaggedTensor(is_open, mask.actors.offsets))


def _open_after_selection(action: str, selection: str, readout: Readout, selected: RaggedTensor) -> Tensor:
    """(A, C) bool, what `mask_after` leaves open to the actors of `action` after the entities that they have selected."""
    mask, before, batch = readout.batch.action_masks[action], readout.batch.action_masks[selection], readout.batch
    tokens = batch.action_tokens[selection].actees
    assert mask.mask_after is not None and before.actees is not None and tokens is not None
    values, offsets = mask.mask_after
    entities = torch.cat([selected.values[:, 0], selected.values.new_full((1,), -1)])
    entities = entities.index_select(0, rows_of(action, selection, readout, is_global=False))
    # the place of each selected entity among the actees of its frame
    frames = mask.actors.sequences
    numbers = torch.arange(len(tokens), device=tokens.device) - before.actees.offsets.index_select(
        0, before.actees.sequences
    )
    places = tokens.new_zeros(len(readout.tokens)).index_copy(0, tokens, numbers)
    places = places.index_select(0, batch.frames.offsets.index_select(0, frames) + entities.clamp(min=0))
    rows = offsets.index_select(0, frames) + mask.ranks * before.actees.lengths.index_select(0, frames) + places
    closes = (entities >= 0) & (mask.mask_after.lengths.index_select(0, frames) > 0)
    everything = torch.ones(1, values.shape[1], dtype=torch.bool, device=values.device)
    return torch.cat([values, everything]).index_select(0, torch.where(closes, rows, len(values)))


def rows_of(action: str, earlier: str, readout: Readout, *, is_global: bool) -> Tensor:
    """(A,) int64, for each actor of `action` its row of the earlier action; the row after the last stands for none.

    Args:
        action: the later action.
        earlier: the earlier one.
        readout: of B frames.
        is_global: whether the earlier action is the frame's, so that its row is every actor's.
    """
    tokens, before = readout.batch.action_tokens, readout.batch.action_masks[earlier].actors
    none = len(before.values)
    if is_global:
        rows = torch.where(before.lengths > 0, before.offsets[:-1], none)
        return rows.index_select(0, readout.batch.action_masks[action].actors.sequences)
    numbers = torch.arange(none, device=before.offsets.device)
    places = numbers.new_full((len(readout.tokens),), none)
    return places.index_copy(0, tokens[earlier].actors, numbers).index_select(0, tokens[action].actors)
