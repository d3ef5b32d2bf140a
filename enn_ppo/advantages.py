"""Advantage estimation: pure functions of tensors. Nothing here knows a config, a device, an environment or a logger.

Shapes: T steps, N environments.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor


class Advantages(NamedTuple):
    advantages: Tensor  # (T, N) float32
    returns: Tensor  # (T, N) float32, regression target of the value function


def gae(
    rewards: Tensor,
    values: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    final_values: Tensor,
    last_values: Tensor,
    *,
    gamma: float,
    gae_lambda: float,
) -> Advantages:
    """Generalized advantage estimation with terminations and truncations kept apart.

        δ_t = r_t + γ V'_{t+1} - V_t
        A_t = δ_t + γ λ (1 - ended_t) A_{t+1}

    where V'_{t+1} is 0 after a termination, the value of the episode's own final observation after a truncation, and
    V_{t+1} otherwise (`last_values` at t = T - 1). Returns are A_t + V_t.
    Source: Schulman et al. 2016 (arXiv 1506.02438), equation 16; bootstrapping from truncations: Pardo et al. 2018
    (arXiv 1712.00378).

    Args:
        rewards: (T, N), received for the action taken at step t.
        values: (T, N), V of the observation at step t.
        terminated: (T, N) bool, the episode ended by its own rules after step t.
        truncated: (T, N) bool, the episode was cut after step t. Never true together with `terminated`.
        final_values: (T, N), V of the episode's final observation where `truncated`, ignored elsewhere.
        last_values: (N,), V of the observation after the last step.
        gamma: discount in [0, 1].
        gae_lambda: λ in [0, 1]; 1 gives discounted returns minus V, 0 the one-step error.

    Raises:
        ValueError: if shapes differ, or a step is both terminated and truncated.
    """
    _check(rewards, values, terminated, truncated, final_values)
    next_values = _following(values, terminated, truncated, final_values, last_values)
    deltas = rewards + gamma * next_values - values
    carries = gamma * gae_lambda * (~(terminated | truncated)).to(rewards.dtype)
    advantages = _sum_back(deltas, carries)
    return Advantages(advantages, advantages + values)


def n_step(
    rewards: Tensor,
    values: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    final_values: Tensor,
    last_values: Tensor,
    *,
    gamma: float,
    n_steps: int,
) -> Advantages:
    """Discounted n-step returns, and what they are above the values.

        G⁰_t = V_t                 Gⁿ_t = r_t + γ B_t                 A_t = Gⁿ_t - V_t

    where B_t is 0 after a termination, the value of the episode's own final observation after a truncation, and
    Gⁿ⁻¹_{t+1} otherwise (`last_values` at t = T - 1). Source: Sutton & Barto 2018, equation 7.1.

    Args:
        rewards: (T, N); these and the following are as in `gae`.
        values: (T, N).
        terminated: (T, N) bool.
        truncated: (T, N) bool.
        final_values: (T, N).
        last_values: (N,).
        gamma: discount in [0, 1].
        n_steps: n, at least 1. T or more gives what `gae` gives with λ = 1.

    Raises:
        ValueError: as `gae`.
    """
    _check(rewards, values, terminated, truncated, final_values)
    returns = values
    for _ in range(min(n_steps, len(rewards))):
        returns = rewards + gamma * _following(returns, terminated, truncated, final_values, last_values)
    return Advantages(returns - values, returns)


def vtrace(
    rewards: Tensor,
    values: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    final_values: Tensor,
    last_values: Tensor,
    log_ratios: Tensor,
    *,
    gamma: float,
    gae_lambda: float,
    n_steps: int | None = None,
    max_rho: float = 1.0,
    max_c: float = 1.0,
) -> Advantages:
    """V-trace: what `gae` and `n_step` estimate, of steps that another policy μ than the policy π of now has played.

        ρ_t = min(ρ̄, π(a_t) / μ(a_t))               c_t = λ min(c̄, π(a_t) / μ(a_t))
        δ_t = ρ_t (r_t + γ V'_{t+1} - V_t)
        v_t - V_t = δ_t + γ c_t (1 - ended_t) (v_{t+1} - V_{t+1})

    where V' is as in `gae`. Advantages are v_t - V_t, returns v_t. As long as ρ̄ = c̄, the former are ρ_t times
    r_t + γ V'_{t+1} - V_t + γ λ (1 - ended_t) (v_{t+1} - V_{t+1}): the weight of a policy gradient is within them, so that
    their probability ratios begin at 1. Where all log-ratios are 0 this is `gae` to the last bit.
    Source: Espeholt et al. 2018 (arXiv 1802.01561), equation 1 in the form of remark 1; λ: remark 2. Truncation of ρ moves
    what values tend to from π to a policy between π and μ, that of c only how fast they do: equation 3.

    Args:
        rewards: (T, N); these and the following are as in `gae`.
        values: (T, N), of π.
        terminated: (T, N) bool.
        truncated: (T, N) bool.
        final_values: (T, N), of π.
        last_values: (N,), of π.
        log_ratios: (T, N), log π(a_t) - log μ(a_t) of all that was chosen at step t; 0 where nothing was.
        gamma: discount in [0, 1].
        gae_lambda: λ in [0, 1].
        n_steps: rewards, and then a value, that count from each step on, at least 1; None: all that the rollout has.
        max_rho: ρ̄, greater than 0; may be infinite.
        max_c: c̄, greater than 0 and not above ρ̄.

    Raises:
        ValueError: as `gae`; or c̄ is above ρ̄.
    """
    _check(rewards, values, terminated, truncated, final_values)
    _check_shapes(rewards, log_ratios=log_ratios)
    if not 0 < max_c <= max_rho:
        raise ValueError(f"max_c must be greater than 0 and at most max_rho, got max_c={max_c}, max_rho={max_rho}")
    rhos, cs = (log_ratios.clamp(max=math.log(limit)).exp() for limit in (max_rho, max_c))
    next_values = _following(values, terminated, truncated, final_values, last_values)
    deltas = rhos * (rewards + gamma * next_values - values)
    carries = gamma * gae_lambda * (~(terminated | truncated)).to(rewards.dtype) * cs

    if n_steps is None or n_steps >= len(rewards):
        advantages = _sum_back(deltas, carries)
    else:
        advantages = deltas
        for _ in range(n_steps - 1):
            following = torch.cat([advantages[1:], torch.zeros_like(last_values).unsqueeze(0)])
            advantages = deltas + carries * following
    return Advantages(advantages, advantages + values)


def _following(
    values: Tensor, terminated: Tensor, truncated: Tensor, final_values: Tensor, last_values: Tensor
) -> Tensor:
    """(T, N): what stands one step later in `values`, or for steps that end an episode what that came to."""
    following = torch.cat([values[1:], last_values.unsqueeze(0)])
    return torch.where(truncated, final_values, following).masked_fill(terminated, 0.0)


def _sum_back(deltas: Tensor, carries: Tensor) -> Tensor:
    """(T, N): x_t = deltas_t + carries_t x_{t+1}, from 0 after the last."""
    sums = torch.empty_like(deltas)
    running = torch.zeros_like(deltas[0])
    for t in reversed(range(len(deltas))):
        running = deltas[t] + carries[t] * running
        sums[t] = running
    return sums


def _check(rewards: Tensor, values: Tensor, terminated: Tensor, truncated: Tensor, final_values: Tensor) -> None:
    _check_shapes(rewards, values=values, terminated=terminated, truncated=truncated, final_values=final_values)
    if bool((terminated & truncated).any()):  # one device synchronisation per rollout
        t, n = (terminated & truncated).nonzero()[0].tolist()
        raise ValueError(f"step {t} of environment {n} is both terminated and truncated; an episode ends in one way")


def _check_shapes(rewards: Tensor, **others: Tensor) -> None:
    for name, tensor in others.items():
        if tensor.shape != rewards.shape:
            raise ValueError(
                f"{name} has shape {tuple(tensor.shape)}, rewards {tuple(rewards.shape)}: both must be (T, N)"
            )
