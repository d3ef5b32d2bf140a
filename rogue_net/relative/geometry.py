"""Positions and orientations of the entities of a batch, and differences as one entity sees another.

Shapes: E tokens, n position features.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from entity_gym.actions import ActionSpace
from entity_gym.actions.kind import has_global_entity
from entity_gym.errors import nearest
from entity_gym.spaces import GLOBAL_ENTITY, Angle, Entity, ObsSpace
from rogue_net.config import RelposConfig, TranslationConfig

POSITION, VECTOR, ANGLE = "position_features", "rotation_vec_features", "rotation_angle_feature"


class PositionColumns(NamedTuple):
    """Columns of position and orientation in the features of an entity type."""

    position: list[int]
    vector: list[int] | None  # orientation
    angle: int | None

    @staticmethod
    def of(entity: Entity, config: RelposConfig | TranslationConfig) -> PositionColumns:
        """The columns that the settings name; the type may lack an orientation."""
        at = {feature: column for column, feature in enumerate(entity.features)}
        vector, angle = config.rotation_vec_features, config.rotation_angle_feature
        return PositionColumns(
            position=[at[feature] for feature in config.position_features],
            vector=[at[feature] for feature in vector] if vector and set(vector) <= set(at) else None,
            angle=None if angle is None else at.get(angle),
        )

    def facing(self, features: Tensor) -> Tensor:
        """(n, 2) cosine and sine of orientations: along the first axis without features for it, or if they are 0."""
        if self.angle is not None:
            angle = features[:, self.angle]
            return torch.stack([angle.cos(), angle.sin()], dim=1)
        if self.vector is None:
            return _first_axis(features).expand(len(features), 2)
        vectors = pick(features, self.vector)
        length = torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
        return torch.where(length > 0, vectors / length, _first_axis(vectors))


def position_columns(
    config: RelposConfig, obs_space: ObsSpace, action_space: Mapping[str, ActionSpace]
) -> dict[str, PositionColumns]:
    """Find the columns for relative positions of each entity type that is not excluded.

    Raises:
        ValueError: for features or types that do not exist, and types that lack the position features.
    """
    entities = dict(obs_space.entities)
    excluded = set(config.exclude_entities)
    if has_global_entity(obs_space, action_space):
        entities[GLOBAL_ENTITY] = Entity(obs_space.global_features, obs_space.global_kinds)
        if not set(config.position_features) <= set(obs_space.global_features):
            excluded.add(GLOBAL_ENTITY)
    for name in config.exclude_entities:
        if name not in entities:
            raise ValueError(f"net.relpos.exclude_entities names {name!r}; {nearest(name, entities)}")
    entities = {name: entity for name, entity in entities.items() if name not in excluded}
    check_features("net.relpos", named_features(config), entities)
    lacking = {
        name: [feature for feature in config.position_features if feature not in entity.features]
        for name, entity in entities.items()
    }
    if any(lacking.values()):
        listing = "; ".join(f"{name!r} lacks {', '.join(map(repr, gone))}" for name, gone in lacking.items() if gone)
        raise ValueError(
            f"net.relpos.position_features must be features of every entity type, or the type be listed in "
            f"net.relpos.exclude_entities: {listing}"
        )
    return {name: PositionColumns.of(entity, config) for name, entity in entities.items()}


def named_features(config: RelposConfig | TranslationConfig) -> dict[str, Sequence[str]]:
    """Return the features that each setting names."""
    angle = config.rotation_angle_feature
    return {
        POSITION: config.position_features,
        VECTOR: config.rotation_vec_features,
        ANGLE: [] if angle is None else [angle],
    }


def check_features(section: str, named: Mapping[str, Sequence[str]], entities: Mapping[str, Entity]) -> None:
    """Check that the features of each setting are plain numbers of some entity type; that of an angle may be an `Angle`.

    Raises:
        ValueError: with the setting and the feature.
    """
    known = dict.fromkeys(feature for entity in entities.values() for feature in entity.features)
    for field, features in named.items():
        for feature in features:
            if feature not in known:
                raise ValueError(
                    f"{section}.{field} names {feature!r}, which is no feature of {list(entities)}; "
                    f"{nearest(feature, known)}"
                )
            for name, entity in entities.items():
                kind = entity.kinds.get(feature)
                if kind is not None and not (field == ANGLE and isinstance(kind, Angle)):
                    allowed = "a plain number or an Angle" if field == ANGLE else "a plain number"
                    raise ValueError(
                        f"{section}.{field} names {feature!r}, which is {kind} in {name!r}; it must be {allowed}"
                    )


class Geometry(NamedTuple):
    """Positions, orientations and types of the entities of a batch."""

    positions: Tensor  # (E, n), 0 for excluded entities
    facing: Tensor | None  # (E, 2) cosine and sine of the orientation; None: nothing is turned
    types: Tensor  # (E,) int64, the type's number among those that are not excluded, -1 for excluded entities


def seen_from(difference: Tensor, facing: Tensor | None) -> Tensor:
    """(..., n) differences, turned so that what faces along (..., 2) `facing` faces along the first axis."""
    if facing is None:
        return difference
    (x, y), (cosine, sine) = difference.unbind(-1), facing.unbind(-1)
    return torch.stack([cosine * x + sine * y, cosine * y - sine * x], dim=-1)


def angles_of(direction: Tensor) -> Tensor:
    """Angles of (..., 2 or more) directions, counterclockwise from the first axis, in turns from 0 to 1."""
    turned = torch.atan2(direction[..., 1], direction[..., 0]) / (2 * math.pi)  # from -1/2 to 1/2
    return turned - turned.floor()


def components_of(difference: Tensor) -> Tensor:
    """Append the length to (..., n) differences, which makes (..., n + 1) components."""
    return torch.cat([difference, torch.linalg.vector_norm(difference, dim=-1, keepdim=True)], dim=-1)


def _first_axis(like: Tensor) -> Tensor:
    """The vector (1, 0), made on the device of `like`: copying it there would wait for the device."""
    axis = like.new_zeros(2)
    axis[:1].fill_(1)
    return axis


def pick(features: Tensor, columns: Sequence[int]) -> Tensor:
    """(n, how many) columns; a list as an index would be copied to the device."""
    return torch.stack([features[:, column] for column in columns], dim=1)
