"""Worlds of one step that need actions which depend on each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from entity_gym import (
    Action,
    ActionSpace,
    CategoricalActionMask,
    CategoricalActionSpace,
    ContinuousActionMask,
    ContinuousActionSpace,
    Entity,
    Environment,
    Observation,
    ObsSpace,
    SelectEntityActionMask,
    SelectEntityActionSpace,
)


class Gates(Environment):
    """Two robots that look the same choose one of two gates; the reward is 1 if they take different ones, else 0.

    A policy that decides for each robot alone goes left with one probability p for both: it earns 2 p (1 - p), at most 1/2.
    """

    after: Any = "actors"

    def obs_space(self) -> ObsSpace:
        return ObsSpace({"Robot": Entity([])})

    def action_space(self) -> Mapping[str, ActionSpace]:
        return {"gate": CategoricalActionSpace(["left", "right"], after=self.after)}

    def reset(self) -> Observation:
        return Observation(
            features={"Robot": np.zeros((2, 0))},
            ids={"Robot": ["a", "b"]},
            actions={"gate": CategoricalActionMask(actor_types=["Robot"])},
        )

    def act(self, actions: Mapping[str, Action]) -> Observation:
        chosen: Any = actions["gate"]
        return Observation(done=True, reward=float(chosen.actions[0] != chosen.actions[1]))


class AloneAtGates(Gates):
    """A twin of `Gates` in which every robot decides alone."""

    after = ()


class Repeat(Environment):
    """One of four words is open, at random; the reward is 1 for saying it twice. No feature tells it, only the first choice.

    Saying the second word alone is right with probability 1/4, whatever the policy.
    """

    after: Any = ("first",)

    def obs_space(self) -> ObsSpace:
        return ObsSpace({"Parrot": Entity([])})

    def action_space(self) -> Mapping[str, ActionSpace]:
        words = ["a", "b", "c", "d"]
        return {"second": CategoricalActionSpace(words, after=self.after), "first": CategoricalActionSpace(words)}

    def reset(self) -> Observation:
        word = self.rng.integers(4)
        return Observation(
            features={"Parrot": np.zeros((1, 0))},
            ids={"Parrot": ["polly"]},
            actions={
                "first": CategoricalActionMask(actor_ids=["polly"], mask=np.arange(4)[None] == word),
                "second": CategoricalActionMask(actor_ids=["polly"]),
            },
        )

    def act(self, actions: Mapping[str, Action]) -> Observation:
        first, second = (actions[name] for name in ("first", "second"))
        return Observation(done=True, reward=float(first.actions[0] == second.actions[0]))  # type: ignore[union-attr]


class ForgetfulRepeat(Repeat):
    """A twin of `Repeat` in which the second word is decided without the first."""

    after = ()


class Doorway(Environment):
    """Robots of two sides aim at doors and use them; every kind of dependence occurs. Reward: the share of doors opened.

    Robot r may open the doors with r + d even, and look at or lock the others. Who moves left may not fire. It raises an
    error if an action that depends on another is one that was closed.
    """

    def __init__(self) -> None:
        self.step = 0

    def obs_space(self) -> ObsSpace:
        return ObsSpace({"Robot": Entity(["side", "x"]), "Door": Entity(["x"])}, ["time"])

    def action_space(self) -> Mapping[str, ActionSpace]:
        return {
            "use": CategoricalActionSpace(["look", "open", "lock"], after="aim"),
            "aim": SelectEntityActionSpace(nobody=True, after="actors"),
            "fire": CategoricalActionSpace(
                ["no", "yes"], after="move", allowed={"move": [[True, True], [True, False]]}
            ),
            "move": CategoricalActionSpace(["right", "left"], after=["actors", "turn"]),
            "turn": ContinuousActionSpace([-1, 0], [1, np.inf], after="actors"),
        }

    def reset(self) -> Observation:
        self.step = 0
        return self.show()

    def show(self, reward: float = 0.0) -> Observation:
        robots, doors = int(self.rng.integers(5)), int(self.rng.integers(1, 4))
        can_open = (np.arange(robots)[:, None] + np.arange(doors)) % 2 == 0
        self.can = np.stack([np.ones_like(can_open), can_open, ~can_open], axis=2)
        all_robots = {"actor_types": ["Robot"]}
        sides = np.arange(robots) % 2
        return Observation(
            features={"Robot": np.stack([sides, self.rng.random(robots)], 1), "Door": self.rng.random((doors, 1))},
            ids={"Robot": [("robot", i) for i in range(robots)], "Door": [("door", i) for i in range(doors)]},
            actions={
                "use": CategoricalActionMask(**all_robots, mask_after=self.can),  # type: ignore[arg-type]
                "aim": SelectEntityActionMask(**all_robots, actee_types=["Door"]),  # type: ignore[arg-type]
                "fire": CategoricalActionMask(**all_robots),  # type: ignore[arg-type]
                "move": CategoricalActionMask(**all_robots),  # type: ignore[arg-type]
                "turn": ContinuousActionMask(**all_robots),  # type: ignore[arg-type]
            },
            global_features=[self.step],
            reward=reward,
            done=self.step == 4,
        )

    def act(self, actions: Mapping[str, Action]) -> Observation:
        use, aim, fire, move = (actions[name] for name in ("use", "aim", "fire", "move"))
        for (_, robot), door, choice in zip(use.actors, aim.actees, use.actions, strict=True):  # type: ignore[union-attr]
            assert door is None or self.can[robot, door[1], choice]
        assert not (np.asarray(fire.actions) & np.asarray(move.actions)).any()  # type: ignore[union-attr]
        opened = {door for door, choice in zip(aim.actees, use.actions, strict=True) if choice == 1}  # type: ignore[union-attr]
        reward = len(opened - {None}) / self.can.shape[1]
        self.step += 1
        return self.show(reward)

    def state(self) -> dict[str, Any]:
        return {"step": self.step, "can": self.can}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.step, self.can = state["step"], state["can"]

    @staticmethod
    def num_players(values: Mapping[str, Any]) -> int:
        return 2

    @staticmethod
    def players(values: Mapping[str, Any], entity_type: str, rows: Any) -> Any:
        return rows[:, 0].astype(np.int64) if entity_type == "Robot" else np.zeros(len(rows), np.int64)

    @staticmethod
    def seen_by(values: Mapping[str, Any], player: Any, entity_type: str, rows: Any) -> Any:
        return rows
