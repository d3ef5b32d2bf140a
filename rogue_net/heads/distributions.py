"""Distributions over the actions of all actors of a batch, always in float32.

Shapes: A actors of all frames together, C choices, P actor-choice pairs where actors have different numbers of choices.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from rogue_net.batch.ragged import segment_max, segment_sum
from rogue_net.heads.noise import Source, exponential

LOWEST = torch.finfo(torch.float32).min
TINY = torch.finfo(torch.float32).tiny


class ActionDistribution(ABC):
    """Independent distributions, one per actor.

    An actor's action is a row of n values, as batched actions have them: (A, 1) int64 for a choice, (A, n) float32 for numbers;
    or a value for each actee, (P, 1) int64 for a set.
    Log-probs and entropies are (A,) float32.
    """

    logits: Tensor  # parameters of the distribution; see the classes

    @property
    def rows(self) -> Tensor:
        """The logits as a matrix: (A, C) or (A, 2 n), or (P, 1) where actors have different numbers of choices."""
        return self.logits if self.logits.dim() == 2 else self.logits.unsqueeze(1)

    @abstractmethod
    def sample(self, source: Source = None) -> Tensor:
        """Draw one action per actor."""

    @abstractmethod
    def mode(self) -> Tensor:
        """The action of each actor that a greedy policy takes."""

    @abstractmethod
    def log_prob(self, actions: Tensor) -> Tensor:
        """Log-probability of actions; for numbers, of their density."""

    @abstractmethod
    def entropy(self) -> Tensor:
        """Entropy, -E[log_prob]."""

    def along(self, actions: Tensor) -> ActionDistribution:
        """The distributions of the decisions on the way to `actions`, of which are `rows` and the entropy; see `heads.sets`."""
        return self

    def kl(self, others: Tensor) -> Tensor:
        """(rows,) KL(p ‖ q) from this q, whose `rows` are q's: sum_c p_c (log p_c - log q_c), where terms with p_c = 0 are 0.

        Args:
            others: `rows` of p.
        """
        return (others.exp() * (others.clamp(min=LOWEST) - self.rows.clamp(min=LOWEST))).sum(dim=1)

    @abstractmethod
    def tempered(self, temperature: float) -> ActionDistribution:
        """Return a distribution with logits divided by `temperature`, or standard deviations multiplied by it."""


class Categorical(ActionDistribution):
    """Distributions with the same C choices for every actor. `logits` are log-probabilities, (A, C), -inf where masked.

    Args:
        logits: (A, C).
        mask: (A, C) bool, true where open; None: everything is.
    """

    def __init__(self, logits: Tensor, mask: Tensor | None) -> None:
        logits = logits.float()
        if mask is not None:
            logits = torch.where(mask, logits, float("-inf"))
        # Choice by choice in memory: vectors of actors, where the choices of one would be too few to fill a vector.
        self.logits = logits.t().log_softmax(dim=0).t()

    def sample(self, source: Source = None) -> Tensor:
        return _argmax(with_gumbel_noise(self.logits, exponential(source, self.logits)))

    def mode(self) -> Tensor:
        return _argmax(self.logits)

    def log_prob(self, actions: Tensor) -> Tensor:
        return self.logits.gather(1, actions).squeeze(1)

    def entropy(self) -> Tensor:
        return -plogp(self.logits).sum(dim=1)

    def tempered(self, temperature: float) -> Categorical:
        return Categorical(self.logits / temperature, None)


class RaggedCategorical(ActionDistribution):
    """Distributions over as many choices as an actor's frame offers. Where none is open the action is -1 (nobody), for certain.

    `logits` are log-probabilities, (P,), actor by actor, -inf where masked.

    Args:
        logits: (P,).
        actors: (P,) int64, the actor of each pair.
        values: (P,) int64, the action that the pair's choice stands for: an entity index inside the frame, or -1.
        num_actors: A.
        mask: (P,) bool, true where the pair is open; None: every pair is.
    """

    def __init__(self, logits: Tensor, actors: Tensor, values: Tensor, num_actors: int, mask: Tensor | None) -> None:
        logits = logits.float()
        if mask is not None:
            logits = torch.where(mask, logits, float("-inf"))
        self.actors = actors
        self.values = values
        self.num_actors = num_actors
        largest = segment_max(logits, actors, num_actors).clamp(min=LOWEST)  # -inf where nothing is open
        shifted = logits - largest.index_select(0, actors)
        total = segment_sum(shifted.exp(), actors, num_actors).clamp(min=TINY)
        self.logits = shifted - total.log().index_select(0, actors)

    def sample(self, source: Source = None) -> Tensor:
        return self._argmax(with_gumbel_noise(self.logits, exponential(source, self.logits, self.values, self.actors)))

    def mode(self) -> Tensor:
        return self._argmax(self.logits)

    def log_prob(self, actions: Tensor) -> Tensor:
        chosen = self.values == actions[:, 0].index_select(0, self.actors)
        return segment_sum(torch.where(chosen, self.logits, 0.0), self.actors, self.num_actors)

    def entropy(self) -> Tensor:
        return -segment_sum(plogp(self.logits), self.actors, self.num_actors)

    def tempered(self, temperature: float) -> RaggedCategorical:
        return RaggedCategorical(self.logits / temperature, self.actors, self.values, self.num_actors, None)

    def _argmax(self, scores: Tensor) -> Tensor:
        """(A, 1) values of each actor's first best pair, -1 where none is open."""
        best = segment_max(scores, self.actors, self.num_actors)
        best.masked_fill_(best == float("-inf"), torch.nan)  # which equals nothing
        is_best = scores == best.index_select(0, self.actors)
        num_pairs = len(scores)
        pairs = torch.where(is_best, torch.arange(num_pairs, device=scores.device), num_pairs)
        first = pairs.new_full((self.num_actors,), num_pairs).scatter_reduce_(0, self.actors, pairs, "amin")
        nobody = self.values.new_full((1,), -1)
        return torch.cat([self.values, nobody])[first].unsqueeze(1)


def _argmax(scores: Tensor) -> Tensor:
    """(A, 1) int64, the first best choice in each of (A, C) scores. torch's argmax is slow where the choices are far apart."""
    return scores.max(dim=1, keepdim=True).indices


def with_gumbel_noise(logits: Tensor, exponential: Tensor) -> Tensor:
    """Logits plus standard Gumbel noise: their argmax is a sample of softmax(logits), and never of what has logit -inf.

    The noise is the negative logarithm of exponentially distributed numbers, which are overwritten. Source: Gumbel 1954,
    "Statistical theory of extreme values", lecture 1.
    """
    return logits - exponential.clamp_(min=TINY).log_()


def plogp(log_p: Tensor) -> Tensor:
    """Compute p log p from log p: 0 where p is 0. Its gradient is finite there too."""
    return log_p.exp() * log_p.clamp(min=-200)  # exp(-200) is 0 in float32
