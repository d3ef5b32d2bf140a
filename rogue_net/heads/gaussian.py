"""Gaussians over numbers that may be bounded.

An actor draws u ~ N(mean, std²) for each of its n numbers and plays a = f(u), where f is, by what bounds the number has,

    none            a = u
    both            a = center + radius tanh(u)                    of the interval
    low alone       a = low + softplus(u)
    high alone      a = high - softplus(-u)

The density of a is that of u divided by f'(u), its entropy H(u) + E[log f'(u)], its mode is taken to be f(mean).

What is played is a float32, so the log-probability of an action is that of the *rounded* a: u is found back from a, while
acting as well as later, so both agree to the last bit. Near a bound float32 tells few values of u apart, and at the bound
none: an action there counts as one float32 step inside, so that its log-probability is finite.

Shapes: A actors, n numbers of each, Q quadrature nodes.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import logsigmoid, softplus

from entity_gym.actions import ContinuousActionSpace
from rogue_net.heads.distributions import TINY, ActionDistribution
from rogue_net.heads.noise import Source, normal

#: Fewer float32 numbers than this between two bounds are refused: they would be choices, not numbers.
LEAST_STEPS = 1000

_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)


class Bounds(nn.Module):
    """The function f of an action space, number by number.

    Args:
        space: with n numbers.

    Raises:
        ValueError: two bounds are so near each other that float32 has hardly a number in between.
    """

    both: Tensor  # (n,) bool
    one: Tensor  # (n,) bool
    low: Tensor  # (n,) float32, and so on
    high: Tensor
    center: Tensor
    radius: Tensor
    limit: Tensor
    log_radius: Tensor
    edge: Tensor
    sign: Tensor
    step: Tensor
    nodes: Tensor  # (Q, 1, 1)
    weights: Tensor  # (Q,)

    def __init__(self, space: ContinuousActionSpace) -> None:
        super().__init__()
        low, high = (bound.astype(np.float64) for bound in space.bounds())
        has_low, has_high = np.isfinite(low), np.isfinite(high)
        both, one = has_low & has_high, has_low ^ has_high
        finite_low, finite_high = np.where(has_low, low, 0), np.where(has_high, high, 0)
        step = _step_inside(finite_low, finite_high)
        center, radius = (finite_low + finite_high) / 2, np.where(both, (finite_high - finite_low) / 2, 1)
        for k in np.flatnonzero(both & (2 * radius < LEAST_STEPS * step)):
            raise ValueError(
                f"ContinuousActionSpace: low[{k}]={low[k]:g} and high[{k}]={high[k]:g} have fewer than {LEAST_STEPS} float32 "
                "numbers between them; use an interval nearer to 0, or choices"
            )
        self.has_both, self.has_one = bool(both.any()), bool(one.any())
        columns = {
            "both": both,
            "one": one,
            "low": low,
            "high": high,
            "center": center,
            "radius": radius,
            "limit": 1 - step / radius,  # of |tanh(u)|: one float32 step inside
            "log_radius": np.log(radius),
            "edge": np.where(has_low, finite_low, finite_high),
            "sign": np.where(has_high & ~has_low, -1, 1),
            "step": np.maximum(step, TINY),
        }
        for name, column in columns.items():
            tensor = torch.from_numpy(column.astype(bool if name in ("both", "one") else np.float32))
            self.register_buffer(name, tensor, persistent=False)  # they follow from the space
        nodes = torch.arange(-5.5, 5.6, 0.25, dtype=torch.float64)
        self.register_buffer("nodes", nodes.float().view(-1, 1, 1), persistent=False)
        self.register_buffer("weights", (-0.5 * nodes.square()).softmax(0).float(), persistent=False)

    def forward(self, u: Tensor) -> Tensor:
        """Compute f(u), within the bounds also after rounding. (A, n) to (A, n)."""
        actions = u
        if self.has_both:
            actions = torch.where(self.both, self.center + self.radius * u.tanh(), actions)
        if self.has_one:
            actions = torch.where(self.one, self.edge + self.sign * softplus(self.sign * u), actions)
        return actions.clamp(self.low, self.high)

    def invert(self, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Compute u and log f'(u) of (A, n) actions. Both are finite; an action outside the bounds counts as one at them."""
        u, log_slope = actions, torch.zeros_like(actions)
        if self.has_both:
            # tanh(u) = y, so u = (log(1 + y) - log(1 - y)) / 2 and f' = radius (1 - y²); log1p keeps the digits near y = ±1
            y = ((actions - self.center) / self.radius).clamp(-self.limit, self.limit)
            above, below = y.log1p(), (-y).log1p()
            u = torch.where(self.both, (above - below) / 2, u)
            log_slope = torch.where(self.both, self.log_radius + above + below, log_slope)
        if self.has_one:
            # softplus(u) = y, so u = log(exp(y) - 1) = y + log(1 - exp(-y)) and f' = sigmoid(u) = 1 - exp(-y)
            y = (self.sign * (actions - self.edge)).clamp(min=self.step)
            log_sigmoid = (-torch.expm1(-y)).log()
            u = torch.where(self.one, self.sign * (y + log_sigmoid), u)
            log_slope = torch.where(self.one, log_sigmoid, log_slope)
        return u, log_slope

    def mean_log_slope(self, mean: Tensor, std: Tensor) -> Tensor:
        """Compute E[log f'(u)] of u ~ N(mean, std²), differentiable. (A, n) each.

        It is 0 without bounds. Otherwise the trapezoidal rule between ±5.5 standard deviations, which beats Gauss-Hermite's
        nodes where std is large (Trefethen 2022, "Exactness of quadrature formulas", SIAM Review 64). For every mean, its
        error is below 1e-6 up to std 2.7, 2e-5 at 4, and 2e-3 at 7.4, and float32 rounding comes on top.
        """
        if not (self.has_both or self.has_one):
            return torch.zeros_like(mean)
        u = mean + std * self.nodes  # (Q, A, n)
        return (self.weights @ self._log_slope(u).flatten(1)).view_as(mean)

    def _log_slope(self, u: Tensor) -> Tensor:
        log_slope = torch.zeros_like(u)
        if self.has_both:
            log_sech2 = 2 * (math.log(2) - u - softplus(-2 * u))  # 1 - tanh² = 4 / (exp(u) + exp(-u))²
            log_slope = torch.where(self.both, self.log_radius + log_sech2, log_slope)
        if self.has_one:
            log_slope = torch.where(self.one, logsigmoid(self.sign * u), log_slope)
        return log_slope


