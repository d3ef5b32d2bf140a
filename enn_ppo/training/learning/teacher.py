"""KL divergence from a teacher policy as a term of the loss (`ppo.teacher`, `ppo.teacher_kl`)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from enn_ppo.checkpoints import load_checkpoint
from enn_ppo.checkpoints.policy import load_policy
from enn_ppo.clone.losses import choices_kl, numbers_kl, spread
from enn_ppo.ppo import Minibatch, Stats
from enn_ppo.settings.learning import PPOSettings
from entity_gym.actions import ActionSpace
from entity_gym.batch.saving import spaces_difference, spaces_to_dict
from entity_gym.spaces import ObsSpace
from rogue_net import Evaluation, ObsBatch, RaggedTensor, RogueNet
from rogue_net.batch.ragged import Cat, Cuts

#: Frames in which the teacher acts at a time, to bound the memory of what it computes.
FRAMES_AT_ONCE = 4096


class TeacherLoss:
    """c_T KL(teacher || policy), with the policy loss's weights of units; a term of `enn_ppo.ppo.ppo_loss`.

    Args:
        teacher: a network with the policy's spaces and device; not changed.
    """

    def __init__(self, teacher: RogueNet) -> None:
        self._teacher = teacher.eval().requires_grad_(False)

    def __call__(self, new: Evaluation, batch: Minibatch, settings: PPOSettings) -> tuple[Tensor, Stats]:
        """Returns the term, and `teacher_kl`, the divergence in nats; both are 0 if c_T is 0."""
        kl = new.values.new_zeros(())
        if settings.teacher_kl == 0:
            return kl, {"teacher_kl": kl}
        for name, logits in self.logits(batch.obs).items():
            divergence = choices_kl if self._teacher.action_space[name].discrete else numbers_kl
            rows = spread(batch.weights, logits)
            kl = kl + divergence(new.logits[name], logits.values, rows)
        return settings.teacher_kl * kl, {"teacher_kl": kl}

    def logits(self, obs: ObsBatch) -> dict[str, RaggedTensor]:
        """Compute what the teacher would draw from in these frames, see `ActResult.logits`; some frames at a time."""
        sizes = [min(FRAMES_AT_ONCE, len(obs) - first) for first in range(0, len(obs), FRAMES_AT_ONCE)]
        found = []
        for part in obs.split(Cuts(sizes, obs.offsets)) if len(sizes) > 1 else [obs]:
            logits = self._teacher.act(part, greedy=True, logits=True).logits  # greedy: nothing is sampled
            assert logits is not None
            found.append(logits)
        return {name: Cat()([each[name] for each in found]) for name in found[0]}


def load_teacher(
    path: str, obs_space: ObsSpace, action_space: Mapping[str, ActionSpace], device: torch.device
) -> TeacherLoss:
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
    return TeacherLoss(load_policy(checkpoint, device))
