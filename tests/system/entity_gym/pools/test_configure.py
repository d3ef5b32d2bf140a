"""Parameters that are set while episodes are running count from the next episode on, in every pool."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from entity_gym import (
    Action,
    ActionSpace,
    CategoricalActionMask,
    CategoricalActionSpace,
    Entity,
    Environment,
    Observation,
    ObsSpace,
)
from entity_gym.batch.vec_obs import VecObs
from entity_gym.pools.processes.env import ProcessVecEnv
from entity_gym.pools.vec_env import VecEnv
from tests.entity_gym.pools.processes.thread_workers import threads as threads
from tests.worlds import choose


class PythonLaps(Environment):
    """The same as a Python object."""

    def __init__(self) -> None:
        self.round, self.laps, self.weight = 0, 2, 0.5

    def obs_space(self) -> ObsSpace:
        return ObsSpace({"Runner": Entity(["round", "laps", "weight"])})

    def action_space(self) -> Mapping[str, ActionSpace]:
        return {"run": CategoricalActionSpace(["on"])}

    def configure(self, info: Mapping[str, Any]) -> None:
        for name, value in info.items():
            if name not in ("laps", "weight"):
                raise ValueError(f"PythonLaps has no parameter {name!r}")
            setattr(self, name, value)

    def reset(self) -> Observation:
        self.round = 0
        return self.show(0.0)

    def act(self, actions: Mapping[str, Action]) -> Observation:
        self.round += 1
        return self.show(self.weight)

    def show(self, reward: float) -> Observation:
        return Observation(
            features={"Runner": [[self.round, self.laps, self.weight]]},
            ids={"Runner": ["runner"]},
            actions={"run": CategoricalActionMask()},
            reward=reward,
            done=self.round == self.laps,
        )

    def state(self) -> dict[str, Any]:
        return {"round": self.round, "laps": self.laps, "weight": self.weight}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.round, self.laps, self.weight = state["round"], state["laps"], state["weight"]


def run(env: VecEnv) -> VecObs:
    return env.act(choose("run", [[0]] * len(env)))


def shown(obs: VecObs) -> list[list[float]]:
    """[round, laps, weight] of each environment."""
    return obs.features["Runner"].values.tolist()


def test_a_worker_that_takes_the_place_of_a_dead_one_knows_them() -> None:
    with ProcessVecEnv(PythonLaps, 2, 2, on_crash="restart") as env:
        env.reset(env_info={"weight": [2.0, 2.0]})
        env.configure({"laps": [3, 4]})
        env._workers[1].process.kill()
        assert shown(run(env)) == [[1, 2, 2], [0, 4, 2]]
