"""Heads: tokens become distributions over actions, and values.

Shapes: E tokens, D width, A actors, C choices, P actor-actee pairs, K key width, B frames.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from entity_gym.spaces import ActionSpace, SelectEntityActionSpace
from rogue_net.distributions import ActionDistribution, Categorical, RaggedCategorical
from rogue_net.obs_batch import CategoricalMask, Layout, SelectEntityMask
from rogue_net.ragged import RaggedTensor, segment_mean, sequence_of_item


def flat_indices(entities: RaggedTensor, layout: Layout) -> Tensor:
    """(items,) token of each entity: its index inside the frame plus the frame's start."""
    return entities.values[:, 0] + layout.offsets[:-1][sequence_of_item(entities.offsets)]


class CategoricalHead(nn.Module):
    """Logits by a linear layer on the actor's token. Starts nearly uniform: orthogonal weights of gain 0.01, zero bias."""

    def __init__(self, d_model: int, num_choices: int) -> None:
        super().__init__()
        self.project = nn.Linear(d_model, num_choices)
        nn.init.orthogonal_(self.project.weight, gain=0.01)
        nn.init.zeros_(self.project.bias)

    def forward(self, tokens: Tensor, layout: Layout, mask: CategoricalMask) -> ActionDistribution:
        """Distributions of the actors of every frame."""
        return Categorical(self.project(tokens[flat_indices(mask.actors, layout)]), mask.mask)


class SelectEntityHead(nn.Module):
    """Logits by the product of the actor's query and the actee's key: q · k / sqrt(K), over the actees of the actor's frame."""

    def __init__(self, d_model: int, d_qk: int) -> None:
        super().__init__()
        self.query = nn.Linear(d_model, d_qk)
        self.key = nn.Linear(d_model, d_qk)

    def forward(self, tokens: Tensor, layout: Layout, mask: SelectEntityMask) -> ActionDistribution:
        """Distributions of the actors of every frame."""
        num_actors = len(mask.actors.values)
        actor_frames = sequence_of_item(mask.actors.offsets)
        num_actees = mask.actees.lengths[actor_frames]  # of each actor
        actors = torch.repeat_interleave(torch.arange(num_actors, device=tokens.device), num_actees)
        first_pair = num_actees.cumsum(0) - num_actees
        within = torch.arange(len(actors), device=tokens.device) - first_pair[actors]
        actees = mask.actees.offsets[actor_frames[actors]] + within

        queries = self.query(tokens[flat_indices(mask.actors, layout)])
        keys = self.key(tokens[flat_indices(mask.actees, layout)])
        logits = (queries[actors] * keys[actees]).sum(dim=1) / math.sqrt(queries.shape[1])
        open_pairs = None if mask.pairs is None else mask.pairs.values[:, 0]
        return RaggedCategorical(logits, actors, mask.actees.values[actees, 0], num_actors, open_pairs)


class ValueHead(nn.Module):
    """A linear layer on the mean of all the frame's tokens, hidden ones included; zero at first.

    The mean of a frame without tokens is 0, so its value is the bias: a learned constant.
    """

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.project = nn.Linear(d_model, 1)
        nn.init.zeros_(self.project.weight)
        nn.init.zeros_(self.project.bias)

    def forward(self, tokens: Tensor, layout: Layout) -> Tensor:
        """(B,) float32 values."""
        lengths = layout.lengths
        pooled = segment_mean(tokens, layout.frames, len(lengths), lengths)
        values: Tensor = self.project(pooled).squeeze(1).float()
        return values


def make_head(space: ActionSpace, d_model: int, d_qk: int) -> CategoricalHead | SelectEntityHead:
    """The head for an action of this kind."""
    if isinstance(space, SelectEntityActionSpace):
        return SelectEntityHead(d_model, d_qk)
    return CategoricalHead(d_model, len(space.choices))
