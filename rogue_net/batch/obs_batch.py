"""A batch of observations on a device.

Shapes: B frames (one environment at one step), E entities of all frames together (tokens), A actors, C choices, F features.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from entity_gym.batch.ragged import RaggedBuffer
from entity_gym.batch.vec_obs import VecAction, VecActionMask, VecObs
from rogue_net.batch.crossing import is_on, to_device
from rogue_net.batch.frames import Frames
from rogue_net.batch.masks import ActionMask, Change, cat_masks
from rogue_net.batch.ragged import Cat, Cuts, Gather, RaggedTensor

Buffer = RaggedBuffer[np.float32] | RaggedBuffer[np.int64] | RaggedBuffer[np.bool_]


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
        return _batch_of(obs, _Sharing()).to(torch.device(device))

    @staticmethod
    def cat(batches: Sequence[ObsBatch], cat: Cat | None = None) -> ObsBatch:
        """All frames of the first batch, then all of the second, and so on.

        Args:
            batches: of the same spaces, at least one.
            cat: concatenates other columns of the same frames, too; None: there are none.
        """
        if len(batches) == 1:
            return batches[0]
        first, cat = batches[0], cat or Cat()
        return ObsBatch(
            num_frames=sum(batch.num_frames for batch in batches),
            features={name: cat([batch.features[name] for batch in batches]) for name in first.features},
            action_masks={
                name: cat_masks([batch.action_masks[name] for batch in batches], cat) for name in first.action_masks
            },
            visible=_cat_optional([batch.visible for batch in batches], True, batches, cat),
            ids=_cat_optional([batch.ids for batch in batches], -1, batches, cat),
        )

    def __len__(self) -> int:
        return self.num_frames

    def __getitem__(self, frames: Tensor) -> ObsBatch:
        """Gather the frames numbered `frames` (int64), in that order; repeats are fine. Synchronises with the device."""
        return self.gather(Gather(frames))

    def gather(self, gather: Gather) -> ObsBatch:
        """Some frames, or all in another order."""
        return ObsBatch(
            num_frames=len(gather.sequences),
            features={name: gather(ragged) for name, ragged in self.features.items()},
            action_masks={name: mask.gather(gather) for name, mask in self.action_masks.items()},
            visible={name: gather(ragged) for name, ragged in self.visible.items()},
            ids={name: gather(ragged) for name, ragged in self.ids.items()},
        )

    def map(self, change: Change) -> ObsBatch:
        """The batch with every tensor replaced by what `change` makes of it; tensors that are there twice are changed once."""
        changed: dict[int, Tensor] = {}

        def once(tensor: Tensor) -> Tensor:
            if id(tensor) not in changed:
                changed[id(tensor)] = change(tensor)
            return changed[id(tensor)]

        return replace(
            self,
            features={name: ragged.map(once) for name, ragged in self.features.items()},
            action_masks={name: mask.map(once) for name, mask in self.action_masks.items()},
            visible={name: ragged.map(once) for name, ragged in self.visible.items()},
            ids={name: ragged.map(once) for name, ragged in self.ids.items()},
        )

    def tensors(self) -> list[Tensor]:
        """Every tensor once, always in the same order."""
        found: list[Tensor] = []
        self.map(lambda tensor: found.append(tensor) or tensor)  # type: ignore[func-returns-value]
        return found

    def with_tensors(self, tensors: Sequence[Tensor]) -> ObsBatch:
        """The batch with others in the places of `tensors()`."""
        others = iter(tensors)
        return self.map(lambda _: next(others))

    def to(self, device: torch.device) -> ObsBatch:
        """The batch on a device: itself if it is there. Nobody waits for copies from the CPU."""
        if is_on(self.device, device):
            return self
        if self.device.type == "cpu":
            return self.with_tensors(to_device(self.tensors(), device))
        return self.map(lambda tensor: tensor.to(device))

    @property
    def offsets(self) -> list[Tensor]:
        """Offsets of everything ragged, which `split` needs in its `Cuts`."""
        ragged = [*self.features.values(), *self.visible.values(), *self.ids.values()]
        of_masks = [each for mask in self.action_masks.values() for each in mask.offsets]
        return [*(each.offsets for each in ragged), *of_masks]

    def split(self, cuts: Cuts) -> list[ObsBatch]:
        """Consecutive parts of `cuts.sizes` frames each, without copying them."""
        features = {name: cuts(each) for name, each in self.features.items()}
        masks = {name: mask.split(cuts) for name, mask in self.action_masks.items()}
        visible = {name: cuts(each) for name, each in self.visible.items()}
        ids = {name: cuts(each) for name, each in self.ids.items()}
        return [
            ObsBatch(
                num_frames=size,
                features={name: parts[i] for name, parts in features.items()},
                action_masks={name: parts[i] for name, parts in masks.items()},
                visible={name: parts[i] for name, parts in visible.items()},
                ids={name: parts[i] for name, parts in ids.items()},
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
        return Frames.of_types(self.features, self.visible, self.num_frames, self.device)

    @cached_property
    def token_ids(self) -> Tensor:
        """(E,) int64, the id of each token; -1 for entities without one."""
        ids = torch.full((self.num_tokens,), -1, dtype=torch.int64, device=self.device)
        for name, ragged in self.ids.items():
            ids[self.frames.positions[name]] = ragged.values[:, 0]
        return ids

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


def pairs_in_step(mask: VecActionMask) -> int:
    """Pairs of actors and actees in all frames of a step."""
    assert mask.actees is not None
    if mask.mask is not None:
        return len(mask.mask.values)
    if not len(mask.actors.values) or not len(mask.actees.values):
        return 0
    return int(np.dot(mask.actors.size1(), mask.actees.size1()))


def _batch_of(obs: VecObs, tensor_of: Callable[[NDArray[Any]], Tensor]) -> ObsBatch:
    """The frames of a step, with a tensor in the place of every array."""

    def ragged(buffer: Buffer) -> RaggedTensor:
        return RaggedTensor(tensor_of(buffer.values), tensor_of(buffer.offsets))

    masks: dict[str, ActionMask] = {}
    for name, mask in obs.action_masks.items():
        actors = ragged(mask.actors)
        if mask.actees is None:
            opened = None if mask.mask is None else RaggedTensor(tensor_of(mask.mask.values), actors.offsets)
            masks[name] = ActionMask(actors, mask=opened)
        else:
            pairs = None if mask.mask is None else ragged(mask.mask)
            masks[name] = ActionMask(actors, ragged(mask.actees), pairs, pairs_in_step(mask))
    return ObsBatch(
        num_frames=len(obs),
        features={name: ragged(buffer) for name, buffer in obs.features.items()},
        action_masks=masks,
        visible={name: ragged(buffer) for name, buffer in obs.visible.items()},
        ids={name: ragged(buffer) for name, buffer in obs.ids.items()},
    )


class _Sharing:
    """Arrays as tensors that share their memory; arrays that are there several times are so as tensors."""

    def __init__(self) -> None:
        self._found: dict[int, Tensor] = {}

    def __call__(self, array: NDArray[Any]) -> Tensor:
        if id(array) not in self._found:
            self._found[id(array)] = torch.from_numpy(array)
        return self._found[id(array)]


def _cat_optional(
    columns: Sequence[Mapping[str, RaggedTensor]], missing: bool | int, batches: Sequence[ObsBatch], cat: Cat
) -> dict[str, RaggedTensor]:
    """Concatenate a column by entity type; `missing` stands for each entity of types that a batch leaves out."""
    joined = {}
    for name in dict.fromkeys(name for column in columns for name in column):
        parts = []
        for column, batch in zip(columns, batches, strict=True):
            values, offsets = batch.features[name]
            if name in column:
                parts.append(column[name])
            else:
                parts.append(RaggedTensor(torch.full((len(values), 1), missing, device=values.device), offsets))
        joined[name] = cat(parts)
    return joined


def actions_to_tensors(actions: Mapping[str, VecAction], device: torch.device | str = "cpu") -> dict[str, RaggedTensor]:
    """Copy batched actions to `device`."""
    share = _Sharing()
    wrapped = {name: RaggedTensor(share(buffer.values), share(buffer.offsets)) for name, buffer in actions.items()}
    return {name: ragged.map(lambda tensor: tensor.to(device)) for name, ragged in wrapped.items()}
