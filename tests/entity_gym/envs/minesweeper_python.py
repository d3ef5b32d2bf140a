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
from entity_gym.errors import nearest
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

    Raises:
        ValueError: if an argument is outside its range, or mines and robots do not fit on the board.
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
        self.width = _whole("width", width, 1)
        self.height = _whole("height", height, 1)
        self.num_mines = _whole("num_mines", num_mines, 1)
        self.num_robots = _whole("num_robots", num_robots, 1)
        self.orbital_cannon = _flag("orbital_cannon", orbital_cannon)
        self.cooldown_period = _whole("cooldown_period", cooldown_period, 0)
        self.max_steps = None if max_steps is None else _whole("max_steps", max_steps, 1, "or None for no limit")
        if num_mines + num_robots > width * height:
            raise ValueError(
                f"MineSweeper: num_mines={num_mines} and num_robots={num_robots} need {num_mines + num_robots} cells; "
                f"the board of width={width} and height={height} has {width * height}"
            )
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
        """Take one step.

        Raises:
            ValueError: if an action was not offered, or outside an episode: before `reset`, or after `done`.
        """
        if self._ended() or self._steps == self.max_steps:
            raise ValueError("MineSweeper.act() was called outside an episode; call reset() first")
        if not actions.keys() <= ACTION_SPACE.keys():
            unknown = next(name for name in actions if name not in ACTION_SPACE)
            raise ValueError(f"MineSweeper has no action {unknown!r}; {nearest(unknown, ACTION_SPACE)}")

        may_fire = self._has_cannon and self._cooldown == 0
        if self._has_cannon and self._cooldown > 0:
            self._cooldown -= 1
        robots: list[int | None] = [*self._robots]  # None: removed by the cannon, keeping the others' ids in place
        if FIRE in actions:
            self._fire(actions[FIRE], may_fire, robots)
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

        Args:
            state: `mines` and `robots`, (n, 2) arrays or lists of [x, y], as many as there may be; optionally
                `orbital_cannon` (default: as constructed), `orbital_cannon_cooldown` (default `cooldown_period`) and
                `steps` (default 0).

        Raises:
            ValueError: if a key is unknown or missing or a value is impossible on this board. Nothing has changed then.
        """
        for key in state:
            if key not in STATE_KEYS:
                raise ValueError(f"MineSweeper state has an unknown key {key!r}; {nearest(key, STATE_KEYS)}")
        for key in ("mines", "robots"):
            if key not in state:
                raise ValueError(f"MineSweeper state lacks {key!r}; it has {list(state)}")
        mines, robots = self._cells("mines", state["mines"]), self._cells("robots", state["robots"])
        if len(set(mines)) < len(mines):
            raise ValueError(f"MineSweeper state: mines {state['mines']!r} name a cell twice; a cell holds one mine")
        has_cannon = _flag("state: orbital_cannon", state.get("orbital_cannon", self.orbital_cannon))
        cooldown = _whole(
            "state: orbital_cannon_cooldown", state.get("orbital_cannon_cooldown", self.cooldown_period), 0
        )
        if cooldown > self.cooldown_period:
            raise ValueError(
                f"MineSweeper state: orbital_cannon_cooldown={cooldown} is above cooldown_period={self.cooldown_period}"
            )
        steps = _whole("state: steps", state.get("steps", 0), 0)
        if self.max_steps is not None and steps > self.max_steps:
            raise ValueError(f"MineSweeper state: steps={steps} is above max_steps={self.max_steps}")
        self._mines, self._robots = mines, robots
        self._has_cannon, self._cooldown, self._steps = has_cannon, cooldown, steps

    def _ended(self) -> bool:
        return not self._mines or not self._robots

    def _fire(self, fire: Action, may_fire: bool, robots: list[int | None]) -> None:
        """Remove the target: a mine from the board, a robot by writing None over it in `robots`."""
        if not isinstance(fire, SelectEntityAction):
            raise ValueError(f"MineSweeper: {FIRE!r} must be a SelectEntityAction, not {fire!r}")
        if fire.actees in ([], [None]):
            return
        if not may_fire or len(fire.actees) > 1:
            raise ValueError(
                f"MineSweeper: {FIRE!r} by {fire.actors!r} at {fire.actees!r} was not offered; there are "
                f"{int(may_fire)} cannons with cooldown 0"
            )
        actee = fire.actees[0]
        mine_index, robot_index = _index("Mine", len(self._mines)), _index("Robot", len(robots))
        if actee in mine_index:
            target = mine_index[actee]
            self._mines = self._mines[:target] + self._mines[target + 1 :]
        elif actee in robot_index:
            robots[robot_index[actee]] = None
        else:
            raise ValueError(
                f"MineSweeper: {FIRE!r} at {actee!r}; {nearest(actee, map(str, [*mine_index, *robot_index]))}"
            )
        self._cooldown = self.cooldown_period

    def _move(self, move: Action, robots: list[int | None]) -> None:
        """Move the robots, in place, and defuse mines."""
        if not isinstance(move, CategoricalAction):
            raise ValueError(f"MineSweeper: {MOVE!r} must be a CategoricalAction, not {move!r}")
        index_of = _index("Robot", len(robots))
        for actor, choice in zip(move.actors, move.actions, strict=True):
            if actor not in index_of:
                raise ValueError(
                    f"MineSweeper: {MOVE!r} names the actor {actor!r}; {nearest(actor, map(str, index_of))}"
                )
            robot = index_of[actor]
            cell = robots[robot]
            if cell is None:
                continue
            if choice == DEFUSE:
                within_reach = self._board.reach[cell]
                self._mines = [mine for mine in self._mines if mine not in within_reach]
            elif 0 <= choice < DEFUSE and (target := self._board.neighbours[cell][choice]) is not None:
                robots[robot] = target
            else:
                raise ValueError(
                    f"MineSweeper: {MOVE!r} of {actor!r} at {self._board.positions[cell]} is {int(choice)}, which was "
                    f"not offered; its mask is {self._board.masks[cell].tolist()}"
                )

    def _cells(self, name: str, positions: Any) -> list[int]:
        """Translate [x, y] pairs into cells."""
        pairs = np.asarray(positions)
        if pairs.size == 0:
            return []
        if pairs.ndim != 2 or pairs.shape[1] != 2 or pairs.dtype.kind not in "iuf" or (pairs % 1 != 0).any():
            raise ValueError(f"MineSweeper state: {name} is {positions!r}; it must be a list of whole numbers [x, y]")
        for x, y in pairs.tolist():
            if not (0 <= x < self.width and 0 <= y < self.height):
                raise ValueError(
                    f"MineSweeper state: {name} has [{x:g}, {y:g}], which is off the board; "
                    f"0 <= x < {self.width} and 0 <= y < {self.height}"
                )
        return [int(y) * self.width + int(x) for x, y in pairs.tolist()]


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


@functools.lru_cache(maxsize=256)
def _index(entity_type: str, count: int) -> dict[EntityID, int]:
    return {entity_id: i for i, entity_id in enumerate(_ids(entity_type, count))}


def _whole(name: str, value: Any, least: int, otherwise: str = "") -> int:
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)) or value < least:
        allowed = f"a whole number >= {least}" + (f", {otherwise}" if otherwise else "")
        raise ValueError(f"MineSweeper {name}={value!r}; it must be {allowed}")
    return int(value)


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise ValueError(f"MineSweeper {name}={value!r}; it must be True or False")
    return bool(value)


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
