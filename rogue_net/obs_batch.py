"""A batch of observations on a device.

Shapes: B frames (one environment at one step), E entities of all frames together (tokens), A actors, C choices, F features.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from entity_gym.ragged import RaggedBufferBool, RaggedBufferF32, RaggedBufferI64
from entity_gym.vec_obs import (
    VecAction,
    VecCategoricalActionMask,
    VecContinuousActionMask,
    VecObs,
    VecSelectEntityActionMask,
)
from rogue_net.ragged import RaggedTensor, cat_ragged, gather_items, offsets_of

Buffer = RaggedBufferF32 | RaggedBufferI64 | RaggedBufferBool


@dataclass(frozen=True)
class CategoricalMask:
    """Who takes a categorical action in each frame."""

    actors: RaggedTensor  # B sequences of (A, 1) int64, entity indices inside the frame
    mask: Tensor | None  # (A, C) bool over all frames' actors, true where open; None: everything is

    def gather(self, frames: Tensor) -> CategoricalMask:
        """The masks of some frames."""
        offsets = offsets_of(self.actors.lengths[frames])
        items = gather_items(self.actors.offsets, frames, offsets)
        return CategoricalMask(
            RaggedTensor(self.actors.values[items], offsets), None if self.mask is None else self.mask[items]
        )

    def split(self, sizes: Sequence[int]) -> list[CategoricalMask]:
        """The masks of consecutive parts of so many frames each."""
        actors = self.actors.split(sizes)
        if self.mask is None:
            return [CategoricalMask(part, None) for part in actors]
        rows = torch.split(self.mask, [len(part.values) for part in actors])
        return [CategoricalMask(part, mask) for part, mask in zip(actors, rows, strict=True)]


@dataclass(frozen=True)
class SelectEntityMask:
    """Who selects an entity in each frame, and which."""

    actors: RaggedTensor  # B sequences of (A, 1) int64, entity indices inside the frame
    actees: RaggedTensor  # B sequences of (number of actees, 1) int64
    pairs: (
        RaggedTensor | None
    )  # B sequences of (A * number of actees, 1) bool, actor by actor; None: every pair is open

    def gather(self, frames: Tensor) -> SelectEntityMask:
        """The masks of some frames."""
        pairs = None if self.pairs is None else self.pairs.gather(frames)
        return SelectEntityMask(self.actors.gather(frames), self.actees.gather(frames), pairs)

    def split(self, sizes: Sequence[int]) -> list[SelectEntityMask]:
        """The masks of consecutive parts of so many frames each."""
        pairs = [None] * len(sizes) if self.pairs is None else self.pairs.split(sizes)
        parts = zip(self.actors.split(sizes), self.actees.split(sizes), pairs, strict=True)
        return [SelectEntityMask(*part) for part in parts]


@dataclass(frozen=True)
class ContinuousMask:
    """Who picks numbers in each frame."""

    actors: RaggedTensor  # B sequences of (A, 1) int64, entity indices inside the frame

    def gather(self, frames: Tensor) -> ContinuousMask:
        """The masks of some frames."""
        return ContinuousMask(self.actors.gather(frames))

    def split(self, sizes: Sequence[int]) -> list[ContinuousMask]:
        """The masks of consecutive parts of so many frames each."""
        return [ContinuousMask(part) for part in self.actors.split(sizes)]


ActionMask = CategoricalMask | SelectEntityMask | ContinuousMask


class ActionTokens(NamedTuple):
    """Who takes part in an action, as tokens of the batch."""

    actors: Tensor  # (A,) int64
    actees: Tensor | None  # (number of actees of all frames,) int64, for select-entity


@dataclass(frozen=True)
class Layout:
    """Where the entities of a batch stand among its tokens: by frame, then by entity index inside the frame."""

    offsets: Tensor  # (B + 1,) int64, frame b's tokens are offsets[b]:offsets[b + 1]
    lengths: Tensor  # (B,) int64, tokens in each frame
    order: Tensor  # (E,) int64, the token of each row where all entities of the first type come first, and so on
    positions: dict[str, Tensor]  # entity type -> (entities of the type,) int64, their tokens: the parts of `order`

    @cached_property
    def frames(self) -> Tensor:
        """(E,) int64, the frame of each token."""
        return self.spread(torch.arange(len(self.lengths), device=self.lengths.device))

    @cached_property
    def inverse(self) -> Tensor:
        """(E,) int64, the row of each token where `order` has the token of each row."""
        rows = torch.arange(len(self.order), device=self.order.device)
        return torch.empty_like(rows).scatter_(0, self.order, rows)

    def spread(self, rows: Tensor) -> Tensor:
        """Give each token its frame's of B `rows`."""
        return torch.repeat_interleave(rows, self.lengths, dim=0, output_size=len(self.order))


