"""MineSweeper as ordinary Python objects: the reference that the compiled MineSweeper is compared with, step by step.

Inside, a position is one number, `cell = y * width + x`: moves, masks and the reach of a defusal are then looked up in
tables that all boards of the same size share.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions import (
    Action,
    ActionMask,
    ActionSpace,
    CategoricalAction,
    CategoricalActionMask,
    CategoricalActionSpace,
    SelectEntityAction,
    SelectEntityActionMask,
    SelectEntityActionSpace,
)
from entity_gym.actions.reading import EntityID
from entity_gym.environment import Environment, Observation
from entity_gym.envs import drawing
from entity_gym.spaces import Entity, ObsSpace

MOVE = "Move"
FIRE = "Fire Orbital Cannon"
CHOICES = ("x+1", "x-1", "y+1", "y-1", "Defuse Mines")
DEFUSE = 4
STEPS = ((1, 0), (-1, 0), (0, 1), (0, -1))  # (dx, dy) of the first four choices

OBS_SPACE = ObsSpace(
    entities={"Mine": Entity(["x", "y"]), "Robot": Entity(["x", "y"]), "Orbital Cannon": Entity(["cooldown"])}
)
ACTION_SPACE: dict[str, ActionSpace] = {MOVE: CategoricalActionSpace(CHOICES), FIRE: SelectEntityActionSpace()}
STATE_KEYS = ("mines", "robots", "orbital_cannon", "orbital_cannon_cooldown", "steps")
CANNON_IDS = (("Orbital Cannon", 0),)
BAR = 16  # pixels, height of the cannon's bar


class PythonMineSweeper(Environment):
    """The world that `entity_gym.envs.minesweeper.MineSweeper` describes, written independently of it.

    Observations, actions, rules, reward and end are the same; only the random numbers differ. Ids are `("Mine", i)`,
    `("Robot", i)` and `("Orbital Cannon", 0)`, where i is the position in the current list: it may change between
    steps. A type of which none is left is left out. A robot that `act` is not told about stays where it is.

    The numbers of mines and robots and the size of the board have no upper bounds.

    Args:
        width: cells along x, at least 1.
        height: cells along y, at least 1.
        num_mines: mines at the start of an episode, at least 1.
        num_robots: robots at the start, at least 1.
        orbital_cannon: whether there is a cannon.
        cooldown_period: steps that must pass before a shot, at least 0.
        max_steps: steps after which an episode is truncated, at least 1; None for no limit.

    """

    def __init__(
        self,
        width: int = 6,
        height: int = 6,
        num_mines: int = 5,
        num_robots: int = 2,
        orbital_cannon: bool = False,
        cooldown_period: int = 5,
        max_steps: int | None = 100,
    ) -> None:
        self.width, self.height, self.num_mines, self.num_robots = width, height, num_mines, num_robots
        self.orbital_cannon, self.cooldown_period, self.max_steps = orbital_cannon, cooldown_period, max_steps
        self._board = _board(width, height)
        # What changes during an episode. `load_state` may set numbers of things, and a cannon, other than constructed.
        self._mines: list[int] = []  # cells
        self._robots: list[int] = []  # cells
        self._has_cannon = self.orbital_cannon
        self._cooldown = self.cooldown_period
        self._steps = 0

    def obs_space(self) -> ObsSpace:
        return OBS_SPACE

    def action_space(self) -> Mapping[str, ActionSpace]:
        return ACTION_SPACE

    def reset(self) -> Observation:
        cells = self.rng.permutation(self.width * self.height)[: self.num_mines + self.num_robots].tolist()
        self._mines = cells[: self.num_mines]
        self._robots = cells[self.num_mines :]
        self._has_cannon = self.orbital_cannon
        self._cooldown = self.cooldown_period
        self._steps = 0
        return self.observe()

    def act(self, actions: Mapping[str, Action]) -> Observation:
        if self._has_cannon and self._cooldown > 0:
            self._cooldown -= 1
        robots: list[int | None] = [*self._robots]  # None: removed by the cannon, keeping the others' ids in place
        if FIRE in actions:
            self._fire(actions[FIRE], robots)
        if MOVE in actions:
            self._move(actions[MOVE], robots)
        mines = self._mines
        self._robots = [cell for cell in robots if cell is not None and cell not in mines]
        self._steps += 1
        return self.observe(reward=0.0 if mines else 1.0)

    def observe(self, *, reward: float = 0.0) -> Observation:
        """Return the current observation, for example after `load_state`.

        Args:
            reward: what the observation says was received for the actions that led here.
        """
        features: dict[str, Any] = {}
        ids: dict[str, Sequence[EntityID]] = {}
        mines, robots, board = self._mines, self._robots, self._board
        if mines:
            features["Mine"] = board.rows.take(mines, axis=0)
            ids["Mine"] = _ids("Mine", len(mines))
        if robots:
            features["Robot"] = board.rows.take(robots, axis=0)
            ids["Robot"] = _ids("Robot", len(robots))
        if self._has_cannon:
            features["Orbital Cannon"] = [(self._cooldown,)]
            ids["Orbital Cannon"] = CANNON_IDS

        ended = not mines or not robots
        truncated = not ended and self._steps == self.max_steps
        if ended or truncated:
            info = {"mines_left": len(mines), "robots_left": len(robots)}
            return Observation(
                features=features, ids=ids, reward=reward, done=True, truncated=truncated, end_of_episode_info=info
            )
        can_fire = self._has_cannon and self._cooldown == 0
        actions: dict[str, ActionMask] = {
            MOVE: CategoricalActionMask(actor_types=["Robot"], mask=board.masks.take(robots, axis=0)),
            FIRE: SelectEntityActionMask(
                actor_types=["Orbital Cannon"] if can_fire else [], actee_types=["Mine", "Robot"]
            ),
        }
        return Observation(features=features, ids=ids, actions=actions, reward=reward)

    def render(self) -> NDArray[np.uint8]:
        """Draw the board, y = 0 at the bottom, under a bar that fills up as the cannon gets ready.

        Mines are dark discs, robots coloured squares with their entity index; robots in one cell share its square.

        Returns:
            (32 height + 17, 32 width + 1, 3) image.
        """
        positions = self._board.positions
        ready = 1 - self._cooldown / max(self.cooldown_period, 1) if self._has_cannon else None
        mines = [positions[cell] for cell in self._mines]
        robots = [positions[cell] for cell in self._robots]
        return _draw(self.width, self.height, mines, robots, ready)

    def state(self) -> dict[str, Any]:
        """Return the board and the clocks, with positions as [x, y]."""
        positions = self._board.positions
        return {
            "mines": [list(positions[cell]) for cell in self._mines],
            "robots": [list(positions[cell]) for cell in self._robots],
            "orbital_cannon": self._has_cannon,
            "orbital_cannon_cooldown": self._cooldown,
            "steps": self._steps,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Set the board and the clocks, until the next `reset`. Works before the first `reset`, too.

        `mines` and `robots` are lists of [x, y]; the others are optional, by default as constructed.
        """
        self._mines, self._robots = self._cells(state["mines"]), self._cells(state["robots"])
        self._has_cannon = state.get("orbital_cannon", self.orbital_cannon)
        self._cooldown = state.get("orbital_cannon_cooldown", self.cooldown_period)
        self._steps = state.get("steps", 0)

    def _fire(self, fire: Action, robots: list[int | None]) -> None:
        """Remove the target: a mine from the board, a robot by writing None over it in `robots`."""
        assert isinstance(fire, SelectEntityAction)
        if fire.actees in ([], [None]):
            return
        kind, index = fire.actees[0]
        if kind == "Mine":
            self._mines = self._mines[:index] + self._mines[index + 1 :]
        else:
            robots[index] = None
        self._cooldown = self.cooldown_period

    def _move(self, move: Action, robots: list[int | None]) -> None:
        """Move the robots, in place, and defuse mines."""
        assert isinstance(move, CategoricalAction)
        for (_, robot), choice in zip(move.actors, move.actions, strict=True):
            cell = robots[robot]
            if cell is None:
                continue
            if choice == DEFUSE:
                within_reach = self._board.reach[cell]
                self._mines = [mine for mine in self._mines if mine not in within_reach]
            else:
                robots[robot] = self._board.neighbours[cell][choice]

    def _cells(self, positions: Any) -> list[int]:
        """Translate [x, y] pairs into cells."""
        return [int(y) * self.width + int(x) for x, y in positions]


