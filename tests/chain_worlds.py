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
    Entity,
    Environment,
    Observation,
    ObsSpace,
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
    """The same, and every robot decides alone."""

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
    """The same, and the second word is decided without the first."""

    after = ()
