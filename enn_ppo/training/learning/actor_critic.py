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

    With a separate value network, the state has a part for each network that remembers: `policy` and `value`.

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

    @property
    def remembers(self) -> bool:
        """Whether decisions or values depend on a state."""
        return self.policy.remembers or (self.value_net is not None and self.value_net.remembers)

    @torch.no_grad()
    def act(
        self,
        batch: ObsBatch,
        state: State | None = None,
        *,
        generator: torch.Generator | FrameKeys | None,
    ) -> ActResult:
        """Sample actions; see `RogueNet.act`."""
        if self.value_net is None:
            return self.policy.act(batch, state, generator=generator)
        result = self.policy.act(batch, part_of(state, "policy"), generator=generator)
        after: State = {} if result.state is None else {"policy": result.state}
        if not self.value_net.remembers:
            return result._replace(values=self.value_net.value(batch), state=after or None)
        values, of_value = self.value_net.value_and_state(batch, part_of(state, "value"))
        assert of_value is not None
        return result._replace(values=values, state=after | {"value": of_value})

    def evaluate(
        self,
        batch: ObsBatch,
        actions: dict[str, RaggedTensor],
        state: State | None = None,
        follows: Tensor | None = None,
    ) -> Evaluation:
        """Log-probs, entropies and values, differentiable; see `RogueNet.evaluate`."""
        if self.value_net is None:
            return self.policy.evaluate(batch, actions, state, follows)
        result = self.policy.evaluate(batch, actions, part_of(state, "policy"), follows)
        values = self.value_net.value(batch, part_of(state, "value"), follows, drop=self.training)
        return result._replace(values=values)

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
            found = self.evaluate(batch, actions, state, follows)
            return found.log_probs, found.values
        own = state if self.value_net is None else part_of(state, "policy")
        log_probs, values = program.evaluate(batch, actions, own, follows)
        if self.value_net is not None:
            values = self.value_net.value(batch, part_of(state, "value"), follows)
        return log_probs, values

    def value(self, batch: ObsBatch, state: State | None = None) -> Tensor:
        """(B,) values."""
        if self.value_net is None:
            return self.policy.value(batch, state)
        return self.value_net.value(batch, part_of(state, "value"))

    def update_normalization(self, batch: ObsBatch) -> None:
        """Update the input statistics of both networks with the features of `batch`."""
        self.policy.update_normalization(batch)
        if self.value_net is not None:
            self.value_net.update_normalization(batch)


def part_of(state: State | None, network: str) -> State | None:
    """The part of a state that one of two networks remembers, `policy` or `value`."""
    part = None if state is None else state.get(network)
    assert not isinstance(part, RaggedTensor)
    return part
