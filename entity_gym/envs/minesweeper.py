"""MineSweeper: robots clear a minefield, with an orbital cannon to help or to hurt them."""

from __future__ import annotations

from typing import Any

import numpy as np

from entity_gym.compiled import Categorical, CompiledEnvironment, Entity, SelectEntity, kernel, rand_int
from entity_gym.envs.colours import BLUE, DARK, RED

CHOICES = ("x+1", "x-1", "y+1", "y-1", "Defuse Mines")
DEFUSE = 4
MOVES = np.array([[1, 0], [-1, 0], [0, 1], [0, -1], [0, 0]], np.int16)  # [dx, dy] of the choices
MAX_MINES, MAX_ROBOTS, MAX_SIDE = 64, 16, 256


class MineSweeper(CompiledEnvironment):
    """Robots clear a minefield.

    **Observation.** `Mine` [x, y], `Robot` [x, y] and, with `orbital_cannon`, `Orbital Cannon` [cooldown]. Positions
    are whole numbers, 0 <= x < width and 0 <= y < height; x grows to the right and y upwards. Mines are never hidden.
    Mines and robots that are gone are left out, and those behind them move up.

    **Actions.** `Move`: every robot picks x+1, x-1, y+1, y-1 or to defuse; leaving the board is masked. Robots may
    share a cell. `Fire Orbital Cannon`: in steps that begin with cooldown 0 the cannon picks a mine or a robot; it
    cannot hold fire. The last observation of an episode offers no actions.

    **A step**, in this order:

    1. The cooldown falls by one, not below 0.
    2. The cannon fires: its target, mine or robot, is gone, and the cooldown is `cooldown_period`. After a shot,
       `cooldown_period` steps pass without one, as they do at the start of an episode.
    3. Robots move, in order. One that defuses removes the mines at most one step away from it (Manhattan
       distance <= 1). A robot that the cannon removed no longer acts.
    4. A robot that now stands on a mine is lost; the mine stays.

    **Reward.** 1 in the step in which the last mine goes, whoever removed it and whatever became of the robots;
    otherwise 0.

    **End.** Terminates when no mine or no robot is left. Truncated after `max_steps` steps unless that step terminates.
    `end_of_episode_info` then has `mines_left` and `robots_left`.

    **Best score.** 1.0 on the default board: one robot can defuse every mine from beside it, and 100 steps are more
    than enough for five mines.

    Args:
        width: cells along x, 1 to 256.
        height: cells along y, 1 to 256.
        num_mines: mines at the start of an episode, 1 to 64.
        num_robots: robots at the start, 1 to 16. Mines and robots start in cells of their own, drawn uniformly.
        orbital_cannon: whether there is a cannon.
        cooldown_period: steps that must pass before a shot, at least 0.
        max_steps: steps after which an episode is truncated, at least 1; None for no limit.
    """

    entities = {
        "Mine": Entity(["x", "y"], max=MAX_MINES),
        "Robot": Entity(["x", "y"], max=MAX_ROBOTS),
        "Orbital Cannon": Entity(["cooldown"], max=1),
    }
    actions = {
        "Move": Categorical(CHOICES, actors="Robot", masked=True),
        "Fire Orbital Cannon": SelectEntity(actors="Orbital Cannon", actees=["Mine", "Robot"]),
    }
    parameters = {
        "width": 6,
        "height": 6,
        "num_mines": 5,
        "num_robots": 2,
        "orbital_cannon": False,
        "cooldown_period": 5,
    }
    ranges = {
        "width": (1, MAX_SIDE),
        "height": (1, MAX_SIDE),
        "num_mines": (1, MAX_MINES),
        "num_robots": (1, MAX_ROBOTS),
        "cooldown_period": (0, None),
    }
    max_steps = 100
    state = [
        ("mines_left", np.int64),
        ("robots_left", np.int64),
        ("cooldown", np.int64),
        ("mine", np.int16, (MAX_MINES, 2)),  # [x, y] of those left
        ("robot", np.int16, (MAX_ROBOTS, 2)),
        ("taken", np.int32, (MAX_MINES + MAX_ROBOTS,)),  # scratch of `reset`: cells in use, ascending
    ]
    info = ["mines_left", "robots_left"]
    reward_threshold = 0.95

    @staticmethod
    def check_parameters(p: Any) -> None:
        if p.num_mines + p.num_robots > p.width * p.height:
            raise ValueError(
                f"MineSweeper: num_mines={p.num_mines} and num_robots={p.num_robots} need {p.num_mines + p.num_robots} "
                f"cells; the board of width={p.width} and height={p.height} has {p.width * p.height}"
            )

    def reset(s: Any) -> None:
        for i in range(s.num_mines + s.num_robots):
            cell = take_free_cell(s, i)
            if i < s.num_mines:
                s.mine[i, 0] = cell % s.width
                s.mine[i, 1] = cell // s.width
            else:
                s.robot[i - s.num_mines, 0] = cell % s.width
                s.robot[i - s.num_mines, 1] = cell // s.width
        s.mines_left = s.num_mines
        s.robots_left = s.num_robots
        s.cooldown = s.cooldown_period

    def step(s: Any, act: Any) -> tuple[float, bool, bool]:
        if s.cooldown > 0:
            s.cooldown -= 1
        shot_robot = -1
        if len(act.Fire_Orbital_Cannon) > 0:
            target = act.Fire_Orbital_Cannon[0]
            s.cooldown = s.cooldown_period
            if target < act.first.Robot:
                remove_mine(s, target)
            else:
                shot_robot = target - act.first.Robot
        for i in range(s.robots_left):
            if i != shot_robot:
                move_robot(s, i, act.Move[i])
        remove_robots(s, shot_robot)
        won = s.mines_left == 0
        return 1.0 if won else 0.0, won or s.robots_left == 0, False

    def observe(s: Any, obs: Any) -> None:
        obs.n.Mine = s.mines_left
        for i in range(s.mines_left):
            obs.Mine[i, 0] = s.mine[i, 0]
            obs.Mine[i, 1] = s.mine[i, 1]
        obs.n.Robot = s.robots_left
        for i in range(s.robots_left):
            x = s.robot[i, 0]
            y = s.robot[i, 1]
            obs.Robot[i, 0] = x
            obs.Robot[i, 1] = y
            obs.Move.mask[i, 0] = x < s.width - 1
            obs.Move.mask[i, 1] = x > 0
            obs.Move.mask[i, 2] = y < s.height - 1
            obs.Move.mask[i, 3] = y > 0
        if s.orbital_cannon:
            obs.n.Orbital_Cannon = 1
            obs.Orbital_Cannon[0, 0] = s.cooldown
            if s.cooldown > 0:
                obs.n.Fire_Orbital_Cannon = 0

    def draw(s: Any) -> dict[str, Any]:
        """Hints for replays: the board, y = 0 at the bottom, and in it the mines under the robots."""
        return {
            "bounds": [0, 0, int(s.width) - 1, int(s.height) - 1],
            "grid": True,
            "y_up": True,
            "types": {
                "Mine": {"position": ["x", "y"], "shape": "circle", "color": DARK, "size": 0.8},
                "Robot": {"position": ["x", "y"], "shape": "square", "color": BLUE, "size": 0.55, "layer": 1},
                "Orbital Cannon": {"shape": "diamond", "color": RED, "label": "ready in {cooldown}"},
            },
        }


