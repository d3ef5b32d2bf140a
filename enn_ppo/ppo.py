"""Proximal policy optimization: advantages, the loss of a minibatch, and the epochs of minibatches that minimise it.

A frame (one environment at one step) may have many actors, or none. All actors of a frame share its value and its advantage. Two
settings decide their weights:

- `ratio`: the *unit* of the objective. `per_actor`: every actor's action has its own probability ratio. `joint`: a frame's
  actions are one decision; log-probs, log-ratios and entropies add up over its actors.
- `weighting`: `actor`: every actor of the minibatch has the same weight, so crowded frames weigh more. `frame`: every frame with
  actors has the same weight, split evenly among its actors.

Every sum below is weighted. The weights of a minibatch's units add up to 1 (0 without actors), and so do the weights of its
frames, which apply to the value loss. The losses of micro-batches therefore add up to the minibatch's loss.

On CPUs `training/learning/compiled.py` stands in for `learn_minibatch` and `ppo_loss`, with the same numbers up to rounding.

Source: Schulman et al. 2017 (arXiv 1707.06347).

Shapes: T steps, N environments, B frames, A actors of all actions and frames together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial, reduce
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from enn_ppo.rollout import Rollout
from enn_ppo.settings.learning import OptimConfig, PPOSettings, Ratio, Weighting
from enn_ppo.training.frames import Frames
from enn_ppo.training.learning.actor_critic import ActorCritic
from enn_ppo.training.learning.moments import explained_variance, moments_of_some, normalize
from enn_ppo.training.learning.optimizer import clip_gradient, sum_gradients
from enn_ppo.training.random_keys import dropout_seed
from enn_ppo.training.ranks import ALONE, Ranks
from rogue_net import Evaluation, RaggedTensor, RogueNet
from rogue_net.batch.crossing import moved
from rogue_net.batch.ragged import segment_sum
from rogue_net.inputs.normalization import Moments

Stats: TypeAlias = dict[str, Tensor]  # statistics to log: name -> tensor ()


# ---- Advantages


class Advantages(NamedTuple):
    """Advantages, and the returns that the value function learns."""

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

    where A_T = 0, ended_t is terminated_t or truncated_t, and V'_{t+1} is 0 after a termination, the value of the episode's own
    final observation after a truncation, and V_{t+1} otherwise (`last_values` at t = T - 1). Returns are A_t + V_t.
    Source: Schulman et al. 2016 (arXiv 1506.02438), equation 16; bootstrapping from truncations: Pardo et al. 2018
    (arXiv 1712.00378).

    Args:
        rewards: (T, N), received for the action taken at step t.
        values: (T, N), V of the observation at step t.
        terminated: (T, N) bool, the episode ended by its own rules after step t.
        truncated: (T, N) bool, the episode was cut after step t. Never true together with `terminated`.
        final_values: (T, N), V of the episode's final observation where `truncated`, ignored elsewhere.
        last_values: (N,), V of the observation after the last step.
        gamma: discount in [-1, 1]; negative where two opponents act in turn, so that V_{t+1} is the value to the other one.
        gae_lambda: λ in [0, 1]; 0 gives the one-step error, 1 the discounted returns minus V, with a bootstrap value where the
            rollout or a time limit cuts the episode.

    Raises:
        ValueError: shapes differ, or a step is both terminated and truncated.
    """
    check_rollout(rewards, values, terminated, truncated, final_values)
    deltas = rewards + gamma * next_values(values, terminated, truncated, final_values, last_values) - values
    decay = gamma * gae_lambda * (~(terminated | truncated)).to(rewards.dtype)
    advantages = sum_backwards(deltas, decay)
    return Advantages(advantages, advantages + values)


