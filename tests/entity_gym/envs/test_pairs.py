"""Pairs: only different gates pay, and the best that independent robots can do."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from entity_gym.actions import SelectEntityAction
from entity_gym.environment import Observation
from entity_gym.envs.pairs import Pairs, PairsApart
from tests.entity_gym.compiled.view import CompiledView
from tests.entity_gym.envs.playing import resets, rows, started


def take(env: CompiledView, first: int, second: int) -> Observation:
    actors, gates = [("Robot", 0), ("Robot", 1)], [("Gate", first), ("Gate", second)]
    return env.act({"take": SelectEntityAction(actors, gates)})


@pytest.mark.parametrize("env", [Pairs, PairsApart])
@pytest.mark.parametrize("num_gates", [2, 3, 16])
def test_only_different_gates_pay(num_gates: int, env: type[Pairs]) -> None:
    world = env(min_gates=num_gates, max_gates=num_gates)
    paid = np.zeros((num_gates, num_gates))
    for first, second in np.ndindex(num_gates, num_gates):
        end = take(started(world), first, second)
        assert (end.done, end.truncated, end.end_of_episode_info) == (True, False, {"num_gates": num_gates})
        paid[first, second] = end.reward
    assert (paid == 1 - np.eye(num_gates)).all()
    assert paid.mean() == pytest.approx(1 - 1 / num_gates)  # of independent robots with p = 1/n


@given(weights=st.lists(st.floats(0.01, 1), min_size=2, max_size=16))
def test_no_independent_policy_is_better_than_the_uniform_one(weights: list[float]) -> None:
    p = np.array(weights) / sum(weights)
    assert p @ (1 - np.eye(len(p))) @ p <= 1 - 1 / len(p) + 1e-12


def test_robots_show_nothing_and_gates_their_numbers() -> None:
    sizes: Counter[int] = Counter()
    for env in resets(Pairs, 600):
        obs = env.observe()
        assert np.shape(obs.features["Robot"]) == (2, 0)
        assert rows(obs, "Gate") == [[i] for i in range(len(rows(obs, "Gate")))]
        sizes[len(rows(obs, "Gate"))] += 1
    assert sizes == {size: pytest.approx(200, abs=58) for size in (2, 3, 4)}  # 5 standard deviations