@kernel
def take_free_cell(s: Any, count: int) -> int:
    """Draw one of the cells that are not among the first `count` of `s.taken`, uniformly, and take it.

    The cell is y * width + x. One random number does, however full the board: it is the rank among the free cells, and
    every taken cell at or below the place found so far moves that place up by one.
    """
    cell = rand_int(s, s.width * s.height - count)
    i = 0
    while i < count and s.taken[i] <= cell:
        cell += 1
        i += 1
    for j in range(count, i, -1):
        s.taken[j] = s.taken[j - 1]
    s.taken[i] = cell
    return cell


@kernel
def remove_mine(s: Any, index: int) -> None:
    """Remove a mine; the others keep their order."""
    for j in range(index + 1, s.mines_left):
        s.mine[j - 1, 0] = s.mine[j, 0]
        s.mine[j - 1, 1] = s.mine[j, 1]
    s.mines_left -= 1


@kernel
def move_robot(s: Any, i: int, choice: int) -> None:
    """Move robot i, or let it defuse the mines in reach. The mask has closed moves that leave the board."""
    robot_x = s.robot[i, 0] + MOVES[choice, 0]
    robot_y = s.robot[i, 1] + MOVES[choice, 1]
    s.robot[i, 0] = robot_x
    s.robot[i, 1] = robot_y
    if choice == DEFUSE:
        kept = 0
        for j in range(s.mines_left):
            x = s.mine[j, 0]
            y = s.mine[j, 1]
            s.mine[kept, 0] = x  # written in any case: a write costs less than a branch that is hard to predict
            s.mine[kept, 1] = y
            kept += abs(x - robot_x) + abs(y - robot_y) > 1
        s.mines_left = kept


@kernel
def remove_robots(s: Any, shot: int) -> None:
    """Remove the robot that was shot (-1: none) and those that stand on a mine."""
    kept = 0
    for i in range(s.robots_left):
        x = s.robot[i, 0]
        y = s.robot[i, 1]
        lost = i == shot
        for j in range(s.mines_left):
            lost |= (s.mine[j, 0] == x) & (s.mine[j, 1] == y)
        s.robot[kept, 0] = x
        s.robot[kept, 1] = y
        kept += not lost
    s.robots_left = kept