def against_group(numbers: Tensor, instances: Tensor, steps: Tensor, *, alone: Tensor) -> Tensor:
    """Advantages against a group, whose members play the same episodes.

        A = x - mean of x over the other frames of the same step of the same episode

    The baseline depends on other members' actions alone, so that the policy gradient stays unbiased. Where all G members are
    there, A is G / (G - 1) times the advantage against the mean of all.
    Source: for returns x, Kool et al. 2019 (openreview.net/forum?id=r1lgTGL5DE) and Kwon et al. 2020 (arXiv 2010.16011). With
    advantages x = R - V the baseline is V plus the error that V makes on the other members.

    Args:
        numbers: (T, N) x, returns or advantages.
        instances: (T, N) int64, equal where members play the same episode.
        steps: (T, N) int64, step of the episode.
        alone: (T, N), the advantages where there is no other frame.
    """
    episode = torch.unique(instances.flatten(), return_inverse=True)[1]
    places = episode * (steps.max() + 1) + steps.flatten()  # one number is sorted much faster than a pair
    _, place, counts = torch.unique(places, return_inverse=True, return_counts=True)
    own = numbers.flatten().double()
    sums = own.new_zeros(len(counts)).index_add_(0, place, own)
    num_others = counts[place] - 1
    advantages = own - (sums[place] - own) / num_others.clamp(min=1)
    return torch.where(num_others > 0, advantages.to(alone.dtype), alone.flatten()).view_as(alone)


def next_values(
    values: Tensor, terminated: Tensor, truncated: Tensor, final_values: Tensor, last_values: Tensor
) -> Tensor:
    """(T, N) next-state values.

    V(s_{t+1}), the final observation's value where the episode was truncated, 0 where it terminated.
    """
    following = torch.cat([values[1:], last_values.unsqueeze(0)])
    return torch.where(truncated, final_values, following).masked_fill(terminated, 0.0)


def sum_backwards(deltas: Tensor, decay: Tensor) -> Tensor:
    """(T, N): x_t = deltas_t + decay_t x_{t+1}, with x_T = 0."""
    sums = torch.empty_like(deltas)
    running = torch.zeros_like(deltas[0])
    for t in reversed(range(len(deltas))):
        running = deltas[t] + decay[t] * running
        sums[t] = running
    return sums


def check_rollout(
    rewards: Tensor, values: Tensor, terminated: Tensor, truncated: Tensor, final_values: Tensor, **others: Tensor
) -> None:
    """Check the shapes of a rollout, and that no step is both terminated and truncated.

    Raises:
        ValueError: shapes differ, or a step is both terminated and truncated.
    """
    columns = {"values": values, "terminated": terminated, "truncated": truncated, "final_values": final_values}
    for name, tensor in (columns | others).items():
        if tensor.shape != rewards.shape:
            raise ValueError(
                f"{name} has shape {tuple(tensor.shape)}, rewards {tuple(rewards.shape)}: both must be (T, N)"
            )
    if bool((terminated & truncated).any()):  # one device synchronisation per rollout
        t, n = (terminated & truncated).nonzero()[0].tolist()
        raise ValueError(f"step {t} of environment {n} is both terminated and truncated; an episode ends in one way")


# ---- Minibatches


@dataclass(frozen=True, kw_only=True)
class Samples(Frames):
    """B frames of a rollout, with advantages and returns; or a minibatch of them, which has weights too, or its micro-batch."""

    advantages: Tensor  # (B,) float32; in a minibatch normalized, if `ppo.normalize_advantages`
    returns: Tensor  # (B,) float32, regression targets of the values
    # Of minibatches alone: the weight of each unit of a frame (`unit_weights`), and that of each frame. Each adds up to 1.
    weights: Tensor = None  # type: ignore[assignment]  # (B,) float32
    frame_weights: Tensor = None  # type: ignore[assignment]  # (B,) float32
    #: (B,) bool, frames of the episode of the frame one step before; in a minibatch see `RogueNet.evaluate`.
    follows: Tensor = None  # type: ignore[assignment]
    teacher: dict[str, RaggedTensor] | None = None  # logits of the teacher; see `Teacher.logits`; None: there is none

    @staticmethod
    def of(rollout: Rollout, advantages: Advantages) -> Samples:
        """The T * N frames of a rollout."""
        frames = rollout.frames
        columns = {field.name: getattr(frames, field.name) for field in fields(frames)}
        return Samples(
            **columns,
            advantages=advantages.advantages.flatten(),
            returns=advantages.returns.flatten(),
            follows=rollout.follows,
        )

    def weighed(self, settings: PPOSettings) -> Samples:
        """These samples as one minibatch."""
        order = torch.arange(len(self), device=self.values.device)
        return replace(self, **weigh(self, [order], [len(self)], settings)[0])


