"""Running normalization of input features."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn


class Moments(NamedTuple):
    """Count, mean and sum of squared deviations of n numbers, in float64: of one shape, such as () or (F,)."""

    number: Tensor
    mean: Tensor
    squares: Tensor  # sum of squared distances from the mean

    @property
    def variance(self) -> Tensor:
        """Variance without Bessel's correction; 0 if the count is 0."""
        return self.squares / self.number.clamp(min=1)

    def merged(self, other: Moments) -> Moments:
        """Moments of both sets of numbers. Equal means are kept exactly, so that constant numbers have a variance of exactly 0.

        Source: Chan, Golub, LeVeque 1979, "Updating formulae and a pairwise algorithm", equation 2.1.
        """
        number = self.number + other.number
        share = other.number / number.clamp(min=1)
        delta = other.mean - self.mean
        squares = self.squares + (other.squares + delta.square() * (self.number * share))
        return Moments(number, self.mean + delta * share, squares)


class RunningNorm(nn.Module):
    """Normalizes features by the mean and standard deviation of all that `update` has seen.

        y = clip((x - mean) / std, -5, 5)

    A feature that never varied has std 1. Before the first update, mean is 0 and std is 1. The statistics change in `update`
    alone, never in a forward, so that acting, evaluating and playing see the same network. Whoever writes them otherwise
    than by `load_state_dict` calls `refresh`.

    Args:
        num_features: F.
    """

    count: Tensor
    mean: Tensor
    squares: Tensor
    offset: Tensor
    scale: Tensor

    LIMIT = 5.0

    def __init__(self, num_features: int) -> None:
        super().__init__()
        # float64 and int64: a float32 count stops growing at 2**24
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(num_features, dtype=torch.float64))
        self.register_buffer("squares", torch.zeros(num_features, dtype=torch.float64))
        # What a forward needs of them, kept because a forward of few rows takes as long as it has operations.
        self.register_buffer("offset", torch.zeros(num_features), persistent=False)
        self.register_buffer("scale", torch.ones(num_features), persistent=False)
        self.register_load_state_dict_post_hook(_refresh)  # type: ignore[no-untyped-call]

    def forward(self, features: Tensor) -> Tensor:
        """Normalize (n, F) float32."""
        # Subtracted first: x * scale - mean * scale would lose the digits in which large numbers differ.
        return (features - self.offset).mul_(self.scale).clamp_(-self.LIMIT, self.LIMIT)

    @torch.no_grad()
    def update(self, features: Tensor) -> None:
        """Take in (n, F) features."""
        if len(features) == 0:
            return
        batch = features.double()
        mean = batch[0] + (batch - batch[0]).mean(0)  # of equal numbers exactly that number, however mean rounds
        number = torch.full_like(mean, len(batch))
        self.keep(self.moments.merged(Moments(number, mean, (batch - mean).square().sum(0))))

    @property
    def moments(self) -> Moments:
        """Moments (F,) of all that `update` has seen."""
        return Moments(self.count.double().expand_as(self.mean), self.mean, self.squares)

    @torch.no_grad()
    def keep(self, moments: Moments) -> None:
        """Replace the statistics."""
        self.count.copy_(moments.number[0])
        self.mean.copy_(moments.mean)
        self.squares.copy_(moments.squares)
        self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        """Take over what `count`, `mean` and `squares` hold now."""
        std = (self.squares / self.count.clamp(min=1)).sqrt()
        has_varied = std >= torch.finfo(torch.float32).tiny  # as float32 sees it: 1 / std must not be infinite
        self.offset.copy_(self.mean)
        self.scale.copy_(torch.where(has_varied, 1 / std, 1.0))


def _refresh(module: nn.Module, keys: object) -> None:
    """Refresh a module after `load_state_dict`. A function and no method, so that a copy of a module refreshes itself."""
    assert isinstance(module, RunningNorm)
    module.refresh()
