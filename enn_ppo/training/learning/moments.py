"""Means and variances over the numbers of several ranks; see `enn_ppo.training.ranks`.

Shapes: K ranks; F quantities.
"""

from __future__ import annotations

from functools import reduce

import torch
from torch import Tensor

from enn_ppo.training.learning.actor_critic import ActorCritic
from enn_ppo.training.ranks import ALONE, Ranks
from rogue_net import ObsBatch, RogueNet
from rogue_net.inputs.normalization import Moments, RunningNorm


def moments_of_some(values: Tensor, counted: Tensor) -> Moments:
    """Moments (...) of a masked subset of each row, without synchronising with the device.

    Args:
        values: (..., n) numbers, n at least 1.
        counted: (..., n) bool mask.
    """
    doubles, weights = values.double(), counted.double()
    number = weights.sum(-1)
    # the mean of equal numbers must be exactly that number, despite rounding
    shift = torch.where(counted, doubles, -torch.inf).amax(-1).nan_to_num(neginf=0.0)
    mean = shift + torch.linalg.vecdot(doubles - shift.unsqueeze(-1), weights) / number.clamp(min=1)
    return Moments(number, mean, torch.linalg.vecdot((doubles - mean.unsqueeze(-1)).square(), weights))


def moments_of_all(values: Tensor, ranks: Ranks) -> Moments:
    """Moments (...) of the rows of all ranks: (..., n) on each, n at least 1, which may differ."""
    own = moments_of_some(values, torch.ones_like(values, dtype=torch.bool))
    return reduce(Moments.merged, (Moments(*part) for part in ranks.gather(torch.stack(own))))


def normalize(advantages: Tensor, moments: Moments) -> Tensor:
    """Normalize (B,) advantages to mean 0 and standard deviation 1; a single one becomes 0.

    Args:
        advantages: of the minibatch, or of a part of it.
        moments: of the whole minibatch.
    """
    return (advantages - moments.mean.float()) / (moments.variance.sqrt().float() + 1e-8)


def explained_variance(values: Tensor, returns: Tensor, ranks: Ranks = ALONE) -> Tensor:
    """() 1 - Var(R - V) / Var(R): 1 for perfect values, 0 for a constant, NaN where all returns are the same.

    Args:
        values: (B,) of this rank's frames.
        returns: (B,) of the same frames.
        ranks: the ranks that share the batch.
    """
    of_returns, of_errors = moments_of_all(torch.stack([returns, returns - values]), ranks).variance.unbind()
    explained = 1 - of_errors / of_returns
    return torch.where(of_returns > 0, explained, torch.nan).float()


@torch.no_grad()
def update_normalization(network: RogueNet | ActorCritic, obs: ObsBatch, ranks: Ranks) -> None:
    """Update a network's input statistics with the observations of all ranks; the result is the same on every rank.

    Args:
        network: changed in place.
        obs: observations of this rank; entity types that other ranks have may be missing.
        ranks: the ranks that take part.
    """
    if ranks.size == 1:
        network.update_normalization(obs)
        return
    norms = [module for module in network.modules() if isinstance(module, RunningNorm)]
    if not norms:
        return

    def statistics() -> Tensor:
        """(3, F) float64: the moments of the features of all norms; in one tensor, for they are few numbers."""
        parts = zip(*(norm.moments for norm in norms), strict=True)
        return torch.stack([torch.cat(part) for part in parts])

    before = statistics()
    for norm in norms:
        norm.keep(Moments(*torch.zeros_like(torch.stack(norm.moments))))
    network.update_normalization(obs)  # starts from empty statistics: these are the moments of `obs` alone
    merged = reduce(Moments.merged, (Moments(*part) for part in (before, *ranks.gather(statistics()))))
    columns = [torch.split(each, [len(norm.mean) for norm in norms]) for each in merged]
    for number, norm in enumerate(norms):
        norm.keep(Moments(*(each[number] for each in columns)))
