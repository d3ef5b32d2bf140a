"""Positions as seen from one entity of the frame.

Shapes: B frames, n entities of a type, F features of the type, k coordinates, r reference entities.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from entity_gym.errors import nearest
from entity_gym.spaces import Entity, ObsSpace, with_kinds
from rogue_net.batch.obs_batch import ObsBatch
from rogue_net.batch.ragged import RaggedTensor
from rogue_net.config import TranslationConfig, rotates
from rogue_net.relative.geometry import (
    POSITION,
    PositionColumns,
    check_features,
    named_features,
    pick,
    seen_from,
)

SETTINGS = "net.translation"


class Translation:
    """Moves the reference entity of every frame to the origin, and its orientation to the first axis.

        p' = R(-φ) (p - q)          R(-φ) (x, y) = (x cos φ + y sin φ, -x sin φ + y cos φ)

    with q the position of the reference and φ the angle of its orientation, which is that of the vector (cos φ, sin φ), of
    any length, or given in radians. A vector of zeros does not rotate. With `add_distance`, |p'| becomes the last feature.

    - Moved are the entities of every other type that has all position features. All their other features stay as they are,
      orientations included, and so do all features of reference entities and of the frame (the global ones).
    - A frame without a reference is not moved: q = 0, φ = 0. A hidden reference is none: nobody may see where it stands by
      where it puts the others.
    - Without `config.reference_entity`, nothing happens at all.

    Args:
        config: what to move, and how.
        obs_space: what the frames hold.

    Attributes:
        obs_space: what they hold afterwards: moved types end with the distance, where there is one.

    Raises:
        ValueError: a name in `config` is not in `obs_space`, or is one of a feature that is no plain number.
    """

    def __init__(self, config: TranslationConfig, obs_space: ObsSpace) -> None:
        self.config = config
        self.obs_space = obs_space
        self.columns: dict[str, list[int]] = {}  # of the moved types: of their coordinates
        if config.reference_entity is None:
            return
        name, entities = config.reference_entity, obs_space.entities
        if name not in entities:
            raise ValueError(f"{SETTINGS}.reference_entity is {name!r}; {nearest(name, entities)}")
        check_features(SETTINGS, named_features(config), {name: entities[name]})
        self.reference = PositionColumns.of(entities[name], config)
        moved = {
            other: entity
            for other, entity in entities.items()
            if other != name and set(config.position_features) <= set(entity.features)
        }
        if not moved:
            raise ValueError(
                f"{SETTINGS}.position_features are {list(config.position_features)}, which no type but the reference "
                f"{name!r} has, so that nothing would be moved"
            )
        check_features(SETTINGS, {POSITION: config.position_features}, moved)
        self.columns = {other: PositionColumns.of(entity, config).position for other, entity in moved.items()}
        if config.add_distance:
            longer = {other: _with_distance(entity, name) for other, entity in moved.items()}
            self.obs_space = ObsSpace(
                {**entities, **longer}, obs_space.global_features, obs_space.global_kinds, obs_space.targets
            )

    def __call__(self, batch: ObsBatch) -> ObsBatch:
        """The batch with moved positions; `batch` itself stays as it is.

        Raises:
            ValueError: a frame has several references. On CUDA the first of them is taken, as looking would wait for the
                device.
        """
        if self.config.reference_entity is None:
            return batch
        position, facing = self._pose(batch, self.config.reference_entity)
        features = dict(batch.features)
        for name, columns in self.columns.items():
            features[name] = self._move(batch.features[name], columns, position, facing)
        return replace(batch, features=features)

    def _move(
        self, entities: RaggedTensor, columns: Sequence[int], origin: Tensor, facing: Tensor | None
    ) -> RaggedTensor:
        frames = entities.sequences
        features = list(entities.values.unbind(1))
        position = torch.stack([features[column] for column in columns], dim=1) - origin[frames]
        if facing is not None:
            position = seen_from(position, facing[frames])
        for column, coordinate in zip(columns, position.unbind(1), strict=True):
            features[column] = coordinate
        if self.config.add_distance:
            features.append(torch.linalg.vector_norm(position, dim=1))
        return RaggedTensor(torch.stack(features, dim=1), entities.offsets)

    def _pose(self, batch: ObsBatch, reference: str) -> tuple[Tensor, Tensor | None]:
        """(B, k) position of the reference of every frame, 0 without one; its (B, 2) orientation, None if nothing is rotated."""
        values = batch.features[reference].values
        rows = _first_visible(batch, reference)
        # a row of zeros stands for the frames without a reference
        found = torch.cat([values, values.new_zeros(1, values.shape[1])])[rows]
        position = pick(found, self.reference.position)
        return position, self.reference.facing(found) if rotates(self.config) else None


def _first_visible(batch: ObsBatch, name: str) -> Tensor:
    """(B,) rows of the first visible entity of type `name` in each frame; where there is none, r."""
    values, frames = batch.features[name].values, batch.features[name].sequences
    rows = torch.arange(len(values), device=values.device)
    if name in batch.visible:
        rows = rows.masked_fill(~batch.visible[name].values[:, 0], len(values))
    if values.device.type == "cpu":
        shown = torch.bincount(frames[rows < len(values)], minlength=len(batch))
        if bool((shown > 1).any()):
            frame = int(shown.argmax())
            raise ValueError(
                f"{SETTINGS}.reference_entity is {name!r}, of which frame {frame} shows {int(shown[frame])}; "
                "it may show one or none"
            )
    first = torch.full((len(batch),), len(values), device=values.device)
    return first.scatter_reduce_(0, frames, rows, "amin")


def _with_distance(entity: Entity, reference: str) -> Entity:
    """The entity with one more feature, of a name that it does not have yet."""
    name = f"distance to {reference}"
    while name in entity.features:
        name += "'"
    return Entity([*with_kinds(entity.features, entity.kinds), name])
