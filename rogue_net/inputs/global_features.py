"""Frames whose global features join their entities and are no entity of their own, as in rogue-net.

See `net.global_entity`. Otherwise the embedding joins global features to every entity, and `__global__` is one of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from entity_gym.actions import ActionSpace
from entity_gym.actions.kind import has_global_entity
from entity_gym.spaces import GLOBAL_ENTITY, Entity, ObsSpace, with_kinds
from rogue_net.batch.obs_batch import ObsBatch
from rogue_net.batch.ragged import RaggedTensor
from rogue_net.config import RogueNetConfig


class GlobalFeatures:
    """Turns global features into features of every entity, behind their own, and removes the `__global__` entity.

    It does nothing where `config.global_entity` is true, where there are no global features, and where an action is global:
    `__global__` takes that action.

    Args:
        config: of the network.
        obs_space: of the frames.
        action_space: of the network.

    Attributes:
        obs_space: of the changed frames.
        joined: name of a feature in `obs_space` -> the global feature that it was; empty if nothing changes. No entity has a
            feature of its own with such a name.
    """

    def __init__(self, config: RogueNetConfig, obs_space: ObsSpace, action_space: Mapping[str, ActionSpace]) -> None:
        self.obs_space = obs_space
        self.joined: dict[str, str] = {}
        if config.global_entity or has_global_entity(without_globals(obs_space), action_space):
            return
        own = {feature for entity in obs_space.entities.values() for feature in entity.features}
        joining = []
        for feature in with_kinds(obs_space.global_features, obs_space.global_kinds):
            given = feature if isinstance(feature, str) else feature.name
            name = f"global {given}"
            while name in own:
                name += "'"
            self.joined[name] = given
            joining.append(name if isinstance(feature, str) else replace(feature, name=name))
        if self.joined:
            entities = {
                name: Entity([*with_kinds(entity.features, entity.kinds), *joining])
                for name, entity in obs_space.entities.items()
            }
            self.obs_space = ObsSpace(entities, targets=obs_space.targets)

    def __call__(self, batch: ObsBatch) -> ObsBatch:
        """The changed frames; `batch` itself stays as it is.

        Raises:
            ValueError: the batch has no `__global__` entities, or not one in every frame.
        """
        if not self.joined:
            return batch
        everywhere = batch.features[GLOBAL_ENTITY].values if GLOBAL_ENTITY in batch.features else None
        if everywhere is None or everywhere.shape != (len(batch), len(self.joined)):
            found = "none" if everywhere is None else f"{len(everywhere)} with {everywhere.shape[1]} features"
            raise ValueError(
                f"every frame must have one {GLOBAL_ENTITY!r} entity with {len(self.joined)} features; "
                f"the batch of {len(batch)} frames has {found}"
            )
        features = {
            name: RaggedTensor(torch.cat([ragged.values, everywhere[ragged.sequences]], dim=1), ragged.offsets)
            for name, ragged in batch.features.items()
            if name != GLOBAL_ENTITY
        }
        visible = {name: ragged for name, ragged in batch.visible.items() if name != GLOBAL_ENTITY}
        return replace(batch, features=features, visible=visible)


def without_globals(obs_space: ObsSpace) -> ObsSpace:
    """The space without its global features."""
    return ObsSpace(obs_space.entities, targets=obs_space.targets)
