"""Pools in which a learner plays one player of each environment, and `Opponents` play the others.

Shapes: N environments, P players.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions import ActionSpace
from entity_gym.batch.vec_obs import PLAYER_REWARD, VecAction, VecObs
from entity_gym.pools.players import Opponents, Part, PlayerMapping, Seating
from entity_gym.pools.pool import SlotVecEnv
from entity_gym.pools.slots import EnvIds, check_state
from entity_gym.pools.vec_env import EnvIdLike, EnvInfo, VecEnv, check_env_id, check_env_info
from entity_gym.spaces import ObsSpace

TIE = 1e-6  # scores that differ by less than this share of their size are equal: sums of float32 rewards are not exact


class SeatedVecEnv(VecEnv):
    """A pool as the learner sees it: one player of each environment is its own, the others move inside.

    Frames are as `Seating.show` has them for the learner's player, with its own reward. To `end_of_episode_info` is added
    `opponent` (its name), `opponent_reward` (the score of the best of the other players) and `win_rate` (1 for a win, 0.5
    for a tie with the best of the others, 0 for a loss). A player's score is the sum of its rewards; where the world does
    not tell them apart, `score_<player>` of its own info if that is there.

    There is no asynchronous form.

    Args:
        pool: the environments; belongs to this one from now on.
        mapping: of their world, see `players_of`.
        opponents: play the other players. The learner's player is `i % num_players` in environment i.
        zero_sum: whether the learner's reward is its own less the mean of the others', in the place of its own.

    Attributes:
        pool: the environments, as all players together see them.
        seats: (N,) the learner's player in each environment.
    """

    #: Called with the frames of the opponents, their players and their actions, before a step is taken; None: nobody watches.
    on_opponents: Callable[[VecObs, EnvIds, Mapping[str, VecAction]], None] | None = None

    def __init__(self, pool: SlotVecEnv, mapping: PlayerMapping, opponents: Opponents, zero_sum: bool = False) -> None:
        self.pool, self.mapping, self.opponents, self._zero_sum = pool, mapping, opponents, zero_sum
        self._everyone: EnvIds = np.arange(len(pool), dtype=np.int64)
        self.seats: NDArray[np.int64] = self._everyone % mapping.num_players
        self._scores = np.zeros((len(pool), mapping.num_players))  # of the running episodes
        self._latest: tuple[Seating, Part] | None = None  # of what was shown last, so that acting on it costs less

    def obs_space(self) -> ObsSpace:
        return self.pool.obs_space()

    def action_space(self) -> Mapping[str, ActionSpace]:
        return self.pool.action_space()

    def __len__(self) -> int:
        return len(self.pool)

    def render(self, env_ids: EnvIdLike) -> list[NDArray[np.uint8]]:
        return self.pool.render(env_ids)

    def close(self) -> None:
        self.pool.close()

    def rotate(self) -> None:
        """Give the learner the next player of each environment, from the next reset on."""
        self.seats = (self.seats + 1) % self.mapping.num_players

    def reset(self, seed: int | None = None, env_info: EnvInfo | None = None) -> VecObs:
        self._check_info(env_info)
        obs = self.pool.reset(seed, env_info)
        self._scores[:] = 0.0
        return self._show(obs)

    def configure(self, env_info: EnvInfo) -> None:
        self._check_info(env_info)
        self.pool.configure(env_info)

    def act(self, actions: Mapping[str, VecAction], env_id: EnvIdLike | None = None) -> VecObs:
        ids = self._everyone if env_id is None else check_env_id(env_id, len(self))
        view = self._show(self.pool.act(self._join(actions, ids), env_id))
        self._count(view)
        return view

    def under_way(self) -> str:
        return self.pool.under_way()

    @property
    def can_save(self) -> bool:
        return self.pool.can_save

    def state(self) -> dict[str, Any]:
        own = {"scores": self._scores.copy(), "seats": self.seats.copy(), "opponents": self.opponents.state()}
        return {"pool": self.pool.state(), **own}

    def load_state(self, state: Mapping[str, Any]) -> VecObs:
        check_state(state, "pool", "scores", "seats", "opponents")
        scores, seats = np.array(state["scores"]), np.array(state["seats"])
        if scores.shape != self._scores.shape:
            raise ValueError(
                f"the saved state has {scores.shape[0]} environments of {scores.shape[1]} players; this pool has "
                f"{self._scores.shape[0]} of {self._scores.shape[1]}"
            )
        self._scores, self.seats = scores, seats
        self.opponents.load_state(state["opponents"])
        return self._show(self.pool.load_state(state["pool"]))

    def clone(self) -> Self:
        twin = copy.copy(self)
        twin.pool, twin.opponents = self.pool.clone(), self.opponents.clone()
        twin.seats, twin._scores = self.seats.copy(), self._scores.copy()
        return twin

    def _show(self, obs: VecObs) -> VecObs:
        """Return the learner's view of frames that all players see."""
        seating = Seating(obs, self.mapping)
        part = seating.part(self.seats[obs.env_id])
        self._latest = seating, part
        view = seating.show(part)
        if self._zero_sum:
            others = seating.rewards.sum(axis=1) - view.reward
            view.reward = view.reward - others / max(1, self.mapping.num_players - 1)
        return view

    def _count(self, view: VecObs) -> None:
        """Count the rewards of a step, and report the results of the episodes that ended with it."""
        assert self._latest is not None
        seating = self._latest[0]
        self._scores[view.env_id] += seating.rewards
        ended = view.env_id[view.done]
        if len(ended):
            told, players_are_told = view.end_of_episode_info, PLAYER_REWARD in seating.obs.arrays
            faced, reports = self.opponents.faced(ended), {}
            for i, scores, opponent in zip(ended.tolist(), self._scores[ended].tolist(), faced, strict=True):
                scores = final_scores(scores, told.get(i, {}), players_are_told)
                reports[i] = {**told.get(i, {}), **outcome(scores, int(self.seats[i])), "opponent": opponent}
            view.end_of_episode_info = reports
            self._scores[ended] = 0.0

    def _join(self, actions: Mapping[str, VecAction], ids: EnvIds) -> dict[str, VecAction]:
        """Join the learner's `actions` in the environments `ids` with those of its opponents there."""
        if self._latest is None:
            raise ValueError("act was called before reset")
        seating, part = self._latest
        if not np.array_equal(seating.obs.env_id, ids):
            seating = Seating(self.pool.show(ids), self.mapping)
            part = seating.part(self.seats[ids])
        num_players = self.mapping.num_players
        others = [seating.part((part.seats + k) % num_players) for k in range(1, num_players)]
        parts = [(part, actions)]
        if others:  # all of them at once, which is what costs a policy least
            frames = VecObs.cat([seating.show(other) for other in others])
            theirs = self.opponents.act(frames, np.tile(ids, len(others)))
            if self.on_opponents is not None:
                self.on_opponents(frames, np.concatenate([other.seats for other in others]), theirs)
            for k, other in enumerate(others):
                rows = slice(k * len(ids), (k + 1) * len(ids))
                own = theirs if len(others) == 1 else {name: buffer[rows] for name, buffer in theirs.items()}
                parts.append((other, own))
        return seating.join(parts)

    def _check_info(self, env_info: EnvInfo | None) -> None:
        """Refuse parameters that decide who owns what."""
        for i, info in enumerate([] if env_info is None else check_env_info(env_info, len(self))):
            for name in self.mapping.fixed:
                if name in info:
                    raise ValueError(
                        f"env_info of environment {i} has {name!r}, on which it depends what belongs to which player: "
                        "it cannot change between episodes that are played against opponents"
                    )


def final_scores(sums: Sequence[float], info: Mapping[str, Any], players_are_told: bool) -> Sequence[float]:
    """Return the score of each player in an episode: the sum of its rewards.

    Args:
        sums: of each player's rewards.
        info: of the episode.
        players_are_told: whether the world tells rewards apart; if not, `score_<player>` of `info`, where it is there, does.
    """
    names = [f"score_{player}" for player in range(len(sums))]
    if not players_are_told and info.keys() >= set(names):
        return [float(info[name]) for name in names]
    return sums


def outcome(scores: Sequence[float], player: int) -> dict[str, float]:
    """Return `win_rate` and `opponent_reward` of a player in a game with these scores; empty for a single player."""
    others = [score for other, score in enumerate(scores) if other != player]
    if not others:
        return {}
    own, best = scores[player], max(others)
    is_tie = abs(own - best) <= TIE * max(1.0, abs(own), abs(best))
    return {"opponent_reward": best, "win_rate": 0.5 if is_tie else float(own > best)}
