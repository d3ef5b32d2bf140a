"""Worlds of the evaluation's tests, in a module that the evaluation process can import, an evaluator in line, and films."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Mapping
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import imageio.v3 as imageio
import numpy as np
import torch
from numpy.typing import NDArray

from enn_ppo.eval.evaluator import EvalRow, Evaluator, attempt, evaluate_step
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
from tests.enn_ppo.worlds import Clock


def brightness(file: Path) -> list[float]:
    """The brightness of each picture of a film, by its upper left corner."""
    return [float(frame[:16, :16].mean()) for frame in imageio.imread(file, index=None)]


class InLine(Evaluator):
    """Evaluates at once, in this process."""

    def submit(self, checkpoint: Path, step: int) -> None:
        future: Future[EvalRow | str] = Future()
        future.set_result(attempt(partial(evaluate_step, checkpoint, self.config, self._env, self._run_dir)))
        self._pending.append((step, future))


class Gated(Clock):
    """A clock whose steps wait for a file, and tell in `<file>.pid` which process waits."""

    def __init__(self, short: int = 1, long: int = 12, gate: str = "") -> None:
        super().__init__(short, long)
        self.gate = gate

    def act(self, actions: Mapping[str, Action]) -> Observation:
        if self.gate and not Path(self.gate).exists():
            aside = Path(f"{self.gate}.aside")
            aside.write_text(str(os.getpid()))
            aside.rename(f"{self.gate}.pid")
            while not Path(self.gate).exists():
                time.sleep(0.01)
        return super().act(actions)


class Careless(Clock):
    """A clock that draws from everybody's random numbers instead of its own."""

    def reset(self) -> Observation:
        super().reset()
        if np.random.random() + random.random() + float(torch.rand(())) < 1.5:
            self.length = self.short
        return self._observation()


class Fused(Clock):
    """A clock whose steps fail as long as there is a file."""

    def __init__(self, short: int = 1, long: int = 12, broken_by: str = "") -> None:
        super().__init__(short, long)
        self.broken_by = broken_by

    def act(self, actions: Mapping[str, Action]) -> Observation:
        if self.broken_by and Path(self.broken_by).exists():
            raise ValueError("the fuse is blown")
        return super().act(actions)


class Duel(Environment):
    """Two players pick low or high at the same time, once; whoever picks higher gets 1, and of equals each gets 0.5.

    With `handicap` player 0 wins whatever is picked.
    """

    def __init__(self, handicap: bool = False) -> None:
        self.handicap = handicap
        self.picked = np.zeros(2, np.int64)

    def obs_space(self) -> ObsSpace:
        return ObsSpace(entities={"Player": Entity(["number"])})

    def action_space(self) -> Mapping[str, ActionSpace]:
        return {"Pick": CategoricalActionSpace(("low", "high"))}

    def reset(self) -> Observation:
        return self._observation()

    def act(self, actions: Mapping[str, Action]) -> Observation:
        pick = actions["Pick"]
        assert isinstance(pick, CategoricalAction) and list(pick.actors) == [0, 1]
        self.picked = np.array(pick.actions)
        first = 1.0 if self.handicap else 0.5 + 0.5 * float(np.sign(self.picked[0] - self.picked[1]))
        return self._observation(reward=1.0, player_rewards=(first, 1 - first), done=True)

    def _observation(self, **ending: Any) -> Observation:
        return Observation(
            features={"Player": [[0], [1]]}, ids={"Player": [0, 1]}, actions={"Pick": CategoricalActionMask()}, **ending
        )

    @staticmethod
    def num_players(values: Mapping[str, Any]) -> int:
        return 2

    @staticmethod
    def players(values: Mapping[str, Any], entity_type: str, rows: NDArray[np.float32]) -> NDArray[np.int64]:
        return rows[:, 0].astype(np.int64)

    @staticmethod
    def seen_by(
        values: Mapping[str, Any], player: NDArray[np.int64], entity_type: str, rows: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        return (rows - player[:, None]) % 2
