"""Rewards and lengths of episodes, counted from outside: an episode's length is its number of `act` calls, `reset` is none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from entity_gym.batch.vec_obs import VecObs

TIE = 1e-6  # scores that differ by less than this share of their size are equal: sums of float32 rewards are not exact


class Episode(NamedTuple):
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
    info: Mapping[str, Any] = {}


class EpisodeTracker:
    """Follows the running episodes of a pool in which one policy plays, or several, each some of the players.

    With several policies the reward of a policy's episode is the mean over its players of the sum of their rewards. To
    `end_of_episode_info` is added `policy` (its name) and, where others play too, who they are (`opponent`), what the best of
    their players scored (`opponent_reward`) and `win_rate`: 1 for a win, 0.5 for a tie with that one, 0 for a loss, as mean
    over its players. A player's score is the sum of its rewards.

    Args:
        num_envs: N.
        first_env: the number of environment 0, where these are a part of more; episodes tell their environment's.
        policies: name -> the players that it plays: each of P players once. None: one policy plays all.

    Attributes:
        rewards: (N,) sums of the running episodes; with several policies (N, P), of each player.
        lengths: (N,) numbers of steps.
    """

    def __init__(self, num_envs: int, first_env: int = 0, policies: Mapping[str, Sequence[int]] | None = None) -> None:
        self.first_env = first_env
        self._policies = policies or {}
        players = [] if policies is None else [sum(map(len, policies.values()))]
        self.rewards: NDArray[np.float64] = np.zeros((num_envs, *players))
        self.lengths: NDArray[np.int64] = np.zeros(num_envs, dtype=np.int64)
        self._all = np.arange(num_envs)

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

    def step(self, obs: VecObs) -> list[Episode]:
        """Take in what `act` returned; returns the episodes that ended with it."""
        return list(map(Episode._make, self._ended(obs, obs.reward)))

    def step_players(self, obs: VecObs, rewards: NDArray[np.float32]) -> dict[str, list[Episode]]:
        """Take in what `act` returned, and (n, P) what it was worth to each player.

        Returns:
            Policy -> the episodes that ended with it, as this policy has played them.
        """
        finished: dict[str, list[Episode]] = {name: [] for name in self._policies}
        for env, sums, length, truncated, info in self._ended(obs, rewards):
            for name, players in self._policies.items():
                others = [other for other in self._policies if other != name]
                results = outcome(sums, players, [player for other in others for player in self._policies[other]])
                told = {**info, "policy": name, **({"opponent": ", ".join(others)} if others else {}), **results}
                finished[name].append(Episode(env, fmean(sums[player] for player in players), length, truncated, told))
        return finished

    def _ended(self, obs: VecObs, rewards: NDArray[np.float32]) -> Iterable[tuple[Any, ...]]:
        """Add up a step; returns the environment, rewards, length, end and info of each episode that it ended."""
        if len(obs.env_id) == len(self._all) and (obs.env_id == self._all).all():
            self.rewards += rewards  # a step of all environments, the usual one: indexing takes many times as long
            self.lengths += 1
        else:
            self.rewards[obs.env_id] += rewards
            self.lengths[obs.env_id] += 1
        (frames,) = obs.done.nonzero()
        if len(frames) == 0:
            return []
        envs = obs.env_id[frames]
        columns = (envs + self.first_env, self.rewards[envs], self.lengths[envs], obs.truncated[frames])
        self.rewards[envs], self.lengths[envs] = 0.0, 0
        told = obs.end_of_episode_info
        infos = [told.get(env, {}) for env in envs.tolist()]
        return zip(*(column.tolist() for column in columns), infos, strict=True)


def outcome(scores: Sequence[float], mine: Sequence[int], theirs: Sequence[int]) -> dict[str, float]:
    """Return `win_rate`, the mean over the players `mine`, and `opponent_reward` of a game; empty without other players."""
    if not theirs:
        return {}
    best = max(scores[player] for player in theirs)
    results = [
        0.5 if abs(scores[player] - best) <= TIE * max(1.0, abs(scores[player]), abs(best)) else scores[player] > best
        for player in mine
    ]
    return {"opponent_reward": best, "win_rate": fmean(results)}
