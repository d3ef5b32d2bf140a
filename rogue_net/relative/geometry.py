"""Positions and orientations of the entities of a batch, and differences as one entity sees another.

Shapes: E tokens, n position features.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from rogue_net.batch.obs_batch import ObsBatch
from rogue_net.config import RelposConfig
from rogue_net.relative.position_columns import PositionColumns


class Geometry(NamedTuple):
    """Positions, orientations and types of the entities of a batch."""

    positions: Tensor  # (E, n), 0 for excluded entities
    facing: Tensor | None  # (E, 2) cosine and sine of the orientation; None: nothing is turned
    types: Tensor  # (E,) int64, the type's number among those that are not excluded, -1 for excluded entities

    @staticmethod
    @torch.no_grad()
    def of(batch: ObsBatch, columns: Mapping[str, PositionColumns], config: RelposConfig) -> Geometry:
        """The geometry of all tokens of a batch.

        Args:
            batch: as the transformer's embedding sees it.
            columns: of the entity types that are not excluded.
            config: says whether there are orientations.
        """
        positions, facing, types = [], [], []
        for name, ragged in batch.features.items():
            features, own = ragged.values, columns.get(name)
            if own is None:
                positions.append(features.new_zeros(len(features), len(config.position_features)))
                types.append(-1)
            else:
                positions.append(pick(features, own.position))
                types.append(list(columns).index(name))
            if turns(config):
                facing.append(_facing(features, own))
        inverse = batch.frames.inverse
        counts = [len(ragged.values) for ragged in batch.features.values()]
        numbers = [torch.full((count,), own, device=batch.device) for own, count in zip(types, counts, strict=True)]
        directions = torch.cat(facing)[inverse] if facing else None
        return Geometry(torch.cat(positions)[inverse], directions, torch.cat(numbers)[inverse])


def turns(config: RelposConfig) -> bool:
    """Whether differences are seen from the orientation of the query."""
    return bool(config.rotation_vec_features) or config.rotation_angle_feature is not None


def seen_from(difference: Tensor, facing: Tensor | None) -> Tensor:
    """(..., n) differences, turned so that what faces along (..., 2) `facing` faces along the first axis."""
    if facing is None:
        return difference
    (x, y), (cosine, sine) = difference.unbind(-1), facing.unbind(-1)
    return torch.stack([cosine * x + sine * y, cosine * y - sine * x], dim=-1)


def directions_of(vectors: Tensor) -> Tensor:
    """(n, 2) vectors made 1 long; (1, 0) for those of length 0."""
    length = torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
    return torch.where(length > 0, vectors / length, _first_axis(vectors))


def angles_of(direction: Tensor) -> Tensor:
    """(..., 2 or more) directions to their angles counterclockwise from the first axis, in turns from 0 to 1."""
    turned = torch.atan2(direction[..., 1], direction[..., 0]) / (2 * math.pi)  # from -1/2 to 1/2
    return turned - turned.floor()


def components_of(difference: Tensor) -> Tensor:
    """(..., n) differences and their lengths, (..., n + 1)."""
    return torch.cat([difference, torch.linalg.vector_norm(difference, dim=-1, keepdim=True)], dim=-1)


def _facing(features: Tensor, columns: PositionColumns | None) -> Tensor:
    """(entities, 2) cosine and sine of orientations: along the first axis without features for it, or if they are 0."""
    if columns is not None and columns.angle is not None:
        angle = features[:, columns.angle]
        return torch.stack([angle.cos(), angle.sin()], dim=1)
    if columns is None or columns.vector is None:
        return _first_axis(features).expand(len(features), 2)
    return directions_of(pick(features, columns.vector))


def _first_axis(like: Tensor) -> Tensor:
    """(1, 0), made on the device of `like`: copying it there would wait for the device."""
    axis = like.new_zeros(2)
    axis[:1].fill_(1)
    return axis


def pick(features: Tensor, columns: Sequence[int]) -> Tensor:
    """(n, how many) columns; a list as an index would be copied to the device."""
    return torch.stack([features[:, column] for column in columns], dim=1)
