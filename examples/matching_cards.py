"""A memory game in plain Python: cards are shown once, then lie face down; find those that match.

python -m enn_ppo.train env=custom env.id=examples.matching_cards:MatchingCards net.memory=entity total_timesteps=300000
python -m entity_gym.play examples.matching_cards:MatchingCards
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from entity_gym import (
    Action,
    ActionSpace,
    Category,
    Entity,
    Environment,
    Observation,
    ObsSpace,
    SelectEntityAction,
    SelectEntityActionMask,
    SelectEntityActionSpace,
)

MOST_PAIRS = 16


class MatchingCards(Environment):
    """Cards are shown once; then the player takes them, two by two.

    **Observation.** `Card` [face] for every card on the table, and `Player`, without features. There are two cards of each
    face from 1 to `num_pairs`. In the first observation all faces are shown. Later a card shows its face if it was turned
    up by the step before, as the first of two, and otherwise 0. The order of the cards is shuffled in every observation.

    **Actions.** `take`: the player selects a card, in all steps but the first. The first of two cards is turned up, and may not
    be selected again. Then the second is selected, and both leave the table, whether they match or not.

    **Reward.** 1 / `num_pairs` for two cards with the same face, otherwise 0.

    **End.** When the table is empty, after 1 + 2 `num_pairs` steps.

    **Best score.** 1: who remembers all faces takes pair after pair. Who remembers nothing knows one face of the cards that are
    left, so all of them are equally likely to match it. Each of the 2n cards then leaves together with its match with
    probability 1 / (2n - 1), as in a random pairing, and that is also the mean score: 1/7 with the default.

    Args:
        num_pairs: n, from 1 to 16.
    """

    def __init__(self, num_pairs: int = 4) -> None:
        if not 1 <= num_pairs <= MOST_PAIRS:
            raise ValueError(f"MatchingCards: num_pairs={num_pairs}; it must be from 1 to {MOST_PAIRS}")
        self.num_pairs = num_pairs
        self.faces: list[int] = []  # of all cards; a card's id is its place here
        self.table: list[int] = []  # ids of the cards that are left
        self.turned_up: int | None = None  # id of the first of two cards
        self.is_shown = True  # whether all faces are shown

    def obs_space(self) -> ObsSpace:
        return ObsSpace(entities={"Card": Entity([Category("face", MOST_PAIRS + 1)]), "Player": Entity()})

    def action_space(self) -> Mapping[str, ActionSpace]:
        return {"take": SelectEntityActionSpace()}

    def reset(self) -> Observation:
        self.faces = self.rng.permutation([1 + i // 2 for i in range(2 * self.num_pairs)]).tolist()
        self.table = list(range(2 * self.num_pairs))
        self.turned_up, self.is_shown = None, True
        return self.observe()

    def act(self, actions: Mapping[str, Action]) -> Observation:
        reward = 0.0
        if self.is_shown:  # nothing was asked
            self.is_shown = False
            return self.observe()
        take = actions["take"]
        assert isinstance(take, SelectEntityAction)
        card = take.actees[0]
        assert isinstance(card, int)
        if self.turned_up is None:
            self.turned_up = card
        else:
            reward = float(self.faces[card] == self.faces[self.turned_up]) / self.num_pairs
            self.table = [each for each in self.table if each not in (card, self.turned_up)]
            self.turned_up = None
        return self.observe(reward)

    def observe(self, reward: float = 0.0) -> Observation:
        self.table = self.rng.permutation(self.table).tolist()
        seen = [self.faces[card] if self.is_shown or card == self.turned_up else 0 for card in self.table]
        face_down = [card for card in self.table if card != self.turned_up]
        take = SelectEntityActionMask(actor_ids=["Player"], actee_ids=face_down)
        return Observation(
            features={"Card": [[face] for face in seen], "Player": [[]]},
            ids={"Card": self.table, "Player": ["Player"]},
            actions={} if self.is_shown else {"take": take},
            reward=reward,
            done=not self.table,
        )

    def state(self) -> dict[str, Any]:
        return {"faces": self.faces, "table": self.table, "turned_up": self.turned_up, "is_shown": self.is_shown}

    def load_state(self, state: Mapping[str, Any]) -> None:
        vars(self).update(state)
