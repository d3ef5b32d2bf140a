"""Distributions over the choices of all actors of a batch, always in float32.

Shapes: A actors of all frames together, C choices, P actor-actee pairs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from rogue_net.ragged import segment_max, segment_sum


class ActionDistribution(ABC):
    """Independent distributions, one per actor. Samples are (A,) int64; log-probs and entropies (A,) float32."""

    logits: Tensor  # normalized: log-probabilities, -inf where masked; (A, C) or (P,)

    @abstractmethod
    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Draw one action per actor, by adding Gumbel noise to the logits: masked choices are never drawn."""

    @abstractmethod
    def mode(self) -> Tensor:
        """The most probable action of each actor."""

    @abstractmethod
    def log_prob(self, actions: Tensor) -> Tensor:
        """Log-probability of (A,) actions."""

    @abstractmethod
    def entropy(self) -> Tensor:
        """-sum p log p over the open choices."""


class Categorical(ActionDistribution):
    """The same C choices for every actor.

    Args:
        logits: (A, C).
        mask: (A, C) bool, true where open; None: everything is.
    """

    def __init__(self, logits: Tensor, mask: Tensor | None) -> None:
        logits = logits.float()
        if mask is not None:
            logits = logits.masked_fill(~mask, float("-inf"))
        self.logits = logits.log_softmax(dim=1)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:  # noqa: D102 - see ActionDistribution
        return (self.logits + gumbel_like(self.logits, generator)).argmax(dim=1)

    def mode(self) -> Tensor:  # noqa: D102
        return self.logits.argmax(dim=1)

    def log_prob(self, actions: Tensor) -> Tensor:  # noqa: D102
        return self.logits.gather(1, actions.unsqueeze(1)).squeeze(1)

    def entropy(self) -> Tensor:  # noqa: D102
        return -(self.logits.exp() * finite(self.logits)).sum(dim=1)


class RaggedCategorical(ActionDistribution):
    """As many choices as each actor's frame offers actees. Without any, the action is -1 (nobody), for certain.

    Args:
        logits: (P,) of the actor-actee pairs.
        actors: (P,) int64, the actor of each pair.
        entities: (P,) int64, the actee's entity index inside its frame: the value of the action.
        num_actors: A.
        mask: (P,) bool, true where the pair is open; None: every pair is.
    """

    def __init__(self, logits: Tensor, actors: Tensor, entities: Tensor, num_actors: int, mask: Tensor | None) -> None:
        logits = logits.float()
        if mask is not None:
            logits = logits.masked_fill(~mask, float("-inf"))
        self.actors = actors
        self.entities = entities
        self.num_actors = num_actors
        shift = finite(segment_max(logits, actors, num_actors))
        total = segment_sum((logits - shift[actors]).exp(), actors, num_actors)
        log_total = total.clamp(min=torch.finfo(torch.float32).tiny).log() + shift
        self.logits = logits - log_total[actors]

    def sample(self, generator: torch.Generator | None = None) -> Tensor:  # noqa: D102 - see ActionDistribution
        return self._argmax(self.logits + gumbel_like(self.logits, generator))

    def mode(self) -> Tensor:  # noqa: D102
        return self._argmax(self.logits)

    def log_prob(self, actions: Tensor) -> Tensor:  # noqa: D102
        chosen = self.entities == actions[self.actors]
        return segment_sum(self.logits.masked_fill(~chosen, 0.0), self.actors, self.num_actors)

    def entropy(self) -> Tensor:  # noqa: D102
        return -segment_sum(self.logits.exp() * finite(self.logits), self.actors, self.num_actors)

    def _argmax(self, scores: Tensor) -> Tensor:
        num_pairs = len(scores)
        best = segment_max(scores, self.actors, self.num_actors)
        pairs = torch.arange(num_pairs, device=scores.device)
        pairs = torch.where(scores == best[self.actors], pairs, num_pairs)
        first = pairs.new_full((self.num_actors,), num_pairs).scatter_reduce_(0, self.actors, pairs, "amin")
        nobody = self.entities.new_full((1,), -1)
        return torch.cat([self.entities, nobody])[first]


def gumbel_like(logits: Tensor, generator: torch.Generator | None) -> Tensor:
    """Standard Gumbel noise: argmax(logits + noise) is a sample of softmax(logits). Gumbel 1954; -log of an exponential."""
    noise = torch.empty_like(logits).exponential_(generator=generator)
    return -noise.clamp(min=torch.finfo(noise.dtype).tiny).log()


def finite(logits: Tensor) -> Tensor:
    """-inf replaced by 0, in the gradient too, so that p log p is 0 where p is."""
    return logits.masked_fill(logits == float("-inf"), 0.0)
