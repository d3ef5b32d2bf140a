"""A policy with its value function: the policy's own value head, or a separate value network."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

from rogue_net import ActResult, Evaluation, FrameKeys, ObsBatch, RaggedTensor, RogueNet, State
from rogue_net.heads.heads import ValueHead


class ActingNet(Protocol):
    """A policy and its value function, as rollouts use them."""

    def act(
        self,
        batch: ObsBatch,
        state: State | None = None,
        *,
        generator: torch.Generator | FrameKeys | None,
    ) -> ActResult:
        """Sample actions; see `RogueNet.act`."""

    def value(self, batch: ObsBatch, state: State | None = None) -> Tensor:
        """(B,) values."""


class ActorCritic(nn.Module):
    """A policy and its value function, with the methods of `RogueNet` that training uses.

    The state is that of the policy; a separate value network remembers nothing.

    Args:
        policy: samples actions.
        value_net: estimates values; None: the policy's value head does.
    """

    def __init__(self, policy: RogueNet, value_net: RogueNet | None = None) -> None:
        super().__init__()
        self.policy = policy
        self.value_net = value_net

    @property
    def acting_net(self) -> ActingNet:
        """The network that rollouts act with: the policy, unless values come from a network of their own."""
        return self.policy if self.value_net is None else self

    @property
    def value_head(self) -> ValueHead:
        """The head that estimates values."""
        return (self.value_net or self.policy).value_head

    @torch.no_grad()
    def act(
        self,
        batch: ObsBatch,
        state: State | None = None,
        *,
        generator: torch.Generator | FrameKeys | None,
    ) -> ActResult:
        """Sample actions; see `RogueNet.act`."""
        result = self.policy.act(batch, state, generator=generator)
        return result if self.value_net is None else result._replace(values=self.value_net.value(batch))

    def evaluate(
        self,
        batch: ObsBatch,
        actions: dict[str, RaggedTensor],
        state: State | None = None,
        follows: Tensor | None = None,
    ) -> Evaluation:
        """Log-probs, entropies and values, differentiable; see `RogueNet.evaluate`."""
        result = self.policy.evaluate(batch, actions, state, follows)
        if self.value_net is None:
            return result
        return result._replace(values=self.value_net.value(batch, drop=self.training))

    @torch.no_grad()
    def log_probs(
        self,
        batch: ObsBatch,
        actions: dict[str, RaggedTensor],
        state: State | None = None,
        follows: Tensor | None = None,
    ) -> tuple[dict[str, RaggedTensor], Tensor]:
        """Log-probs of `actions`, and (B,) values, without gradients; dropout as in `evaluate`."""
        program = self.policy.program()
        if program is None:
            found = self.policy.evaluate(batch, actions, state, follows)
            log_probs, values = found.log_probs, found.values
        else:
            log_probs, values = program.evaluate(batch, actions)
        return log_probs, values if self.value_net is None else self.value_net.value(batch)

    def value(self, batch: ObsBatch, state: State | None = None) -> Tensor:
        """(B,) values."""
        return self.policy.value(batch, state) if self.value_net is None else self.value_net.value(batch)

    def update_normalization(self, batch: ObsBatch) -> None:
        """Update the input statistics of both networks with the features of `batch`."""
        self.policy.update_normalization(batch)
        if self.value_net is not None:
            self.value_net.update_normalization(batch)
