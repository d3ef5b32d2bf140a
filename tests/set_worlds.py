"""A world in which sets of every kind come and go."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from entity_gym import (
    Action,
    ActionMask,
    ActionSpace,
    CategoricalActionMask,
    CategoricalActionSpace,
    Entity,
    Environment,
    Observation,
    ObsSpace,
    SelectEntitiesActionMask,
    SelectEntitiesActionSpace,
)

STEPS = 4


class Market(Environment):
    """Buyers of two sides haggle, buy wares, like each other, share stalls and take walks. Episodes have four steps,
    and are cut there if many wares are left.

    Buyers and wares come and go, and so do actions, actors, actees and masks; a side sees the wares of both. The reward is the
    share of the wares that were bought within a purse. It raises an error if a set is one that was closed. Sets beyond a purse
    are borne: nothing of them is bought.
    """

    def __init__(self) -> None:
        self.step = 0
        self.offered: dict[str, Any] = {}

    def obs_space(self) -> ObsSpace:
        return ObsSpace({"Buyer": Entity(["side", "purse"]), "Ware": Entity(["price", "worth"])}, ["day"])

    def action_space(self) -> Mapping[str, ActionSpace]:
        return {
            "greet": CategoricalActionSpace(["no", "yes"], after="like"),
            "walk": SelectEntitiesActionSpace(ordered=True, min=1, max=3, after="buy"),
            "like": SelectEntitiesActionSpace(exclude_self=True),
            "share": SelectEntitiesActionSpace(min=1, max=2),
            "buy": SelectEntitiesActionSpace(ordered=True, cost="price", budget="purse", after="haggle"),
            "haggle": CategoricalActionSpace(["no", "yes"]),
        }

    def reset(self) -> Observation:
        self.step = 0
        return self.show()

    def show(self, reward: float = 0.0) -> Observation:
        rng = self.rng
        buyers, wares = int(rng.integers(5)), int(rng.integers(5))
        of_buyers = np.stack([np.arange(buyers) % 2, rng.integers(0, 6, buyers)], axis=1).astype(float)
        of_wares = rng.integers(0, 4, (wares, 2)).astype(float)
        ids: dict[str, list[Any]] = {
            "Buyer": [f"buyer {i}" for i in range(buyers)],
            "Ware": [f"ware {i}" for i in rng.permutation(9)[:wares].tolist()],
        }
        self.prices = dict(zip(ids["Ware"], of_wares[:, 0].tolist(), strict=True))
        self.purses = dict(zip(ids["Buyer"], of_buyers[:, 1].tolist(), strict=True))
        self.offered = {}
        actions: dict[str, ActionMask] = {}
        for name, space in self.action_space().items():
            actors = [id_ for id_ in ids["Buyer"] if rng.random() < 0.8]
            if rng.random() < 0.2:
                continue
            if not isinstance(space, SelectEntitiesActionSpace):
                actions[name] = CategoricalActionMask(actor_ids=actors)
                continue
            actees = [id_ for each in (ids if name == "like" else ["Ware"]) for id_ in ids[each] if rng.random() < 0.9]
            mask = rng.random((len(actors), len(actees))) < 0.7 if rng.random() < 0.5 else None
            actions[name] = SelectEntitiesActionMask(actor_ids=actors, actee_ids=actees, mask=mask)
            is_open = np.ones((len(actors), len(actees)), np.bool_) if mask is None else mask
            self.offered[name] = {
                actor: [actee for actee, each in zip(actees, row, strict=True) if each and actee != actor]
                for actor, row in zip(actors, is_open, strict=True)
            }
        return Observation(
            features={"Buyer": of_buyers, "Ware": of_wares},
            ids=ids,
            actions=actions,
            global_features=[self.step],
            reward=reward,
            done=self.step == STEPS,
            truncated=self.step == STEPS and wares > 2,
        )

    def act(self, actions: Mapping[str, Action]) -> Observation:
        bought: set[Any] = set()
        for name, offered in self.offered.items():
            chosen: Any = actions[name]
            space: Any = self.action_space()[name]
            assert list(chosen.actors) == list(offered)
            for actor, actees in zip(chosen.actors, chosen.actees, strict=True):
                most = len(offered[actor]) if space.max is None else min(space.max, len(offered[actor]))
                assert set(actees) <= set(offered[actor]) and len(set(actees)) == len(actees)
                assert min(space.min, len(offered[actor])) <= len(actees) <= most
                if name == "buy" and sum(self.prices[ware] for ware in actees) <= self.purses[actor]:
                    bought |= set(actees)
        reward = len(bought) / max(1, len(self.prices))
        self.step += 1
        return self.show(reward)

    def state(self) -> dict[str, Any]:
        return {name: vars(self)[name] for name in ("step", "offered", "prices", "purses")}

    def load_state(self, state: Mapping[str, Any]) -> None:
        vars(self).update(state)

    @staticmethod
    def num_players(values: Mapping[str, Any]) -> int:
        return 2

    @staticmethod
    def players(values: Mapping[str, Any], entity_type: str, rows: Any) -> Any:
        return rows[:, 0].astype(np.int64) if entity_type == "Buyer" else np.zeros(len(rows), np.int64)

    @staticmethod
    def seen_by(values: Mapping[str, Any], player: Any, entity_type: str, rows: Any) -> Any:
        return rows


class Stall(Market):
    """A market with sets that the compiled program has: stalls are shared by as many as want to."""

    def action_space(self) -> Mapping[str, ActionSpace]:
        return {**super().action_space(), "share": SelectEntitiesActionSpace()}


class Shelf(Environment):
    """A reader takes the books that are wanted, and lines all of them up, the largest first. One step.

    The reward is 1/2 if the right ones are taken, and 1/2 if all are in the right order.
    """

    def obs_space(self) -> ObsSpace:
        return ObsSpace({"Reader": Entity([]), "Book": Entity(["wanted", "size"])})

    def action_space(self) -> Mapping[str, ActionSpace]:
        return {"take": SelectEntitiesActionSpace(), "line": SelectEntitiesActionSpace(ordered=True, min=5)}

    def reset(self) -> Observation:
        books = int(self.rng.integers(1, 6))
        self.wanted, self.sizes = self.rng.integers(0, 2, books), self.rng.permutation(8)[:books]
        offer = {"actor_types": ["Reader"], "actee_types": ["Book"]}
        return Observation(
            features={"Reader": np.zeros((1, 0)), "Book": np.stack([self.wanted, self.sizes], axis=1)},
            ids={"Reader": ["reader"], "Book": range(books)},
            actions={name: SelectEntitiesActionMask(**offer) for name in self.action_space()},  # type: ignore[arg-type]
        )

    def act(self, actions: Mapping[str, Action]) -> Observation:
        taken, line = (list(actions[name].actees[0]) for name in ("take", "line"))  # type: ignore[union-attr]
        right = [taken == np.flatnonzero(self.wanted).tolist(), line == np.argsort(-self.sizes).tolist()]
        return Observation(done=True, reward=sum(right) / 2)
