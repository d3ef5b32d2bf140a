"""A small real-time snake game with its own main loop, which uses the same agent interface for training and playing.

    python -m enn_ppo.train env=custom env.id=examples.snake:env run_dir=outputs/snake total_timesteps=400000 ppo.gamma=0.97
    python -m examples.snake outputs/snake                       # watch it play; needs pip install pygame
    python -m examples.snake outputs/snake --headless --games 20 # only count the food that it eats
    python -m examples.snake random                              # or watch a random policy

All positions are relative to the snake's head: cells ahead, and cells to the right.
"""

from __future__ import annotations

import argparse
import enum
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Protocol

from entity_gym.agents import Agent, Obs, TrainEnv, random_agent

Cell = tuple[int, int]  # x to the right, y down

# ---- observations and actions


class Turn(enum.Enum):
    """Change of direction, in quarter turns to the right."""

    LEFT = -1
    AHEAD = 0
    RIGHT = 1


@dataclass
class Head:
    """The snake's head: the actor."""

    left: int  # free cells up to the wall to the left
    ahead: int
    right: int
    length: int
    hunger: float  # 0 after a meal, 1 when it starves


@dataclass
class Segment:
    """A part of the snake's body, relative to its head."""

    ahead: int
    right: int
    age: int  # ticks until the segment disappears, if the snake does not eat


@dataclass
class Food:
    """Food, relative to the snake's head."""

    ahead: int
    right: int


# ---- the game

DIRECTIONS: Sequence[Cell] = ((0, -1), (1, 0), (0, 1), (-1, 0))  # up, right, down, left


@dataclass
class Game:
    """One snake on a square board; it dies at a wall, at itself, or of hunger. The score is the number of meals."""

    rng: random.Random
    size: int
    body: list[Cell] = field(default_factory=list)  # from the head to the tail
    food: Cell = (0, 0)
    direction: int = 0  # index into DIRECTIONS
    hunger: int = 0  # ticks since the last meal
    score: int = 0
    is_over: bool = False

    def __post_init__(self) -> None:
        middle = self.size // 2
        self.body = [(middle, middle), (middle, middle + 1)]
        self._place_food()

    @property
    def patience(self) -> int:
        """Ticks without food until the snake starves: enough to visit every cell."""
        return self.size * self.size

    def tick(self, turn: Turn) -> None:
        """Turn the head, and move by one cell."""
        self.direction = (self.direction + turn.value) % 4
        dx, dy = DIRECTIONS[self.direction]
        head = (self.body[0][0] + dx, self.body[0][1] + dy)
        eats = head == self.food
        rest = self.body if eats else self.body[:-1]
        self.hunger += 1
        if not self._inside(head) or head in rest or (self.hunger >= self.patience and not eats):
            self.is_over = True
            return
        self.body = [head, *rest]
        if eats:
            self.score, self.hunger = self.score + 1, 0
            self.is_over = not self._place_food()

    def obs(self) -> Obs[Turn]:
        """Observation of the snake."""
        x, y = self.body[0]
        free = [y, self.size - 1 - x, self.size - 1 - y, x]  # cells up to the wall in each of DIRECTIONS
        left, ahead, right = free[self.direction - 1], free[self.direction], free[(self.direction + 1) % 4]
        head = Head(left, ahead, right, len(self.body), self.hunger / self.patience)
        segments = [Segment(*self._seen(cell), age=len(self.body) - k) for k, cell in enumerate(self.body[1:], start=1)]
        return Obs(Turn, score=self.score, entities=[*segments, Food(*self._seen(self.food))], actors=[head])

    def _seen(self, cell: Cell) -> Cell:
        """Distance of a cell from the head: cells ahead, and cells to the right."""
        x, y = cell[0] - self.body[0][0], cell[1] - self.body[0][1]
        dx, dy = DIRECTIONS[self.direction]
        return x * dx + y * dy, y * dx - x * dy

    def _inside(self, cell: Cell) -> bool:
        return 0 <= cell[0] < self.size and 0 <= cell[1] < self.size

    def _place_food(self) -> bool:
        """Put food on a free cell, if there is one."""
        cells = ((x, y) for x in range(self.size) for y in range(self.size))
        free = [cell for cell in cells if cell not in self.body]
        self.food = self.rng.choice(free) if free else (-1, -1)
        return bool(free)


# ---- the main loop


class Screen(Protocol):
    """A screen that shows games."""

    def show(self, game: Game) -> bool:
        """Draw the game, and wait for the next tick. Returns false if the player quits."""