def weigh(
    samples: Samples, orders: Sequence[Tensor], sizes: Sequence[int], settings: PPOSettings, ranks: Ranks = ALONE
) -> list[dict[str, Any]]:
    """Normalize the advantages of the minibatches of all epochs, and compute their weights, with one collective call.

    Args:
        samples: of this rank.
        orders: (B,) int64 of each epoch, the samples in the order of minibatches.
        sizes: samples of this rank in each minibatch of an epoch, the same on every rank.
        settings: units and weighting.
        ranks: the processes that share the minibatches.

    Returns:
        For each epoch the columns `advantages`, `weights` and `frame_weights` of `Samples`, in its order.
    """
    sizes = [*sizes] * len(orders)
    order, device = torch.cat(list(orders)), samples.values.device
    advantages, counts = (each.index_select(0, order) for each in (samples.advantages, samples.num_actors))
    # a row for each minibatch, filled up with frames without actors
    both = torch.stack([advantages.double(), counts.double()], dim=1)
    rows, actors = pad_sequence(list(torch.split(both, sizes)), batch_first=True).unbind(2)
    # advantages only of frames with actors, since others have no policy gradient; each counts once, whatever `weighting` is
    of_each = ranks.gather(torch.stack([actors.sum(1), *moments_of_some(rows, actors > 0)]))
    moments = reduce(Moments.merged, (Moments(*part[1:]) for part in of_each))
    minibatch = moved(torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes)), device)  # of each frame
    moments = Moments(*(each.index_select(0, minibatch) for each in moments))
    total = of_each[:, 0].sum(0).index_select(0, minibatch) if settings.weighting == "actor" else moments.number
    columns = {
        "advantages": normalize(advantages, moments) if settings.normalize_advantages else advantages,
        "weights": unit_weights(counts, ratio=settings.ratio, weighting=settings.weighting, total=total),
        "frame_weights": 1 / (actors.new_tensor(sizes) * ranks.size).index_select(0, minibatch).float(),
    }
    epochs = zip(*(torch.split(each, len(orders[0])) for each in columns.values()), strict=True)
    return [dict(zip(columns, parts, strict=True)) for parts in epochs]


def unit_weights(num_actors: Tensor, *, ratio: Ratio, weighting: Weighting, total: Tensor | None = None) -> Tensor:
    """The weight of each unit of a minibatch, by frame.

    Args:
        num_actors: (B,) int64, number of actors in each frame of a minibatch, or with `total` of any frames.
        ratio: whether a unit is an actor or a frame.
        weighting: whether actors or frames have equal weights.
        total: () or (B,) actors (`weighting="actor"`) or frames with actors (`frame`) of a frame's whole minibatch; None: all of
            it is here.

    Returns:
        (B,) float32: with `per_actor`, the weight of each actor in the frame; with `joint`, of the frame. The sum over the
        minibatch's units is 1, or 0 without actors.
    """
    counts = num_actors.float()
    share = counts if weighting == "actor" else (counts > 0).float()
    weight_of_frame = share / (share.sum() if total is None else total.float()).clamp(min=1)
    return weight_of_frame if ratio == "joint" else weight_of_frame / counts.clamp(min=1)


# ---- The loss


