"""Batched actions reach the environments in the environments' own ids."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from entity_gym import (
    Action,
    CategoricalAction,
    Observation,
    SelectEntityAction,
)
from entity_gym.envs.minesweeper import CHOICES
from entity_gym.pools.pool import ListEnv
from tests.entity_gym.envs.minesweeper_python import PythonMineSweeper
from tests.worlds import choose, making

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "minesweeper_internals.json").read_text())
T, F = True, False

# --- The seed's example


class RecordingMineSweeper(PythonMineSweeper):
    """Starts from one of the golden states and keeps what it is told."""

    def __init__(self, state: Mapping[str, Any]) -> None:
        super().__init__(num_mines=1, num_robots=1, **GOLDEN["env_kwargs"])
        self.start = state
        self.received: dict[str, Action] = {}

    def reset(self) -> Observation:
        return self.golden(self.start)

    def act(self, actions: Mapping[str, Action]) -> Observation:
        self.received = dict(actions)
        return super().act(actions)


def test_the_golden_actions_arrive_as_in_the_golden_table() -> None:
    envs = [RecordingMineSweeper(state) for state in GOLDEN["states"]]
    vec_env = ListEnv(making(*envs), 3)
    vec_env.reset()
    obs = vec_env.act(
        {
            **choose("Move", [[c for (c,) in row] for row in GOLDEN["move_head"]["ragged_actions"]]),
            **choose("Fire Orbital Cannon", [[c for (c,) in row] for row in GOLDEN["fire_head"]["ragged_actions"]]),
        }
    )
    for env, expected in zip(envs, GOLDEN["env_actions"], strict=True):
        move, fire = env.received["Move"], env.received["Fire Orbital Cannon"]
        assert isinstance(move, CategoricalAction) and isinstance(fire, SelectEntityAction)
        assert move.actors == [tuple(actor) for actor in expected["Move"]["actors"]]
        assert move.actions.tolist() == expected["Move"]["actions"]
        assert move.labels == [CHOICES[choice] for choice in expected["Move"]["actions"]]
        assert fire.actors == [tuple(actor) for actor in expected["Fire Orbital Cannon"]["actors"]]
        assert fire.actees == [tuple(actee) for actee in expected["Fire Orbital Cannon"]["actees"]]
        assert set(env.received) == {"Move", "Fire Orbital Cannon"}
    # the cannon of the second environment shot its only mine
    assert (obs.done.tolist(), obs.reward.tolist()) == ([F, T, F], [0.0, 1.0, 0.0])
