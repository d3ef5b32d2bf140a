"""Episodes of worlds with several players, as each of the policies that play these has played them.

Shapes: N environments, P players.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from entity_gym.batch.obs_rows import CRASHED
from entity_gym.batch.vec_obs import PLAYER_REWARD, VecObs
from entity_gym.pools.episodes import Episode, RunningEpisodes
from entity_gym.pools.seated_env import final_scores, outcome


class PlayersTracker(RunningEpisodes):
    """Follows the running episodes of a pool in which several policies play, each some of the players.

    The reward of a policy's episode is the mean over its players of the sum of their rewards. To `end_of_episode_info` is added
    `policy` (its name) and, where others play too, who they are (`opponent`), what the best of their players scored
    (`opponent_reward`) and `win_rate`: 1 for a win, 0.5 for a tie with that one, 0 for a loss, as mean over its players. Scores
    are those of `SeatedVecEnv`.

    Args:
        num_envs: N.
        policies: name -> the players that it plays: each of P players once.
        first_env: see `RunningEpisodes`.
    """

    def __init__(self, num_envs: int, policies: Mapping[str, Sequence[int]], first_env: int = 0) -> None:
        super().__init__((sum(len(players) for players in policies.values()),), num_envs, first_env)
        self._policies = policies

    def step(self, obs: VecObs, rewards: NDArray[np.float32]) -> list[dict[str, Episode]]:
        """Take in what `act` returned, and (N, P) what it was worth to each player.

        Returns:
            The episodes that ended with it, each as every policy has played it.
        """
        self.rewards[obs.env_id] += rewards
        self.lengths[obs.env_id] += 1
        finished = []
        for i in np.flatnonzero(obs.done):
            env = int(obs.env_id[i])
            sums, length = self.rewards[env].tolist(), int(self.lengths[env])
            info = obs.end_of_episode_info.get(env, {})
            scores = None if info == CRASHED else final_scores(sums, info, PLAYER_REWARD in obs.arrays)
            episodes = {}
            for name, players in self._policies.items():
                reward = fmean(sums[player] for player in players)
                told = {**info, **self._told(name, scores)}
                episodes[name] = Episode(self.first_env + env, reward, length, bool(obs.truncated[i]), told)
            finished.append(episodes)
            self.rewards[env] = 0.0
            self.lengths[env] = 0
        return finished

    def _told(self, name: str, scores: Sequence[float] | None) -> dict[str, Any]:
        """What an episode was for a policy, by the scores of all players; None: nobody won."""
        others = [other for other in self._policies if other != name]
        if scores is None or not others:
            return {"policy": name}
        theirs = [scores[player] for other in others for player in self._policies[other]]
        results = [outcome([scores[player], *theirs], 0) for player in self._policies[name]]
        win_rate = fmean(result["win_rate"] for result in results)
        return {
            "policy": name,
            "opponent": ", ".join(others),
            "opponent_reward": results[0]["opponent_reward"],
            "win_rate": win_rate,
        }
