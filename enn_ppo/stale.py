"""Rollouts that other parameters have played than those that learn from them.

Shapes: T steps, N environments, B = T * N frames, A actors of an action.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from enn_ppo.actor_critic import ActorCritic
from enn_ppo.rollout import Rollout
from enn_ppo.update import split_as_actors
from rogue_net import RaggedTensor
from rogue_net.ragged import segment_sum

FRAMES_AT_ONCE = 4096  # that are in memory with all that the network makes of them


class Judged(NamedTuple):
    """A rollout as the parameters of now see it."""

    rollout: Rollout  # with the log-probs and values that they have for it
    log_ratios: Tensor  # (T, N): log-probability of all that was chosen in a frame, less what it was when it was played


@torch.no_grad()
def judge_again(model: ActorCritic, rollout: Rollout) -> Judged:
    """What `model` says now of the frames and actions of `rollout`, in pieces of `FRAMES_AT_ONCE`.

    A frame's actions are one decision to the environment: their log-ratios add up over all actors of all actions. Values of
    the observations after a truncated episode and after the last step stay those of the parameters that played, since a
    rollout does not have these observations. Dropout is off.

    Args:
        model: of now; not changed.
        rollout: of any parameters; not changed.
    """
    num_frames = rollout.rewards.numel()
    sizes = [min(FRAMES_AT_ONCE, num_frames - start) for start in range(0, num_frames, FRAMES_AT_ONCE)]
    parts = rollout.obs.split(sizes)
    log_probs: dict[str, list[Tensor]] = {name: [] for name in rollout.log_probs}
    values = []
    was_training = model.training
    model.eval()
    for part, actions in zip(parts, split_as_actors(rollout.actions, parts), strict=True):
        evaluation = model.evaluate(part, actions)
        values.append(evaluation.values)
        for name, pieces in log_probs.items():
            pieces.append(evaluation.log_probs[name])
    model.train(was_training)
    now = {name: RaggedTensor(torch.cat(log_probs[name]), before.offsets) for name, before in rollout.log_probs.items()}
    log_ratios = joint_log_ratios(now, rollout.log_probs).view_as(rollout.values)
    return Judged(replace(rollout, log_probs=now, values=torch.cat(values).view_as(rollout.values)), log_ratios)


def joint_log_ratios(now: Mapping[str, RaggedTensor], before: Mapping[str, RaggedTensor]) -> Tensor:
    """(B,) by how much the log-probability of all that was chosen in a frame has risen; 0 where nobody has chosen.

    Args:
        now: action -> B sequences of (A,) log-probs.
        before: the same of the policy that acted.
    """
    rises = [
        segment_sum(each.values - before[name].values, each.sequences, len(each.offsets) - 1)
        for name, each in now.items()
    ]
    return torch.stack(rises).sum(dim=0)
