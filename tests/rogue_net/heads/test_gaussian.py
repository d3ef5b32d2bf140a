"""Gaussians within bounds, against the same maths in Python's floats and against counted samples."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from entity_gym import ContinuousActionSpace
from rogue_net.heads.gaussian import BoundedGaussian, Bounds

INF = math.inf


class Kind(NamedTuple):
    """One number: its bounds, f, and log f', written out for float64."""

    low: float
    high: float
    f: Callable[[np.ndarray], np.ndarray]
    log_slope: Callable[[np.ndarray], np.ndarray]


def interval(low: float, high: float) -> Kind:
    center, radius = (low + high) / 2, (high - low) / 2
    return Kind(
        low,
        high,
        lambda u: center + radius * np.tanh(u),
        lambda u: math.log(radius) - 2 * np.log(np.cosh(np.minimum(np.abs(u), 300))),
    )


KINDS = {
    "plain": Kind(-INF, INF, lambda u: u, lambda u: np.zeros_like(u)),
    "interval": interval(2, 10),
    "small": interval(0, 0.25),
    "from -3": Kind(-3, INF, lambda u: -3 + np.logaddexp(0, u), lambda u: -np.logaddexp(0, -u)),
    "to 5": Kind(-INF, 5, lambda u: 5 - np.logaddexp(0, -u), lambda u: -np.logaddexp(0, u)),
}
EACH = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


def bounds_of(kind: Kind) -> Bounds:
    return Bounds(ContinuousActionSpace([kind.low], [kind.high]))


def gaussian(kind: Kind, mean: list[float], std: float) -> BoundedGaussian:
    """One number, an actor for each mean."""
    return BoundedGaussian(torch.tensor(mean).unsqueeze(1), torch.tensor([std]).log(), bounds_of(kind))


def normal_log_density(u: np.ndarray, mean: float, std: float) -> np.ndarray:
    return -0.5 * ((u - mean) / std) ** 2 - math.log(std) - 0.5 * math.log(2 * math.pi)


def expected_log_slope(kind: Kind, mean: float, std: float) -> float:
    """E[log f'(u)] by a Riemann sum of 24,001 terms."""
    z, step = np.linspace(-12, 12, 24_001, retstep=True)
    return float((np.exp(normal_log_density(z, 0, 1)) * kind.log_slope(mean + std * z)).sum() * step)


# --- Log-probabilities


@EACH
def test_a_log_prob_is_the_gaussians_less_the_log_of_the_slope(kind: Kind) -> None:
    for mean, std in ((0.0, 1.0), (0.7, 0.3), (-1.5, 2.0)):
        u = np.linspace(mean - 1.5 * std, mean + 1.5 * std, 31)
        actions = torch.from_numpy(kind.f(u)).float().unsqueeze(1)
        expected = normal_log_density(u, mean, std) - kind.log_slope(u)
        log_probs = gaussian(kind, [mean] * 31, std).log_prob(actions)
        torch.testing.assert_close(log_probs.double(), torch.from_numpy(expected), atol=2e-4, rtol=0)  # float32 actions


# --- At the bounds


@EACH
def test_an_action_at_a_bound_counts_as_one_step_inside_and_has_a_finite_log_prob_and_gradient(kind: Kind) -> None:
    for bound, inwards in ((kind.low, 1), (kind.high, -1)):
        if math.isinf(bound):
            continue
        at = np.float32(bound)
        # a float32 step as large as those at the bound that is farther from 0
        farther = np.float32(max(abs(b) for b in (kind.low, kind.high) if not math.isinf(b)))
        step = inwards * (farther - np.nextafter(farther, np.float32(0)))
        mean = torch.full((2, 1), 0.5, requires_grad=True)
        log_std = torch.zeros(1, requires_grad=True)
        log_probs = BoundedGaussian(mean, log_std, bounds_of(kind)).log_prob(torch.tensor([[at], [at + step]]))
        assert torch.isfinite(log_probs).all()
        assert float(log_probs[0].detach()) == pytest.approx(float(log_probs[1].detach()), rel=0.02)
        log_probs.sum().backward()
        assert torch.isfinite(mean.grad).all() and torch.isfinite(log_std.grad).all()


@EACH
@given(
    mean=st.floats(-80, 80, width=32),
    log_std=st.floats(-20, 20, width=32),
    where=st.floats(0, 1, width=32),
    seed=st.integers(0, 2**20),
)
def test_everything_is_finite_and_within_bounds_whatever_the_parameters(
    kind: Kind, mean: float, log_std: float, where: float, seed: int
) -> None:
    means, log_stds = torch.full((2, 1), mean, requires_grad=True), torch.tensor([log_std], requires_grad=True)
    distribution = BoundedGaussian(means, log_stds, bounds_of(kind))
    sampled = distribution.sample(torch.Generator().manual_seed(seed)).detach()
    for actions in (sampled, distribution.mode().detach()):
        assert torch.isfinite(actions).all()
        assert (actions >= np.float32(kind.low)).all() and (actions <= np.float32(kind.high)).all()
    low, high = max(kind.low, -100.0), min(kind.high, 100.0)
    anywhere = torch.tensor([[low + where * (high - low)]]).clamp(low, high)
    actions = torch.cat([sampled[:1], anywhere])
    log_probs, entropies = distribution.log_prob(actions), distribution.entropy()
    assert torch.isfinite(log_probs).all() and torch.isfinite(entropies).all()
    (log_probs.sum() + entropies.sum()).backward()
    assert torch.isfinite(means.grad).all() and torch.isfinite(log_stds.grad).all()


