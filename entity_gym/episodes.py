"""Rewards and lengths of episodes, counted from outside: an episode's length is its number of `act` calls, `reset` is none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from entity_gym.vec_obs import VecObs


@dataclass(frozen=True)
class Episode:
    """A finished episode.

    Attributes:
        env_id: the environment that played it.
        reward: sum of its rewards.
        length: number of steps.
        truncated: whether it was cut.
        info: the environment's own `end_of_episode_info`.
    """

    env_id: int
    reward: float
    length: int
    truncated: bool
    info: Mapping[str, Any] = field(default_factory=dict)


class EpisodeTracker:
    """Follows the running episodes of a pool of `num_envs` environments."""

    def __init__(self, num_envs: int) -> None:
        self.rewards: NDArray[np.float64] = np.zeros(num_envs)
        self.lengths: NDArray[np.int64] = np.zeros(num_envs, dtype=np.int64)

    def step(self, obs: VecObs) -> list[Episode]:
        """Take in what `act` returned; returns the episodes that ended with it."""
        self.rewards[obs.env_id] += obs.reward
        self.lengths[obs.env_id] += 1
        finished = []
        for i in np.flatnonzero(obs.done):
            env = int(obs.env_id[i])
            info = obs.end_of_episode_info.get(env, {})
            finished.append(
                Episode(env, float(self.rewards[env]), int(self.lengths[env]), bool(obs.truncated[i]), info)
            )
            self.rewards[env] = 0.0
            self.lengths[env] = 0
        return finished

    def reset(self) -> None:
        """New episodes begin everywhere."""
        self.rewards = np.zeros_like(self.rewards)
        self.lengths = np.zeros_like(self.lengths)

    def state(self) -> dict[str, Any]:
        """The running sums, for `load_state`."""
        return {"rewards": self.rewards.copy(), "lengths": self.lengths.copy()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state` returned."""
        self.rewards = np.array(state["rewards"])
        self.lengths = np.array(state["lengths"])
