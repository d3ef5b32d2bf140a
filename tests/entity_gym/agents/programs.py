"""Programs that own their main loop, well-behaved and not."""

from __future__ import annotations

import enum
import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from entity_gym.agents import Agent, Obs, Selection, TrainEnv
from entity_gym.batch.ragged import RaggedBuffer
from entity_gym.batch.vec_obs import VecObs


class Move(enum.Enum):
    LEFT = -1
    STAY = 0
    RIGHT = 1


class Visit(Selection, max=2, ordered=True):
    pass


@dataclass
class Walker:
    x: int


@dataclass
class Goal:
    x: int


@dataclass
class Wall:
    pass


@dataclass
class Game:
    """A walker on a line earns 1 for every step that brings it nearer to the goal, and loses 1 for every other."""

    rng: random.Random
    length: int = 3
    x: int = 0
    goal: int = 0
    score: int = 0
    steps: int = 0

    def __post_init__(self) -> None:
        self.goal = self.rng.randint(-9, 9)

    def obs(self) -> Obs[Move]:
        return Obs(
            Move, score=self.score, entities=[Goal(self.goal)], actors=[Walker(self.x)], metrics={"steps": self.steps}
        )

    def step(self, move: Move) -> None:
        before = abs(self.goal - self.x)
        self.x += move.value
        self.score += 1 if abs(self.goal - self.x) < before else -1
        self.steps += 1

    @property
    def is_over(self) -> bool:
        return self.steps == self.length


def walk(agent: Agent, config: Any, seed: int) -> None:
    """Games of 3 steps, or of `config` steps, each of which begins with a score of 100."""
    rng = random.Random(seed)
    while True:
        game = Game(rng, config or 3, score=100)
        while not game.is_over:
            move = agent.act(game.obs())
            if move is None:
                return
            game.step(move)
        agent.game_over(game.obs())


def leave_after_one_game(agent: Agent, config: Any, seed: int) -> None:
    game = Game(random.Random(seed))
    while not game.is_over and (move := agent.act(game.obs())) is not None:
        game.step(move)
    agent.game_over(game.obs())


def leave_by_exit(agent: Agent, config: Any, seed: int) -> None:
    raise SystemExit(3)


def raise_after_one_step(agent: Agent, config: Any, seed: int) -> None:
    if agent.act(Game(random.Random(seed)).obs()) is not None:
        raise LookupError("the map is lost")


def hang_after_one_step(agent: Agent, config: threading.Event | None, seed: int) -> None:
    agent.act(Game(random.Random(seed)).obs())
    wait_for(config)


def wait_for(event: threading.Event | None) -> None:
    while event is None or not event.is_set():
        time.sleep(0.01)


def ignore_none(agent: Agent, config: Any, seed: int) -> None:
    game = Game(random.Random(seed))
    while True:
        agent.act(game.obs())


@dataclass
class Log:
    """Seeds that programs were given, shared by those of one process."""

    seeds: list[int] = field(default_factory=list)
    left: list[int] = field(default_factory=list)


def keep_log(agent: Agent, config: Log, seed: int) -> None:
    config.seeds.append(seed)
    walk(agent, None, seed)
    config.left.append(seed)


def make(main: Any, config: Any = None, **options: Any) -> TrainEnv:
    return TrainEnv(main, [Walker, Goal, Wall], [Move], config, **options)


def moves(obs: VecObs, choices: Sequence[int] | int) -> dict[str, Any]:
    """Return these choices for the actors of all frames."""
    actors = obs.action_masks["Move"].actors
    values = np.broadcast_to(np.asarray(choices, np.int64), (actors.items(),))
    return {"Move": RaggedBuffer(values.reshape(-1, 1).copy(), actors.offsets)}
