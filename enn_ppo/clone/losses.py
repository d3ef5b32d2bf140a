"""The losses of behavioural cloning, as pure functions of tensors.

p is the recorded policy and q the clone. Every loss is a weighted sum over actors, a mean if the weights add up to 1.

Shapes: A actors, R rows of logits, C choices, n numbers, B frames.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rogue_net import RaggedTensor
from rogue_net.heads.distributions import LOWEST


def cross_entropy(log_probs: Tensor, weights: Tensor) -> Tensor:
    """-sum_a w_a log q(a) of the recorded actions: maximum likelihood.

    Args:
        log_probs: (A,) of the recorded actions under the clone.
        weights: (A,).
    """
    return -weights.dot(log_probs)


def log_prob_error(log_probs: Tensor, recorded: Tensor, weights: Tensor) -> Tensor:
    """sum_a w_a (log q(a) - log p(a))².

    Args:
        log_probs: (A,) of the recorded actions under the clone.
        recorded: (A,) under the recorded policy.
        weights: (A,).
    """
    return weights.dot((log_probs - recorded).square())


def choices_kl(logits: Tensor, recorded: Tensor, weights: Tensor) -> Tensor:
    """KL(p ‖ q) of choices: sum_r w_r sum_c p_rc (log p_rc - log q_rc), where terms with p_rc = 0 are 0.

    Args:
        logits: (R, C) log q, -inf where masked; a row is an actor, or with C = 1 one choice of an actor.
        recorded: (R, C) log p.
        weights: (R,).
    """
    p = recorded.exp()
    return weights.dot((p * (recorded.clamp(min=LOWEST) - logits.clamp(min=LOWEST))).sum(dim=1))


def numbers_kl(logits: Tensor, recorded: Tensor, weights: Tensor) -> Tensor:
    """KL(p ‖ q) of bounded Gaussians, which equals the divergence of the unbounded Gaussians.

        sum_a w_a sum_n log σ_q - log σ_p + (σ_p² + (μ_p - μ_q)²) / (2 σ_q²) - 1/2

    Source: Kullback & Leibler 1951; the divergence is invariant under the invertible map to the bounds.

    Args:
        logits: (A, 2 n) means and then log standard deviations of the clone.
        recorded: (A, 2 n) the same of the recorded policy.
        weights: (A,).
    """
    mean, log_std = logits.chunk(2, dim=1)
    recorded_mean, recorded_log_std = recorded.chunk(2, dim=1)
    spread = (2 * recorded_log_std).exp() + (recorded_mean - mean).square()
    divergence = log_std - recorded_log_std + spread * (-2 * log_std).exp() / 2 - 0.5
    return weights.dot(divergence.sum(dim=1))


def value_error(values: Tensor, returns: Tensor, weights: Tensor, deviation: Tensor) -> Tensor:
    """0.5 sum_b w_b ((V_b - G_b) / deviation)², over frames with a known return.

    Args:
        values: (B,) of the clone.
        returns: (B,) NaN where unknown.
        weights: (B,).
        deviation: () the value head's standard deviation of the returns.
    """
    errors = torch.where(returns.isnan(), 0.0, (values - returns.nan_to_num()) / deviation)
    return 0.5 * weights.dot(errors.square())


def spread(weights: Tensor, ragged: RaggedTensor) -> Tensor:
    """(items,) weight of each item's frame, from (B,) weights."""
    return weights.repeat_interleave(ragged.lengths, output_size=len(ragged.values))
