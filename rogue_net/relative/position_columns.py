"""Columns of positions and orientations among the features, for relative positions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from entity_gym.actions import ActionSpace
from entity_gym.actions.kind import has_global_entity
from entity_gym.errors import nearest
from entity_gym.spaces import GLOBAL_ENTITY, Angle, Entity, ObsSpace
from rogue_net.config import RelposConfig


class PositionColumns(NamedTuple):
    """Columns of position and orientation in the features of an entity type."""

    position: list[int]
    vector: list[int] | None  # orientation
    angle: int | None


def position_columns(
    config: RelposConfig, obs_space: ObsSpace, action_space: Mapping[str, ActionSpace]
) -> dict[str, PositionColumns]:
    """Entity type -> columns, for the types that are not excluded."""
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
    _check_features(config, entities)

    vector, angle = config.rotation_vec_features, config.rotation_angle_feature
    columns = {}
    for name, entity in entities.items():
        at = {feature: column for column, feature in enumerate(entity.features)}
        columns[name] = PositionColumns(
            position=[at[feature] for feature in config.position_features],
            vector=[at[feature] for feature in vector] if vector and set(vector) <= set(at) else None,
            angle=None if angle is None else at.get(angle),
        )
    return columns


def _check_features(config: RelposConfig, entities: Mapping[str, Entity]) -> None:
    numbers = {field: getattr(config, field) for field in ("position_features", "rotation_vec_features")}
    angles = [] if config.rotation_angle_feature is None else [config.rotation_angle_feature]
    known = dict.fromkeys(feature for entity in entities.values() for feature in entity.features)
    for field, features in {**numbers, "rotation_angle_feature": angles}.items():
        for feature in features:
            if feature not in known:
                raise ValueError(
                    f"net.relpos.{field} names {feature!r}, which no entity type that takes part has; "
                    f"{nearest(feature, known)}"
                )
            for name, entity in entities.items():
                kind = entity.kinds.get(feature)
                if kind is not None and not (field == "rotation_angle_feature" and isinstance(kind, Angle)):
                    raise ValueError(
                        f"net.relpos.{field} names {feature!r}, which is {kind!r} of {name!r}; it must be a plain number"
                    )
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
