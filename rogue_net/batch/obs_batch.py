"""A batch of observations on a device.

Shapes: B frames (one environment at one step), E entities of all frames together (tokens), A actors, C choices, F features.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from entity_gym.batch.ragged import RaggedBuffer
from entity_gym.batch.vec_obs import VecObs
from entity_gym.spaces import GLOBAL_ENTITY, ObsSpace
from rogue_net.batch.crossing import is_on, to_device
from rogue_net.batch.frames import Frames
from rogue_net.batch.ragged import Cat, Cuts, Gather, RaggedTensor, offsets_of

#: Where a column of a batch is: a field and an entity type, or a part of a mask and an action.
Place: TypeAlias = tuple[str, str]
MASK_PARTS = ("actors", "actees", "mask", "mask_after")
Buffer = RaggedBuffer[np.float32] | RaggedBuffer[np.int64] | RaggedBuffer[np.bool_]


@dataclass(frozen=True)
class ActionMask:
    """The actors of an action, and the choices, or the entities of their frame (actees), that are open to them."""

    actors: RaggedTensor  # B sequences of (A, 1) int64, entity indices inside the frame
    actees: RaggedTensor | None = None  # B sequences of (number of actees, 1) int64; None: the action selects no entity
    #: B sequences of (A, C) bool, true where open, with the offsets of the actors; with actees of (A * number of actees, 1),
    #: actor by actor. None: everything is open.
    mask: RaggedTensor | None = None
    #: Pairs of actors and actees in all frames, where the host knows; None: looked up when they are needed, which synchronises.
    num_pairs: int | None = None
    mask_after: RaggedTensor | None = None  # as `VecActionMask.mask_after`
    #: Of ordered sets with a budget: (number of actees of all frames,) and (A,) float32. A network reads them from the features.
    costs: Tensor | None = None
    budgets: Tensor | None = None

    @cached_property
    def pair_offsets(self) -> Tensor:
        """(B + 1,) int64: the pairs of frame b are offsets[b]:offsets[b + 1]; of an action that selects entities."""
        assert self.actees is not None
        return offsets_of(self.actors.lengths * self.actees.lengths) if self.mask is None else self.mask.offsets

    @cached_property
    def ranks(self) -> Tensor:
        """(A,) int64, the place of each actor among those of its frame, from 0: the order in which they decide in turn."""
        numbers = torch.arange(len(self.actors.values), device=self.actors.offsets.device)
        return numbers - self.actors.offsets.index_select(0, self.actors.sequences)

    @cached_property
    def most_actors(self) -> int:
        """The most actors of a frame. Synchronises with the device."""
        return int(self.actors.lengths.max()) if len(self.actors.values) else 0

    def opened(self, choices: int) -> RaggedTensor:
        """The mask, true everywhere where there is none; (A, `choices`), or (pairs, 1)."""
        if self.mask is not None:
            return self.mask
        if self.actees is None:
            count, offsets = len(self.actors.values), self.actors.offsets
        else:
            offsets = self.pair_offsets
            # looking synchronises; only where some steps have a mask and this one has none, and the host does not know
            count = int(offsets[-1]) if self.num_pairs is None else self.num_pairs
        return RaggedTensor(torch.ones(count, choices, dtype=torch.bool, device=offsets.device), offsets)


class ActionTokens(NamedTuple):
    """Actors and actees of an action, as tokens of the batch."""

    actors: Tensor  # (A,) int64
    actees: Tensor | None  # (number of actees of all frames,) int64, for select-entity


@dataclass(frozen=True)
class ObsBatch:
    """Ragged observations of B frames as flat tensors with offsets."""

    num_frames: int
    features: dict[str, RaggedTensor]  # entity type -> B sequences of (number of entities, F) float32, in index order
    action_masks: dict[str, ActionMask]
    #: Types that hide something: B sequences of (n, 1) bool.
    visible: dict[str, RaggedTensor] = field(default_factory=dict)
    #: Types with ids: B sequences of (n, 1) int64, numbers that stay with an entity for the whole episode; -1 without an id.
    ids: dict[str, RaggedTensor] = field(default_factory=dict)

    @staticmethod
    def from_vec_obs(obs: VecObs, device: torch.device | str = "cpu") -> ObsBatch:
        """A step of N environments on `device`; its frames are the N environments in order.

        On the CPU it shares their memory. Nobody waits for copies to another device.
        """
        found: dict[int, Tensor] = {}  # by id of the array: one that is there several times is one tensor

        def tensor_of(array: NDArray[Any]) -> Tensor:
            if id(array) not in found:
                found[id(array)] = torch.from_numpy(array)
            return found[id(array)]

        buffers: dict[Place, Buffer] = {("features", name): each for name, each in obs.features.items()}
        pairs: dict[str, int | None] = {}
        for name, mask in obs.action_masks.items():
            buffers["actors", name] = mask.actors
            if mask.actees is not None:
                buffers["actees", name] = mask.actees
                pairs[name] = int(np.dot(mask.actors.size1(), mask.actees.size1()))
            if mask.mask is not None:  # of choices: with the very offsets of the actors
                buffers["mask", name] = (
                    mask.mask if mask.actees is not None else RaggedBuffer(mask.mask.values, mask.actors.offsets)
                )
            if mask.mask_after is not None:
                buffers["mask_after", name] = mask.mask_after
        buffers |= {("visible", name): each for name, each in obs.visible.items()}
        buffers |= {("ids", name): each for name, each in obs.ids.items()}
        columns = {
            place: RaggedTensor(tensor_of(each.values), tensor_of(each.offsets)) for place, each in buffers.items()
        }
        return batch_of_columns(len(obs), columns, pairs).to(torch.device(device))

    @staticmethod
    def cat(batches: Sequence[ObsBatch], cat: Cat | None = None) -> ObsBatch:
        """All frames of the first batch, then all of the second, and so on.

        Args:
            batches: of the same spaces, at least one.
            cat: concatenates other columns of the same frames, too; None: there are none.
        """
        if len(batches) == 1:
            return batches[0]
        cat = cat or Cat()
        trees = [batch.columns() for batch in batches]
        columns = {}
        for place in dict.fromkeys(place for tree in trees for place in tree):
            width = next(tree[place].values.shape[1] for tree in trees if place in tree)
            parts = [
                tree.get(place) or batch._missing(*place, width) for batch, tree in zip(batches, trees, strict=True)
            ]
            columns[place] = cat(parts)
        pairs = {}
        for name in batches[0].action_masks:
            counts = [batch.action_masks[name].num_pairs for batch in batches]
            pairs[name] = None if None in counts else sum(count or 0 for count in counts)
        return batch_of_columns(sum(map(len, batches)), columns, pairs)

    def columns(self) -> dict[Place, RaggedTensor]:
        """Return every ragged column by its place."""
        masks = [(name, part, getattr(mask, part)) for name, mask in self.action_masks.items() for part in MASK_PARTS]
        return {
            **{("features", name): each for name, each in self.features.items()},
            **{(part, name): each for name, part, each in masks if each is not None},
            **{("visible", name): each for name, each in self.visible.items()},
            **{("ids", name): each for name, each in self.ids.items()},
        }

    def _missing(self, field: str, name: str, width: int) -> RaggedTensor:
        """A column that this batch leaves out, spelled out: everything is open and visible, and nothing has an id."""
        if field == "mask":
            return self.action_masks[name].opened(width)
        if field == "mask_after":
            nothing = torch.ones(0, width, dtype=torch.bool, device=self.device)
            return RaggedTensor(nothing, torch.zeros(len(self) + 1, dtype=torch.int64, device=self.device))
        values, offsets = self.features[name]
        fill: Any = True if field == "visible" else -1
        return RaggedTensor(torch.full((len(values), 1), fill, device=values.device), offsets)

    @property
    def _pairs(self) -> dict[str, int | None]:
        return {name: mask.num_pairs for name, mask in self.action_masks.items()}

    def __len__(self) -> int:
        return self.num_frames

    def __getitem__(self, frames: Tensor) -> ObsBatch:
        """Gather the frames numbered `frames` (int64), in that order; repeats are fine. Synchronises with the device."""
        return self.gather(Gather(frames))

    def gather(self, gather: Gather) -> ObsBatch:
        """Some frames, or all in another order."""
        columns = {place: gather(each) for place, each in self.columns().items()}
        return batch_of_columns(len(gather.sequences), columns, self._pairs if gather.all_of_them else {})

    def map(self, change: Callable[[Tensor], Tensor]) -> ObsBatch:
        """The batch with every tensor replaced by what `change` makes of it; tensors that are there twice are changed once."""
        changed: dict[int, Tensor] = {}

        def once(tensor: Tensor) -> Tensor:
            if id(tensor) not in changed:
                changed[id(tensor)] = change(tensor)
            return changed[id(tensor)]

        return batch_of_columns(
            self.num_frames, {place: each.map(once) for place, each in self.columns().items()}, self._pairs
        )

    def tensors(self) -> list[Tensor]:
        """Every tensor once, always in the same order."""
        found: list[Tensor] = []
        self.map(lambda tensor: found.append(tensor) or tensor)  # type: ignore[func-returns-value]
        return found

    def to(self, device: torch.device) -> ObsBatch:
        """The batch on a device: itself if it is there. Nobody waits for copies from the CPU."""
        if is_on(self.device, device):
            return self
        if self.device.type == "cpu":
            copies = iter(to_device(self.tensors(), device))
            return self.map(lambda _: next(copies))
        return self.map(lambda tensor: tensor.to(device))

    @property
    def offsets(self) -> list[Tensor]:
        """Offsets of everything ragged, which `split` needs in its `Cuts`."""
        pairs = [mask.pair_offsets for mask in self.action_masks.values() if mask.actees is not None]
        return [*(each.offsets for each in self.columns().values()), *pairs]

    def split(self, cuts: Cuts) -> list[ObsBatch]:
        """Consecutive parts of `cuts.sizes` frames each, without copying them."""
        columns = {place: cuts(each) for place, each in self.columns().items()}
        masks = self.action_masks.items()
        pairs = {name: cuts.counts(mask.pair_offsets) for name, mask in masks if mask.actees is not None}
        return [
            batch_of_columns(
                size,
                {place: parts[i] for place, parts in columns.items()},
                {name: counts[i] for name, counts in pairs.items()},
            )
            for i, size in enumerate(cuts.sizes)
        ]

    @property
    def device(self) -> torch.device:
        """Device of the tensors."""
        mask = next(iter(self.action_masks.values()))  # there is always an action, and not always an entity type
        return mask.actors.values.device

    @property
    def num_tokens(self) -> int:
        """E, entities of all frames together."""
        return sum(len(ragged.values) for ragged in self.features.values())

    @cached_property
    def frames(self) -> Frames:
        """The frames of the batch: its tokens, and which of them are hidden."""
        return Frames(self.features, self.visible, self.num_frames, self.device)

    @cached_property
    def token_ids(self) -> Tensor:
        """(E,) int64, the id of each token; -1 for entities without one."""
        ids = torch.full((self.num_tokens,), -1, dtype=torch.int64, device=self.device)
        for name, ragged in self.ids.items():
            ids[self.frames.positions[name]] = ragged.values[:, 0]
        return ids

    def column(self, feature: str, obs_space: ObsSpace) -> Tensor:
        """(E,) float32, a feature of each token, or of its frame's global features; 0 where the type has no such feature."""
        tokens = torch.zeros(self.num_tokens, dtype=torch.float32, device=self.device)
        if feature in obs_space.global_features:
            rows = self.features[GLOBAL_ENTITY].values[:, list(obs_space.global_features).index(feature)]
            tokens += rows.float().index_select(0, self.frames.of_token)
        for name, entity in obs_space.entities.items():
            if feature in entity.features and name in self.features:
                numbers = self.features[name].values[:, list(entity.features).index(feature)]
                tokens[self.frames.positions[name]] = numbers.float()
        return tokens

    @cached_property
    def action_tokens(self) -> dict[str, ActionTokens]:
        """The actors and actees of every action: of each entity index, the token that it means."""
        starts = self.frames.offsets[:-1]

        def tokens(listed: RaggedTensor) -> Tensor:
            indices = listed.values[:, 0]
            if len(indices) == 0:
                return indices
            return indices + torch.repeat_interleave(starts, listed.lengths, output_size=len(indices))

        return {
            name: ActionTokens(tokens(mask.actors), None if mask.actees is None else tokens(mask.actees))
            for name, mask in self.action_masks.items()
        }


def batch_of_columns(
    num_frames: int, columns: Mapping[Place, RaggedTensor], pairs: Mapping[str, int | None]
) -> ObsBatch:
    """Return the batch with these columns, the inverse of `ObsBatch.columns`; `pairs` are the `num_pairs` of its masks."""

    def of(field: str) -> dict[str, RaggedTensor]:
        return {name: each for (part, name), each in columns.items() if part == field}

    actees, opened, after = of("actees"), of("mask"), of("mask_after")
    masks = {
        name: ActionMask(actors, actees.get(name), opened.get(name), pairs.get(name), after.get(name))
        for name, actors in of("actors").items()
    }
    return ObsBatch(num_frames, of("features"), masks, of("visible"), of("ids"))