@dataclass(frozen=True)
class ObsBatch:
    """Ragged observations of B frames as flat tensors with offsets."""

    num_frames: int
    features: dict[str, RaggedTensor]  # entity type -> B sequences of (number of entities, F) float32, in index order
    action_masks: dict[str, ActionMask]
    visible: dict[str, RaggedTensor] = field(
        default_factory=dict
    )  # types that hide something: B sequences of (n, 1) bool

    @staticmethod
    def from_vec_obs(obs: VecObs, device: torch.device | str = "cpu") -> ObsBatch:
        """Copy a step of N environments to `device`; its frames are the N environments in order."""
        move = _Mover(torch.device(device))
        masks: dict[str, ActionMask] = {}
        for name, mask in obs.action_masks.items():
            if isinstance(mask, VecCategoricalActionMask):
                masks[name] = CategoricalMask(move(mask.actors), None if mask.mask is None else move(mask.mask).values)
            elif isinstance(mask, VecContinuousActionMask):
                masks[name] = ContinuousMask(move(mask.actors))
            else:
                assert isinstance(mask, VecSelectEntityActionMask)
                pairs = None if mask.mask is None else move(mask.mask)
                masks[name] = SelectEntityMask(move(mask.actors), move(mask.actees), pairs)
        return ObsBatch(
            num_frames=len(obs),
            features={name: move(buffer) for name, buffer in obs.features.items()},
            action_masks=masks,
            visible={name: move(buffer) for name, buffer in obs.visible.items()},
        )

    @staticmethod
    def cat(batches: Sequence[ObsBatch]) -> ObsBatch:
        """All frames of the first batch, then all of the second, and so on."""
        if len(batches) == 1:
            return batches[0]
        first = batches[0]
        return ObsBatch(
            num_frames=sum(batch.num_frames for batch in batches),
            features={name: cat_ragged([batch.features[name] for batch in batches]) for name in first.features},
            action_masks={
                name: _cat_masks([batch.action_masks[name] for batch in batches]) for name in first.action_masks
            },
            visible=_cat_visible(batches),
        )

    def __len__(self) -> int:
        return self.num_frames

    def __getitem__(self, frames: Tensor) -> ObsBatch:
        """Gather the frames numbered `frames` (int64), in that order; repeats are fine."""
        return ObsBatch(
            num_frames=len(frames),
            features={name: ragged.gather(frames) for name, ragged in self.features.items()},
            action_masks={name: mask.gather(frames) for name, mask in self.action_masks.items()},
            visible={name: ragged.gather(frames) for name, ragged in self.visible.items()},
        )

    def split(self, sizes: Sequence[int]) -> list[ObsBatch]:
        """Consecutive parts of so many frames each, without copying them."""
        features = {name: ragged.split(sizes) for name, ragged in self.features.items()}
        masks = {name: mask.split(sizes) for name, mask in self.action_masks.items()}
        visible = {name: ragged.split(sizes) for name, ragged in self.visible.items()}
        return [
            ObsBatch(
                num_frames=size,
                features={name: parts[i] for name, parts in features.items()},
                action_masks={name: parts[i] for name, parts in masks.items()},
                visible={name: parts[i] for name, parts in visible.items()},
            )
            for i, size in enumerate(sizes)
        ]

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        mask = next(iter(self.action_masks.values()))  # there is always an action, and not always an entity type
        return mask.actors.values.device

    @property
    def num_tokens(self) -> int:
        """E, entities of all frames together."""
        return sum(len(ragged.values) for ragged in self.features.values())

    @cached_property
    def layout(self) -> Layout:
        """The tokens' order."""
        # Indices are worked out in NumPy: for a step of few frames an operation of torch costs several times as much.
        counts = [len(ragged.values) for ragged in self.features.values()]
        by_type = _host_offsets(self.features.values(), self.num_frames)  # (types, B + 1)
        # entities of one type in one frame, a run, are neighbours among the tokens too
        runs = by_type[:, 1:] - by_type[:, :-1]  # (types, B), their lengths
        offsets = by_type.sum(0)
        first_token = offsets[:-1] + runs.cumsum(0) - runs
        first_row = by_type[:, :-1] + np.cumsum([0, *counts])[:-1, None]
        order = np.arange(sum(counts)) + np.repeat((first_token - first_row).ravel(), runs.ravel())
        tokens = torch.from_numpy(order).to(self.device)
        return Layout(
            offsets=torch.from_numpy(offsets).to(self.device),
            lengths=torch.from_numpy(offsets[1:] - offsets[:-1]).to(self.device),
            order=tokens,
            positions=dict(zip(self.features, torch.split(tokens, counts), strict=True)),
        )

    @cached_property
    def action_tokens(self) -> dict[str, ActionTokens]:
        """The actors and actees of every action: of each entity index, the token that it means."""
        starts = self.layout.offsets[:-1]

        def tokens(listed: RaggedTensor) -> Tensor:
            indices = listed.values[:, 0]
            if len(indices) == 0:
                return indices
            return indices + torch.repeat_interleave(starts, listed.lengths, output_size=len(indices))

        return {
            name: ActionTokens(tokens(mask.actors), tokens(mask.actees) if isinstance(mask, SelectEntityMask) else None)
            for name, mask in self.action_masks.items()
        }

    @cached_property
    def token_visible(self) -> Tensor | None:
        """(E,) bool, false for entities hidden from the policy; None where nothing is hidden."""
        if not self.visible:
            return None
        flags = torch.ones(self.num_tokens, dtype=torch.bool, device=self.device)
        for name, ragged in self.visible.items():
            flags[self.layout.positions[name]] = ragged.values[:, 0]
        return flags


