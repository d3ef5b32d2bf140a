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
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from entity_gym.batch.ragged import offsets_of
from entity_gym.batch.vec_obs import VecObs
from entity_gym.spaces import GLOBAL_ENTITY
from rogue_net.batch.crossing import Cut, HostBuffer, Packing, copy_array
from rogue_net.batch.masks import ActionMask
from rogue_net.batch.obs_batch import Buffer, ObsBatch, pairs_in_step
from rogue_net.batch.ragged import RaggedTensor

#: Sizes are rounded up to multiples of an eighth of the power of two below them, so that at most 12.5 % are filled up for
#: nothing, or of `LEAST_STEP` rows, which cost next to nothing: few sizes, few recordings.
STEPS_OF_AN_OCTAVE = 8
LEAST_STEP = 64


@dataclass(frozen=True)
class Capacity:
    """The sizes of a padded batch."""

    frames: int
    entities: Mapping[str, int]  # type -> rows
    actors: Mapping[str, int]  # action -> rows
    actees: Mapping[str, int]  # select-entity action -> rows
    pairs: Mapping[str, int]  # select-entity action -> pairs of actors and actees, that of nobody not counted
    masked: Mapping[str, int]  # actions whose masks are given -> choices of a categorical one, 1 of a select-entity one
    hiding: frozenset[str]  # types of which some entities are hidden
    token_pairs: int | None  # of entities of one frame; None: nobody asks for it

    @staticmethod
    def of(batch: ObsBatch, *, token_pairs: bool = False) -> Capacity:
        """Room for a batch, and for others a little larger.

        Args:
            batch: of which as much is real as has to fit.
            token_pairs: whether pairs of entities have room, too, as relative positions need it.
        """
        return Capacity(
            frames=len(batch) + 2,
            entities={
                # of the `__global__` entity every frame has one
                name: len(batch) + 2 if name == GLOBAL_ENTITY else room(len(ragged.values))
                for name, ragged in batch.features.items()
            },
            actors={name: room(len(mask.actors.values)) for name, mask in batch.action_masks.items()},
            actees={name: room(len(actees.values)) for name, actees in _actees(batch).items()},
            pairs={name: room(pairs_in(batch.action_masks[name])) for name in _actees(batch)},
            masked={
                name: mask.mask.values.shape[1] for name, mask in batch.action_masks.items() if mask.mask is not None
            },
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
        return (
            len(batch) + 2 <= self.frames
            and all(len(ragged.values) < self.entities[name] for name, ragged in batch.features.items())
            and all(len(mask.actors.values) < self.actors[name] for name, mask in masks.items())
            and all(len(actees.values) < self.actees[name] for name, actees in _actees(batch).items())
            and all(pairs_in(masks[name]) < self.pairs[name] for name in _actees(batch))
            and all(name in self.masked for name, mask in masks.items() if mask.mask is not None)
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


def _actees(batch: ObsBatch) -> dict[str, RaggedTensor]:
    """Select-entity action -> its actees."""
    return {name: mask.actees for name, mask in batch.action_masks.items() if mask.actees is not None}


def pairs_in(mask: ActionMask) -> int:
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


class PaddedBuffer:
    """A padded batch in one buffer of the host, into which one step after the other is written, to cross to a device.

    Every tensor keeps its place, and so does what fills it up: only rows in which the step before had something are filled again.

    Args:
        batch: on the CPU, what to begin with.
        capacity: that it fits in, and the steps to come.
        device: to which the buffer is copied.

    Attributes:
        batch: `padded(batch, capacity)` as tensors of the host, which share the buffer's memory.
        num_bytes: size of the buffer.
    """

    def __init__(self, batch: ObsBatch, capacity: Capacity, device: torch.device) -> None:
        full = padded(batch, capacity)
        packing = Packing([tensor.numpy() for tensor in full.tensors()])
        self.num_bytes, self._cuts, self._capacity = packing.num_bytes, packing.cuts, capacity
        self._buffer = HostBuffer(packing.num_bytes, device)
        tensors = packing.views(self._buffer.memory)
        packing.write(self._buffer.memory)
        self.batch = full.with_tensors(tensors)
        self._arrays = [tensor.numpy() for tensor in tensors]
        self._counts = [len(array) for array in self._arrays]  # rows that may hold something

    def write(self, obs: VecObs) -> dict[int, Cut] | None:
        """Write a step into the buffer, after the copy before has been made.

        Returns:
            Where its arrays lie, by their ids, for `ObsBatch.lying_in`; None if the step does not fit.
        """
        self._buffer.wait()
        capacity, counts = self._capacity, self._counts
        slots = zip(range(len(counts)), self._arrays, self._cuts, strict=True)
        places: dict[int, Cut] = {}
        fits = len(obs) + 2 <= capacity.frames and capacity.hiding.issuperset(obs.visible)

        def write_values(values: NDArray[Any] | None, fill: bool = False) -> None:
            nonlocal fits
            i, array, where = next(slots)
            count = 0 if values is None else len(values)
            if count >= len(array):
                fits = False
                return
            if values is not None:
                copy_array(array[:count], values)
                places[id(values)] = where.begin(count)
            if count < counts[i]:
                array[count : counts[i]] = fill
            counts[i] = count

        def write_offsets(offsets: NDArray[np.int64], end: int, spare: int = 1) -> None:
            _, array, where = next(slots)
            if fits:
                copy_array(array[: len(offsets)], offsets)
                array[len(offsets) : len(array) - spare] = end
                places[id(offsets)] = where.begin(len(offsets))

        def write(buffer: Buffer, spare: int = 1) -> None:
            write_values(buffer.values)
            write_offsets(buffer.offsets, len(buffer.values), spare)

        for name, buffer in obs.features.items():
            if name == GLOBAL_ENTITY:  # no frame is without: there is one more in each frame that fills up
                write_values(buffer.values)
                places[id(buffer.offsets)] = next(slots)[2].begin(len(buffer.offsets))
            else:
                write(buffer)
        for name, mask in obs.action_masks.items():
            is_masked = name in capacity.masked
            fits = fits and (is_masked or mask.mask is None)
            given = None if mask.mask is None else mask.mask.values  # None: everything is open
            write(mask.actors)
            if mask.actees is not None:
                write(mask.actees, 2)
            if is_masked:
                write_values(given, True)
            if mask.actees is not None:
                num_pairs = pairs_in_step(mask)
                fits = fits and num_pairs < capacity.pairs[name]
                if is_masked:
                    offsets = offsets_of(mask.num_rows) if mask.mask is None else mask.mask.offsets
                    write_offsets(offsets, num_pairs)
        for name in sorted(capacity.hiding):
            write_values(obs.visible[name].values if name in obs.visible else None, True)
        if capacity.token_pairs is not None:
            fits = fits and token_pairs_in(ObsBatch.sharing(obs)) < capacity.token_pairs
        return places if fits else None

    def to_device(self) -> Tensor:
        """Copy the buffer to new memory of the device, without waiting for it: (num_bytes,) uint8."""
        return self._buffer.to_device()


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
    """(n, 1) bool flags of the visible entities of a type, padded."""
    if name in batch.visible:
        return RaggedTensor(fill_up(batch.visible[name].values, len(features.values), True), features.offsets)
    return RaggedTensor(features.values.new_ones(len(features.values), 1, dtype=torch.bool), features.offsets)


def _padded_mask(name: str, mask: ActionMask, capacity: Capacity) -> ActionMask:
    frames = capacity.frames
    actors = pad_ragged(mask.actors, capacity.actors[name], frames)
    actees = None if mask.actees is None else pad_ragged(mask.actees, capacity.actees[name], frames, spare=2)
    opened = None
    if name in capacity.masked:
        # where this batch has no mask, everything is open
        given = mask.actors.values.new_ones(0, capacity.masked[name], dtype=torch.bool)
        given = given if mask.mask is None else mask.mask.values
        if actees is None:
            opened = RaggedTensor(fill_up(given, len(actors.values), True), actors.offsets)
        else:
            opened = pad_ragged(RaggedTensor(given, mask.pair_offsets), capacity.pairs[name], frames, fill=True)
    return ActionMask(actors, actees, opened, capacity.pairs.get(name), padded=True)
