"""Minefield: a vehicle drives to a target between mines."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from entity_gym.compiled import Categorical, CompiledEnvironment, Entity, kernel, rand_float
from entity_gym.envs.colours import BLUE, DARK, GREEN

MAX_MINES = 64
SPEED, TURN = 3.0, math.pi / 8  # of one step
REACH = 5.0  # distance at which a target is reached or a mine goes off
SPACING = 15.0  # smallest distance between a mine and anything else at the start


class Minefield(CompiledEnvironment):
    """A vehicle drives to a target between mines.

    **Observation.** `Vehicle` [x_pos, y_pos, direction, step], `Mine` [x_pos, y_pos] and `Target` [x_pos, y_pos]. x
    grows to the right and y upwards; direction is an angle from 0 to 2 pi, counterclockwise from the x axis; `step`
    counts the steps of the episode. Nothing limits where the vehicle may drive. With `translate`, the vehicle's
    position is subtracted from every position, and its own x_pos and y_pos are 0; directions do not change.

    **Actions.** `move`: turn left (counterclockwise, by pi / 8), move forward (3 in the vehicle's direction) or turn
    right. Turning does not move the vehicle.

    **Reward.** 1 if the vehicle is less than 5 away from the target after a step, otherwise 0.

    **End.** Terminates when the vehicle is less than 5 away from the target or a mine. Truncated after `max_steps`
    steps. Vehicle and target start uniformly in the square -width / 2 <= x, y < width / 2, with any direction. Then
    `max_mines` mines are drawn likewise, and each that is less than 15 away from the vehicle, the target or an earlier
    mine is dropped: there may be fewer, even none.

    **Best score.** About 1.0: gaps between mines are 5 or more, so that there is (almost) always a way, and 200 steps
    are more than enough.

    Args:
        max_mines: the most mines, 0 to 64.
        translate: whether positions are relative to the vehicle's.
        width: of the square in which everything starts, at least 1.
        max_steps: steps after which an episode is truncated, at least 1; None for no limit.
    """

    entities = {
        "Vehicle": Entity(["x_pos", "y_pos", "direction", "step"], max=1),
        "Mine": Entity(["x_pos", "y_pos"], max=MAX_MINES),
        "Target": Entity(["x_pos", "y_pos"], max=1),
    }
    actions = {"move": Categorical(["turn left", "move forward", "turn right"], actors="Vehicle")}
    parameters = {"max_mines": 10, "translate": False, "width": 200.0}
    ranges = {"max_mines": (0, MAX_MINES), "width": (1.0, None)}
    max_steps = 200
    state = [
        ("x", np.float64),
        ("y", np.float64),
        ("direction", np.float64),
        ("target_x", np.float64),
        ("target_y", np.float64),
        ("num_mines", np.int64),
        ("mine", np.float64, (MAX_MINES, 2)),  # [x, y]
    ]
    info = ["num_mines"]
    reward_threshold = 0.95

    def reset(s: Any) -> None:
        s.x = rand_coordinate(s)
        s.y = rand_coordinate(s)
        s.direction = rand_float(s) * 2 * math.pi
        s.target_x = rand_coordinate(s)
        s.target_y = rand_coordinate(s)
        s.num_mines = 0
        for _ in range(s.max_mines):
            x = rand_coordinate(s)
            y = rand_coordinate(s)
            if not (near(x, y, s.x, s.y, SPACING) or near(x, y, s.target_x, s.target_y, SPACING)) and not near_a_mine(
                s, x, y, SPACING
            ):
                s.mine[s.num_mines, 0] = x
                s.mine[s.num_mines, 1] = y
                s.num_mines += 1

    def step(s: Any, act: Any) -> tuple[float, bool, bool]:
        choice = act.move[0]
        if choice == 1:
            s.x += SPEED * math.cos(s.direction)
            s.y += SPEED * math.sin(s.direction)
        else:
            s.direction = turned(s.direction, TURN if choice == 0 else -TURN)
        arrived = near(s.x, s.y, s.target_x, s.target_y, REACH)
        return 1.0 if arrived else 0.0, arrived or near_a_mine(s, s.x, s.y, REACH), False

    def observe(s: Any, obs: Any) -> None:
        origin_x = s.x if s.translate else 0.0
        origin_y = s.y if s.translate else 0.0
        obs.n.Vehicle = 1
        obs.Vehicle[0, 0] = s.x - origin_x
        obs.Vehicle[0, 1] = s.y - origin_y
        obs.Vehicle[0, 2] = s.direction
        obs.Vehicle[0, 3] = s.steps
        obs.n.Mine = s.num_mines
        for i in range(s.num_mines):
            obs.Mine[i, 0] = s.mine[i, 0] - origin_x
            obs.Mine[i, 1] = s.mine[i, 1] - origin_y
        obs.n.Target = 1
        obs.Target[0, 0] = s.target_x - origin_x
        obs.Target[0, 1] = s.target_y - origin_y

    def draw(s: Any) -> dict[str, Any]:
        """Hints for replays: the starting square; mines and target are as large as their reach."""
        half = float(s.width) / 2
        place = ["x_pos", "y_pos"]
        types: dict[str, dict[str, Any]] = {
            "Mine": {"position": place, "shape": "circle", "color": DARK, "size": 2 * REACH},
            "Target": {"position": place, "shape": "ring", "color": GREEN, "size": 2 * REACH},
            "Vehicle": {
                "position": place,
                "shape": "triangle",
                "color": BLUE,
                "size": 8,
                "angle": "direction",
                "layer": 1,
            },
        }
        if s.translate:  # the vehicle stays at the origin, and the others may be a whole width away
            return {"bounds": [-2 * half, -2 * half, 2 * half, 2 * half], "grid": False, "y_up": True, "types": types}
        types["Vehicle"]["trail"] = 200
        return {"bounds": [-half, -half, half, half], "grid": False, "y_up": True, "types": types}


@kernel
def rand_coordinate(s: Any) -> float:
    """A coordinate in the square where everything starts."""
    return float((rand_float(s) - 0.5) * s.width)


@kernel
def near(x0: float, y0: float, x1: float, y1: float, distance: float) -> bool:
    """Whether two points are less than `distance` apart."""
    return (x0 - x1) ** 2 + (y0 - y1) ** 2 < distance**2


@kernel
def near_a_mine(s: Any, x: float, y: float, distance: float) -> bool:
    """Whether (x, y) is less than `distance` away from any mine."""
    for i in range(s.num_mines):
        if near(x, y, s.mine[i, 0], s.mine[i, 1], distance):
            return True
    return False


@kernel
def turned(direction: float, turn: float) -> float:
    """The direction after a turn, in [0, 2 pi) again."""
    direction += turn
    if direction < 0:
        direction += 2 * math.pi
    if direction >= 2 * math.pi:  # a tiny negative angle plus 2 pi may round to 2 pi as well
        direction -= 2 * math.pi
    return direction
