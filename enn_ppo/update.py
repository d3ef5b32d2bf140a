"""Learning from a rollout: epochs, minibatches of whole frames, losses, optimizer steps.

Shapes: B frames of the rollout, M frames of a minibatch, A actors of all actions and frames together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from enn_ppo.advantages import Advantages
from enn_ppo.config import OptimConfig, PPOConfig
from enn_ppo.losses import explained_variance, normalize, policy_terms, unit_weights, value_loss
from enn_ppo.rollout import Rollout
from rogue_net import RaggedTensor, RogueNet
from rogue_net.ragged import sequence_of_item


class UpdateStats(NamedTuple):
    """Means over the minibatches of an update; `explained_variance` is the rollout's, NaN where all returns are equal."""

    policy_loss: float
    value_loss: float
    entropy: float
    approx_kl: float
    clip_fraction: float
    grad_norm: float
    explained_variance: float


class Samples(NamedTuple):
    """The frames that an update draws its minibatches from."""

    rollout: Rollout
    num_actors: Tensor  # (B,) int64, actors of all actions in each frame
    values: Tensor  # (B,) at the time of acting
    advantages: Tensor  # (B,)
    returns: Tensor  # (B,)


def update(
    net: RogueNet,
    optimizer: torch.optim.Optimizer,
    rollout: Rollout,
    advantages: Advantages,
    optim: OptimConfig,
    ppo: PPOConfig,
    *,
    ent_coef: float,
    generator: torch.Generator,
) -> UpdateStats:
    """Improve `net` on one rollout.

    Args:
        net: the policy, changed in place.
        optimizer: of its parameters, with the learning rate already set.
        rollout: B frames.
        advantages: of the rollout.
        optim: minibatches and epochs.
        ppo: the objective.
        ent_coef: weight of the entropy bonus in this update.
        generator: shuffles the frames; on the CPU.
    """
    samples = _samples(rollout, advantages)
    num_frames = len(samples.values)
    totals = torch.zeros(6, device=samples.values.device)  # stays on the device until the end
    num_minibatches = math.ceil(num_frames / optim.batch_size)
    for _ in range(optim.epochs):
        order = torch.randperm(num_frames, generator=generator).to(samples.values.device)
        for minibatch in order.tensor_split(num_minibatches):  # of nearly equal sizes, none above batch_size
            optimizer.zero_grad(set_to_none=True)
            terms = _accumulate_gradients(net, samples, minibatch, optim, ppo, ent_coef)
            grad_norm = torch.nn.utils.clip_grad_norm_(net.parameters(), optim.max_grad_norm)
            optimizer.step()
            totals += torch.cat([terms, grad_norm.detach().reshape(1)])
    explained = explained_variance(samples.values, samples.returns)
    means = torch.cat([totals / (optim.epochs * num_minibatches), explained.reshape(1)])
    return UpdateStats(*means.tolist())  # the one device synchronisation of an update


def _samples(rollout: Rollout, advantages: Advantages) -> Samples:
    num_actors = torch.zeros(len(rollout.obs), dtype=torch.int64, device=rollout.values.device)
    for action in rollout.actions.values():
        num_actors = num_actors + action.lengths
    return Samples(
        rollout, num_actors, rollout.values.flatten(), advantages.advantages.flatten(), advantages.returns.flatten()
    )


def _accumulate_gradients(
    net: RogueNet, samples: Samples, minibatch: Tensor, optim: OptimConfig, ppo: PPOConfig, ent_coef: float
) -> Tensor:
    """Add the gradient of the minibatch's loss, one micro-batch after the other.

    Returns:
        (5,) policy loss, value loss, entropy, KL and clip fraction of the minibatch.
    """
    # weights and normalization belong to the minibatch, so that the size of its micro-batches changes nothing
    weights = unit_weights(samples.num_actors[minibatch], ratio=ppo.ratio, weighting=ppo.weighting)
    advantages = samples.advantages[minibatch]
    if ppo.normalize_advantages:
        advantages = normalize(advantages)
    size = optim.micro_batch_size or len(minibatch)
    sums = torch.zeros(5, device=weights.device)
    for frames, weight, advantage in zip(
        torch.split(minibatch, size), torch.split(weights, size), torch.split(advantages, size), strict=True
    ):
        evaluation = net.evaluate(samples.rollout.obs[frames], _gather(samples.rollout.actions, frames))
        old = _gather(samples.rollout.log_probs, frames)
        policy = policy_terms(
            _cat(evaluation.log_probs),
            _cat({name: ragged.values for name, ragged in old.items()}),
            _cat(evaluation.entropies),
            torch.cat([sequence_of_item(ragged.offsets) for ragged in old.values()]),
            advantage,
            weight,
            clip=ppo.clip,
            ratio=ppo.ratio,
        )
        value = value_loss(
            evaluation.values,
            samples.values[frames],
            samples.returns[frames],
            clip=ppo.clip if ppo.clip_value else None,
        ) / len(minibatch)
        (policy.loss - ent_coef * policy.entropy + ppo.vf_coef * value).backward()  # type: ignore[no-untyped-call]
        sums += torch.stack([policy.loss, value, policy.entropy, policy.approx_kl, policy.clip_fraction]).detach()
    return sums


def _gather(ragged: Mapping[str, RaggedTensor], frames: Tensor) -> dict[str, RaggedTensor]:
    return {name: tensor.gather(frames) for name, tensor in ragged.items()}


def _cat(tensors: Mapping[str, Tensor]) -> Tensor:
    """All actions' actors end to end."""
    return torch.cat(list(tensors.values()))
