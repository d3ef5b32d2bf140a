"""Corridor: the cue is shown once, only the junction asks, and chance is one over the number of ways."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from entity_gym.actions import GlobalCategoricalActionMask
from entity_gym.environment import Observation
from entity_gym.envs.corridor import Corridor
from tests.entity_gym.compiled.view import CompiledView
from tests.entity_gym.envs.playing import act, resets, started


def shown(obs: Observation) -> tuple[float, ...]:
    """Distance and cue."""
    return tuple(np.asarray(obs.global_features).tolist())


def open_choices(obs: Observation) -> list[str]:
    mask = obs.actions["go"]
    assert isinstance(mask, GlobalCategoricalActionMask)
    labels = Corridor.actions["go"].space.labels
    return [label for label, is_open in zip(labels, np.ravel(mask.mask), strict=True) if is_open]


def walked(env: CompiledView) -> list[Observation]:
    """The observations up to the junction."""
    seen = [env.observe()]
    while open_choices(seen[-1]) == ["forward"]:
        seen.append(act(env, go="forward"))
    return seen


def test_a_corridor_of_two_steps() -> None:
    env = started(Corridor(length=2, num_ways=3), right_way=3)
    seen = walked(env)
    assert [shown(obs) for obs in seen] == [(2, 3), (1, 0), (0, 0)]
    assert open_choices(seen[-1]) == ["way 1", "way 2", "way 3"]
    end = act(env, go="way 3")
    assert [obs.reward for obs in (*seen, end)] == [0, 0, 0, 1]
    assert (end.done, end.truncated) == (True, False)


@given(length=st.integers(1, 30), num_ways=st.integers(2, 8), seed=st.integers(0, 2**31), data=st.data())
def test_only_the_first_observation_and_the_reward_depend_on_the_cue(
    length: int, num_ways: int, seed: int, data: st.DataObject
) -> None:
    env = started(Corridor(length=length, num_ways=num_ways), seed)
    right = int(env.record.right_way)
    seen = walked(env)
    assert [shown(obs) for obs in seen] == [(length, right), *((left, 0) for left in range(length - 1, -1, -1))]
    assert open_choices(seen[-1]) == [f"way {way}" for way in range(1, num_ways + 1)]
    way = data.draw(st.integers(1, num_ways))
    end = act(env, go=f"way {way}")
    assert [obs.reward for obs in seen] == [0.0] * (length + 1)
    assert (end.reward, end.done, end.truncated) == (float(way == right), True, False)


@pytest.mark.parametrize("num_ways", [2, 8])
def test_all_ways_are_equally_often_right(num_ways: int) -> None:
    right = Counter(int(env.record.right_way) for env in resets(Corridor(num_ways=num_ways), 200 * num_ways))
    assert right == {way: pytest.approx(200, abs=70) for way in range(1, num_ways + 1)}  # 5 standard deviations
