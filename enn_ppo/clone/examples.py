"""Data of behavioural cloning: recorded frames with their returns, for training and held out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from enn_ppo.clone.config import CloneConfig
from enn_ppo.training.recording import RecordedFrames, read_all, read_header
from entity_gym.actions import ActionSpace
from entity_gym.batch.saving import spaces_difference, spaces_to_dict
from entity_gym.spaces import ObsSpace


@dataclass(frozen=True, kw_only=True)
class Examples(RecordedFrames):
    """B recorded frames, and the regression targets of their values."""

    value_targets: Tensor  # (B,) float32, NaN where unknown; see `RecordedFrames.returns`

    @staticmethod
    def of(frames: RecordedFrames, gamma: float) -> Examples:
        """Add returns to recorded frames."""
        return Examples(**vars(frames), value_targets=frames.returns(gamma))

    @property
    def num_episodes(self) -> int:
        """Number of episodes."""
        return len(torch.unique(self.episode))


def load_examples(
    config: CloneConfig, obs_space: ObsSpace, action_space: Mapping[str, ActionSpace], env_name: str
) -> Examples:
    """Read recordings into memory.

    Raises:
        ValueError: a file cannot be read, belongs to another environment, or lacks the logits that the loss needs.
    """
    for path in config.files:
        header = read_header(path)
        recorded, now = (spaces_to_dict(*spaces) for spaces in (header[:2], (obs_space, action_space)))
        difference = spaces_difference(recorded, now)
        if difference:
            raise ValueError(f"data {path} was recorded in another environment than {env_name}: {difference}")
        if config.clone.loss == "kl" and not header.logits:
            raise ValueError(
                f"clone.loss=kl needs the logits of all choices, and data {path} was recorded without: record with "
                "record_logits=true, or take clone.loss=cross_entropy"
            )
    frames = read_all(config.files)
    if config.clone.loss != "kl":
        frames = replace(frames, logits=None)
    return Examples.of(frames, config.ppo.schedules["gamma"](0.0))


def hold_out(examples: Examples, share: float, seed: int) -> tuple[Examples, Examples]:
    """Hold out a random fraction of the episodes; at least one unless `share` is 0.

    Returns:
        The training examples, and the held-out examples.

    Raises:
        ValueError: there is only one episode.
    """
    episodes = torch.unique(examples.episode)
    number = min(max(1, round(share * len(episodes))), len(episodes) - 1) if share else 0
    if share and not number:
        raise ValueError(
            f"data holds 1 episode, and clone.holdout={share} keeps whole episodes apart: record more, or "
            "hold none out with clone.holdout=0"
        )
    chosen = torch.randperm(len(episodes), generator=torch.Generator().manual_seed(seed))[:number]
    is_held_out = torch.isin(examples.episode, episodes[chosen])
    return examples.gather((~is_held_out).nonzero()[:, 0]), examples.gather(is_held_out.nonzero()[:, 0])
