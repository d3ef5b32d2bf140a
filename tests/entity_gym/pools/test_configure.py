"""Parameters that are set while episodes are running count from the next episode on, in every pool."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from entity_gym.batch.vec_obs import VecObs
from entity_gym.compiled import Categorical, CompiledEnvironment
from entity_gym.compiled import Entity as CompiledEntity
from entity_gym.pools.pool import ListEnv, ThreadedVecEnv
from entity_gym.pools.vec_env import VecEnv
from tests.entity_gym.pools.processes.thread_workers import threads as threads
from tests.worlds import choose


class Laps(CompiledEnvironment):
    """Runs `laps` rounds and shows the round, how many there are, and the `weight` that it carries."""

    entities = {"Runner": CompiledEntity(["round", "laps", "weight"], max=1)}
    actions = {"run": Categorical(["on"], actors="Runner")}
    parameters = {"laps": 2, "weight": 0.5}
    state = [("carried", np.float64)]

    @staticmethod
    def check_parameters(p: Any) -> None:
        if p.laps < 1:
            raise ValueError(f"laps is {p.laps}; it must be at least 1")

    def reset(s: Any) -> None:
        s.carried = s.weight

    def step(s: Any, act: Any) -> tuple[float, bool, bool]:
        return s.carried, s.steps == s.laps, False

    def observe(s: Any, obs: Any) -> None:
        obs.n.Runner = 1
        obs.Runner[0, 0] = s.steps
        obs.Runner[0, 1] = s.laps
        obs.Runner[0, 2] = s.carried


PYTHON_LAPS = Laps().as_environment  # makes the same as Python objects

POOLS: dict[str, Callable[[int], VecEnv]] = {
    "list": lambda n: ListEnv(PYTHON_LAPS, n),
    "compiled threads": lambda n: ThreadedVecEnv(Laps, n, 2),
    "ordinary Python": lambda n: ThreadedVecEnv(Laps, n, compile=False),
    "processes": lambda n: ThreadedVecEnv(PYTHON_LAPS, n, num_processes=2),
}


@pytest.fixture(params=POOLS)
def make(request: pytest.FixtureRequest, threads: None) -> Callable[[int], VecEnv]:
    """One pool for each implementation of what waits."""
    return POOLS[request.param]


def run(env: VecEnv) -> VecObs:
    return env.act(choose("run", [[0]] * len(env)))


def shown(obs: VecObs) -> list[list[float]]:
    """[round, laps, weight] of each environment."""
    return obs.features["Runner"].values.tolist()


def test_parameters_wait_for_the_next_episode(make: Callable[[int], VecEnv]) -> None:
    with make(2) as env:
        env.reset()
        env.configure({"laps": [3, 1], "weight": [1.0, 2.0]})
        obs = run(env)
        assert shown(obs) == [[1, 2, 0.5], [1, 2, 0.5]] and obs.reward.tolist() == [0.5, 0.5]
        obs = run(env)  # the last step is still played with the old ones, and the first frame shows the new ones
        assert obs.done.tolist() == [True, True] and obs.reward.tolist() == [0.5, 0.5]
        assert shown(obs) == [[0, 3, 1], [0, 1, 2]]
        obs = run(env)
        assert obs.done.tolist() == [False, True] and obs.reward.tolist() == [1, 2]
        assert [run(env).done.tolist() for _ in range(3)] == [[False, True], [True, True], [False, True]]  # and stay


def test_a_reset_takes_what_waits_and_then_what_it_is_given(make: Callable[[int], VecEnv]) -> None:
    with make(2) as env:
        env.reset()
        env.configure({"laps": [3, 4], "weight": [1.0, 2.0]})
        assert shown(env.reset(env_info=[{"weight": 8.0}, {}])) == [[0, 3, 8], [0, 4, 2]]
        env.configure({"laps": [1, 1]})
        assert shown(env.reset()) == [[0, 1, 8], [0, 1, 2]]


def test_what_waits_is_saved(make: Callable[[int], VecEnv]) -> None:
    with make(3) as env, make(3) as other:
        env.reset()
        run(env)
        env.configure([{"laps": 3}, {}, {"weight": 2.0}])
        state = copy.deepcopy(env.state())
        expected = [shown(run(env)) for _ in range(4)]
        assert expected[0] == [[0, 3, 0.5], [0, 2, 0.5], [0, 2, 2]]
        other.load_state(state)
        assert [shown(run(other)) for _ in range(4)] == expected
        assert shown(env.load_state(state)) == [[1, 2, 0.5]] * 3
        assert [shown(run(env)) for _ in range(4)] == expected


@pytest.mark.parametrize("kind", ["compiled threads", "processes"])
def test_what_is_under_way_is_waited_for(kind: str, threads: None) -> None:
    with POOLS[kind](4) as env:
        env.async_reset()
        env.configure({"laps": [1, 2, 3, 4]})
        first = env.recv()
        assert shown(first) == [[0, 2, 0.5]] * 4
        for _ in range(2):
            env.send(choose("run", [[0]] * 4))
            obs = env.recv()
        assert shown(obs) == [[0, 1, 0.5], [0, 2, 0.5], [0, 3, 0.5], [0, 4, 0.5]]


# --- What is refused


def test_a_compiled_environment_refuses_at_once_and_all_stay_as_they_are() -> None:
    with POOLS["ordinary Python"](2) as env:
        env.reset()
        with pytest.raises(ValueError, match="laps is 0; it must be at least 1") as error:
            env.configure({"laps": [7, 0]})
        assert error.value.__notes__ == ["in env_info of Laps (environment 1)"]
        with pytest.raises(ValueError, match="has no parameter 'lap'; .* did you mean 'laps'"):
            env.configure({"lap": [1, 1]})
        run(env)
        assert shown(run(env)) == [[0, 2, 0.5]] * 2
