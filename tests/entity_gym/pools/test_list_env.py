"""A serial pool: seeding, autoreset, final observations, and continuing from a saved state."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from entity_gym import Action, Entity, Environment, Observation, ObsSpace
from entity_gym.actions import ActionSpace, GlobalCategoricalActionMask, GlobalCategoricalActionSpace
from entity_gym.actions.choices import random_actions
from entity_gym.pools.pool import ListEnv
from tests.worlds import Script, Zoo, making

SPACE = ObsSpace({"Cat": Entity(["x"])})


def cat(x: float, **fields: Any) -> Observation:
    return Observation(features={"Cat": [[x]]}, **fields)


def scripted(*scripts: list[Observation], **kwargs: Any) -> ListEnv:
    env = ListEnv(making(*(Script(script, SPACE) for script in scripts)), len(scripts), **kwargs)
    env.reset()
    return env


# --- Seeding


def test_environment_i_draws_from_the_seed_sequence_of_seed_and_i() -> None:
    env = ListEnv(Zoo, 3, seed=7)
    for i in range(3):
        expected = np.random.default_rng(np.random.SeedSequence((7, i)))
        assert env.slots.envs[i].rng.bit_generator.state == expected.bit_generator.state
    env.reset(seed=8)
    again = Zoo()
    again.rng = np.random.default_rng(np.random.SeedSequence((8, 2)))
    again.reset()
    assert env.slots.envs[2].rng.random() == again.rng.random()


# --- Autoreset


def test_the_observation_after_done_is_the_first_of_the_next_episode() -> None:
    first = cat(0, reward=100, metrics={"hp": 100}, end_of_episode_info={"won": 100})  # of no step
    env = scripted([first, cat(1, reward=0.5), cat(2, reward=2, done=True, end_of_episode_info={"won": 1})])
    going, ended, next_ = env.act({}), env.act({}), env.act({})
    assert (going.features["Cat"].to_list(), going.done.tolist(), going.reward.tolist()) == ([[[1]]], [False], [0.5])
    assert (ended.features["Cat"].to_list(), ended.done.tolist(), ended.reward.tolist()) == ([[[0]]], [True], [2.0])
    assert (ended.truncated.tolist(), ended.end_of_episode_info) == ([False], {0: {"won": 1}})
    assert (next_.features["Cat"].to_list(), next_.done.tolist(), next_.reward.tolist()) == ([[[1]]], [False], [0.5])
    assert next_.end_of_episode_info == {} and "hp" not in ended.metrics


# --- Final observations

ENDS = [
    [cat(0), cat(1, reward=1, done=True)],
    [cat(10), cat(11)],
    [cat(20), cat(21, reward=2, done=True, truncated=True)],
]


@pytest.mark.parametrize(("keep", "env_id"), [("truncated", [2]), ("all", [0, 2])])
def test_final_observations_are_kept_with_the_environments_they_belong_to(keep: str, env_id: list[int]) -> None:
    obs = scripted(*ENDS, final_observations=keep).act({})
    assert obs.features["Cat"].to_list() == [[[0]], [[11]], [[20]]]
    assert obs.final is not None
    assert obs.final.env_id.tolist() == env_id
    assert obs.final.features["Cat"].to_list() == [[[i * 10 + 1]] for i in env_id]
    assert obs.final.done.tolist() == [True] * len(env_id)
    assert obs.final.truncated.tolist() == [i == 2 for i in env_id]


class InPlace(Environment):
    """Hands out its own arrays and dictionaries, and writes each step into them."""

    def __init__(self) -> None:
        self.rows = np.zeros((1, 1), np.float32)
        self.hidden = np.zeros(1, np.bool_)
        self.info: dict[str, Any] = {"place": np.zeros(1)}
        self.metrics: dict[str, float] = {}
        self.reward, self.target, self.earned = np.zeros(()), np.zeros(1, np.float32), np.zeros(2)

    def obs_space(self) -> ObsSpace:
        return ObsSpace(SPACE.entities, targets={"steps": 1})

    def action_space(self) -> dict:
        return {}

    def reset(self) -> Observation:
        self.rows[:] = 0
        self.info.pop("steps", None)
        self.metrics.clear()
        for array in (self.reward, self.target, self.earned, self.info["place"]):
            array[...] = 0
        self.hidden[:] = True
        return self._observe(done=False)

    def act(self, actions: Mapping[str, Action]) -> Observation:
        self.rows += 1
        self.hidden[:] = False
        self.info["steps"] = int(self.rows[0, 0])
        self.metrics["steps"] = self.info["steps"]
        for array in (self.reward, self.target, self.earned, self.info["place"]):
            array += 1
        return self._observe(done=self.info["steps"] == 3)

    def state(self) -> dict[str, Any]:
        return {"rows": self.rows.copy()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.rows[:] = state["rows"]

    def _observe(self, *, done: bool) -> Observation:
        return Observation(
            features={"Cat": self.rows},
            visible={"Cat": self.hidden},
            end_of_episode_info=self.info,
            metrics=self.metrics,
            reward=self.reward,  # type: ignore[arg-type]
            player_rewards=self.earned,  # type: ignore[arg-type]
            targets={"steps": self.target},
            done=done,
            truncated=done,
        )


def test_a_final_observation_outlives_a_reset_that_writes_into_the_same_arrays() -> None:
    env = ListEnv(InPlace, 2)
    env.reset()
    seen = [env.act({}) for _ in range(3)]
    assert [obs.features["Cat"].to_list() for obs in seen] == [[[[1]]] * 2, [[[2]]] * 2, [[[0]]] * 2]
    final = seen[-1].final
    assert final is not None
    assert final.features["Cat"].to_list() == [[[3]]] * 2
    assert final.visible["Cat"].to_list() == [[[False]]] * 2
    assert seen[-1].visible == {}
    assert [info["steps"] for info in seen[-1].end_of_episode_info.values()] == [3, 3]
    assert [info["place"].tolist() for info in seen[-1].end_of_episode_info.values()] == [[3], [3]]
    assert final.arrays["target:steps"].tolist() == [[3]] * 2
    assert seen[-1].arrays["target:steps"].tolist() == [[0]] * 2
    assert final.reward.tolist() == seen[-1].reward.tolist() == [3, 3]
    assert final.arrays["player_reward"].to_list() == seen[-1].arrays["player_reward"].to_list() == [[3, 3]] * 2
    assert seen[-1].metrics["steps"].max == 3


def test_a_saved_state_outlives_steps_that_write_into_the_same_arrays() -> None:
    env = ListEnv(InPlace, 1)
    env.reset()
    env.act({})
    state = env.state()
    env.act({})
    assert env.load_state(state).features["Cat"].to_list() == [[[1]]]
    assert env.act({}).features["Cat"].to_list() == [[[2]]]


# --- Worlds that are computed elsewhere begin their steps before the pool waits for the first of them

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
