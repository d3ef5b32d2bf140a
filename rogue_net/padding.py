"""Batches of a fixed size, for what must be recorded once and repeated, such as a CUDA graph: filled up, never cut.

A padded batch has as many frames, entities, actors, actees and pairs as its *capacity* says. Behind the frames that are real
come empty ones, and the very last holds what fills the tensors up: entities of zeros, and actors that choose what nobody asks
for. Frames do not depend on each other, so real ones get the results that they had; whoever adds up over frames leaves out
those from the number of real ones on. Attention skips the last frame (`Frames.bounds`).

Every tensor has at least one row to spare. So the last actor is never a real one: of select-entity actions it takes all the
pairs that are left, and the actees to spare stand in the frame before the last, where nobody acts.

Shapes: B frames that are real, F of the capacity.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from entity_gym.spaces import GLOBAL_ENTITY
from rogue_net.crossing import Packing
from rogue_net.masks import ActionMask, CategoricalMask, SelectEntityMask
from rogue_net.obs_batch import ObsBatch
from rogue_net.ragged import RaggedTensor

#: Sizes are rounded up to multiples of an eighth of the power of two below them, so that at most 12.5 % are filled up for
#: nothing, or of `LEAST_STEP` rows, which cost next to nothing: few sizes, few recordings.
STEPS_OF_AN_OCTAVE = 8
LEAST_STEP = 64


@dataclass(frozen=True)
class Capacity:
    """What a padded batch has room for."""

    frames: int
    entities: Mapping[str, int]  # type -> rows
    actors: Mapping[str, int]  # action -> rows
    actees: Mapping[str, int]  # select-entity action -> rows
    pairs: Mapping[str, int]  # select-entity action -> pairs of actors and actees, that of nobody not counted
    masked: Mapping[str, int]  # actions whose masks are given -> choices of a categorical one, 0 of a select-entity one
    hiding: frozenset[str]  # types of which some entities are hidden
    token_pairs: int | None  # of entities of one frame; None: nobody asks for it

    @staticmethod
    def of(batch: ObsBatch, *, token_pairs: bool = False) -> Capacity:
        """Room for a batch, and for others a little larger.

        Args:
            batch: of which as much is real as has to fit.
            token_pairs: whether pairs of entities have room, too, as relative positions need it.
        """
        selects = {name: mask for name, mask in batch.action_masks.items() if isinstance(mask, SelectEntityMask)}
        return Capacity(
            frames=len(batch) + 2,
            entities={
                # of the `__global__` entity every frame has one
                name: len(batch) + 2 if name == GLOBAL_ENTITY else room(len(ragged.values))
                for name, ragged in batch.features.items()
            },
            actors={name: room(len(mask.actors.values)) for name, mask in batch.action_masks.items()},
            actees={name: room(len(mask.actees.values)) for name, mask in selects.items()},
            pairs={name: room(pairs_in(mask)) for name, mask in selects.items()},
            masked={name: _choices(mask) for name, mask in batch.action_masks.items() if _is_masked(mask)},
            hiding=frozenset(batch.visible),
            token_pairs=room(token_pairs_in(batch)) if token_pairs else None,
        )

    def covering(self, other: Capacity) -> Capacity:
        """Room for what either has room for."""

        def larger(mine: Mapping[str, int], others: Mapping[str, int]) -> dict[str, int]:
            return {name: max(size, others[name]) for name, size in mine.items()}

        return Capacity(
            frames=max(self.frames, other.frames),
            entities=larger(self.entities, other.entities),
            actors=larger(self.actors, other.actors),
            actees=larger(self.actees, other.actees),
            pairs=larger(self.pairs, other.pairs),
            masked={**self.masked, **other.masked},
            hiding=self.hiding | other.hiding,
            token_pairs=None if self.token_pairs is None else max(self.token_pairs, other.token_pairs or 0),
        )

    def fits(self, batch: ObsBatch) -> bool:
        """Whether a batch can be filled up to this size."""
        masks = batch.action_masks
        selects = {name: mask for name, mask in masks.items() if isinstance(mask, SelectEntityMask)}
        return (
            len(batch) + 2 <= self.frames
            and all(len(ragged.values) < self.entities[name] for name, ragged in batch.features.items())
            and all(len(mask.actors.values) < self.actors[name] for name, mask in masks.items())
            and all(len(mask.actees.values) < self.actees[name] for name, mask in selects.items())
            and all(pairs_in(mask) < self.pairs[name] for name, mask in selects.items())
            and all(name in self.masked for name, mask in masks.items() if _is_masked(mask))
            and self.hiding.issuperset(batch.visible)
            and (self.token_pairs is None or token_pairs_in(batch) < self.token_pairs)
        )

    def describe(self) -> str:
        """Such as "1,026 frames, 9,216 entities, 1,152 actors"."""
        return f"{self.frames:,} frames, {sum(self.entities.values()):,} entities, {sum(self.actors.values()):,} actors"


def room(count: int) -> int:
    """The next size above `count`."""
    step = max(LEAST_STEP, (1 << (count + 1).bit_length() - 1) // STEPS_OF_AN_OCTAVE)
    return math.ceil((count + 1) / step) * step


def pairs_in(mask: SelectEntityMask) -> int:
    """Pairs of actors and actees in all frames. Synchronises where the host does not know."""
    return int(mask.pair_offsets[-1]) if mask.num_pairs is None else mask.num_pairs


def token_pairs_in(batch: ObsBatch) -> int:
    """Pairs of entities of one frame, each with itself among them. Synchronises where the host does not know."""
    return int(batch.token_pair_offsets[-1]) if batch.num_token_pairs is None else batch.num_token_pairs


def padded(batch: ObsBatch, capacity: Capacity) -> ObsBatch:
    """A batch filled up to a capacity that it fits in. Nobody waits for the device."""
    features = {
        name: _padded_type(ragged, capacity.entities[name], capacity.frames, name == GLOBAL_ENTITY)
        for name, ragged in batch.features.items()
    }
    return ObsBatch(
        num_frames=capacity.frames,
        features=features,
        action_masks={name: _padded_mask(name, mask, capacity) for name, mask in batch.action_masks.items()},
        visible={name: _padded_flags(batch, name, features[name]) for name in sorted(capacity.hiding)},
        padded=True,
        # empty frames have their `__global__` entity, if there is one
        num_token_pairs=None if capacity.token_pairs is None else capacity.token_pairs + capacity.frames,
    )


class PaddedPacking:
    """`padded(batch, capacity)` on the way to a device: filled up while it is packed, without tensors of the host in between.

    Args:
        batch: on the CPU; it fits the capacity.
        capacity: to fill it up to.
    """

    def __init__(self, batch: ObsBatch, capacity: Capacity) -> None:
        fills = _Fills()
        _walk(batch, capacity, fills)
        self._batch, self._capacity = batch, capacity
        self._packing = Packing(fills.arrays, fills.fills)

    def to_device(self, device: torch.device, into: Tensor) -> None:
        """Copy the padded batch to a device in one go, as `to_device(padded(...).tensors(), device, into)` does."""
        self._packing.to_device(device, into)

    def real(self, memory: Tensor) -> ObsBatch:
        """The batch without what fills it up, in memory like that of `to_device`."""
        return _walk(self._batch, self._capacity, _Cuts(self._packing.views(memory)))


class _Visitor(Protocol):
    """Makes something of every tensor of a batch, which is to be filled up."""

    def values(self, values: Tensor, rows: int, fill: bool = False) -> Tensor:
        """(n, ...) that is to have `rows` rows, the further ones 0 or false, or with `fill` true."""

    def offsets(self, offsets: Tensor, rows: int, frames: int, spare: int = 1) -> Tensor:
        """As in `pad_ragged`."""

    def one_each(self, offsets: Tensor, frames: int) -> Tensor:
        """Offsets of an entity in each frame."""


class _Fills:
    """The arrays of a batch in the order of `padded(...).tensors()`, and what fills each of them up."""

    def __init__(self) -> None:
        self.arrays: list[NDArray[Any]] = []
        self.fills: list[NDArray[Any]] = []

    def _add(self, tensor: Tensor, fill: NDArray[Any]) -> Tensor:
        self.arrays.append(tensor.numpy())
        self.fills.append(fill)
        return tensor

    def values(self, values: Tensor, rows: int, fill: bool = False) -> Tensor:
        count = (rows - len(values)) * (values.shape[1] if values.dim() == 2 else 1)
        return self._add(values, _constants(values.dtype, fill, room(count))[:count])

    def offsets(self, offsets: Tensor, rows: int, frames: int, spare: int = 1) -> Tensor:
        array = offsets.numpy()
        between = frames + 1 - len(array) - spare  # few: a list is faster than operations of NumPy
        return self._add(offsets, np.array([int(array[-1])] * between + [rows] * spare, np.int64))

    def one_each(self, offsets: Tensor, frames: int) -> Tensor:
        return self._add(offsets, np.arange(len(offsets), frames + 1))


class _Cuts:
    """The tensors of a batch, one after the other."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self._tensors = iter(tensors)

    def values(self, values: Tensor, rows: int, fill: bool = False) -> Tensor:
        return next(self._tensors)

    def offsets(self, offsets: Tensor, rows: int, frames: int, spare: int = 1) -> Tensor:
        return next(self._tensors)

    def one_each(self, offsets: Tensor, frames: int) -> Tensor:
        return next(self._tensors)


