"""CherryPick: what cherries are worth, what is left, and the best and the average score."""

from typing import Any

import numpy as np
import pytest

from entity_gym.actions import Action, SelectEntityAction, SelectEntityActionMask
from entity_gym.environment import Observation
from entity_gym.envs.cherry_pick import CherryPick
from tests.entity_gym.compiled.view import CompiledView


def seeded(seed: int, **parameters: Any) -> CompiledView:
    env = CompiledView(CherryPick(**parameters))
    env.rng = np.random.default_rng(seed)
    return env


def qualities(obs: Observation) -> list[float]:
    return np.asarray(obs.features["Cherry"])[:, 0].tolist()


def pick(cherry: int) -> dict[str, Action]:
    return {"Pick Cherry": SelectEntityAction([("Player", 0)], [("Cherry", cherry)])}


def test_the_player_may_pick_any_cherry_that_is_left() -> None:
    env = seeded(0, num_cherries=4)
    for obs, left in ((env.reset(), 4), (env.act(pick(3)), 3)):
        mask = obs.actions["Pick Cherry"]
        assert isinstance(mask, SelectEntityActionMask)
        assert mask.actor_ids == [("Player", 0)]
        assert mask.actee_ids == [("Cherry", i) for i in range(left)]
        assert np.shape(obs.features["Player"]) == (1, 0)


@pytest.mark.parametrize("num_cherries", [2, 3, 32, 33, 128])
def test_the_better_half_sums_to_one(num_cherries: int) -> None:
    for seed in range(10):
        seen = sorted(qualities(seeded(seed, num_cherries=num_cherries).reset()), reverse=True)
        assert len(seen) == num_cherries
        assert sum(seen[: num_cherries // 2]) == pytest.approx(1.0, abs=1e-4)


def test_qualities_are_normal_but_for_a_shift_and_in_no_order() -> None:
    drawn = np.array([qualities(seeded(seed).reset()) for seed in range(300)])
    around = drawn - drawn.mean(axis=1, keepdims=True)
    # 9,600 numbers: the standard error of the variance is sqrt(2 / 9600) = 0.0144, that of a share of 0.68 is 0.005
    assert abs((around**2).sum() / (300 * 31) - 1) < 5 * 0.0144
    assert abs((np.abs(around) < 1).mean() - 0.683) < 5 * 0.005 + 0.01  # the mean of 32 is taken off, too
    # each place is the best in 300 / 32 = 9.4 episodes on average, with a standard deviation of 3
    assert np.bincount(drawn.argmax(axis=1), minlength=32).max() < 9.4 + 5 * 3


def test_a_pick_pays_its_quality_and_takes_the_cherry_away() -> None:
    env = seeded(1, num_cherries=6)
    before = qualities(env.reset())
    obs = env.act(pick(2))
    assert obs.reward == pytest.approx(before[2])
    assert qualities(obs) == before[:2] + before[3:]
    assert qualities(env.act(pick(4))) == before[:2] + before[3:5]


@pytest.mark.parametrize(("num_cherries", "steps"), [(2, 1), (3, 1), (32, 16), (33, 16)])
def test_the_episode_ends_when_half_of_the_cherries_are_picked(num_cherries: int, steps: int) -> None:
    env = seeded(0, num_cherries=num_cherries)
    env.reset()
    ends = [(obs.done, obs.truncated) for obs in (env.act(pick(0)) for _ in range(steps))]
    assert ends == [(False, False)] * (steps - 1) + [(True, False)]


def score(env: CompiledView, choose: Any) -> float:
    obs, total = env.reset(), 0.0
    while not obs.done:
        obs = env.act(pick(int(choose(qualities(obs)))))
        total += obs.reward
    return total


def test_picking_the_best_scores_one_in_every_episode() -> None:
    env = seeded(2)
    for _ in range(10):
        assert score(env, np.argmax) == pytest.approx(1.0, abs=1e-4)