class BoundedGaussian(ActionDistribution):
    """Independent numbers, each f(u) of a Gaussian u. `logits` are the means of u and then its log-stds, (A, 2 n).

    Args:
        mean: (A, n) of u.
        log_std: (n,) or (A, n), the logarithm of the standard deviation of u.
        bounds: f.
    """

    def __init__(self, mean: Tensor, log_std: Tensor, bounds: Bounds) -> None:
        self.mean = mean.float()
        self.log_std = log_std.float().expand_as(self.mean)
        self.bounds = bounds
        self.logits = torch.cat([self.mean, self.log_std], dim=1)

    def sample(self, source: Source = None) -> Tensor:
        sampled: Tensor = self.bounds(self.mean + self.log_std.exp() * normal(source, self.mean))
        return sampled

    def mode(self) -> Tensor:
        """Median of each number, f(mean)."""
        median: Tensor = self.bounds(self.mean)
        return median

    def log_prob(self, actions: Tensor) -> Tensor:
        u, log_slope = self.bounds.invert(actions)
        z = (u - self.mean) * (-self.log_std).exp()
        return (-0.5 * z.square() - self.log_std - _LOG_SQRT_2PI - log_slope).sum(dim=1)

    def entropy(self) -> Tensor:
        """Sum over the numbers of log std + log(2 pi e) / 2 + E[log f'(u)]; see `Bounds.mean_log_slope`."""
        gaussian = self.log_std + (_LOG_SQRT_2PI + 0.5)
        return (gaussian + self.bounds.mean_log_slope(self.mean, self.log_std.exp())).sum(dim=1)

    def kl(self, others: Tensor) -> Tensor:
        """(A,) KL(p ‖ q), which equals the divergence of the unbounded Gaussians.

            sum_n log σ_q - log σ_p + (σ_p² + (μ_p - μ_q)²) / (2 σ_q²) - 1/2

        Source: Kullback & Leibler 1951; the divergence is invariant under the invertible map to the bounds.
        """
        mean, log_std = others.chunk(2, dim=1)
        spread = (2 * log_std).exp() + (mean - self.mean).square()
        return (self.log_std - log_std + spread * (-2 * self.log_std).exp() / 2 - 0.5).sum(dim=1)

    def tempered(self, temperature: float) -> BoundedGaussian:
        return BoundedGaussian(self.mean, self.log_std + math.log(temperature), self.bounds)


def _step_inside(low: NDArray[np.float64], high: NDArray[np.float64]) -> NDArray[np.float64]:
    """Distance of neighbouring float32 numbers just inside the bound that is farther from 0."""
    outermost = np.maximum(np.abs(low), np.abs(high)).astype(np.float32)
    step: NDArray[np.float64] = (outermost - np.nextafter(outermost, np.float32(0))).astype(np.float64)
    return step
