"""MineSweeper as an ordinary Python environment, which a test can derive a world of its own from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from entity_gym.actions import ActionSpace, SelectEntityActionMask
from entity_gym.environment import Observation
from entity_gym.envs.minesweeper import MineSweeper
from entity_gym.spaces import ObsSpace
from tests.entity_gym.compiled.view import CompiledView

MOVE = "Move"
FIRE = "Fire Orbital Cannon"
OBS_SPACE: ObsSpace = MineSweeper.obs_space()
ACTION_SPACE: Mapping[str, ActionSpace] = MineSweeper.action_space()


class PythonMineSweeper(CompiledView):
    """The world that `entity_gym.envs.minesweeper.MineSweeper` describes, without compiling it."""

    def __init__(self, **parameters: Any) -> None:
        super().__init__(MineSweeper(**parameters))

    def put(self, mines: Any, robots: Any, *, cooldown: int | None = None) -> None:
        """Set the board, positions as (x, y), and the cannon's clock, unless that is None."""
        s = self.record
        s.mines_left, s.robots_left = len(mines), len(robots)
        s.mine[: len(mines)] = np.reshape(mines, (-1, 2))
        s.robot[: len(robots)] = np.reshape(robots, (-1, 2))
        if cooldown is not None:
            s.cooldown = cooldown
        self.observe()

    def golden(self, state: Mapping[str, Any]) -> Observation:
        """Set a board of the golden file, whose shots are offered in every step, to nobody where there is no cannon."""
        super().reset()
        self.record.orbital_cannon = state["orbital_cannon"]
        self.put(state["mines"], state["robots"], cooldown=state["orbital_cannon_cooldown"])
        obs = self.show()
        nobody = SelectEntityActionMask(actor_types=[], actee_types=["Mine", "Robot"])
        return replace(obs, actions={**obs.actions, FIRE: obs.actions.get(FIRE, nobody)})
