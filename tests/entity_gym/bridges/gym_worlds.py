"""Environments of Gymnasium's interface whose every number can be worked out by hand."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from entity_gym.batch.ragged import RaggedBuffer
from entity_gym.batch.vec_obs import VecObs


def choose(*choices: int) -> dict[str, RaggedBuffer[np.int64]]:
    """One choice for each environment."""
    return {"action": RaggedBuffer.from_array(np.array(choices).reshape(-1, 1, 1))}


def agents(obs: VecObs) -> list[list[float]]:
    """Return the features of the agents, one an environment."""
    assert obs.features["Agent"].size1().tolist() == [1] * len(obs)
    return obs.features["Agent"].values.tolist()  # type: ignore[no-any-return]


class Line(gymnasium.Env[Any, Any]):
    """A place on a line, which begins at `seed % 100`, or where options say; -1 and +1 are what can be done.

    The reward is the place. The episode ends at -2, and is cut after `limit` steps.
    """

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, limit: int = 3) -> None:
        self.limit = limit
        self.closed = 0
        self.options: list[Any] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.place = float(seed % 100)
        self.options.append(options)
        if options:
            self.place = float(options["place"])
        self.steps = 0
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        self.place += 1 if action else -1
        self.steps += 1
        info = {"steps": self.steps, "place": self.place}
        return self._observation(), self.place, self.place == -2, self.steps == self.limit, info

    def _observation(self) -> Any:
        return np.array([self.place, self.steps], np.float32)

    def render(self) -> Any:
        return np.full((2, 3, 3), 7, np.uint8)

    def close(self) -> None:
        self.closed += 1


class Shows(gymnasium.Env[Any, Any]):
    """Shows one observation after another, and takes any action of its space.

    Args:
        space: of the observations.
        shown: the observations.
        action_space: of the actions.
        infos: of the steps, and of the reset first.
    """

    def __init__(self, space: Any, shown: list[Any], action_space: Any = None, infos: list[Any] | None = None) -> None:
        self.observation_space = space
        self.action_space = spaces.Discrete(2) if action_space is None else action_space
        self.shown = shown
        self.infos = infos or [{}] * len(shown)
        self.taken: list[Any] = []
        self.reward: Any = 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.k = 0
        return self.shown[0], self.infos[0]

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.taken.append(action)
        self.k += 1
        return self.shown[self.k], self.reward, False, self.k == len(self.shown) - 1, self.infos[self.k]


def register() -> None:
    """Give `Line` an id."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is there already
        gymnasium.register("Line-v3", Line, kwargs={"limit": 5})