def _host_offsets(ragged: Collection[RaggedTensor], num_frames: int) -> NDArray[np.int64]:
    """(how many, num_frames + 1): offsets in the host's memory. Synchronises with the device, if that is another."""
    if not ragged:
        return np.zeros((0, num_frames + 1), np.int64)
    offsets: NDArray[np.int64] = torch.stack([tensor.offsets for tensor in ragged]).cpu().numpy()
    return offsets


class _Mover:
    """Moves ragged buffers to a device; offsets that several buffers share cross once."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.offsets: dict[int, Tensor] = {}

    def __call__(self, buffer: Buffer) -> RaggedTensor:
        offsets = buffer.offsets
        if id(offsets) not in self.offsets:
            self.offsets[id(offsets)] = torch.from_numpy(offsets).to(self.device)
        return RaggedTensor(torch.from_numpy(buffer.values).to(self.device), self.offsets[id(offsets)])


def _cat_masks(masks: Sequence[ActionMask]) -> ActionMask:
    actors = cat_ragged([mask.actors for mask in masks])
    if isinstance(masks[0], ContinuousMask):
        return ContinuousMask(actors)
    if isinstance(masks[0], CategoricalMask):
        rows = [(mask.mask, len(mask.actors.values)) for mask in masks if isinstance(mask, CategoricalMask)]
        given = next((mask for mask, _ in rows if mask is not None), None)
        if given is None:
            return CategoricalMask(actors, None)
        filled = [given.new_ones(count, given.shape[1]) if mask is None else mask for mask, count in rows]
        return CategoricalMask(actors, torch.cat(filled))
    selects = [mask for mask in masks if isinstance(mask, SelectEntityMask)]
    actees = cat_ragged([mask.actees for mask in selects])
    if all(mask.pairs is None for mask in selects):
        return SelectEntityMask(actors, actees, None)
    return SelectEntityMask(actors, actees, cat_ragged([_all_pairs(mask) for mask in selects]))


def _all_pairs(mask: SelectEntityMask) -> RaggedTensor:
    if mask.pairs is not None:
        return mask.pairs
    offsets = offsets_of(mask.actors.lengths * mask.actees.lengths)
    total = int(offsets[-1])  # synchronises; only where some steps mask pairs and this one does not
    return RaggedTensor(torch.ones(total, 1, dtype=torch.bool, device=offsets.device), offsets)


def _cat_visible(batches: Sequence[ObsBatch]) -> dict[str, RaggedTensor]:
    visible = {}
    for name in dict.fromkeys(name for batch in batches for name in batch.visible):
        parts = []
        for batch in batches:
            values, offsets = batch.features[name]
            all_visible = RaggedTensor(values.new_ones(len(values), 1, dtype=torch.bool), offsets)
            parts.append(batch.visible.get(name, all_visible))
        visible[name] = cat_ragged(parts)
    return visible


def actions_to_tensors(actions: Mapping[str, VecAction], device: torch.device | str = "cpu") -> dict[str, RaggedTensor]:
    """Copy batched actions to `device`."""
    move = _Mover(torch.device(device))
    return {name: move(buffer) for name, buffer in actions.items()}