#: A further term of the loss: (network outputs, minibatch, settings) -> (the term, statistics to log). `terms_of` in
#: training/build.py lists the terms; training/learning/auxiliary.py is an example.
Term: TypeAlias = Callable[[Evaluation, Samples, PPOSettings], tuple[Tensor, Stats]]


def ppo_loss(
    net: RogueNet | ActorCritic, batch: Samples, settings: PPOSettings, terms: Sequence[Term] = ()
) -> tuple[Tensor, Stats]:
    """L = L_policy - c_H H + c_V L_value + further terms, of a minibatch, or a micro-batch's part of it.

    Values and returns are divided by the value head's `deviation` (1 unless `ppo.normalize=returns`), so that the value loss and
    its clipping do not depend on the size of rewards.

    Returns:
        The loss, a tensor (), and statistics to log: `policy_loss`, `value_loss`, `entropy`, `approx_kl`, `clip_fraction`, and
        those of the terms.
    """
    new = net.evaluate(batch.obs, batch.actions, batch.state, batch.follows)
    log_probs, old_log_probs, entropies = (
        torch.cat([ragged.values for ragged in each.values()])
        for each in (new.log_probs, batch.log_probs, new.entropies)
    )
    of_units = (batch.frames_of_actors, batch.advantages, batch.weights)
    policy, stats = policy_terms(
        log_probs, old_log_probs, entropies, *of_units, clip=settings.clip, ratio=settings.ratio
    )
    deviation = net.value_head.deviation
    value = value_loss(
        new.values / deviation,
        batch.values / deviation,
        batch.returns / deviation,
        batch.frame_weights,
        clip=settings.clip if settings.clip_value else None,
    )
    loss = policy - settings.ent_coef * stats["entropy"] + settings.vf_coef * value
    stats = {"policy_loss": policy, "value_loss": value, **stats}
    for term in terms:
        addend, more = term(new, batch, settings)
        assert not stats.keys() & more.keys(), (
            f"terms of the loss log the same names: {sorted(stats.keys() & more.keys())}"
        )
        loss, stats = loss + addend, stats | more
    return loss, stats


def policy_terms(
    log_probs: Tensor,
    old_log_probs: Tensor,
    entropies: Tensor,
    frames: Tensor,
    advantages: Tensor,
    weights: Tensor,
    *,
    clip: float,
    ratio: Ratio,
) -> tuple[Tensor, Stats]:
    """Clipped surrogate loss, entropy, approximate KL divergence and clip fraction.

        loss = -sum_u w_u min(r_u A_u, clip(r_u, 1 - ε, 1 + ε) A_u)    r_u = exp(log π(a_u) - log π_old(a_u))
        entropy = sum_u w_u H_u                  of chained actions that of the sampled path
        approx_kl = sum_u w_u (r_u - 1 - log r_u)
        clip_fraction = sum_u w_u [|r_u - 1| > ε]

    Source: Schulman et al. 2017 (arXiv 1707.06347), equation 7; the KL estimator is Schulman's k3
    (joschu.net/blog/kl-approx.html).

    Args:
        log_probs: (A,) under the current policy.
        old_log_probs: (A,) under the policy that acted.
        entropies: (A,) of the current policy.
        frames: (A,) int64, the frame of each actor.
        advantages: (B,) one per frame.
        weights: (B,) from `unit_weights` of the whole minibatch.
        clip: ε, greater than 0.
        ratio: the unit of the objective, as for `unit_weights`.

    Returns:
        The loss, and `entropy`, `approx_kl` and `clip_fraction`.
    """
    log_ratio = log_probs - old_log_probs
    if ratio == "joint":
        log_ratio = segment_sum(log_ratio, frames, len(advantages))
        entropies = segment_sum(entropies, frames, len(advantages))
    else:
        advantages, weights = advantages.index_select(0, frames), weights.index_select(0, frames)
    ratios = log_ratio.exp()
    surrogate = torch.minimum(ratios * advantages, ratios.clamp(1 - clip, 1 + clip) * advantages)
    with torch.no_grad():
        change = ratios - 1
        approx_kl = weights.dot(change - log_ratio)
        clip_fraction = weights.dot((change.abs() > clip).float())
    stats = {"entropy": weights.dot(entropies), "approx_kl": approx_kl, "clip_fraction": clip_fraction}
    return -weights.dot(surrogate), stats