def _walk(batch: ObsBatch, capacity: Capacity, visit: _Visitor) -> ObsBatch:
    """Visit the tensors of a batch in the order of `padded(batch, capacity).tensors()`; the batch of what comes of them."""
    frames = capacity.frames

    def ragged(each: RaggedTensor, rows: int, fill: bool = False, spare: int = 1) -> RaggedTensor:
        return RaggedTensor(visit.values(each.values, rows, fill), visit.offsets(each.offsets, rows, frames, spare))

    features, masks, visible = {}, {}, {}
    for name, each in batch.features.items():
        if name == GLOBAL_ENTITY:
            features[name] = RaggedTensor(visit.values(each.values, frames), visit.one_each(each.offsets, frames))
        else:
            features[name] = ragged(each, capacity.entities[name])
    for name, mask in batch.action_masks.items():
        masks[name] = _walk_mask(mask, capacity, name, ragged, visit)
    for name in sorted(capacity.hiding):
        values = batch.features[name].values
        rows = frames if name == GLOBAL_ENTITY else capacity.entities[name]
        given = batch.visible[name].values if name in batch.visible else values.new_ones(0, 1, dtype=torch.bool)
        flags = visit.values(given, rows, True)
        if name in batch.visible:
            visible[name] = RaggedTensor(flags, features[name].offsets)
    return ObsBatch(len(batch), features, masks, visible)


