"""Rollouts of several blocks of environments as the one that all of them together would have given.

Shapes: T steps, N environments in all, B = T * N frames ordered by step and then environment.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from enn_ppo.rollout import Rollout
from entity_gym.batch.vec_obs import Metric
from rogue_net import ObsBatch, RaggedTensor
from rogue_net.crossing import moved
from rogue_net.ragged import cat_ragged, gather_items


def merge_rollouts(rollouts: Sequence[Rollout]) -> Rollout:
    """The rollouts side by side.

    Args:
        rollouts: of the same number of steps, at least one, in the order of their environments.
    """
    if len(rollouts) == 1:
        return rollouts[0]
    order = moved(_by_step([rollout.rewards.shape for rollout in rollouts]), rollouts[0].rewards.device)
    obs = ObsBatch.cat([rollout.obs for rollout in rollouts]).gather(order, all_of_them=True)
    metrics: dict[str, Metric] = {}
    for rollout in rollouts:
        for name, metric in rollout.metrics.items():
            metrics.setdefault(name, Metric()).merge(metric)

    def side_by_side(name: str) -> Tensor:
        return torch.cat([getattr(rollout, name) for rollout in rollouts], dim=-1)

    def of_actors(name: str) -> dict[str, RaggedTensor]:
        merged = {}
        for action, mask in obs.action_masks.items():
            parts = cat_ragged([getattr(rollout, name)[action] for rollout in rollouts])
            items = gather_items(parts.offsets, order, mask.actors.offsets, len(parts.values))
            merged[action] = RaggedTensor(parts.values[items], mask.actors.offsets)
        return merged

    return Rollout(
        obs=obs,
        actions=of_actors("actions"),
        log_probs=of_actors("log_probs"),
        values=side_by_side("values"),
        rewards=side_by_side("rewards"),
        terminated=side_by_side("terminated"),
        truncated=side_by_side("truncated"),
        final_values=side_by_side("final_values"),
        last_values=side_by_side("last_values"),
        elapsed_steps=np.concatenate([rollout.elapsed_steps for rollout in rollouts], axis=1),
        env_id=np.concatenate([rollout.env_id for rollout in rollouts]),
        episodes=[episode for rollout in rollouts for episode in rollout.episodes],
        metrics=metrics,
        env_seconds=sum(rollout.env_seconds for rollout in rollouts),
        act_seconds=sum(rollout.act_seconds for rollout in rollouts),
    )


def _by_step(shapes: Sequence[torch.Size]) -> Tensor:
    """(B,) int64: where each frame of all environments, step by step, is among the frames of the rollouts end to end."""
    places, begin = [], 0
    for shape in shapes:
        places.append(begin + torch.arange(shape.numel()).view(shape))
        begin += shape.numel()
    return torch.cat(places, dim=1).flatten()