# --- Entropy


@EACH
def test_the_entropy_is_the_gaussians_and_the_mean_log_slope(kind: Kind) -> None:
    means = [-4.0, -1.3, 0.0, 0.2, 2.5]
    for std, error in ((0.01, 1e-5), (0.3, 1e-5), (1.0, 1e-5), (2.7, 1e-5), (4.0, 4e-5), (7.4, 2e-3)):
        of_gaussian = 0.5 * math.log(2 * math.pi * math.e * std**2)
        expected = [of_gaussian + expected_log_slope(kind, mean, std) for mean in means]
        assert gaussian(kind, means, std).entropy().tolist() == pytest.approx(expected, abs=error)


@EACH
def test_the_entropys_gradient_is_that_of_the_integral(kind: Kind) -> None:
    for mean, std in ((0.0, 1.0), (1.5, 0.5), (-2.0, 2.0)):
        means, log_std = torch.tensor([[mean]], requires_grad=True), torch.tensor([math.log(std)], requires_grad=True)
        entropy = BoundedGaussian(means, log_std, bounds_of(kind)).entropy()
        (entropy + 0 * means).sum().backward()  # that of a plain number does not depend on the mean at all
        d, e = 1e-4, math.exp(1e-4)
        by_mean = (expected_log_slope(kind, mean + d, std) - expected_log_slope(kind, mean - d, std)) / (2 * d)
        by_log_std = 1 + (expected_log_slope(kind, mean, std * e) - expected_log_slope(kind, mean, std / e)) / (2 * d)
        assert float(means.grad) == pytest.approx(by_mean, abs=1e-4)
        assert float(log_std.grad) == pytest.approx(by_log_std, abs=1e-4)


# --- Sampling


@EACH
def test_samples_are_as_frequent_below_every_quantile_as_the_gaussian_says(kind: Kind) -> None:
    count = 20_000
    samples = gaussian(kind, [0.3] * count, 0.8).sample(torch.Generator().manual_seed(0))[:, 0].numpy()
    for z, below in {-2.0: 0.02275, -1.0: 0.15866, 0.0: 0.5, 1.0: 0.84134, 2.0: 0.97725}.items():
        seen = float((samples < kind.f(np.array(0.3 + 0.8 * z))).mean())
        assert abs(seen - below) < 4 * math.sqrt(below * (1 - below) / count)


@EACH
def test_the_mode_is_f_of_the_mean_and_a_temperature_multiplies_the_standard_deviation(kind: Kind) -> None:
    means = [-1.0, 0.0, 2.0]
    assert gaussian(kind, means, 0.5).mode()[:, 0].tolist() == pytest.approx(kind.f(np.array(means)).tolist(), rel=1e-5)
    actions = gaussian(kind, [0.1, 0.2], 1.0).sample(torch.Generator().manual_seed(0))
    tempered, expected = gaussian(kind, [0.1, 0.2], 0.5).tempered(3.0), gaussian(kind, [0.1, 0.2], 1.5)
    torch.testing.assert_close(tempered.log_prob(actions), expected.log_prob(actions))
    torch.testing.assert_close(tempered.entropy(), expected.entropy())


# --- Bounds


def test_bounds_that_float32_hardly_tells_apart_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"low\[1\]=1e\+08 and high\[1\]=1\.00001e\+08 have fewer than 1000 float32 numbers"
    ):
        Bounds(ContinuousActionSpace([0, 1e8], [1, 1e8 + 800]))


def test_rounding_carries_no_action_over_a_bound() -> None:
    rng = np.random.default_rng(0)
    low = rng.uniform(-3, 3, size=1000)
    high = low + rng.uniform(0.1, 3, size=1000)
    bounds = Bounds(ContinuousActionSpace(low.tolist(), high.tolist()))
    assert (bounds(torch.full((1, 1000), 50.0))[0].numpy() <= high.astype(np.float32)).all()
    assert (bounds(torch.full((1, 1000), -50.0))[0].numpy() >= low.astype(np.float32)).all()


def test_the_whole_range_of_float32_can_be_an_interval() -> None:
    largest = float(np.finfo(np.float32).max)
    bounds = Bounds(ContinuousActionSpace([-largest], [largest]))
    distribution = BoundedGaussian(torch.tensor([[0.5]]), torch.zeros(1), bounds)
    assert float(distribution.mode()) == pytest.approx(largest * math.tanh(0.5), rel=1e-5)
    assert torch.isfinite(distribution.log_prob(torch.tensor([[largest]]))).all()
