"""An environment that does what it is told to a process; in a module of its own, since workers import it."""

import os
import signal
import threading
import time
from collections.abc import Mapping
from pathlib import Path
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
from entity_gym.batch.ragged import RaggedBuffer
from entity_gym.batch.vec_obs import VecObs

DEEDS = ["live", "end", "grow", "raise", "raise odd", "exit", "kill", "wait", "hang", "strange info", "metric"]
DEEDS += ["raise StopIteration"]


class BrokenWorldError(Exception):
    """Has arguments of its own."""

    def __init__(self, what: str, code: int) -> None:
        super().__init__(what, code)
        self.code = code


class OddError(Exception):
    """Cannot be pickled."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.lock = threading.Lock()


class Fragile(Environment):
    """One entity [steps, a random number of the episode, process id of the worker]; more after "grow".

    Args:
        gate: "wait" takes a step when this file exists.
    """

    def __init__(self, gate: str = "") -> None:
        self.gate = Path(gate)
        self.steps = 0
        self.size = 1
        self.luck = 0.0

    def obs_space(self) -> ObsSpace:
        return ObsSpace({"It": Entity(["steps", "luck", "process"])})

    def action_space(self) -> Mapping[str, ActionSpace]:
        return {"do": CategoricalActionSpace(DEEDS)}

    def configure(self, info: Mapping[str, Any]) -> None:
        if info.keys() - {"size"}:
            raise ValueError(f"unknown parameters {sorted(info)}")
        self.size = info.get("size", self.size)

    def reset(self) -> Observation:
        self.steps = 0
        self.luck = float(self.rng.integers(1 << 20))
        return self.observe()

    def act(self, actions: Mapping[str, Action]) -> Observation:
        deed = DEEDS[int(actions["do"].actions[0])]
        self.steps += 1
        if deed == "raise":
            raise BrokenWorldError("the sky fell", 7)
        if deed == "raise odd":
            raise OddError("no words for it")
        if deed == "raise StopIteration":
            raise StopIteration
        if deed == "exit":
            os._exit(3)
        if deed == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if deed == "wait":
            while not self.gate.exists():
                time.sleep(0.005)
        while deed == "hang":
            pass
        if deed == "grow":
            self.size *= 30
        obs = self.observe()
        obs.reward = 1.0
        if deed == "metric":
            obs.metrics = {"tenths": 0.1 * self.steps}
        if deed in ("end", "strange info"):
            obs.done = obs.truncated = True
            obs.end_of_episode_info = {"steps": self.steps, "path": np.arange(self.steps), "of": Fragile}
            if deed == "strange info":
                obs.end_of_episode_info = {"lock": threading.Lock()}
        return obs

    def observe(self) -> Observation:
        rows = np.tile([[self.steps, self.luck, os.getpid()]], (self.size, 1))
        return Observation(
            features={"It": rows},
            ids={"It": [("It", i) for i in range(self.size)]},
            actions={"do": CategoricalActionMask(actor_ids=[("It", 0)])},
        )

    def render(self) -> np.ndarray:
        return np.full((2, 2, 3), self.steps, np.uint8)


class NeverMade(Environment):
    """Its constructor fails."""

    def __init__(self) -> None:
        raise BrokenWorldError("no room", 9)

    obs_space = action_space = reset = act = Fragile.reset  # type: ignore[assignment]


def do(*deeds: str) -> dict[str, RaggedBuffer[np.int64]]:
    """Return the actions of `Fragile` environments, one after the other."""
    numbers = np.array([DEEDS.index(deed) for deed in deeds], np.int64)
    return {"do": RaggedBuffer.from_array(numbers.reshape(-1, 1, 1))}


def column(obs: VecObs, feature: int) -> list[int]:
    """Return a feature of each environment's first entity."""
    buffer = obs.features["It"]
    return buffer.values[buffer.offsets[:-1], feature].astype(int).tolist()


def steps(obs: VecObs) -> list[int]:
    return column(obs, 0)


def luck(obs: VecObs) -> list[int]:
    return column(obs, 1)


def processes(obs: VecObs) -> list[int]:
    return column(obs, 2)
