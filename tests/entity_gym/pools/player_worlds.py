"""A small world of two players, and who plays in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from entity_gym import (
    Action,
    ActionSpace,
    CategoricalAction,
    CategoricalActionMask,
    CategoricalActionSpace,
    Entity,
    Environment,
    Observation,
    ObsSpace,
    SelectEntitiesAction,
    SelectEntitiesActionMask,
    SelectEntitiesActionSpace,
)
from entity_gym.actions.choices import random_actions
from entity_gym.batch.batching import batch_observations
from entity_gym.batch.ragged import RaggedBuffer
from entity_gym.batch.vec_obs import VecAction, VecObs
from entity_gym.pools.players import PlayerMapping, Seating, players_of
from tests.worlds import choose


def split(obs: VecObs, mapping: PlayerMapping, player: Any) -> VecObs:
    """Return the frames as a player sees them: one, or (N,) one for each frame."""
    seating = Seating(obs, mapping)
    return seating.show(seating.part(player))


def join(obs: VecObs, mapping: PlayerMapping, parts: Any) -> dict[str, VecAction]:
    """Join the actions of players: (player, actions) of each."""
    seating = Seating(obs, mapping)
    return seating.join([(seating.part(player), actions) for player, actions in parts])


class Duel(Environment):
    """Two players with some pawns each bid 0, 1 or 2 a pawn, for three rounds. A player earns what its pawns bid.

    `visitors` of the first player come in every round. The episode is truncated where `cut` is set.
    """

    def __init__(self, pawns: int = 1, cut: bool = False, tells: bool = True) -> None:
        self.pawns, self.cut, self.tells = pawns, cut, tells
        self.round = 0
        self.scores = [0.0, 0.0]

    @staticmethod
    def num_players(values: Mapping[str, Any]) -> int:
        return 2

    @staticmethod
    def players(values: Mapping[str, Any], entity_type: str, rows: NDArray[np.float32]) -> NDArray[np.int64]:
        return rows[:, 0].astype(np.int64)

    @staticmethod
    def seen_by(values: Mapping[str, Any], player: Any, entity_type: str, rows: NDArray[np.float32]) -> Any:
        seen = rows.copy()
        if entity_type == "Pawn":
            seen[:, 0] = (rows[:, 0] - player) % 2  # 0: mine
        return seen

    def obs_space(self) -> ObsSpace:
        return ObsSpace({"Stone": Entity([]), "Pawn": Entity(["owner", "round"])}, global_features=["round"])

    def action_space(self) -> Mapping[str, ActionSpace]:
        return {"bid": CategoricalActionSpace(["0", "1", "2"])}

    def reset(self) -> Observation:
        self.round, self.scores = 0, [0.0, 0.0]
        return self._show([0.0, 0.0])

    def configure(self, info: Mapping[str, Any]) -> None:
        for name, value in info.items():
            setattr(self, name, value)

    def act(self, actions: Mapping[str, Action]) -> Observation:
        bid = actions["bid"]
        assert isinstance(bid, CategoricalAction)
        earned = [0.0, 0.0]
        for (player, _), choice in zip(bid.actors, bid.actions, strict=True):
            earned[player] += float(choice)
        self.round += 1
        self.scores = [score + more for score, more in zip(self.scores, earned, strict=True)]
        return self._show(earned)

    def state(self) -> dict[str, Any]:
        return {"round": self.round, "scores": list(self.scores)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.round, self.scores = state["round"], list(state["scores"])

    def _show(self, earned: list[float]) -> Observation:
        done = self.round == 3
        pawns = [(player, i) for i in range(self.pawns) for player in (0, 1)]  # they stand by turns
        info = {"score_0": self.scores[0], "score_1": self.scores[1]}
        return Observation(
            features={"Stone": np.zeros((2, 0)), "Pawn": [[player, self.round] for player, _ in pawns]},
            ids={"Pawn": pawns},
            actions={"bid": CategoricalActionMask(actor_types=["Pawn"])},
            global_features=[self.round],
            reward=sum(earned),
            done=done,
            truncated=done and self.cut,
            player_rewards=earned if self.tells else (),
            end_of_episode_info=info if done else None,
        )


class Picnic(Duel):
    """Players that stand by turns invite pawns and pick baskets, in order. `invited` and `picked` are what the last step said.

    A pawn cannot invite itself, and picks baskets with even numbers if its own number is even, otherwise any.
    """

    invited: SelectEntitiesAction
    picked: SelectEntitiesAction

    def obs_space(self) -> ObsSpace:
        return ObsSpace({"Basket": Entity(["owner"]), "Pawn": Entity(["owner", "round"])})

    def action_space(self) -> Mapping[str, ActionSpace]:
        return {
            "invite": SelectEntitiesActionSpace(exclude_self=True),
            "pick": SelectEntitiesActionSpace(ordered=True, max=2),
            "bid": CategoricalActionSpace(["0", "1", "2"]),
        }

    def act(self, actions: Mapping[str, Action]) -> Observation:
        invited, picked = actions["invite"], actions["pick"]
        assert isinstance(invited, SelectEntitiesAction) and isinstance(picked, SelectEntitiesAction)
        self.invited, self.picked = invited, picked
        return super().act(actions)

    def _show(self, earned: list[float]) -> Observation:
        obs = super()._show(earned)
        obs.global_features, obs.features["Basket"] = (), [[0]] * 3
        del obs.features["Stone"]  # type: ignore[attr-defined]
        obs.ids = {**obs.ids, "Basket": ["apple", "bread", "cake"]}
        pawns = obs.ids["Pawn"]
        obs.actions = {
            **obs.actions,
            "invite": SelectEntitiesActionMask(actor_types=["Pawn"], actee_types=["Pawn"]),
            "pick": SelectEntitiesActionMask(
                actor_ids=[*pawns[::2], *pawns[1::2]][::-1],
                actee_types=["Basket"],
                mask=[[True, i % 2 == 1, True] for _, i in [*pawns[::2], *pawns[1::2]][::-1]],  # type: ignore[misc]
            ),
        }
        return obs


class Bidder:
    """Bids the same each time, and remembers what it was shown."""

    def __init__(self, bid: int) -> None:
        self.bid = bid
        self.shown: list[VecObs] = []

    def act(self, obs: VecObs, env_id: NDArray[np.int64]) -> dict[str, VecAction]:
        assert obs.env_id.tolist() == env_id.tolist()
        self.shown.append(obs)
        actors = obs.action_masks["bid"].actors
        return {"bid": RaggedBuffer(np.full_like(actors.values, self.bid), actors.offsets)}

    def faced(self, env_id: NDArray[np.int64]) -> list[str]:
        return [f"bidder {self.bid}" for _ in env_id]

    def state(self) -> dict[str, Any]:
        return {"bid": self.bid}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.bid = state["bid"]


class Dice(Bidder):
    """Draws every choice, of any world, and remembers how far its random numbers have come."""

    def __init__(self, seed: int, action_space: Mapping[str, ActionSpace]) -> None:
        self.rng, self.action_space = np.random.default_rng(seed), action_space

    def act(self, obs: VecObs, env_id: NDArray[np.int64]) -> dict[str, VecAction]:
        return random_actions(obs, self.rng, self.action_space)

    def faced(self, env_id: NDArray[np.int64]) -> list[str]:
        return ["dice"] * len(env_id)

    def state(self) -> dict[str, Any]:
        return {"random": self.rng.bit_generator.state}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.rng.bit_generator.state = state["random"]


def bids(*choices: list[int]) -> dict[str, RaggedBuffer[np.int64]]:
    return choose("bid", choices)


def duel_obs(*pawns: int) -> VecObs:
    envs = [Duel(pawns=n) for n in pawns]
    return batch_observations([env.reset() for env in envs], envs[0].obs_space(), envs[0].action_space())


DUEL = players_of(Duel)
assert DUEL is not None
