"""Numbers that may be bounded, on a tile: `ContinuousHead`, with the equations of `rogue_net.heads.gaussian`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rogue_net.heads.gaussian import Bounds
from rogue_net.heads.heads import LOG_STD_LIMIT
from rogue_net.heads.noise import BELOW_ONE
from rogue_net.kernels.cpu.calling import floats_at, invoke, pointer_at, shifted
from rogue_net.kernels.cpu.compiling import Const, Count, Floats, Table, inline, inner_kernel, table
from rogue_net.kernels.cpu.heads import linear_backward, noise_key, uniform
from rogue_net.kernels.cpu.rows import gather
from rogue_net.kernels.cpu.tables import (
    BOUND,
    GIVEN,
    SAMPLED,
    Choice,
    Kernels,
    Minibatch,
    Net,
    NumberBounds,
    Tile,
    bias_of,
    weight_of,
)

NODES = 45  # of the quadrature
bounds_at = pointer_at(Table[NumberBounds])
LIMIT_OF_LOG_STD = np.float32(LOG_STD_LIMIT)
LOG_SQRT_2PI = np.float32(0.5 * math.log(2 * math.pi))
LOG_2 = np.float32(math.log(2))
ZERO, ONE_, TWO = np.float32(0), np.float32(1), np.float32(2)


def bounds_of(bounds: Bounds) -> NDArray[Any]:
    """Table of (n) `NumberBounds` of an action of n numbers."""
    assert len(bounds.weights) == NODES
    columns = [getattr(bounds, name).tolist() for name in NumberBounds._fields]
    return table(NumberBounds, [NumberBounds(*each) for each in zip(*columns, strict=True)])


@inner_kernel
def decide(
    lanes: Const,
    kernels: Kernels,
    net: Net,
    batch: Minibatch,
    tile: Tile,
    low: Count,
    high: Count,
    number: Count,
    choice: Choice,
) -> None:
    """Write the means of u, log-probs, and entropies where actions are given; else actions."""
    action = net.actions[number]
    start, end = tile.action_actors[number], tile.action_actors[number + 1]
    layer, size, bounds = action.layer, action.choices, bounds_at(action.bounds)
    padded = net.linears[layer].outputs
    means, bias, made = shifted(tile.logits, action.logits * tile.room), bias_of(net, layer), floats_at(action.actions)
    log_stds = shifted(net.parameters, action.parameter)
    quadrature = floats_at(action.quadrature)
    gather(lanes, tile.tokens, tile.actor_tokens, start, end, tile.rows, net.width)
    invoke(kernels.product, BOUND, tile.rows, weight_of(net, layer), means, end - start, net.width, padded, 0)
    for actor in range(start, end):
        source = tile.actor_sources[actor]
        key = noise_key(action, batch, tile, choice, low, actor)
        log_prob, entropy = ZERO, ZERO
        for k in range(size):
            at = (actor - start) * padded + k
            means[at] += bias[k]
            mean, log_std = means[at], _clamp(log_stds[k], -LIMIT_OF_LOG_STD, LIMIT_OF_LOG_STD)
            std = np.float32(math.exp(log_std))
            if choice.mode != GIVEN:
                u = mean + std * _normal(key, k) if choice.mode == SAMPLED else mean
                made[source * size + k] = _bound(bounds[k], u)
            u, log_slope = _unbound(bounds[k], made[source * size + k])
            z = (u - mean) / std
            log_prob += np.float32(-0.5) * z * z - log_std - LOG_SQRT_2PI - log_slope
            if choice.mode == GIVEN:
                entropy += (
                    log_std + LOG_SQRT_2PI + np.float32(0.5) + _mean_log_slope(bounds[k], quadrature, mean, std)[0]
                )
        tile.log_probs[actor], tile.entropies[actor] = log_prob, entropy


@inner_kernel
def decide_backward(
    lanes: Const,
    kernels: Kernels,
    net: Net,
    batch: Minibatch,
    tile: Tile,
    low: Count,
    high: Count,
    number: Count,
    gradient: Floats,
) -> None:
    """Compute the gradient of `decide`: d log p / d mean = z / std, d log p / d log std = z² - 1, and so on."""
    action = net.actions[number]
    start, end = tile.action_actors[number], tile.action_actors[number + 1]
    layer, size, bounds = action.layer, action.choices, bounds_at(action.bounds)
    padded = net.linears[layer].outputs
    means, made = shifted(tile.logits, action.logits * tile.room), floats_at(action.actions)
    log_stds = shifted(net.parameters, action.parameter)
    quadrature, direct = floats_at(action.quadrature), shifted(gradient, net.direct)
    for actor in range(start, end):
        source = tile.actor_sources[actor]
        dlog_prob, dentropy = tile.dlog_probs[actor], tile.dentropies[actor]
        for k in range(size):
            at = (actor - start) * padded + k
            mean, log_std = means[at], _clamp(log_stds[k], -LIMIT_OF_LOG_STD, LIMIT_OF_LOG_STD)
            std = np.float32(math.exp(log_std))
            u, _ = _unbound(bounds[k], made[source * size + k])
            z = (u - mean) / std
            _, by_mean, by_log_std = _mean_log_slope(bounds[k], quadrature, mean, std)
            dmean = dlog_prob * z / std + dentropy * by_mean
            dlog_std = dlog_prob * (z * z - ONE_) + dentropy * (ONE_ + by_log_std)
            means[at] = dmean
            if log_stds[k] >= -LIMIT_OF_LOG_STD and log_stds[k] <= LIMIT_OF_LOG_STD:
                direct[action.dparameter + k] += dlog_std
        for k in range(size, padded):
            means[(actor - start) * padded + k] = ZERO
    linear_backward(lanes, kernels, net, tile, tile.actor_tokens, start, end, means, layer, gradient)


@inline
def _clamp(x, low, high):  # type: ignore[no-untyped-def]
    """Cut off a number at two bounds; a NaN stays one."""
    return low if x < low else high if x > high else x


@inline
def _softplus(x):  # type: ignore[no-untyped-def]
    return max(x, ZERO) + np.float32(math.log1p(np.float32(math.exp(-abs(x)))))


@inline
def _bound(bounds, u):  # type: ignore[no-untyped-def]
    """Compute f(u), see `rogue_net.heads.gaussian.Bounds.forward`."""
    number = u
    if bounds.both != 0:
        number = bounds.center + bounds.radius * np.float32(math.tanh(u))
    elif bounds.one != 0:
        sign = bounds.sign
        number = bounds.edge + sign * _softplus(sign * u)
    return _clamp(number, bounds.low, bounds.high)


@inline
def _unbound(bounds, number):  # type: ignore[no-untyped-def]
    """Compute u and log f'(u), see `rogue_net.heads.gaussian.Bounds.invert`."""
    if bounds.both != 0:
        limit = bounds.limit
        y = _clamp((number - bounds.center) / bounds.radius, -limit, limit)
        above, below = np.float32(math.log1p(y)), np.float32(math.log1p(-y))
        return (above - below) / TWO, bounds.log_radius + above + below
    if bounds.one != 0:
        sign, step = bounds.sign, bounds.step
        y = sign * (number - bounds.edge)
        y = step if y < step else y
        log_sigmoid = np.float32(math.log(-np.float32(math.expm1(-y))))
        return sign * (y + log_sigmoid), log_sigmoid
    return number, ZERO


