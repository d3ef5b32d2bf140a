"""Learning from a rollout: epochs, minibatches of whole frames, losses, optimizer steps.

Shapes: B frames of the rollout, M frames of a minibatch, A actors of all actions and frames together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from enn_ppo.actor_critic import ActorCritic
from enn_ppo.advantages import Advantages
from enn_ppo.config import OptimConfig, PPOConfig
from enn_ppo.losses import count_actors, explained_variance, normalize, policy_terms, unit_weights, value_loss
from enn_ppo.moments import moments_of_all, moments_of_some
from enn_ppo.ranks import ALONE, Ranks
from enn_ppo.rollout import Rollout
from rogue_net import ObsBatch, RaggedTensor, RogueNet
from rogue_net.crossing import moved
from rogue_net.ragged import gather_items

_KL = 3  # where a minibatch's numbers hold the KL divergence; see `learn_minibatch`


class UpdateStats(NamedTuple):
    """Means over the minibatches of an update; `explained_variance` is the rollout's, NaN where all returns are equal.

    The value loss is in units of the value head's deviation.
    """

    policy_loss: float
    value_loss: float
    entropy: float
    approx_kl: float
    clip_fraction: float
    grad_norm: float
    value_grad_norm: float | None  # of a separate value network
    explained_variance: float
    epochs: int  # done, fewer than asked for where `target_kl` ended them


@dataclass(frozen=True)
class Samples:
    """Frames to learn from: all of a rollout, or some of them."""

    obs: ObsBatch  # B frames
    actions: dict[str, RaggedTensor]  # action -> B sequences, an item for each actor of `obs`
    log_probs: dict[str, RaggedTensor]  # action -> B sequences of (A,), under the policy that acted
    values: Tensor  # (B,) at the time of acting
    advantages: Tensor  # (B,)
    returns: Tensor  # (B,)
    real: Tensor | None = (
        None  # (B,) bool, false for frames that only fill up (`rogue_net/padding.py`); None: all are real
    )

    @property
    def num_actors(self) -> Tensor:
        """(B,) int64, actors of all actions in each frame that is real."""
        counts = count_actors(self.actions)
        return counts if self.real is None else counts * self.real

    @property
    def num_frames(self) -> int | Tensor:
        """Frames that are real: a tensor () where the host does not know."""
        return len(self.values) if self.real is None else self.real.sum()

    @property
    def frames_of_actors(self) -> Tensor:
        """(A,) int64, the frame of each actor, action by action."""
        frames = torch.arange(len(self.values), device=self.values.device)
        return torch.cat(
            [
                torch.repeat_interleave(frames, action.lengths, output_size=len(action.values))
                for action in self.actions.values()
            ]
        )

    def gather(self, frames: Tensor, *, all_of_them: bool = False) -> Samples:
        """The frames numbered `frames` (int64), in that order; `all_of_them`: see `ObsBatch.gather`."""
        obs = self.obs.gather(frames, all_of_them=all_of_them)
        actions, log_probs = {}, {}
        for name, mask in self.obs.action_masks.items():  # what is chosen stands as the actors do
            offsets = obs.action_masks[name].actors.offsets
            items = gather_items(mask.actors.offsets, frames, offsets, len(obs.action_masks[name].actors.values))
            actions[name] = RaggedTensor(self.actions[name].values[items], offsets)
            log_probs[name] = RaggedTensor(self.log_probs[name].values[items], offsets)
        return Samples(obs, actions, log_probs, self.values[frames], self.advantages[frames], self.returns[frames])

    def split(self, sizes: Sequence[int]) -> list[Samples]:
        """Consecutive parts of so many frames each, without copying them."""
        if len(sizes) == 1:
            return [self]
        parts = self.obs.split(sizes)
        actions, log_probs = split_as_actors(self.actions, parts), split_as_actors(self.log_probs, parts)
        values, advantages, returns = (
            torch.split(column, list(sizes)) for column in (self.values, self.advantages, self.returns)
        )
        return [
            Samples(obs, actions[i], log_probs[i], values[i], advantages[i], returns[i]) for i, obs in enumerate(parts)
        ]


class Coefficients(NamedTuple):
    """The numbers of the objective that schedules change: floats, or tensors () on the device."""

    clip: float | Tensor
    entropy: float | Tensor
    value: float | Tensor

    @staticmethod
    def of(ppo: PPOConfig) -> Coefficients:
        """Those of settings in which every schedule has become a number."""
        return Coefficients(float(ppo.clip), float(ppo.ent_coef), float(ppo.vf_coef))


class LearnsMinibatch(Protocol):
    """Makes an optimizer step: `learn_minibatch`, or what does the same in another way."""

    def __call__(
        self,
        net: RogueNet | ActorCritic,
        optimizer: torch.optim.Optimizer,
        minibatch: Samples,
        optim: OptimConfig,
        ppo: PPOConfig,
        ranks: Ranks = ALONE,
    ) -> Tensor:
        """See `learn_minibatch`."""


def update(
    net: RogueNet | ActorCritic,
    optimizer: torch.optim.Optimizer,
    rollout: Rollout,
    advantages: Advantages,
    optim: OptimConfig,
    ppo: PPOConfig,
    *,
    generator: torch.Generator,
    ranks: Ranks = ALONE,
    learn: LearnsMinibatch | None = None,
) -> UpdateStats:
    """Improve `net` on one rollout.

    Args:
        net: the policy, changed in place.
        optimizer: of its parameters, with the learning rates already set. The first group of them is the policy's, a second
            one the value network's; a group may have its own `max_grad_norm`.
        rollout: B frames.
        advantages: of the rollout.
        optim: minibatches and epochs.
        ppo: the objective, in which every schedule has become a number.
        generator: shuffles the frames; on the CPU. What it was seeded with decides about dropout, too.
        ranks: who learns together: each minibatch has an equal part of each rank's rollout, and the numbers are of all.
        learn: makes the optimizer steps; None: `learn_minibatch`.
    """
    learn = learn or learn_minibatch
    samples = Samples(
        rollout.obs,
        rollout.actions,
        rollout.log_probs,
        rollout.values.flatten(),
        advantages.advantages.flatten(),
        advantages.returns.flatten(),
    )
    num_frames = len(samples.values)
    totals = torch.zeros(7, device=samples.values.device)  # stays on the device until the end
    num_minibatches = math.ceil(num_frames * ranks.size / optim.batch_size)
    sizes = [len(part) for part in torch.arange(num_frames).tensor_split(num_minibatches)]  # nearly equal
    epochs = 0
    with dropout_seed(generator.initial_seed() ^ 1, samples.values.device):
        while epochs < optim.epochs:
            order = moved(torch.randperm(num_frames, generator=generator), samples.values.device)
            kl_before = totals[_KL].clone()
            # one gather an epoch, and one synchronisation: its minibatches are slices
            for minibatch in samples.gather(order, all_of_them=True).split(sizes):
                totals += learn(net, optimizer, minibatch, optim, ppo, ranks)
            epochs += 1
            if ppo.target_kl is not None and float(totals[_KL] - kl_before) > ppo.target_kl * num_minibatches:
                break  # the comparison synchronises with the device, once an epoch
    explained = _explained_variance(samples, ranks)
    means = torch.cat([totals / (epochs * num_minibatches), explained.reshape(1)])
    policy, value, entropy, kl, clipped, norm, value_norm, explained_share = means.tolist()  # leave the device at once
    value_grad_norm = None if math.isnan(value_norm) else value_norm
    return UpdateStats(policy, value, entropy, kl, clipped, norm, value_grad_norm, explained_share, epochs)


def _explained_variance(samples: Samples, ranks: Ranks) -> Tensor:
    """Of what all ranks have played."""
    if ranks.size == 1:
        return explained_variance(samples.values, samples.returns)
    variance = explained_variance(
        samples.values, samples.returns, lambda numbers: moments_of_all(numbers, ranks).variance
    )
    return variance.float()


@contextmanager
def dropout_seed(seed: int, device: torch.device) -> Iterator[None]:
    """Within this context dropout on `device` draws what `seed` says; it knows torch's global generators only.

    Afterwards these are as before.
    """
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def learn_minibatch(
    net: RogueNet | ActorCritic,
    optimizer: torch.optim.Optimizer,
    minibatch: Samples,
    optim: OptimConfig,
    ppo: PPOConfig,
    ranks: Ranks = ALONE,
    coefficients: Coefficients | None = None,
) -> Tensor:
    """One optimizer step.

    Args:
        net: the policy, changed in place.
        optimizer: of its parameters.
        minibatch: M frames.
        optim: micro-batches and the gradient's limit; see `update` for the rest.
        ppo: the objective.
        ranks: who learns together, each from as many frames.
        coefficients: of the objective; None: those that `ppo` has.

    Returns:
        (7,) policy loss, value loss, entropy, KL and clip fraction of the minibatch, the norm of its gradient, and that of a
        separate value network's, NaN where there is none.
    """
    groups = optimizer.param_groups
    optimizer.zero_grad(set_to_none=True)
    # weights and normalization belong to the minibatch, so that the size of its micro-batches changes nothing
    weights = unit_weights(minibatch.num_actors, ratio=ppo.ratio, weighting=ppo.weighting, add_up=ranks.sum)
    if ppo.normalize_advantages:
        moments = moments_of_all(minibatch.advantages, ranks) if ranks.size > 1 else None
        if minibatch.real is not None:
            moments = moments_of_some(minibatch.advantages, minibatch.real)
        minibatch = replace(minibatch, advantages=normalize(minibatch.advantages, moments))
    size = optim.micro_batch_size or len(weights)
    sizes = [min(size, len(weights) - start) for start in range(0, len(weights), size)]
    objective = Objective(ppo, coefficients or Coefficients.of(ppo), minibatch.num_frames * ranks.size)
    terms = torch.zeros(5, device=weights.device)
    for part, weight in zip(minibatch.split(sizes), torch.split(weights, sizes), strict=True):
        terms += _backward(net, part, weight, objective)
    terms = sum_gradients(groups, terms, ranks)
    norms = [clip_gradient(group["params"], group.get("max_grad_norm") or optim.max_grad_norm) for group in groups]
    optimizer.step()
    return torch.cat([terms, *(norm.reshape(1) for norm in norms), terms.new_full((2 - len(norms),), math.nan)])


@torch.no_grad()
def sum_gradients(groups: Sequence[Mapping[str, Any]], terms: Tensor, ranks: Ranks) -> Tensor:
    """Make the gradient of every parameter the sum of what the ranks have: all in one message.

    Args:
        groups: of an optimizer. Parameters that no rank has a gradient of keep none, and so are not decayed either.
        terms: float32 numbers to add up on the way.
        ranks: who has a part of the gradient.

    Returns:
        The sum of `terms`.
    """
    if ranks.size == 1:
        return terms
    parameters: list[Tensor] = [parameter for group in groups for parameter in group["params"]]
    has_gradient = terms.new_tensor([parameter.grad is not None for parameter in parameters])
    gradients = [torch.zeros_like(each) if each.grad is None else each.grad for each in parameters]
    message = ranks.sum(torch.cat([terms, has_gradient, *(gradient.flatten() for gradient in gradients)]))
    sizes = [len(terms), len(parameters), *(parameter.numel() for parameter in parameters)]
    terms, has_gradient, *sums = torch.split(message, sizes)
    # asking the device, which synchronises, is only needed where this rank does not know by itself
    is_known = all(parameter.grad is not None for parameter in parameters)
    found_by_any = [True] * len(parameters) if is_known else has_gradient.tolist()
    for parameter, found, gradient in zip(parameters, found_by_any, sums, strict=True):
        parameter.grad = gradient.view_as(parameter) if found else None
    return terms


@torch.no_grad()
def clip_gradient(parameters: Sequence[Tensor], limit: float) -> Tensor:
    """Scale the gradient so that its norm is at most `limit`.

    Returns:
        Its norm as it was. End to end it takes one norm, where `torch.nn.utils.clip_grad_norm_` takes one of each parameter.
    """
    norm: Tensor = torch.cat([each.grad.flatten() for each in parameters if each.grad is not None]).norm()
    torch.nn.utils.clip_grads_with_norm_(parameters, limit, norm)
    return norm


class Objective(NamedTuple):
    """What the parts of a minibatch have in common."""

    ppo: PPOConfig
    coefficients: Coefficients
    num_frames: int | Tensor  # of all parts


def _backward(net: RogueNet | ActorCritic, samples: Samples, weights: Tensor, objective: Objective) -> Tensor:
    """Add the gradient of a micro-batch of a minibatch to what is there.

    Returns:
        (5,) its share of the policy loss, value loss, entropy, KL and clip fraction.
    """
    ppo, coefficients, num_frames = objective
    evaluation = net.evaluate(samples.obs, samples.actions)
    log_probs, entropies, frames = _cat(evaluation.log_probs), _cat(evaluation.entropies), samples.frames_of_actors
    old_log_probs = _cat({name: ragged.values for name, ragged in samples.log_probs.items()})
    if samples.real is not None:  # what fills up is as likely as it was: a weight of 0 would not make up for infinities
        is_real = samples.real.index_select(0, frames)
        log_probs, entropies = torch.where(is_real, log_probs, old_log_probs), torch.where(is_real, entropies, 0.0)
    policy = policy_terms(
        log_probs,
        old_log_probs,
        entropies,
        frames,
        samples.advantages,
        weights,
        clip=coefficients.clip,
        ratio=ppo.ratio,
    )
    deviation = net.value_head.deviation
    values = (each / deviation for each in (evaluation.values, samples.values, samples.returns))
    clip_value = coefficients.clip if ppo.clip_value else None
    value = value_loss(*values, clip=clip_value, counted=samples.real) / num_frames
    loss = policy.loss - coefficients.entropy * policy.entropy + coefficients.value * value
    loss.backward()  # type: ignore[no-untyped-call]
    return torch.stack([policy.loss, value, policy.entropy, policy.approx_kl, policy.clip_fraction]).detach()


def split_as_actors(ragged: Mapping[str, RaggedTensor], parts: Sequence[ObsBatch]) -> list[dict[str, RaggedTensor]]:
    """What belongs to each part's actors, by action."""
    split: list[dict[str, RaggedTensor]] = [{} for _ in parts]
    for name, (values, _) in ragged.items():
        actors = [part.action_masks[name].actors for part in parts]
        pieces = torch.split(values, [len(each.values) for each in actors])
        for one, piece, each in zip(split, pieces, actors, strict=True):
            one[name] = RaggedTensor(piece, each.offsets)
    return split


def _cat(tensors: Mapping[str, Tensor]) -> Tensor:
    """All actions' actors end to end."""
    return torch.cat(list(tensors.values()))