class _Board(NamedTuple):
    """Geometry of a board, everything by cell. Boards of one size share it; `take` copies out of it."""

    positions: list[tuple[int, int]]  # (x, y)
    rows: NDArray[np.float32]  # (cells, 2), the same as features
    neighbours: list[tuple[int | None, ...]]  # where each entry of STEPS leads; None is off the board
    masks: NDArray[np.bool_]  # (cells, C), which of CHOICES are open to a robot here
    reach: list[frozenset[int]]  # cells that a robot here defuses


@functools.lru_cache(maxsize=16)
def _board(width: int, height: int) -> _Board:
    positions = [(x, y) for y in range(height) for x in range(width)]
    neighbours = [
        tuple((y + dy) * width + x + dx if 0 <= x + dx < width and 0 <= y + dy < height else None for dx, dy in STEPS)
        for x, y in positions
    ]
    masks = np.array([[*(target is not None for target in targets), True] for targets in neighbours], np.bool_)
    reach = [
        frozenset([cell, *(target for target in targets if target is not None)])
        for cell, targets in enumerate(neighbours)
    ]
    return _Board(positions, np.array(positions, np.float32), neighbours, masks, reach)


@functools.lru_cache(maxsize=256)
def _ids(entity_type: str, count: int) -> tuple[tuple[str, int], ...]:
    return tuple((entity_type, i) for i in range(count))


def _draw(
    width: int,
    height: int,
    mines: Sequence[tuple[int, int]],
    robots: Sequence[tuple[int, int]],
    ready: float | None,
) -> NDArray[np.uint8]:
    """Draw a board under the cannon's bar; `ready` in [0, 1] says how full that is, None that there is no cannon."""
    board = drawing.grid(width, height)
    for x, y in mines:
        drawing.disc(drawing.cell(board, x, y), 15, 15, 13, drawing.DARK)
    for x, y in set(robots):
        here = [robot for robot, position in enumerate(robots) if position == (x, y)]
        colours = [drawing.PALETTE[robot % 6] for robot in here]
        cell = drawing.cell(board, x, y)
        drawing.stripes(cell, 7, 7, 17, colours)  # small enough to leave a mine's rim in sight
        for place, robot in enumerate(here):
            middle = 7 + 17 * (place + 0.5) / len(here) - 0.5
            drawing.number(cell, middle, 15, len(mines) + robot, drawing.WHITE, scale=2 if len(here) == 1 else 1)
    top = drawing.canvas(board.shape[1], BAR)
    if ready is not None:
        colour = drawing.RED if ready == 1 else drawing.ORANGE
        drawing.bar(top, 1, 2, board.shape[1] - 2, BAR - 4, ready, colour)
    return np.concatenate([top, board])
