"""MineSweeper boards made by hand, in both forms: `PythonMineSweeper` and the compiled one as a plain environment.

Positions are (x, y); y grows upwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from entity_gym.actions import (
    Action,
    CategoricalAction,
    CategoricalActionMask,
    SelectEntityAction,
    SelectEntityActionMask,
)
from entity_gym.compiled.view import CompiledView
from entity_gym.environment import Observation
from entity_gym.envs.minesweeper import MineSweeper
from tests.entity_gym.envs.minesweeper_python import PythonMineSweeper

RIGHT, LEFT, UP, DOWN, DEFUSE = range(5)
FIRE = "Fire Orbital Cannon"
Cell = tuple[int, int]
World: TypeAlias = PythonMineSweeper | CompiledView
MakeWorld = Callable[..., World]


def compiled(**kwargs: Any) -> CompiledView:
    """The compiled environment, run as ordinary Python."""
    return MineSweeper(**kwargs).as_environment()


def board(
    make: MakeWorld, mines: Sequence[Cell], robots: Sequence[Cell], *, cooldown: int | None = None, **kwargs: Any
) -> World:
    """A 3x3 board (unless `kwargs` say otherwise); it has a cannon if a cooldown is given."""
    arguments = {"width": 3, "height": 3, "num_mines": 1, "num_robots": 1, "orbital_cannon": cooldown is not None}
    env = make(**{**arguments, **kwargs})
    env.reset()
    put(env, mines, robots, cooldown=cooldown)
    return env


def put(
    env: World, mines: Sequence[Cell], robots: Sequence[Cell], *, cooldown: int | None = None, steps: int = 0
) -> None:
    """Set the board and the clocks."""
    if isinstance(env, PythonMineSweeper):
        state: dict[str, Any] = {"mines": list(mines), "robots": list(robots), "steps": steps}
        env.load_state(state if cooldown is None else {**state, "orbital_cannon_cooldown": cooldown})
        return
    s = env.record
    s.mines_left, s.robots_left, s.steps = len(mines), len(robots), steps
    s.mine[: len(mines)] = np.reshape(mines, (-1, 2))
    s.robot[: len(robots)] = np.reshape(robots, (-1, 2))
    if cooldown is not None:
        s.cooldown = cooldown
    env.observe()


def mines_of(env: World) -> list[Cell]:
    if isinstance(env, PythonMineSweeper):
        return [(x, y) for x, y in env.state()["mines"]]
    return [(x, y) for x, y in env.record.mine[: env.record.mines_left].tolist()]


def robots_of(env: World) -> list[Cell]:
    if isinstance(env, PythonMineSweeper):
        return [(x, y) for x, y in env.state()["robots"]]
    return [(x, y) for x, y in env.record.robot[: env.record.robots_left].tolist()]


def move(*choices: int) -> dict[str, Action]:
    """Robots 0, 1, ... take these choices."""
    return {"Move": CategoricalAction([("Robot", i) for i in range(len(choices))], np.array(choices, np.int64))}


def fire(at: str, index: int) -> dict[str, Action]:
    return {FIRE: SelectEntityAction([("Orbital Cannon", 0)], [(at, index)])}


def cooldown_of(obs: Observation) -> float:
    return float(np.asarray(obs.features["Orbital Cannon"])[0, 0])


def targets_of(obs: Observation) -> list[Any] | None:
    """What the cannon may fire at; None where it may not fire."""
    mask = obs.actions.get(FIRE)
    if mask is None:
        return None
    assert isinstance(mask, SelectEntityActionMask)
    if mask.actor_ids is not None:  # the compiled form names entities, the other one types
        assert mask.actor_ids == [("Orbital Cannon", 0)]
        return list(mask.actee_ids or ())
    if not mask.actor_types:
        return None
    assert (mask.actor_types, mask.actee_types) == (["Orbital Cannon"], ["Mine", "Robot"])
    return [*obs.ids.get("Mine", ()), *obs.ids.get("Robot", ())]


def cannon_may_fire(obs: Observation) -> bool:
    return targets_of(obs) is not None


def move_mask(obs: Observation) -> list[list[bool]]:
    mask = obs.actions["Move"]
    assert isinstance(mask, CategoricalActionMask)
    if mask.actor_ids is None:
        assert mask.actor_types == ["Robot"]
    else:
        assert list(mask.actor_ids) == list(obs.ids["Robot"])
    return np.asarray(mask.mask).tolist()


def plain(obs: Observation) -> dict[str, Any]:
    """An observation as lists, to be compared. Types of which there is none are left out."""
    shown = {name: np.asarray(rows).tolist() for name, rows in obs.features.items() if len(rows)}
    return {
        "features": shown,
        "ids": {name: list(obs.ids[name]) for name in shown},
        "mask": move_mask(obs) if obs.actions else None,
        "targets": targets_of(obs),
        "end": (obs.reward, obs.done, obs.truncated, obs.end_of_episode_info),
    }


def random_actions(obs: Observation, policy: np.random.Generator) -> dict[str, Action]:
    """Random choices among the open ones; every robot moves, and the cannon fires when it may."""
    actions = move(*(int(policy.choice(np.flatnonzero(row))) for row in move_mask(obs)))
    targets = targets_of(obs)
    if targets is not None:
        actions |= fire(*targets[policy.integers(len(targets))])
    return actions
