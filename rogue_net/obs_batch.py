"""A batch of observations on a device.

Shapes: B frames (one environment at one step), E entities of all frames together (tokens), A actors, C choices, F features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from entity_gym.ragged import RaggedBufferBool, RaggedBufferF32, RaggedBufferI64
from entity_gym.vec_obs import VecCategoricalActionMask, VecObs, VecSelectEntityActionMask
from rogue_net.ragged import RaggedTensor, cat_ragged, gather_items, offsets_of, sequence_of_item

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


ActionMask = CategoricalMask | SelectEntityMask


@dataclass(frozen=True)
class Layout:
    """Where the entities of a batch stand among its tokens: by frame, then by entity index inside the frame."""

    offsets: Tensor  # (B + 1,) int64, frame b's tokens are offsets[b]:offsets[b + 1]
    frames: Tensor  # (E,) int64, the frame of each token
    positions: dict[str, Tensor]  # entity type -> (entities of the type,) int64, their tokens

    @property
    def lengths(self) -> Tensor:
        """(B,) int64, tokens in each frame."""
        return self.offsets.diff()


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
        starts = torch.zeros(self.num_frames, dtype=torch.int64, device=self.device)
        starts_of = {}
        for name, ragged in self.features.items():
            starts_of[name] = starts
            starts = starts + ragged.lengths
        offsets = offsets_of(starts)
        positions = {}
        for name, ragged in self.features.items():
            shift = offsets[:-1] + starts_of[name] - ragged.offsets[:-1]
            positions[name] = torch.arange(len(ragged.values), device=self.device) + torch.repeat_interleave(
                shift, ragged.lengths
            )
        return Layout(offsets, sequence_of_item(offsets), positions)

    @cached_property
    def token_visible(self) -> Tensor | None:
        """(E,) bool, false for entities hidden from the policy; None where nothing is hidden."""
        if not self.visible:
            return None
        flags = torch.ones(self.num_tokens, dtype=torch.bool, device=self.device)
        for name, ragged in self.visible.items():
            flags[self.layout.positions[name]] = ragged.values[:, 0]
        return flags


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


def actions_to_tensors(
    actions: Mapping[str, RaggedBufferI64], device: torch.device | str = "cpu"
) -> dict[str, RaggedTensor]:
    """Copy batched actions to `device`."""
    move = _Mover(torch.device(device))
    return {name: move(buffer) for name, buffer in actions.items()}
