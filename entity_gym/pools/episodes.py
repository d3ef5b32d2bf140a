"""Rewards and lengths of episodes, counted from outside: an episode's length is its number of `act` calls, `reset` is none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from entity_gym.batch.vec_obs import VecObs


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


class RunningEpisodes:
    """What the running episodes of a pool have come to.

    Args:
        rewards: () for each environment, or (P,) for each of its players.
        num_envs: N.
        first_env: the number of environment 0, where these are a part of more; episodes tell their environment's.
    """

    def __init__(self, rewards: tuple[int, ...], num_envs: int, first_env: int = 0) -> None:
        self.first_env = first_env
        self.rewards: NDArray[np.float64] = np.zeros((num_envs, *rewards))
        self.lengths: NDArray[np.int64] = np.zeros(num_envs, dtype=np.int64)

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


class EpisodeTracker(RunningEpisodes):
    """Follows the running episodes of a pool of `num_envs` environments; see `RunningEpisodes`."""

    def __init__(self, num_envs: int, first_env: int = 0) -> None:
        super().__init__((), num_envs, first_env)

    def step(self, obs: VecObs) -> list[Episode]:
        """Take in what `act` returned; returns the episodes that ended with it."""
        self.rewards[obs.env_id] += obs.reward
        self.lengths[obs.env_id] += 1
        finished = []
        for i in np.flatnonzero(obs.done):
            env = int(obs.env_id[i])
            info = obs.end_of_episode_info.get(env, {})
            reward, length = float(self.rewards[env]), int(self.lengths[env])
            finished.append(Episode(self.first_env + env, reward, length, bool(obs.truncated[i]), info))
            self.rewards[env] = 0.0
            self.lengths[env] = 0
        return finished
