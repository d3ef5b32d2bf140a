"""A policy in the environments of an evaluation, and its value function.

Shapes: B frames.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from enn_ppo.checkpoints import Checkpoint
from enn_ppo.checkpoints.fit import FittedPolicy, fit_policy
from entity_gym.actions import ActionSpace
from entity_gym.batch.vec_obs import VecObs
from entity_gym.spaces import ObsSpace
from rogue_net import ActResult, ObsBatch, RogueNet
from rogue_net.finite import check_finite


@dataclass(frozen=True)
class Critic:
    """The value function of a policy."""

    fitted: FittedPolicy
    unit: float = 1.0  # the reward that equals a value of 1

    def values(self, batch: ObsBatch) -> Tensor:
        """(B,) values of the world's observations, in the unit of rewards."""
        return self.fitted.net.value(self.fitted.adaptor(batch)).cpu() * self.unit

    @torch.no_grad()
    def values_of(self, policy: RogueNet, batch: ObsBatch, result: ActResult) -> Tensor:
        """(B,) as `values`, after `policy` has acted in `batch` with this result: its own value head need not run again."""
        return result.values.cpu() * self.unit if self.fitted.net is policy else self.values(batch)


def fit_critic(
    checkpoint: Checkpoint,
    policy: FittedPolicy,
    obs_space: ObsSpace,
    action_space: Mapping[str, ActionSpace],
    device: torch.device,
    env: str,
) -> Critic:
    """Fit the value function of a checkpoint to the spaces that its policy was fitted to."""
    unit = checkpoint.value_unit
    if "value_net" not in checkpoint.more_weights:
        return Critic(policy, unit)
    fitted = fit_policy(checkpoint, obs_space, action_space, device, env, "value_net")
    return Critic(fitted._replace(net=fitted.net.eval()), unit)


@dataclass(frozen=True)
class Policy:
    """A policy in the environments of an evaluation."""

    fitted: FittedPolicy  # adapted to these environments
    generator: torch.Generator  # of the sampling, on the policy's device
    greedy: bool = False
    logits: bool = False  # whether the logits of all choices are returned too
    critic: Critic | None = None  # None: nobody asks for values

    def act(self, obs: VecObs) -> tuple[ObsBatch, ActResult]:
        """Choose actions. Returns the policy's input, and the result."""
        batch = self.fitted.adaptor(ObsBatch.from_vec_obs(obs, self.generator.device))
        result = self.fitted.net.act(batch, greedy=self.greedy, generator=self.generator, logits=self.logits)
        check_finite(self.fitted.net, batch, result)
        return batch, result