@inline
def _mean_log_slope(bounds, quadrature, mean, std):  # type: ignore[no-untyped-def]
    """Compute E[log f'(u)] and its gradients by mean and log std, see `rogue_net.heads.gaussian.Bounds.mean_log_slope`."""
    nodes, weights = quadrature, shifted(quadrature, NODES)
    found, by_mean, by_log_std = ZERO, ZERO, ZERO
    both, one, sign = bounds.both != 0, bounds.one != 0, bounds.sign
    for q in range(NODES if both or one else 0):
        u = mean + std * nodes[q]
        if both:  # log f' = log radius + log(1 - tanh²(u))
            small = np.float32(math.exp(-TWO * abs(u)))
            log_slope = bounds.log_radius + TWO * (LOG_2 - abs(u) - np.float32(math.log1p(small)))
            tanh = (ONE_ - small) / (ONE_ + small)
            slope = -TWO * (tanh if u >= 0 else -tanh)
        else:  # log f' = log sigmoid(sign u)
            log_slope = -_softplus(-sign * u)
            slope = sign * (ONE_ - np.float32(math.exp(log_slope)))
        found += weights[q] * log_slope
        by_mean += weights[q] * slope
        by_log_std += weights[q] * slope * nodes[q] * std
    return found, by_mean, by_log_std


@inline
def _normal(key, number):  # type: ignore[no-untyped-def]
    """Draw a normal number, see `rogue_net.heads.noise.normal`: the inverse of erf, by a guess and a step of Newton's method.

    The guess: Giles 2010, "Approximating the erfinv function", table 5.
    """
    x = max(TWO * uniform(key, number) - ONE_, np.float32(-BELOW_ONE))
    exact = np.float64(x)
    w = -math.log((1 - exact) * (1 + exact))
    if w < 5:
        w -= 2.5
        p = 2.81022636e-08
        p = 3.43273939e-07 + p * w
        p = -3.5233877e-06 + p * w
        p = -4.39150654e-06 + p * w
        p = 0.00021858087 + p * w
        p = -0.00125372503 + p * w
        p = -0.00417768164 + p * w
        p = 0.246640727 + p * w
        p = 1.50140941 + p * w
    else:
        w = math.sqrt(w) - 3
        p = -0.000200214257
        p = 0.000100950558 + p * w
        p = 0.00134934322 + p * w
        p = -0.00367342844 + p * w
        p = 0.00573950773 + p * w
        p = -0.0076224613 + p * w
        p = 0.00943887047 + p * w
        p = 1.00167406 + p * w
        p = 2.83297682 + p * w
    guess = p * exact
    guess -= (math.erf(guess) - exact) * (0.5 * math.sqrt(math.pi)) * math.exp(guess * guess)
    return np.float32(guess * math.sqrt(2))
