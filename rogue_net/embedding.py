"""Entities become tokens.

Shapes: B frames, E tokens, D width, F features of an entity type, G global features.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from entity_gym.spaces import GLOBAL_ENTITY, ActionSpace, ObsSpace, has_global_entity
from rogue_net.normalization import RunningNorm
from rogue_net.obs_batch import ObsBatch
from rogue_net.ragged import sequence_of_item


class EntityEmbedding(nn.Module):
    """One type of entity: normalize, linear, ReLU, LayerNorm; a type without features is one learned vector.

    Args:
        num_features: F + G.
        d_model: D.
    """

    def __init__(self, num_features: int, d_model: int) -> None:
        super().__init__()
        self.num_features = num_features
        if num_features == 0:
            self.vector = nn.Parameter(torch.randn(1, d_model))
        else:
            self.norm = RunningNorm(num_features)
            self.project = nn.Sequential(nn.Linear(num_features, d_model), nn.ReLU(), nn.LayerNorm(d_model))

    def forward(self, features: Tensor) -> Tensor:
        """(n, F + G) features to (n, D)."""
        if self.num_features == 0:
            return self.vector.expand(len(features), -1)
        embedded: Tensor = self.project(self.norm(features))
        return embedded


class Embedding(nn.Module):
    """All entities of a batch as tokens, ordered by frame and then by entity index. Global features join every entity."""

    def __init__(self, obs_space: ObsSpace, action_space: Mapping[str, ActionSpace], d_model: int) -> None:
        super().__init__()
        self.num_globals = len(obs_space.global_features)
        widths = {name: len(entity.features) + self.num_globals for name, entity in obs_space.entities.items()}
        if has_global_entity(obs_space, action_space):
            widths[GLOBAL_ENTITY] = self.num_globals
        # keyed by position: a type's name may hold what a module's name may not, such as a dot
        self.types = list(widths)
        self.entities = nn.ModuleList(EntityEmbedding(width, d_model) for width in widths.values())
        self.d_model = d_model

    def forward(self, batch: ObsBatch) -> Tensor:
        """(E, D) tokens."""
        if not self.types:
            return torch.zeros(0, self.d_model, device=batch.device)
        embedded = [entity(self._features(batch, name)) for name, entity in zip(self.types, self.entities, strict=True)]
        positions = torch.cat([batch.layout.positions[name] for name in self.types])
        tokens = torch.cat(embedded)
        return torch.zeros_like(tokens).index_copy(0, positions, tokens)

    def update_normalization(self, batch: ObsBatch) -> None:
        """Take the features of `batch` into the running statistics."""
        for name, entity in zip(self.types, self.entities, strict=True):
            assert isinstance(entity, EntityEmbedding)
            if entity.num_features:
                entity.norm.update(self._features(batch, name))

    def _features(self, batch: ObsBatch, name: str) -> Tensor:
        values, offsets = batch.features[name]
        if self.num_globals == 0 or name == GLOBAL_ENTITY:
            return values
        # every frame has exactly one `__global__` row, so frame b's is row b
        return torch.cat([values, batch.features[GLOBAL_ENTITY].values[sequence_of_item(offsets)]], dim=1)
