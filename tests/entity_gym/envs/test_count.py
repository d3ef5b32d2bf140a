from collections import Counter

import numpy as np
import pytest

from entity_gym.actions import CategoricalActionMask
from entity_gym.compiled.view import CompiledView
from entity_gym.environment import Observation
from entity_gym.envs.count import Count
from tests.entity_gym.envs.playing import act, resets, started


def open_choices(obs: Observation) -> set[int]:
    mask = obs.actions["count"]
    assert isinstance(mask, CategoricalActionMask)
    assert mask.actor_ids == [("Player", 0)]
    return set(np.flatnonzero(np.asarray(mask.mask)[0]).tolist())


def only(*choices: int) -> list[bool]:
    return [choice in choices for choice in range(10)]


def test_the_right_number_is_rewarded() -> None:
    for answer, reward in (("3", 1.0), ("2", 0.0)):
        env = started(Count, num_beans=3, is_open=only(2, 3))
        assert len(env.observe().features["Bean"]) == 3
        obs = act(env, count=answer)
        assert (obs.reward, obs.done, obs.truncated) == (reward, True, False)


@pytest.mark.parametrize("masked_choices", [1, 2, 7, 10])
def test_beans_and_open_choices_stay_below_masked_choices_and_the_right_one_is_open(masked_choices: int) -> None:
    seen = set()
    for env in resets(Count(masked_choices=masked_choices), 200):
        obs = env.observe()
        num_beans, choices = len(obs.features["Bean"]), open_choices(obs)
        assert num_beans in choices
        assert choices <= set(range(masked_choices))
        seen |= {num_beans}
    assert seen == set(range(masked_choices))


def test_every_set_of_one_size_is_equally_likely_and_every_size_too() -> None:
    # With three choices and no bean: sizes 0 to 3, each with chance 1/4; then {0} is added. Each of the sets {1} and {2}
    # comes with size 1 (1/4 x 1/3, without 0) and with size 2 (1/4 x 1/3, together with 0).
    sets: Counter[frozenset[int]] = Counter()
    for env in resets(Count(masked_choices=3), 6000):
        if env.record.num_beans == 0:
            sets[frozenset(open_choices(env.observe()))] += 1
    total = sets.total()
    expected = {(0,): 1 / 4 + 1 / 12, (0, 1): 1 / 6, (0, 2): 1 / 6, (0, 1, 2): 1 / 12 + 1 / 4}
    assert {key: value / total for key, value in sets.items()} == {
        frozenset(key): pytest.approx(value, abs=0.05) for key, value in expected.items()
    }


def test_uniform_choices_among_the_open_ones_score_as_promised() -> None:
    scores = [1 / len(open_choices(env.observe())) for env in resets(Count, 1500)]
    assert np.mean(scores) == pytest.approx(0.2929, abs=0.03)


@pytest.mark.parametrize("masked_choices", [0, 11])
def test_masked_choices_out_of_range_are_refused(masked_choices: int) -> None:
    with pytest.raises(ValueError, match=f"Count: masked_choices={masked_choices}; .* from 1 to 10"):
        Count(masked_choices=masked_choices)


def test_the_drawing_shows_the_beans_and_what_is_open() -> None:
    def row(env: CompiledView, middle: int) -> list[bool]:
        empty = env.render()[middle, 3].tolist()  # a corner of the first tile, which nothing covers
        return [env.render()[middle, 32 * x + 16].tolist() != empty for x in range(10)]

    env = started(Count, num_beans=3, is_open=only(2, 3))
    assert env.render().shape == (65, 321, 3)
    assert row(env, 16) == [True] * 3 + [False] * 7
    assert row(env, 48) == only(2, 3)
    act(env, count="3")
    assert env.render()[48, 32 * 3 + 16].tolist() == [30, 150, 90]
