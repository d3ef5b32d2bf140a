"""An environment whose steps only wait, as for a remote simulator; for `bench.py distributed`."""

from __future__ import annotations

import time
from collections.abc import Mapping

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
)

LENGTH = 16  # steps of an episode


class Elsewhere(Environment):
    """One to five lights [x, y], and a ship that goes left or right; reward 1 for the side with most lights.

    Args:
        microseconds: least duration of a step, which sleeps.
    """

    def __init__(self, microseconds: int = 200) -> None:
        self.seconds = microseconds / 1e6

    def obs_space(self) -> ObsSpace:
        return ObsSpace({"Ship": Entity(["x", "y"]), "Light": Entity(["x", "y"])})

    def action_space(self) -> Mapping[str, ActionSpace]:
        return {"go": CategoricalActionSpace(["left", "right"])}

    def reset(self) -> Observation:
        self.steps = 0
        return self._show(0.0)

    def act(self, actions: Mapping[str, Action]) -> Observation:
        time.sleep(self.seconds)
        go = actions["go"]
        assert isinstance(go, CategoricalAction)
        most = int(self.lights[:, 0].sum() > 0)
        self.steps += 1
        return self._show(float(go.actions[0] == most))

    def _show(self, reward: float) -> Observation:
        self.lights = self.rng.uniform(-1, 1, (self.rng.integers(1, 6), 2))
        return Observation(
            features={"Ship": [[0, 0]], "Light": self.lights},
            ids={"Ship": ["ship"]},
            actions={"go": CategoricalActionMask(actor_ids=["ship"])},
            reward=reward,
            done=self.steps == LENGTH,
        )
