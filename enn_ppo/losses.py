"""The PPO objective: pure functions of tensors. Nothing here knows a config, a device, an environment or a logger.

A frame may hold many actors, or none. Two decisions say how they count:

- `ratio`: the *unit* of the objective. `per_actor`: every actor's action is a decision of its own, with its own probability
  ratio. `joint`: a frame's actions are one decision; log-probs, log-ratios and entropies add up over its actors.
- `weighting`: `actor`: every actor of the minibatch weighs the same, so crowded frames weigh more. `frame`: every frame
  in which anybody acts weighs the same, split evenly among its actors.

The ancestors of this trainer used per-actor ratios weighted by actor. Every sum below is weighted by units, and the weights
of a minibatch add up to 1: adding the losses of its micro-batches gives the loss of the minibatch.

Shapes: B frames, A actors of all actions and frames together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from enn_ppo.moments import Moments
from rogue_net.ragged import RaggedTensor, segment_sum

Ratio = Literal["per_actor", "joint"]
Weighting = Literal["actor", "frame"]


class PolicyTerms(NamedTuple):
    """Scalars; each is a weighted mean over units."""

    loss: Tensor
    entropy: Tensor
    approx_kl: Tensor
    clip_fraction: Tensor


def count_actors(actions: Mapping[str, RaggedTensor]) -> Tensor:
    """(B,) int64, actors of all actions in each frame, from action -> B sequences with an item for each actor."""
    return torch.stack([action.lengths for action in actions.values()]).sum(dim=0)


def unit_weights(
    num_actors: Tensor,
    *,
    ratio: Ratio,
    weighting: Weighting,
    add_up: Callable[[Tensor], Tensor] = lambda number: number,
) -> Tensor:
    """The weight of each unit of a minibatch, by frame.

    Args:
        num_actors: (B,) int64, actors in each frame of the *whole* minibatch, or where processes share it, of this one's part.
        ratio: what a unit is.
        weighting: what weighs the same.
        add_up: the sum of a number over all parts of the minibatch.

    Returns:
        (B,) float32: with `per_actor`, the weight of each actor in the frame; with `joint`, of the frame. Summed over the
        minibatch's units this is 1, or 0 where nobody acts at all.
    """
    counts = num_actors.float()
    if weighting == "actor":
        weight_of_frame = counts / add_up(counts.sum()).clamp(min=1)
    else:
        acting = (counts > 0).float()
        weight_of_frame = acting / add_up(acting.sum()).clamp(min=1)
    return weight_of_frame if ratio == "joint" else weight_of_frame / counts.clamp(min=1)


def policy_terms(
    log_probs: Tensor,
    old_log_probs: Tensor,
    entropies: Tensor,
    frames: Tensor,
    advantages: Tensor,
    weights: Tensor,
    *,
    clip: float | Tensor,
    ratio: Ratio,
) -> PolicyTerms:
    """Clipped surrogate loss, entropy, and how far the policy has moved.

        loss = -sum_u w_u min(r_u A_u, clip(r_u, 1 - ε, 1 + ε) A_u)    r_u = exp(log π(a_u) - log π_old(a_u))
        approx_kl = sum_u w_u (r_u - 1 - log r_u)
        clip_fraction = sum_u w_u [|r_u - 1| > ε]
        entropy = sum_u w_u H_u

    Source: Schulman et al. 2017 (arXiv 1707.06347), equation 7; the KL estimator is Schulman's k3
    (joschu.net/blog/kl-approx.html).

    Args:
        log_probs: (A,) under the current policy.
        old_log_probs: (A,) under the policy that acted.
        entropies: (A,) of the current policy.
        frames: (A,) int64, the frame of each actor.
        advantages: (B,) one per frame.
        weights: (B,) from `unit_weights` of the whole minibatch.
        clip: ε, greater than 0; a tensor () where it is to be on the device.
        ratio: what a unit is, as for the weights.
    """
    log_ratio = log_probs - old_log_probs
    if ratio == "joint":
        log_ratio = segment_sum(log_ratio, frames, len(advantages))
        entropies = segment_sum(entropies, frames, len(advantages))
    else:
        advantages, weights = advantages.index_select(0, frames), weights.index_select(0, frames)
    ratios = log_ratio.exp()
    surrogate = torch.minimum(ratios * advantages, _clamp(ratios, 1 - clip, 1 + clip) * advantages)
    with torch.no_grad():
        moved = ratios - 1
        approx_kl = weights.dot(moved - log_ratio)
        clip_fraction = weights.dot((moved.abs() > clip).float())
    return PolicyTerms(-weights.dot(surrogate), weights.dot(entropies), approx_kl, clip_fraction)


def value_loss(
    values: Tensor,
    old_values: Tensor,
    returns: Tensor,
    *,
    clip: float | Tensor | None,
    counted: Tensor | None = None,
) -> Tensor:
    """Half the squared error, summed over frames.

        0.5 (V - R)²,    or with clipping    0.5 max((V - R)², (V_old + clip(V - V_old, -ε, ε) - R)²)

    Clipping keeps the value within ε of the one that acted; it is the variant of the original PPO code (openai/baselines).

    Args:
        values: (B,) current.
        old_values: (B,) at the time of acting.
        returns: (B,) regression targets.
        clip: ε; None for the plain error.
        counted: (B,) bool, the frames that count; None: all do.
    """
    errors = (values - returns).square()
    if clip is not None:
        clipped = old_values + _clamp(values - old_values, -clip, clip)
        errors = torch.maximum(errors, (clipped - returns).square())
    return 0.5 * (errors if counted is None else errors * counted).sum()


def _clamp(numbers: Tensor, low: float | Tensor, high: float | Tensor) -> Tensor:
    bounds: Any = (low, high)  # torch takes either, and says so of both at once only
    return torch.clamp(numbers, *bounds)


def normalize(advantages: Tensor, moments: Moments | None = None) -> Tensor:
    """(B,) advantages of a whole minibatch with mean 0 and standard deviation 1; a single one becomes 0.

    Args:
        advantages: of the minibatch, or of a part of it.
        moments: of all parts; None: there are no others.
    """
    if moments is not None:
        return (advantages - moments.mean.float()) / (moments.variance.sqrt().float() + 1e-8)
    deviation, mean = torch.std_mean(advantages, correction=0)
    return (advantages - mean) / (deviation + 1e-8)


def explained_variance(
    values: Tensor, returns: Tensor, variance: Callable[[Tensor], Tensor] = lambda numbers: numbers.var(correction=0)
) -> Tensor:
    """1 - Var(R - V) / Var(R): 1 for perfect values, 0 for a constant, NaN where all returns are the same.

    Args:
        values: (B,) of all frames, or of those that this process has.
        returns: (B,) of the same frames.
        variance: of such numbers of all frames.
    """
    of_returns = variance(returns)
    explained = 1 - variance(returns - values) / of_returns
    return torch.where(of_returns > 0, explained, torch.nan)