def value_loss(values: Tensor, old_values: Tensor, returns: Tensor, weights: Tensor, *, clip: float | None) -> Tensor:
    """Half the weighted squared error of the values.

        sum_b w_b 0.5 (V - R)²,    or with clipping    sum_b w_b 0.5 max((V - R)², (V_old + clip(V - V_old, -ε, ε) - R)²)

    Clipping keeps the value within ε of the rollout's value, as in the original PPO code (openai/baselines).

    Args:
        values: (B,) of the current network.
        old_values: (B,) of the rollout.
        returns: (B,) regression targets.
        weights: (B,), adding up to 1 over the whole minibatch.
        clip: ε; None for the plain error.
    """
    errors = (values - returns).square()
    if clip is not None:
        clipped = old_values + (values - old_values).clamp(-clip, clip)
        errors = torch.maximum(errors, (clipped - returns).square())
    return 0.5 * weights.dot(errors)


# ---- The update

#: Returns the loss of a minibatch and statistics to log: `ppo_loss`, or your own. `target_kl` needs the statistic `approx_kl`.
Loss: TypeAlias = Callable[["RogueNet | ActorCritic", Samples, PPOSettings], tuple[Tensor, Stats]]


def update(
    net: RogueNet | ActorCritic,
    optimizer: torch.optim.Optimizer,
    samples: Samples,
    optim: OptimConfig,
    settings: PPOSettings,
    *,
    generator: torch.Generator,
    loss: Loss = ppo_loss,
    sequences: Tensor | None = None,
    ranks: Ranks = ALONE,
    optimizer_step: Callable[[Any], Stats] | None = None,
) -> dict[str, float]:
    """Train `net` on one rollout: epochs of minibatches of whole frames or sequences, shuffled in every epoch.

    Args:
        net: the policy, changed in place.
        optimizer: of its parameters, with the learning rate already set. The first group has the policy's parameters, a second
            one those of a separate value network; a group may have its own `max_grad_norm`.
        samples: all frames of the rollout; `FrameNumbers` if `CompiledPPO` has the rest.
        optim: minibatches and epochs.
        settings: of the objective.
        generator: shuffles the frames; on the CPU. Its seed also seeds dropout.
        loss: to be minimised.
        sequences: (S, L) int64, frames that stay together in this order (`sequences_of`); None: single frames are shuffled.
        ranks: the processes that learn together: each minibatch has an equal part of each rank's rollout; statistics are of all.
        optimizer_step: does the one of a minibatch; None: `learn_minibatch`. On CPUs it is `CompiledPPO.learn`.

    Returns:
        The means over all minibatches of the statistics of `learn_minibatch`; `explained_variance` of the rollout, NaN if all
        returns are equal; `epochs`, the number of epochs, which `target_kl` may reduce.
    """
    if sequences is None:
        sequences = torch.arange(len(samples)).unsqueeze(1)
    num_sequences, steps = sequences.shape
    if optimizer_step is None:
        options: dict[str, Any] = {"optim": optim, "settings": settings, "loss": loss, "steps": steps, "ranks": ranks}
        optimizer_step = partial(learn_minibatch, net, optimizer, **options)
    device = samples.values.device
    num_minibatches = min(num_sequences, math.ceil(sequences.numel() * ranks.size / optim.batch_size))
    sizes = [len(part) * steps for part in torch.arange(num_sequences).tensor_split(num_minibatches)]  # nearly equal
    orders = [
        moved(sequences[torch.randperm(num_sequences, generator=generator)].flatten(), device)
        for _ in range(optim.epochs)
    ]
    is_permutation = sequences.numel() == len(samples)
    sums: Tensor | None = None  # stays on the device until the end
    epochs = 0
    with dropout_seed(generator.initial_seed() ^ 1, device):
        for order, weighed in zip(orders, weigh(samples, orders, sizes, settings, ranks), strict=True):
            of_epoch: Tensor | None = None
            # gathered once in the new order, so that minibatches are slices
            ordered = replace(samples.gather(order, all_of_them=is_permutation), **weighed)
            if ordered.follows is not None:
                ordered.follows[::steps] = False
            for minibatch in ordered.split(sizes):
                stats = optimizer_step(minibatch)
                values = torch.stack(list(stats.values()))
                of_epoch = values if of_epoch is None else of_epoch + values
            assert of_epoch is not None
            sums = of_epoch if sums is None else sums + of_epoch
            epochs += 1
            if settings.target_kl is not None:
                kl = float(of_epoch[list(stats).index("approx_kl")])  # synchronises with the device, once an epoch
                if kl > settings.target_kl * num_minibatches:
                    break
    assert sums is not None
    explained = explained_variance(samples.values, samples.returns, ranks)
    *means, explained_share = torch.cat([sums / (epochs * num_minibatches), explained.reshape(1)]).tolist()
    return dict(zip(stats, means, strict=True)) | {"explained_variance": explained_share, "epochs": epochs}


