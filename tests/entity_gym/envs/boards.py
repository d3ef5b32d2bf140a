"""MineSweeper boards made by hand. Positions are (x, y); y grows upwards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from entity_gym.actions import (
    Action,
    CategoricalAction,
    CategoricalActionMask,
    SelectEntityAction,
)
from entity_gym.environment import Observation
from tests.entity_gym.envs.minesweeper_python import FIRE, PythonMineSweeper

RIGHT, LEFT, UP, DOWN, DEFUSE = range(5)
Cell = tuple[int, int]


def board(
    mines: Sequence[Cell], robots: Sequence[Cell], *, cooldown: int | None = None, **kwargs: Any
) -> PythonMineSweeper:
    """A 3x3 board (unless `kwargs` say otherwise); it has a cannon if a cooldown is given."""
    arguments = {"width": 3, "height": 3, "num_mines": 1, "num_robots": 1, "orbital_cannon": cooldown is not None}
    env = PythonMineSweeper(**{**arguments, **kwargs})
    env.reset()
    env.put(mines, robots, cooldown=cooldown)
    return env


def mines_of(env: PythonMineSweeper) -> list[Cell]:
    return [(x, y) for x, y in env.record.mine[: env.record.mines_left].tolist()]


def robots_of(env: PythonMineSweeper) -> list[Cell]:
    return [(x, y) for x, y in env.record.robot[: env.record.robots_left].tolist()]


def move(*choices: int) -> dict[str, Action]:
    """Robots 0, 1, ... take these choices."""
    return {"Move": CategoricalAction([("Robot", i) for i in range(len(choices))], np.array(choices, np.int64))}


def fire(at: str, index: int) -> dict[str, Action]:
    return {FIRE: SelectEntityAction([("Orbital Cannon", 0)], [(at, index)])}


def cooldown_of(obs: Observation) -> float:
    return float(np.asarray(obs.features["Orbital Cannon"])[0, 0])


def cannon_may_fire(obs: Observation) -> bool:
    return FIRE in obs.actions


def move_mask(obs: Observation) -> list[list[bool]]:
    mask = obs.actions["Move"]
    assert isinstance(mask, CategoricalActionMask) and list(mask.actor_ids or ()) == list(obs.ids["Robot"])
    return np.asarray(mask.mask).tolist()
