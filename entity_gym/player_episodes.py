"""Episodes of worlds with several players, as each of these has played them.

Shapes: N environments, P players.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from entity_gym.episodes import Episode
from entity_gym.obs_rows import CRASHED
from entity_gym.seated_env import final_scores, outcome
from entity_gym.vec_obs import PLAYER_REWARD, VecObs


class PlayersTracker:
    """Follows the running episodes of a pool in which every player has a reward of its own.

    To `end_of_episode_info` is added `policy` (who played the player) and, where others played the other players, who they are
    (`opponent`), what the best of their players scored (`opponent_reward`) and whether that was less (`win_rate`); scores and
    results are those of `SeatedVecEnv`.

    Args:
        num_envs: N.
        played_by: (P,) who plays each player, a name.
    """

    def __init__(self, num_envs: int, played_by: Sequence[str]) -> None:
        self._played_by = played_by
        self.rewards: NDArray[np.float64] = np.zeros((num_envs, len(played_by)))
        self.lengths: NDArray[np.int64] = np.zeros(num_envs, dtype=np.int64)

    def step(self, obs: VecObs, rewards: NDArray[np.float32]) -> list[Episode]:
        """Take in what `act` returned, and (N, P) what it was worth to each player.

        Returns:
            The episodes that ended with it: of each P, those of the players in their order.
        """
        self.rewards[obs.env_id] += rewards
        self.lengths[obs.env_id] += 1
        finished: list[Episode] = []
        for i in np.flatnonzero(obs.done):
            env = int(obs.env_id[i])
            sums, length = self.rewards[env].tolist(), int(self.lengths[env])
            info = obs.end_of_episode_info.get(env, {})
            scores = final_scores(sums, info, PLAYER_REWARD in obs.arrays)
            for player, reward in enumerate(sums):
                told = {**info, **self._told(player, scores, info == CRASHED)}
                finished.append(Episode(env, reward, length, bool(obs.truncated[i]), told))
            self.rewards[env] = 0.0
            self.lengths[env] = 0
        return finished

    def _told(self, player: int, scores: Sequence[float], is_lost: bool) -> dict[str, Any]:
        """What is known of an episode as a player has played it; `is_lost` says that nobody won."""
        own = self._played_by[player]
        others = [other for other, name in enumerate(self._played_by) if name != own]
        if is_lost or not others:
            return {"policy": own}
        names = ", ".join(dict.fromkeys(self._played_by[other] for other in others))
        return {"policy": own, "opponent": names, **outcome([scores[player], *(scores[other] for other in others)], 0)}

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