def _walk_mask(
    mask: ActionMask, capacity: Capacity, name: str, ragged: Callable[..., RaggedTensor], visit: _Visitor
) -> ActionMask:
    rows = capacity.actors[name]
    if isinstance(mask, CategoricalMask):
        actors = ragged(mask.actors, rows)
        if name not in capacity.masked:
            return CategoricalMask(actors, None)
        given = mask.mask
        if given is None:
            given = mask.actors.values.new_ones(0, capacity.masked[name], dtype=torch.bool)
        opened = visit.values(given, rows, True)
        return CategoricalMask(actors, None if mask.mask is None else opened)
    pairs = None
    if name in capacity.masked:
        no_pairs = mask.actors.values.new_ones(0, 1, dtype=torch.bool)
        given_pairs = RaggedTensor(no_pairs if mask.pairs is None else mask.pairs.values, mask.pair_offsets)
        pairs = ragged(given_pairs, capacity.pairs[name], True)
    actors, actees = ragged(mask.actors, rows), ragged(mask.actees, capacity.actees[name], False, 2)
    return SelectEntityMask(actors, actees, None if mask.pairs is None else pairs, mask.num_pairs)


@lru_cache(maxsize=64)
def _constants(dtype: torch.dtype, ones: bool, count: int) -> NDArray[Any]:
    return (torch.ones if ones else torch.zeros)(count, dtype=dtype).numpy()


def fill_up(values: Tensor, rows: int, fill: float = 0) -> Tensor:
    """(n, ...) to (rows, ...)."""
    return torch.cat([values, values.new_full((rows - len(values), *values.shape[1:]), fill)])


def pad_ragged(ragged: RaggedTensor, rows: int, frames: int, fill: float = 0, spare: int = 1) -> RaggedTensor:
    """B sequences to F, of which the one that is `spare` from the end has all rows that are filled up."""
    values, offsets = ragged
    between = offsets[-1:].expand(frames + 1 - len(offsets) - spare)
    return RaggedTensor(fill_up(values, rows, fill), torch.cat([offsets, between, offsets.new_full((spare,), rows)]))


def _padded_type(ragged: RaggedTensor, rows: int, frames: int, one_each: bool) -> RaggedTensor:
    if one_each:  # the `__global__` entity, of which no frame is without
        return RaggedTensor(fill_up(ragged.values, frames), torch.arange(frames + 1, device=ragged.offsets.device))
    return pad_ragged(ragged, rows, frames)


def _padded_flags(batch: ObsBatch, name: str, features: RaggedTensor) -> RaggedTensor:
    """Which entities of a type are visible."""
    if name in batch.visible:
        return RaggedTensor(fill_up(batch.visible[name].values, len(features.values), True), features.offsets)
    return RaggedTensor(features.values.new_ones(len(features.values), 1, dtype=torch.bool), features.offsets)


def _padded_mask(name: str, mask: ActionMask, capacity: Capacity) -> ActionMask:
    frames, rows = capacity.frames, capacity.actors[name]
    actors = pad_ragged(mask.actors, rows, frames)
    if isinstance(mask, CategoricalMask):
        if name not in capacity.masked:
            return CategoricalMask(actors, None)
        # where this batch has none, every choice is open
        given = (
            mask.actors.values.new_ones(0, capacity.masked[name], dtype=torch.bool) if mask.mask is None else mask.mask
        )
        return CategoricalMask(actors, fill_up(given, rows, True))
    actees = pad_ragged(mask.actees, capacity.actees[name], frames, spare=2)
    pairs = None
    if name in capacity.masked:
        no_pairs = mask.actors.values.new_ones(0, 1, dtype=torch.bool)
        given_pairs = RaggedTensor(no_pairs if mask.pairs is None else mask.pairs.values, mask.pair_offsets)
        pairs = pad_ragged(given_pairs, capacity.pairs[name], frames, fill=True)
    return SelectEntityMask(actors, actees, pairs, capacity.pairs[name], padded=True)


def _choices(mask: ActionMask) -> int:
    return mask.mask.shape[1] if isinstance(mask, CategoricalMask) and mask.mask is not None else 0


def _is_masked(mask: ActionMask) -> bool:
    if isinstance(mask, SelectEntityMask):
        return mask.pairs is not None
    return isinstance(mask, CategoricalMask) and mask.mask is not None
