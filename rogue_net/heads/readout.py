"""The tokens of a batch as the heads read them.

Shapes: B frames, E tokens, D width, A actors of an action and N actees in all frames together.
"""

from __future__ import annotations

from functools import cached_property

from torch import Tensor

from rogue_net.batch.obs_batch import ObsBatch
from rogue_net.batch.ragged import State


class Readout:
    """The tokens that leave the transformer.

    Args:
        tokens: (E, D).
        batch: whose tokens they are.
        state: what is remembered after each frame; None: nothing.
    """

    def __init__(self, tokens: Tensor, batch: ObsBatch, state: State | None = None) -> None:
        self.tokens, self.batch, self.state = tokens, batch, state

    @cached_property
    def means(self) -> Tensor:
        """(B, D) mean of each frame's tokens, hidden ones included; 0 for a frame without any."""
        return self.batch.frames.means(self.tokens)

    def actors(self, action: str) -> Tensor:
        """(A, D) tokens of the actors."""
        return self.tokens.index_select(0, self.batch.action_tokens[action].actors)

    def actees(self, action: str) -> Tensor | None:
        """(N, D) tokens of the actees; None for actions that select no entity."""
        actees = self.batch.action_tokens[action].actees
        return None if actees is None else self.tokens.index_select(0, actees)
