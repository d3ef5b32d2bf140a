"""V-trace: advantages of rollouts that were collected with earlier parameters.

Shapes: T steps, N environments, B = T * N frames, A actors of an action.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from enn_ppo.ppo import Advantages, check_rollout, next_values, sum_backwards
from enn_ppo.rollout import Rollout
from enn_ppo.training.learning.actor_critic import ActorCritic
from rogue_net import RaggedTensor
from rogue_net.batch.crossing import moved
from rogue_net.batch.ragged import Gather, segment_sum

#: Frames that are evaluated at a time, to bound the memory of their activations.
FRAMES_AT_ONCE = 4096


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
) -> Advantages:
    """V-trace: advantages of the current policy π from a rollout of another policy μ.

        ρ_t = min(1, π(a_t) / μ(a_t))
        v_t - V_t = ρ_t (r_t + γ V'_{t+1} - V_t) + γ λ ρ_t (1 - ended_t) (v_{t+1} - V_{t+1})

    where V' is as in `gae`. Advantages are v_t - V_t, returns v_t. Advantages contain ρ_t, the importance weight of the policy
    gradient, so the probability ratios of the loss begin at 1. Where all log-ratios are 0 this is `gae` to the last bit.
    Source: Espeholt et al. 2018 (arXiv 1802.01561), equation 1 in the form of remark 1, with ρ̄ = c̄ = 1; λ: remark 2. Truncating
    moves the fixed point of the values from those of π to those of a policy between π and μ: equation 3.

    Args:
        rewards: (T, N); these and the following are as in `gae`.
        values: (T, N), of π.
        terminated: (T, N) bool.
        truncated: (T, N) bool.
        final_values: (T, N), of π.
        last_values: (N,), of π.
        log_ratios: (T, N), log π(a_t) - log μ(a_t) of all actions of step t together; 0 for frames without actors.
        gamma: discount in [-1, 1], as in `gae`.
        gae_lambda: λ in [0, 1].

    Raises:
        ValueError: as `gae`.
    """
    check_rollout(rewards, values, terminated, truncated, final_values, log_ratios=log_ratios)
    rhos = log_ratios.clamp(max=0).exp()
    following = next_values(values, terminated, truncated, final_values, last_values)
    deltas = rhos * (rewards + gamma * following - values)
    decay = gamma * gae_lambda * (~(terminated | truncated)).to(rewards.dtype) * rhos
    advantages = sum_backwards(deltas, decay)
    return Advantages(advantages, advantages + values)


@torch.no_grad()
def recompute_log_probs(model: ActorCritic, rollout: Rollout, sequences: Tensor) -> tuple[Rollout, Tensor]:
    """Evaluate the frames and actions of `rollout` with the current parameters, `FRAMES_AT_ONCE` at a time.

    The log-ratios of a frame's actors add up, since the environment takes their actions together. Final values of truncated
    episodes and bootstrap values after the last step are not recomputed, since a rollout does not keep these observations.
    Dropout is off.

    Args:
        model: not changed.
        rollout: not changed.
        sequences: (S, L) int64, frames through which a policy that remembers goes on, from what it knew before them in the
            rollout; see `enn_ppo.ppo.sequences_of`.

    Returns:
        The rollout with the log-probs and values of `model`, and (T, N) log-ratios: log-probs of `model` less those of the
        parameters that acted, summed over each frame.
    """
    frames = rollout.frames
    steps, order = sequences.shape[1], moved(sequences.flatten(), frames.values.device)
    ordered, back = frames.gather(order, all_of_them=True), Gather(torch.argsort(order), all_of_them=True)
    size = max(1, FRAMES_AT_ONCE // steps) * steps
    sizes = [min(size, len(frames) - first) for first in range(0, len(frames), size)]
    follows = rollout.follows[order]
    follows[::steps] = False
    was_training = model.training
    model.eval()
    parts = [
        model.log_probs(part.obs, part.actions, part.state, of_part)
        for part, of_part in zip(ordered.split(sizes), torch.split(follows, sizes), strict=True)
    ]
    model.train(was_training)
    log_probs = {
        name: back(RaggedTensor(torch.cat([found[name].values for found, _ in parts]), before.offsets))
        for name, before in ordered.log_probs.items()
    }
    log_ratios = joint_log_ratios(log_probs, frames.log_probs).view(-1, rollout.num_envs)
    values = torch.cat([part for _, part in parts])[back.sequences]
    return replace(rollout, frames=replace(frames, log_probs=log_probs, values=values)), log_ratios


def joint_log_ratios(now: Mapping[str, RaggedTensor], before: Mapping[str, RaggedTensor]) -> Tensor:
    """(B,) log-ratio of all actions of a frame together; 0 for frames without actors.

    Args:
        now: action -> B sequences of (A,) log-probs under the current policy.
        before: the same under the policy that acted.
    """
    log_ratios = [
        segment_sum(each.values - before[name].values, each.sequences, len(each.offsets) - 1)
        for name, each in now.items()
    ]
    return torch.stack(log_ratios).sum(dim=0)
