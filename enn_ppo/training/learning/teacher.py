"""KL divergence from another policy, as a term of the loss (`ppo.teacher`, `ppo.teacher_kl`).

p is the other policy and q the one that learns. A teacher does not learn, so its logits are computed once for each rollout: they
are a column of `Samples`.

Shapes: B frames.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from enn_ppo.checkpoints import load_checkpoint
from enn_ppo.checkpoints.policy import load_net
from enn_ppo.ppo import Samples, Stats
from enn_ppo.rollout import Rollout
from enn_ppo.settings.learning import PPOSettings
from enn_ppo.training.frames import cat_columns
from enn_ppo.training.policy_states import PolicyStates
from entity_gym.actions import ActionSpace
from entity_gym.batch.saving import spaces_difference, spaces_to_dict
from entity_gym.spaces import ObsSpace
from rogue_net import Evaluation, RaggedTensor, RogueNet
from rogue_net.batch.ragged import Cat
from rogue_net.heads.distributions import ActionDistribution

#: Frames that a teacher that does not remember evaluates at a time, to bound the memory of their activations.
FRAMES_AT_ONCE = 4096


class Teacher:
    """A policy that does not learn. It remembers what it has seen of every episode, from one rollout to the next.

    Args:
        net: with the spaces and the device of the policy that learns; not changed.

    Attributes:
        states: after the last rollout.
    """

    def __init__(self, net: RogueNet) -> None:
        self.net = net.eval().requires_grad_(False)
        self.states = PolicyStates()

    @torch.no_grad()
    def logits(self, rollout: Rollout) -> dict[str, RaggedTensor]:
        """Action -> B sequences of its logits in the frames of a rollout, as `ActResult.logits`.

        A teacher that remembers must see every rollout of the environments, one after the other.
        """
        num_frames, num_envs = len(rollout.frames), rollout.num_envs
        size = num_envs if self.net.remembers else FRAMES_AT_ONCE
        sizes = [min(size, num_frames - first) for first in range(0, num_frames, size)]
        known, found = None, []
        env_ids, begins = (each.cpu().numpy() for each in (rollout.frames.env_id, rollout.frames.step == 0))
        for number, part in enumerate(rollout.frames.split(sizes)):
            step = slice(number * size, (number + 1) * size)
            if self.net.remembers:
                known = self.states.recall(env_ids[step], begins[step])
            readout = self.net.readout(part.obs, known)
            self.states = PolicyStates()  # of the rollout's environments alone
            self.states.keep(env_ids[step], readout.state)
            found.append(self.net.ragged_logits(readout, self.net.decide(readout, part.actions)))
        logits: dict[str, RaggedTensor] = cat_columns(found, Cat())
        return logits


class TeacherLoss:
    """c_T KL(teacher || policy), with the policy loss's weights of units; a term of `enn_ppo.ppo.ppo_loss`.

    Of chained actions, and of sets, it is the divergence after the earlier choices that were sampled.
    """

    def __call__(self, new: Evaluation, batch: Samples, settings: PPOSettings) -> tuple[Tensor, Stats]:
        """Returns the term, and `teacher_kl`, the divergence in nats; both are 0 if c_T is 0."""
        kl = new.values.new_zeros(())
        if settings.teacher_kl != 0:
            assert batch.teacher is not None, "the learner has asked the teacher"
            kl = divergence(new.distributions, batch.teacher, batch.weights)
        return settings.teacher_kl * kl, {"teacher_kl": kl}


def load_teacher(
    path: str, obs_space: ObsSpace, action_space: Mapping[str, ActionSpace], device: torch.device
) -> Teacher:
    """Load the teacher that `ppo.teacher` names.

    Raises:
        ValueError: there is no such checkpoint, or its policy has other spaces.
    """
    try:
        checkpoint = load_checkpoint(Path(path))
    except ValueError as error:
        raise ValueError(f"ppo.teacher: {error}; ppo.teacher=null trains without a teacher") from error
    difference = spaces_difference(checkpoint.spaces, spaces_to_dict(obs_space, action_space))
    if difference:
        raise ValueError(f"ppo.teacher={path} was trained in another environment: {difference}")
    return Teacher(load_net(checkpoint, device=device))


def divergence(
    distributions: Mapping[str, ActionDistribution], others: Mapping[str, RaggedTensor], weights: Tensor
) -> Tensor:
    """() KL(p ‖ q), a weighted sum over the actors of all actions.

    Args:
        distributions: action -> q, as `Evaluation.distributions`.
        others: action -> B sequences of the logits of p, as `ActResult.logits`.
        weights: (B,) of each actor in a frame.
    """
    total = weights.new_zeros(())
    for name, other in others.items():
        total = total + of_items(weights, other).dot(distributions[name].kl(other.values))
    return total


def of_items(weights: Tensor, ragged: RaggedTensor) -> Tensor:
    """(items,) weight of each item's frame, from (B,) weights."""
    return weights.repeat_interleave(ragged.lengths, output_size=len(ragged.values))