def sequences_of(num_frames: int, num_envs: int, length: int | None, group_size: int = 1) -> Tensor:
    """(S, L) int64, the frames of each sequence of a rollout, which is ordered by step: L consecutive steps of an environment.

    Of a rollout of one step, those of a group, since equal frames that stay together are encoded once.

    Args:
        num_frames: T * N.
        num_envs: N.
        length: L, or if T is no multiple of it the largest below that divides T; None: T.
        group_size: environments in a group.
    """
    steps = num_frames // num_envs
    if steps == 1:
        return torch.arange(num_frames).view(-1, group_size)
    length = next(each for each in range(min(length or steps, steps), 0, -1) if steps % each == 0)
    frames = torch.arange(num_frames).view(steps // length, length, num_envs)
    return frames.transpose(1, 2).reshape(-1, length)


def learn_minibatch(
    net: RogueNet | ActorCritic,
    optimizer: torch.optim.Optimizer,
    minibatch: Samples,
    optim: OptimConfig,
    settings: PPOSettings,
    loss: Loss = ppo_loss,
    steps: int = 1,
    ranks: Ranks = ALONE,
) -> Stats:
    """Do one optimizer step.

    Args:
        net: the policy, changed in place.
        optimizer: of its parameters; see `update`.
        minibatch: with its weights, of this rank.
        optim: the size of micro-batches and the gradient's largest norm.
        settings: of the objective.
        loss: to be minimised.
        steps: frames of a sequence, which micro-batches do not cut.
        ranks: the processes that learn together, each from the same number of frames.

    Returns:
        The loss's statistics of the whole minibatch; `grad_norm`, the norm of the policy's gradient before clipping;
        `value_grad_norm`, the same for a separate value network.
    """
    groups = optimizer.param_groups
    optimizer.zero_grad(set_to_none=True)
    # weights and normalization are of the whole minibatch, so that the size of micro-batches only affects rounding
    size = max(1, (optim.micro_batch_size or len(minibatch)) // steps) * steps
    stats: Stats = {}
    for part in minibatch.split([min(size, len(minibatch) - first) for first in range(0, len(minibatch), size)]):
        total, logged = loss(net, part, settings)
        total.backward()  # type: ignore[no-untyped-call]
        stats = {name: stats.get(name, 0) + number.detach() for name, number in logged.items()}
    stats = sum_gradients(groups, stats, ranks)
    for name, group in zip(("grad_norm", "value_grad_norm"), groups, strict=False):
        stats[name] = clip_gradient(group["params"], group.get("max_grad_norm") or optim.max_grad_norm)
    optimizer.step()
    return stats
