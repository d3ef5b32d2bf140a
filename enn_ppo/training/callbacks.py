"""Callbacks, for your own code during training: `train(config, callbacks=[MyCallback()])`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from enn_ppo.training.tracking.logger import Row

if TYPE_CHECKING:
    from entity_gym.pools.episodes import Episode
    from rogue_net import RogueNet


@dataclass
class Update:
    """A finished update."""

    step: int  # environment steps trained
    row: Row  # its metrics, already logged: additions have no effect
    fetch_policy: Callable[[], RogueNet]
    stopped: bool = False
    policy_name: str | None = None  # None in a run with one policy

    @property
    def policy(self) -> RogueNet:
        """The current policy; on Ray a copy, fetched from the learner on first use."""
        return self.fetch_policy()

    def stop(self) -> None:
        """End the training after this update, with a checkpoint."""
        self.stopped = True


class Callback:
    """Methods that the trainer calls; override those you need. Exceptions that they raise end the training.

    In a run with several policies, the methods are called for one policy after the other, in the order of the setting.
    `Update.policy_name`, `policy` in an episode's info, and the folder of a checkpoint name the policy.

    A resumed run equals the uninterrupted one only if `env_info` depends on its arguments alone.
    """

    def on_update(self, update: Update) -> None:
        """Called after every update."""

    def on_episode(self, episode: Episode) -> None:
        """Called for every training episode that ended, in order, before `on_update`."""

    def on_checkpoint(self, path: Path, step: int) -> None:
        """Called after a checkpoint was written into the folder `path`."""

    def env_info(self, progress: float, num_envs: int, rng: np.random.Generator) -> Mapping[str, Sequence[Any]] | None:
        """Parameters for the episodes that begin from now on: name -> a value for each environment; None leaves them as they are.

        Called when a run begins, before its first episodes, and before every update. A later callback overrides earlier ones
        and the setting `env.info`. `progress` is that of the training, 0 to 1; `rng` is seeded with the run's seed and the step.
        """
        return None
