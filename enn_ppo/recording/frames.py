"""Frames of a recording.

Shapes: B frames (one environment at one step each).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from enn_ppo.frames import Frames


@dataclass(frozen=True, kw_only=True)
class RecordedFrames(Frames):
    """B frames; those of each environment are in the order in which they were played. Values are in the unit of rewards."""

    episode: Tensor  # (B,) int64, a number that no other episode of the recording has

    def returns(self, gamma: float) -> Tensor:
        """Discounted sums of rewards up to the end of each frame's own episode.

            G_t = r_t + γ G_{t+1}

        where G after the last step is 0 if the episode terminated, and the value estimate if it was truncated.

        Args:
            gamma: γ in [0, 1].

        Returns:
            (B,) float32; NaN if the end of the episode is not among these frames, or if it was truncated without a value
            estimate.
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
    """Frames by step, the highest step first: each group has at most one frame of an episode."""
    order = np.argsort(-step, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(step[order])) + 1) if len(order) else []
