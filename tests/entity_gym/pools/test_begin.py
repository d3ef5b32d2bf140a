"""Worlds that are computed elsewhere begin their steps before the pool waits for the first of them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from entity_gym import Action, Environment, Observation
from entity_gym.actions import ActionSpace, GlobalCategoricalActionMask, GlobalCategoricalActionSpace
from entity_gym.actions.choices import random_actions
from entity_gym.pools.pool import ListEnv
from entity_gym.spaces import ObsSpace

said: list[str] = []


class Elsewhere(Environment):
    """Episodes of one step."""

    def __init__(self, length: int = 1) -> None:
        self.length = length

    def obs_space(self) -> ObsSpace:
        return ObsSpace(global_features=["x"])

    def action_space(self) -> Mapping[str, ActionSpace]:
        return {"wait": GlobalCategoricalActionSpace(["yes"])}

    def begin(self, actions: Mapping[str, Action] | None) -> None:
        said.append(f"begin reset {self.length}" if actions is None else f"begin {list(actions)}")

    def reset(self) -> Observation:
        said.append("reset")
        return Observation(global_features=[0], actions={"wait": GlobalCategoricalActionMask()})

    def act(self, actions: Mapping[str, Action]) -> Observation:
        said.append("act")
        return Observation(global_features=[1], done=True)


def test_all_environments_begin_before_the_first_is_waited_for() -> None:
    pool = ListEnv(Elsewhere, 2)
    obs = pool.reset(env_info=[{"length": 3}, {"length": 4}])
    assert said == ["begin reset 3", "begin reset 4", "reset", "reset"]
    said.clear()
    obs = pool.act(random_actions(obs, np.random.default_rng(0), pool.action_space()))
    begun = ["begin ['wait']", "begin ['wait']"]
    assert said == [*begun, "act", "begin reset 3", "act", "begin reset 4", "reset", "reset"]
    assert obs.features["__global__"].values.tolist() == [[0], [0]]
    assert obs.done.all()
