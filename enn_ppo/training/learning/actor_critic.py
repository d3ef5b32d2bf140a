"""The policy, and what tells values: the policy's own value head, or a network of its own."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

from rogue_net import ActResult, Evaluation, FrameKeys, ObsBatch, RaggedTensor, RogueNet
from rogue_net.heads import ValueHead


class Actor(Protocol):
    """A policy and its value function, as rollouts use them."""

    def act(self, batch: ObsBatch, *, generator: torch.Generator | FrameKeys | None, logits: bool = False) -> ActResult:
        """Sample actions; see `RogueNet.act`."""

    def value(self, batch: ObsBatch) -> Tensor:
        """(B,) values."""


class ActorCritic(nn.Module):
    """A policy and its values, with what training needs of a `RogueNet`.

    Args:
        policy: chooses actions.
        value_net: tells values; None: the policy does.
    """

    def __init__(self, policy: RogueNet, value_net: RogueNet | None = None) -> None:
        super().__init__()
        self.policy = policy
        self.value_net = value_net

    @property
    def value_head(self) -> ValueHead:
        """The head that values come from."""
        return (self.value_net or self.policy).value_head

    @torch.no_grad()
    def act(self, batch: ObsBatch, *, generator: torch.Generator | FrameKeys | None, logits: bool = False) -> ActResult:
        """Sample actions; see `RogueNet.act`."""
        result = self.policy.act(batch, generator=generator, logits=logits)
        return result if self.value_net is None else result._replace(values=self.value_net.value(batch))

    def evaluate(self, batch: ObsBatch, actions: dict[str, RaggedTensor]) -> Evaluation:
        """Log-probs, entropies and values, differentiable; see `RogueNet.evaluate`."""
        result = self.policy.evaluate(batch, actions)
        if self.value_net is None:
            return result
        return result._replace(values=self.value_net.value(batch, drop=self.training))

    def value(self, batch: ObsBatch) -> Tensor:
        """(B,) values alone."""
        return (self.value_net or self.policy).value(batch)

    def update_normalization(self, batch: ObsBatch) -> None:
        """Take the features of `batch` into the running statistics of both."""
        self.policy.update_normalization(batch)
        if self.value_net is not None:
            self.value_net.update_normalization(batch)
