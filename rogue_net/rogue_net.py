"""The ragged-batch transformer policy.

Shapes: B frames, E tokens, A actors of an action in all frames together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from entity_gym.ragged import RaggedBufferI64
from entity_gym.spaces import ActionSpace, ObsSpace
from rogue_net.config import RogueNetConfig
from rogue_net.distributions import ActionDistribution
from rogue_net.embedding import Embedding
from rogue_net.heads import ValueHead, make_head
from rogue_net.obs_batch import ObsBatch
from rogue_net.ragged import RaggedTensor
from rogue_net.transformer import Transformer


class ActResult(NamedTuple):
    """What the policy does in B frames."""

    actions: dict[str, RaggedTensor]  # action -> B sequences of (A, 1) int64, see VecEnv.act
    log_probs: dict[str, Tensor]  # action -> (A,) float32
    values: Tensor  # (B,) float32

    def to_buffers(self) -> dict[str, RaggedBufferI64]:
        """The actions as a `VecEnv` takes them. Synchronises with the device."""
        return {
            name: RaggedBufferI64.from_offsets(action.values.cpu().numpy(), action.offsets.cpu().numpy())
            for name, action in self.actions.items()
        }


class Evaluation(NamedTuple):
    """What the policy thinks of given actions in B frames."""

    log_probs: dict[str, Tensor]  # action -> (A,) float32
    entropies: dict[str, Tensor]  # action -> (A,) float32
    values: Tensor  # (B,) float32
    logits: dict[str, Tensor]  # action -> normalized (A, C), or (P,) for select-entity


class RogueNet(nn.Module):
    """Ragged observations in, one decision per actor out.

    Embedding per entity type, `n_layer` transformer blocks over the entities of each frame, one head per action on the
    actors' tokens, and a value from the mean over all tokens. A frame's results do not depend on the other frames.

    Args:
        config: sizes and backend.
        obs_space: what the frames hold.
        action_space: actions by name.

    Raises:
        ValueError: there are no actions.
    """

    def __init__(self, config: RogueNetConfig, obs_space: ObsSpace, action_space: Mapping[str, ActionSpace]) -> None:
        super().__init__()
        if not action_space:
            raise ValueError("the action space is empty; a policy needs at least one action")
        self.config = config
        self.obs_space = obs_space
        self.action_space = dict(action_space)
        self.embedding = Embedding(obs_space, action_space, config.d_model)
        self.transformer = Transformer(config)
        # keyed by position: an action's name may hold what a module's name may not, such as a dot
        self.heads = nn.ModuleList(make_head(space, config.d_model, config.d_qk) for space in action_space.values())
        self.value_head = ValueHead(config.d_model)

    @torch.no_grad()
    def act(self, batch: ObsBatch, greedy: bool = False, generator: torch.Generator | None = None) -> ActResult:
        """Choose actions.

        Args:
            batch: B frames.
            greedy: take the most probable action instead of sampling.
            generator: source of the sampling noise; must be on the batch's device.
        """
        tokens = self._tokens(batch)
        actions, log_probs = {}, {}
        for name, distribution in self._distributions(tokens, batch).items():
            chosen = distribution.mode() if greedy else distribution.sample(generator)
            actions[name] = RaggedTensor(chosen.unsqueeze(1), batch.action_masks[name].actors.offsets)
            log_probs[name] = distribution.log_prob(chosen)
        return ActResult(actions, log_probs, self.value_head(tokens, batch.layout))

    def evaluate(self, batch: ObsBatch, actions: Mapping[str, RaggedTensor]) -> Evaluation:
        """Log-probs and entropies of `actions` (aligned with the batch's actors), and values; differentiable."""
        tokens = self._tokens(batch)
        distributions = self._distributions(tokens, batch)
        return Evaluation(
            log_probs={name: d.log_prob(actions[name].values[:, 0]) for name, d in distributions.items()},
            entropies={name: d.entropy() for name, d in distributions.items()},
            values=self.value_head(tokens, batch.layout),
            logits={name: d.logits for name, d in distributions.items()},
        )

    def value(self, batch: ObsBatch) -> Tensor:
        """(B,) values alone."""
        values: Tensor = self.value_head(self._tokens(batch), batch.layout)
        return values

    def update_normalization(self, batch: ObsBatch) -> None:
        """Take the features of `batch` into the running statistics; nothing else ever changes them."""
        self.embedding.update_normalization(batch)

    def _tokens(self, batch: ObsBatch) -> Tensor:
        tokens: Tensor = self.transformer(self.embedding(batch), batch)
        return tokens

    def _distributions(self, tokens: Tensor, batch: ObsBatch) -> dict[str, ActionDistribution]:
        return {
            name: head(tokens, batch.layout, batch.action_masks[name])
            for name, head in zip(self.action_space, self.heads, strict=True)
        }
