"""Pools in which a learner plays one player of each environment, and `Opponents` play the others.

Shapes: N environments, P players.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions import ActionSpace
from entity_gym.batch.obs_rows import Shown
from entity_gym.batch.vec_obs import PLAYER_REWARD, VecAction, VecObs
from entity_gym.pools.players import Opponents, Part, PlayerMapping, Seating
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
        opponents: play the other players.
        seats: (N,) the learner's player in each environment. None: `i % num_players` in environment i.
        zero_sum: whether the learner's reward is its own less the mean of the others', in the place of its own.

    Attributes:
        pool: the environments, as all players together see them.

    Raises:
        ValueError: a seat that is none of the players.
    """

    pool: VecEnv
    #: Called with the frames of the opponents, their players and their actions, before a step is taken; None: nobody watches.
    on_opponents: Callable[[VecObs, EnvIds, Mapping[str, VecAction]], None] | None = None

    def __init__(
        self,
        pool: VecEnv,
        mapping: PlayerMapping,
        opponents: Opponents,
        seats: Sequence[int] | None = None,
        zero_sum: bool = False,
    ) -> None:
        self.pool = pool
        self.mapping, self.opponents, self._zero_sum = mapping, opponents, zero_sum
        num_envs, num_players = len(pool), mapping.num_players
        self._everyone: EnvIds = np.arange(num_envs, dtype=np.int64)
        self._seats: NDArray[np.int64] = self._everyone % num_players if seats is None else np.array(seats, np.int64)
        if self._seats.shape != (num_envs,) or not ((self._seats >= 0) & (self._seats < num_players)).all():
            raise ValueError(
                f"seats are {seats!r:.200}; give one of the players 0 to {num_players - 1} for each of {num_envs} environments"
            )
        self._scores = np.zeros((num_envs, num_players))  # of the running episodes
        self._shown = Shown(num_envs)
        self._latest: tuple[Seating, Part] | None = None  # of what was shown last, so that acting on it costs less

    def obs_space(self) -> ObsSpace:
        return self.pool.obs_space()

    def action_space(self) -> Mapping[str, ActionSpace]:
        return self.pool.action_space()

    def __len__(self) -> int:
        return len(self.pool)

    def render(self, env_ids: EnvIdLike) -> list[NDArray[np.uint8]]:
        return self.pool.render(env_ids)

    @property
    def seats(self) -> NDArray[np.int64]:
        """(N,) the learner's player in each environment."""
        return self._seats.copy()

    def close(self) -> None:
        self.pool.close()

    def rotate(self) -> None:
        """Give the learner the next player of each environment, from the next reset on."""
        self._seats = (self._seats + 1) % self.mapping.num_players

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
        return self._show_step(self.pool.act(self._join(actions, ids), env_id))

    def under_way(self) -> str:
        return self.pool.under_way()

    @property
    def can_save(self) -> bool:
        return self.pool.can_save

    def state(self) -> dict[str, Any]:
        own = {"scores": self._scores.copy(), "seats": self._seats.copy(), "opponents": self.opponents.state()}
        return {"pool": self.pool.state(), **own}

    def load_state(self, state: Mapping[str, Any]) -> VecObs:
        check_state(state, "pool", "scores", "seats", "opponents")
        scores, seats = np.array(state["scores"]), np.array(state["seats"])
        if scores.shape != self._scores.shape:
            raise ValueError(
                f"the saved state has {scores.shape[0]} environments of {scores.shape[1]} players; this pool has "
                f"{self._scores.shape[0]} of {self._scores.shape[1]}"
            )
        self._scores, self._seats = scores, seats
        self.opponents.load_state(state["opponents"])
        return self._show(self.pool.load_state(state["pool"]))

    def clone(self) -> Self:
        twin = copy.copy(self)
        twin.pool, twin.opponents = self.pool.clone(), self.opponents.clone()
        twin._seats, twin._scores, twin._shown = self._seats.copy(), self._scores.copy(), self._shown.copy()
        return twin

    def _show(self, obs: VecObs) -> VecObs:
        """Return the learner's view of frames that all players see."""
        self._shown.record(obs)
        seating = Seating(obs, self.mapping)
        part = seating.part(self._seats[obs.env_id])
        self._latest = seating, part
        view = seating.show(part)
        if self._zero_sum:
            others = seating.rewards.sum(axis=1) - view.reward
            view.reward = view.reward - others / max(1, self.mapping.num_players - 1)
        return view

    def _show_step(self, obs: VecObs) -> VecObs:
        """Return the learner's view of what a step led to, and count its rewards.

        Reports of the episodes that ended get `opponent`, `opponent_reward` and `win_rate`.
        """
        view = self._show(obs)
        assert self._latest is not None
        self._scores[obs.env_id] += self._latest[0].rewards
        if obs.done.any():
            view.end_of_episode_info = self._reports(obs)
        return view

    def _reports(self, obs: VecObs) -> Mapping[int, Mapping[str, Any]]:
        """Return the reports of the episodes that ended, and start the next ones with a score of 0."""
        ended = obs.env_id[obs.done]
        row_of = {env_id: row for row, env_id in enumerate(ended.tolist())}
        scores, seats, opponents = self._scores[ended], self._seats[ended], self.opponents.faced(ended)
        self._scores[ended] = 0.0
        reported, players_are_told = obs.end_of_episode_info, PLAYER_REWARD in obs.arrays  # `obs` itself is let go

        def report(env_id: int) -> Mapping[str, Any]:
            row, info = row_of[env_id], reported.get(env_id, {})
            of_players = final_scores(scores[row].tolist(), info, players_are_told)
            return {**info, **outcome(of_players, int(seats[row])), "opponent": opponents[row]}

        return _OnDemand(row_of, report)

    def _join(self, actions: Mapping[str, VecAction], ids: EnvIds) -> dict[str, VecAction]:
        """Join the learner's `actions` in the environments `ids` with those of its opponents there."""
        if self._latest is None:
            raise ValueError("act was called before reset")
        seating, part = self._latest
        if not np.array_equal(seating.obs.env_id, ids):
            seating = Seating(self._shown.frames(ids), self.mapping)
            part = seating.part(self._seats[ids])
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


class _OnDemand(Mapping[int, Mapping[str, Any]]):
    """Reports of episodes by environment, each made when it is read: most are not."""

    def __init__(self, env_ids: Collection[int], report: Callable[[int], Mapping[str, Any]]) -> None:
        self._env_ids, self._report = env_ids, report

    def __getitem__(self, env_id: int) -> Mapping[str, Any]:
        return self._report(env_id)  # raises KeyError for others

    def __iter__(self) -> Iterator[int]:
        return iter(self._env_ids)

    def __len__(self) -> int:
        return len(self._env_ids)


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
