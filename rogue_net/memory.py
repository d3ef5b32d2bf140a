"""Memory that belongs to entities: a minimal GRU along the id of every entity, from step to step.

    z = sigmoid(W_z norm(x) + b_z)    c = W_c norm(x) + b_c    h_t = (1 - z) h_{t-1} + z c    x + W_o norm(h_t) + b_o

Source: Feng et al. 2024 (arXiv 2410.01201), section 3.1. The gate and the candidate depend on the token alone, so all else in the
network runs over the frames of all steps at once.

Whom a token goes on from is one column, `Links.previous`: the token that had the same type and id one step before in the same
episode, or a row of the state that was kept from the step before the batch, or nobody. So whoever goes is forgotten, and nobody
takes over what another one knew in its place of the frame. The frame's own memory is that of its `__global__` entity.

Shapes: E tokens, B frames, M tokens that remember, D width.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property
from typing import cast

import torch
from torch import Tensor, nn

from entity_gym.errors import nearest
from entity_gym.spaces import GLOBAL_ENTITY
from rogue_net.batch.obs_batch import ObsBatch
from rogue_net.batch.ragged import RaggedTensor, State, offsets_of
from rogue_net.config import MemoryKind

FRAME = -2  # stands for an id where the whole frame remembers


class Links:
    """The tokens of a batch that remember, and whom each goes on from.

    Args:
        batch: B frames.
        types: entity types in the order of the network's, `__global__` too.
        remember: which of them remember.
        state: what was remembered before the frames.
        follows: (B,) bool, frames that come a step after the frame before them; see `RogueNet.evaluate`.

    Attributes:
        tokens: (M,) int64, in the order of the batch's tokens.
        types: (M,) int64, the number of each one's type.
        ids: (M,) int64.
        offsets: (B + 1,) int64, the frames among them.
        previous: (M,) int64, whom each goes on from: the m-th of them; -1 - k, row k of the state; or `nobody`.
        steps: (M,) int64, how many frames before a token's one it follows without a gap.
    """

    def __init__(
        self,
        batch: ObsBatch,
        types: Collection[str],
        remember: Collection[str],
        state: State | None,
        follows: Tensor | None,
    ) -> None:
        frames, device = batch.frames, batch.device
        kind = torch.full((frames.num_tokens,), -1, dtype=torch.int64, device=device)
        ids = batch.token_ids
        for number, name in enumerate(types):
            places = frames.positions[name]
            if name == GLOBAL_ENTITY:
                ids = ids.index_fill(0, places, FRAME)
            if name in remember:
                kind[places] = number
        known = (kind >= 0) & (ids != -1)
        self.tokens = known.nonzero()[:, 0]
        of_frame = frames.of_token[self.tokens]
        self.types, self.ids = kind[self.tokens], ids[self.tokens]
        self.offsets = offsets_of(torch.bincount(of_frame, minlength=len(batch)))
        numbers = torch.arange(len(batch), device=device)
        if follows is None:
            follows = torch.zeros_like(numbers, dtype=torch.bool)
        self.steps = (numbers - numbers.masked_fill(follows, 0).cummax(0).values)[of_frame]
        # a number for each entity: those of one type and id have the same one, in all frames and in the state
        kept: list[RaggedTensor] = [] if state is None else [columns_of(state)[name] for name in ("types", "ids")]
        self.nobody = -1 - (len(kept[0].values) if kept else 0)
        told = torch.stack([self.types, self.ids], dim=1)
        of_kept = told[:0, 0]
        if kept:
            told = torch.cat([told, torch.cat([column.values for column in kept], dim=1)])
            of_kept = kept[0].sequences
        entities, count = _numbered(told)
        mine, theirs = entities[: len(of_frame)], entities[len(of_frame) :]
        # the places of entities in frames are sorted: the frame that a token goes on from is looked up there
        after = follows[of_frame]
        found = _find(of_frame * count + mine, (of_frame - 1) * count + mine)
        carried = _find(of_kept * count + theirs, of_frame * count + mine)
        gone_on = torch.where(carried < 0, self.nobody, -1 - carried)
        self.previous = torch.where(after, torch.where(found < 0, self.nobody, found), gone_on)

    @cached_property
    def levels(self) -> list[Tensor]:
        """The numbers of the tokens at each step: those in the first frames of sequences, those in the next ones, and so on."""
        counts = torch.bincount(self.steps, minlength=1).tolist()
        return list(torch.split(torch.argsort(self.steps, stable=True), counts))

    def state(self, hidden: Tensor) -> State:
        """The state after the frames, with (M, D) numbers."""
        columns = {"types": self.types.unsqueeze(1), "ids": self.ids.unsqueeze(1), "hidden": hidden}
        return {name: RaggedTensor(values, self.offsets) for name, values in columns.items()}


def columns_of(state: State) -> dict[str, RaggedTensor]:
    """The columns of what `Links.state` returns."""
    return cast("dict[str, RaggedTensor]", state)


def _numbered(rows: Tensor) -> tuple[Tensor, int]:
    """(n,) the same number for equal rows of (n, 2) int64, and how many there are."""
    second, of_second = torch.unique(rows[:, 1], return_inverse=True)
    pairs, numbers = torch.unique(rows[:, 0] * len(second) + of_second, return_inverse=True)
    return numbers, len(pairs)


def _find(keys: Tensor, wanted: Tensor) -> Tensor:
    """(n,) where each of (n,) `wanted` stands among different `keys`; -1 where it does not."""
    if not len(keys):
        return torch.full_like(wanted, -1)
    ordered, order = keys.sort()
    place = torch.searchsorted(ordered, wanted).clamp(max=len(keys) - 1)
    return torch.where(ordered[place] == wanted, order[place], -1)


class Memory(nn.Module):
    """The layer. A state begins as learned numbers of its type, where an entity appears.

    Args:
        kind: whether entities with ids remember (`entity`), the whole frame (`frame`), or `both`.
        d_model: D.
        types: all entity types of the network.
        remember: those of them that remember with `entity`; None: all.

    Raises:
        ValueError: there is nobody to remember, or no such type.
    """

    def __init__(
        self, kind: MemoryKind, d_model: int, types: Collection[str], remember: Collection[str] | None = None
    ) -> None:
        super().__init__()
        self.types = list(types)
        entities = [name for name in self.types if name != GLOBAL_ENTITY]
        for name in remember or ():
            if name not in entities:
                raise ValueError(f"net.memory_types names the unknown entity type {name!r}; {nearest(name, entities)}")
        chosen = [] if kind == "frame" else entities if remember is None else list(remember)
        if kind != "entity":
            if GLOBAL_ENTITY not in self.types:
                raise ValueError(
                    f"net.memory={kind}: the frame's memory is that of its global entity, and the environment has neither global "
                    "features nor a global action; give it one, or take net.memory=entity"
                )
            chosen.append(GLOBAL_ENTITY)
        if not chosen:
            raise ValueError(f"net.memory={kind}: no entity type is left to remember")
        self.remember = frozenset(chosen)
        self.norm_in, self.norm_out = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.gates = nn.Linear(d_model, 2 * d_model)  # the gate's inputs, then the candidates
        self.out = nn.Linear(d_model, d_model)
        self.first = nn.Parameter(torch.zeros(len(self.types), d_model))
        nn.init.constant_(self.gates.bias[:d_model], -1.0)  # at first, more than two thirds of what was known stay
        nn.init.normal_(self.out.weight, std=0.02)
        nn.init.zeros_(self.out.bias)

    def forward(
        self, tokens: Tensor, batch: ObsBatch, state: State | None = None, follows: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Send (E, D) tokens through the layer.

        Args:
            tokens: (E, D).
            batch: whose tokens they are.
            state: what was remembered before the frames; see `RogueNet.evaluate`.
            follows: (B,) bool; see `RogueNet.evaluate`.

        Returns:
            (E, D) tokens, and what is remembered after each frame.

        Raises:
            ValueError: no entity that is to remember has an id.
        """
        self.check_ids(batch)
        links = Links(batch, self.types, self.remember, state, follows)
        mine = tokens.index_select(0, links.tokens).to(self.first.dtype)  # what is remembered is not rounded to bf16
        with torch.autocast(tokens.device.type, enabled=False):
            after = self._scan(self.norm_in(mine), links, state)
            added = self.out(self.norm_out(after))
        return tokens.index_add(0, links.tokens, added.to(tokens.dtype)), links.state(after)

    def _scan(self, x: Tensor, links: Links, state: State | None) -> Tensor:
        """(M, D) states after each of (M, D) normalized tokens."""
        gate, candidate = self.gates(x).chunk(2, dim=1)
        gate = torch.sigmoid(gate)
        begins, carried = self._carried(links, state)
        place = torch.empty_like(links.previous)  # of a token among those of its step
        hidden: list[Tensor] = []
        for rows in links.levels:
            place[rows] = torch.arange(len(rows), device=rows.device)
            before, source = links.previous[rows], carried[rows]
            known = begins
            if hidden:
                source = torch.where(before >= 0, len(begins) + place[before.clamp(min=0)], source)
                known = torch.cat([begins, hidden[-1]])
            hidden.append(torch.lerp(known.index_select(0, source), candidate[rows], gate[rows]))
        return torch.cat(hidden)[torch.argsort(torch.cat(links.levels))]

    def _carried(self, links: Links, state: State | None) -> tuple[Tensor, Tensor]:
        """Numbers to begin with, and (M,) the row of them for each token that goes on from no token of the batch."""
        begins = self.first if state is None else torch.cat([self.first, columns_of(state)["hidden"].values])
        # at a row of the state, or as its type does
        return begins, torch.where(links.previous == links.nobody, links.types, len(self.first) - 1 - links.previous)

    def changes(self, batch: ObsBatch, before: State | None, after: State) -> RaggedTensor:
        """How much the state of each entity has changed in one step: |h_t - h_{t-1}| / (|h_t| + |h_{t-1}|), from 0 to 1.

        Args:
            batch: B frames, none of which follows another.
            before: what was remembered before them.
            after: what is remembered after them, as `forward` returns it.

        Returns:
            B sequences of (E, 1) numbers; NaN for entities that remember nothing.
        """
        links, now = Links(batch, self.types, self.remember, before, None), columns_of(after)["hidden"].values
        begins, carried = self._carried(links, before)
        then = begins.index_select(0, carried)
        sizes = now.norm(dim=1) + then.norm(dim=1)
        changed = now.new_full((batch.frames.num_tokens, 1), torch.nan)
        share = (now - then).norm(dim=1) / sizes.clamp(min=torch.finfo(sizes.dtype).tiny)
        changed[links.tokens, 0] = share.clamp(max=1)  # rounding
        return RaggedTensor(changed, batch.frames.offsets)

    def check_ids(self, batch: ObsBatch) -> None:
        """Raise a ValueError if there are entities that are to remember, and none of their types has ids."""
        there = [name for name in self.remember - {GLOBAL_ENTITY} if len(batch.features[name].values)]
        if there and not any(name in batch.ids for name in self.remember):
            names = ", ".join(map(repr, sorted(there)))
            raise ValueError(
                f"net.memory remembers entities by their ids, and those of {names} have none: give `ids` in the observation "
                "(a compiled world: Entity(..., ids=True)), or take net.memory=frame"
            )
