"""Pools in which a learner plays one player of each environment, and `Opponents` play the others.

Shapes: N environments, P players.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from entity_gym.batch.vec_obs import VecAction, VecObs
from entity_gym.pools.episodes import outcome
from entity_gym.pools.players import Opponents, Part, PlayerMapping, Seating
from entity_gym.pools.slots import EnvIds, check_state
from entity_gym.pools.vec_env import EnvIdLike, EnvInfo, VecEnv, check_env_id, check_env_info


class SeatedVecEnv(VecEnv):
    """A pool as the learner sees it: one player of each environment is its own, the others move inside.

    Frames are as `Seating.show` has them for the learner's player, with its own reward. To `end_of_episode_info` is added
    `opponent` (its name), `opponent_reward` (the score of the best of the other players) and `win_rate` (1 for a win, 0.5
    for a tie with the best of the others, 0 for a loss). A player's score is the sum of its rewards.

    There is no asynchronous form.

    Args:
        pool: the environments, as all players together see them; steps through this one alone from now on.
        mapping: of their world, see `players_of`.
        opponents: play the other players. The learner's player is `i % num_players` in environment i.
        zero_sum: whether the learner's reward is its own less the mean of the others', in the place of its own.

    Attributes:
        seats: (N,) the learner's player in each environment.
    """

    #: Called with the frames of the opponents, their players and their actions, before a step is taken; None: nobody watches.
    on_opponents: Callable[[VecObs, EnvIds, Mapping[str, VecAction]], None] | None = None

    def __init__(self, pool: VecEnv, mapping: PlayerMapping, opponents: Opponents, zero_sum: bool = False) -> None:
        vars(self).update(vars(pool))  # it steps the same environments
        self.mapping, self.opponents, self._zero_sum = mapping, opponents, zero_sum
        self.seats: NDArray[np.int64] = self._everyone % mapping.num_players
        self._scores = np.zeros((len(pool), mapping.num_players))  # of the running episodes
        self._latest: tuple[Seating, Part] | None = None  # of what was shown last, so that acting on it costs less

    def rotate(self) -> None:
        """Give the learner the next player of each environment, from the next reset on."""
        self.seats = (self.seats + 1) % self.mapping.num_players

    def reset(self, seed: int | None = None, env_info: EnvInfo | None = None) -> VecObs:
        self._check_info(env_info)
        obs = super().reset(seed, env_info)
        self._scores[:] = 0.0
        return self._view(obs)

    def configure(self, env_info: EnvInfo) -> None:
        self._check_info(env_info)
        super().configure(env_info)

    def act(self, actions: Mapping[str, VecAction], env_id: EnvIdLike | None = None) -> VecObs:
        ids = self._everyone if env_id is None else check_env_id(env_id, len(self))
        view = self._view(super().act(self._join(actions, ids), env_id))
        self._count(view)
        return view

    def _submit(self, ids: EnvIds, do: Callable[[int, int, int], None]) -> None:
        raise NotImplementedError(f"{type(self).__name__} has no asynchronous form")

    def state(self) -> dict[str, Any]:
        own = {"scores": self._scores.copy(), "seats": self.seats.copy(), "opponents": self.opponents.state()}
        return {"pool": super().state(), **own}

    def load_state(self, state: Mapping[str, Any]) -> VecObs:
        check_state(state, None, "pool", "scores", "seats", "opponents")
        obs = super().load_state(state["pool"])
        self._scores[:], self.seats = state["scores"], np.array(state["seats"])
        self.opponents.load_state(state["opponents"])
        return self._view(obs)

    def _view(self, obs: VecObs) -> VecObs:
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
            told, faced, reports = view.end_of_episode_info, self.opponents.faced(ended), {}
            for i, scores, opponent in zip(ended.tolist(), self._scores[ended].tolist(), faced, strict=True):
                seat = int(self.seats[i])
                others = [player for player in range(len(scores)) if player != seat]
                reports[i] = {**told.get(i, {}), **outcome(scores, [seat], others), "opponent": opponent}
            view.end_of_episode_info = reports
            self._scores[ended] = 0.0

    def _join(self, actions: Mapping[str, VecAction], ids: EnvIds) -> dict[str, VecAction]:
        """Join the learner's `actions` in the environments `ids` with those of its opponents there."""
        if self._latest is None:
            raise ValueError("act was called before reset")
        seating, part = self._latest
        if not np.array_equal(seating.obs.env_id, ids):
            seating = Seating(self.show(ids), self.mapping)
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