@dataclass(frozen=True)
class Settings:
    """Settings of the games."""

    size: int = 10  # cells along each side
    screen: Screen | None = None  # None: no display, and no waiting between ticks

    def __post_init__(self) -> None:
        if self.size < 3:
            raise ValueError(f"size is {self.size!r}; a snake needs a board of at least 3 cells along each side")


def games(agent: Agent, settings: Settings, seed: int) -> Iterator[Game]:
    """Play games and yield each when it is over, until the agent or the player stops."""
    rng = random.Random(seed)
    while True:
        game = Game(rng, settings.size)
        while not game.is_over:
            turn = agent.act(game.obs())
            if turn is None:  # the trainer has ended
                return
            game.tick(turn)
            if settings.screen and not settings.screen.show(game):
                return
        agent.game_over(game.obs())
        yield game


def main(agent: Agent, settings: Settings, seed: int) -> None:
    """Run the main loop of the game; the trainer runs it in a thread for each environment."""
    for _ in games(agent, settings, seed):
        pass


env = TrainEnv(main, entity_types=[Head, Segment, Food], action_types=[Turn], config=Settings())

# ---- watching


class Window:
    """A pygame window.

    Raises:
        ImportError: pygame is not installed.
    """

    def __init__(self, size: int, ticks_per_second: float, cell: int = 32) -> None:
        self._pygame = import_pygame()
        self._pygame.init()
        self._surface = self._pygame.display.set_mode((size * cell, size * cell))
        self._clock = self._pygame.time.Clock()
        self._ticks_per_second = ticks_per_second
        self._cell = cell

    def show(self, game: Game) -> bool:
        """Draw a game and wait for the next tick; false once the window is closed."""
        self._surface.fill((24, 28, 32))
        for cell, color in [(game.food, (222, 84, 76)), *((cell, (96, 168, 96)) for cell in game.body)]:
            self._fill(cell, color)
        self._fill(game.body[0], (176, 224, 128))
        self._pygame.display.set_caption(f"snake: {game.score} eaten")
        self._pygame.display.flip()
        self._clock.tick(self._ticks_per_second)
        return all(event.type != self._pygame.QUIT for event in self._pygame.event.get())

    def close(self) -> None:
        self._pygame.quit()

    def _fill(self, cell: Cell, color: tuple[int, int, int]) -> None:
        side = self._cell
        self._surface.fill(color, (cell[0] * side + 1, cell[1] * side + 1, side - 2, side - 2))


def import_pygame() -> ModuleType:
    """Import pygame.

    Raises:
        ImportError: pygame is not installed; the message has the command that installs it.
    """
    try:
        import pygame
    except ImportError as error:
        raise ImportError("the window needs pygame: pip install pygame, or play with --headless") from error
    return pygame


def play(agent: Agent, num_games: int | None, settings: Settings, seed: int) -> list[int]:
    """Play `num_games` games, or until the player quits, and return the scores."""
    scores = []
    for game in games(agent, settings, seed):
        scores.append(game.score)
        if len(scores) == num_games:
            break
    return scores


def run(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m examples.snake", description="Watch a snake.")
    parser.add_argument("agent", help="a run directory, a checkpoint, a file that enn_ppo.export wrote, or: random")
    parser.add_argument("--headless", action="store_true", help="no window, and as fast as can be")
    parser.add_argument("--games", type=int, help="how many; otherwise until the window is closed, or 10 without one")
    parser.add_argument("--size", type=int, default=10, help="cells along each side (10)")
    parser.add_argument("--speed", type=float, default=8.0, help="ticks a second (8)")
    parser.add_argument("--seed", type=int, default=0, help="of the games and of the agent (0)")
    options = parser.parse_args(argv)
    window = None
    try:
        settings = Settings(options.size)
        num_games = options.games if options.games is not None else 10 if options.headless else None
        if num_games is not None and num_games < 1:
            raise ValueError(f"--games is {num_games}; it must be at least 1")
        agent = random_agent(options.seed) if options.agent == "random" else _load(options.agent, options.seed)
        window = None if options.headless else Window(options.size, options.speed)
        scores = play(agent, num_games, replace(settings, screen=window), options.seed)
    except (ValueError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    finally:
        if window:
            window.close()
    if scores:
        print(f"{sum(scores) / len(scores):.2f} eaten on average in {len(scores)} games, {max(scores)} at best")
    return 0


def _load(path: str, seed: int) -> Agent:
    from enn_ppo import load_agent  # playing at random needs no network

    return load_agent(path, greedy=True, seed=seed)


if __name__ == "__main__":
    sys.exit(run())
