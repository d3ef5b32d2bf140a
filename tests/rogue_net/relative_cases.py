"""Frames of ships and rocks, and relative positions for them: what the kernels of every device are tried on."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from entity_gym import ActionSpace, CategoricalActionSpace, Entity, Observation, ObsSpace
from entity_gym.batch.batching import batch_observations
from rogue_net import ObsBatch
from rogue_net.config import RelposConfig
from rogue_net.relative.relative_positions import RelativePositions

WAIT: dict[str, ActionSpace] = {"wait": CategoricalActionSpace(["wait"])}


class Case(NamedTuple):
    config: RelposConfig
    module: RelativePositions
    batch: ObsBatch
    num_heads: int
    head_width: int


def make_case(
    config: RelposConfig,
    lengths: list[tuple[int, int]],
    num_heads: int = 2,
    head_width: int = 8,
    seed: int = 0,
    *,
    hide: bool = True,
) -> Case:
    """Frames of so many ships and rocks, ships partly hidden."""
    names = list(config.position_features)
    space = ObsSpace({"Ship": Entity([*names, "heading", "dx", "dy"]), "Rock": Entity(["age", *names])})
    rng = np.random.default_rng(seed)
    widths = {name: len(entity.features) for name, entity in space.entities.items()}
    observations = []
    for counts in lengths:
        shapes = {name: (count, widths[name]) for name, count in zip(widths, counts, strict=True)}
        features = {name: (rng.normal(size=shape) * 2).astype(np.float32) for name, shape in shapes.items()}
        visible = {"Ship": rng.random(counts[0]) < 0.6} if hide else {}
        observations.append(Observation(features=features, visible=visible))
    batch = ObsBatch.from_vec_obs(batch_observations(observations, space, WAIT))
    torch.manual_seed(seed)
    module = RelativePositions(config, space, WAIT, num_heads * head_width, num_heads)
    module.update_normalization(batch)
    return Case(config, module, batch, num_heads, head_width)
