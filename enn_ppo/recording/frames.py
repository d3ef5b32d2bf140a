"""Frames that were played: what was seen, what was done, and what came of it.

Shapes: B frames (one environment at one step each), A actors of an action in all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rogue_net import ObsBatch, RaggedTensor
from rogue_net.ragged import cat_ragged


@dataclass(frozen=True)
class Frames:
    """B frames, those of each environment in the order in which they were played."""

    obs: ObsBatch
    env_id: Tensor  # (B,) int64, the environment
    step: Tensor  # (B,) int64, of its episode; 0 for the first
    actions: dict[str, RaggedTensor]  # action -> B sequences of (A, 1) int64 or (A, n) float32
    log_probs: dict[str, RaggedTensor]  # action -> B sequences of (A,) float32
    logits: dict[str, RaggedTensor] | None  # action -> as `ActResult.logits`; None where they were not kept
    values: Tensor  # (B,) float32, what the policy expected
    rewards: Tensor  # (B,) float32, for the actions taken in this frame
    terminated: Tensor  # (B,) bool, the episode ended by its own rules with these actions
    truncated: Tensor  # (B,) bool, it was cut after them
    final_values: (
        Tensor  # (B,) float32, what the policy expected of the last observation, where truncated; NaN: unknown
    )

    def __len__(self) -> int:
        return len(self.rewards)

    def gather(self, frames: Tensor) -> Self:
        """The frames numbered `frames` (int64), in that order."""
        return replace(self, **{each.name: _gather(getattr(self, each.name), frames) for each in fields(self)})

    def to(self, device: torch.device) -> Self:
        """The same frames on another device."""
        moved: Self = _to(self, device)
        return moved

    @classmethod
    def cat(cls, parts: Sequence[Self]) -> Self:
        """All frames of the first part, then all of the second, and so on; logits are kept where all parts have them."""
        if len(parts) == 1:
            return parts[0]
        return cls(**{each.name: _cat([getattr(part, each.name) for part in parts]) for each in fields(cls)})


@dataclass(frozen=True)
class RecordedFrames(Frames):
    """Frames as a recording holds them."""

    episode: Tensor  # (B,) int64, a number that no other episode of the recording has

    def returns(self, gamma: float) -> Tensor:
        """Discounted sums of rewards up to the end of each frame's own episode.

            G_t = r_t + γ G_{t+1}

        where G after the last step is 0 if the episode terminated, and what the policy expected if it was truncated.

        Args:
            gamma: γ in [0, 1].

        Returns:
            (B,) float32; NaN where it is not known: the end of the episode is not among these frames, or it was truncated
            and nothing is known about what would have followed.
        """
        rewards, final = self.rewards.double().numpy(), self.final_values.double().numpy()
        # G of what follows, at the last frame of an episode; frames before it take it from the frame after them
        following = np.where(self.terminated.numpy(), 0.0, np.where(self.truncated.numpy(), final, np.nan))
        _, episode = np.unique(self.episode.numpy(), return_inverse=True)
        later: NDArray[np.float64] = np.full(int(episode.max(initial=-1)) + 1, np.nan)
        reached = np.zeros(len(later), np.bool_)  # whether a later frame of the episode has been seen
        returns = np.empty(len(rewards))
        for rows in _backwards(self.step.numpy()):
            own = episode[rows]
            returns[rows] = rewards[rows] + gamma * np.where(reached[own], later[own], following[rows])
            later[own], reached[own] = returns[rows], True
        return torch.from_numpy(returns).float()


def _backwards(step: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """The frames of the highest step, then of the next lower, and so on: each has at most one frame of an episode."""
    order = np.argsort(-step, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(step[order])) + 1) if len(order) else []


def _gather(value: Any, frames: Tensor) -> Any:
    if isinstance(value, dict):
        return {name: ragged.gather(frames) for name, ragged in value.items()}
    return None if value is None else value[frames]


def _cat(values: Sequence[Any]) -> Any:
    first = values[0]
    if any(value is None for value in values):
        return None
    if isinstance(first, dict):
        return {name: cat_ragged([value[name] for value in values]) for name in first}
    return ObsBatch.cat(values) if isinstance(first, ObsBatch) else torch.cat(list(values))


def _to(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, RaggedTensor):
        return RaggedTensor(*(each.to(device) for each in value))
    if isinstance(value, dict):
        return {name: _to(each, device) for name, each in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{each.name: _to(getattr(value, each.name), device) for each in fields(value)})
    return value
