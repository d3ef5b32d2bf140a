"""PickMatchingBalls on hand-made balls: what is seen, what a wrong ball costs, and the best score."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from entity_gym.actions import Action, SelectEntityAction, SelectEntityActionMask
from entity_gym.envs.pick_matching_balls import PickMatchingBalls
from tests.entity_gym.compiled.view import CompiledView
from tests.entity_gym.envs.playing import rows, started


def balls(*colours: int, **parameters: Any) -> CompiledView:
    env = started(PickMatchingBalls(max_balls=len(colours), **parameters))
    s = env.record
    s.colour[: len(colours)] = colours
    s.most = max(colours.count(colour) for colour in colours)
    env.observe()
    return env


def pick(ball: int) -> dict[str, Action]:
    return {"Pick Ball": SelectEntityAction([("Player", 0)], [("Ball", ball)])}


def picked(env: CompiledView, order: Sequence[int]) -> list[tuple[float, bool]]:
    """Reward and end of each pick."""
    return [(obs.reward, obs.done) for obs in (env.act(pick(ball)) for ball in order)]


# --- What is seen


def test_the_number_of_the_colour_is_shown_six_times_or_one_hot() -> None:
    assert rows(balls(4, 0).observe(), "Ball") == [[4, 4, 4, 4, 4, 4, 0], [0, 0, 0, 0, 0, 0, 0]]
    assert rows(balls(4, 0, one_hot=True).observe(), "Ball") == [[0, 0, 0, 0, 1, 0, 0], [1, 0, 0, 0, 0, 0, 0]]


def test_a_picked_ball_stays_in_sight_and_cannot_be_picked_again() -> None:
    env = balls(1, 1, 1, 2)
    obs = env.act(pick(1))
    assert [row[-1] for row in rows(obs, "Ball")] == [0, 1, 0, 0]
    mask = obs.actions["Pick Ball"]
    assert isinstance(mask, SelectEntityActionMask)
    assert mask.actor_ids == [("Player", 0)]
    assert mask.actee_ids == [("Ball", 0), ("Ball", 2), ("Ball", 3)]
    with pytest.raises(ValueError, match="Pick Ball"):
        env.act(pick(1))


# --- Reward and end


def test_a_ball_of_a_second_colour_ends_the_episode_and_does_not_count() -> None:
    # two of the three balls of colour 5, then one of colour 0
    assert picked(balls(5, 0, 5, 5), [0, 2, 1]) == [(0, False), (0, False), (pytest.approx(2 / 3), True)]


def test_all_balls_of_the_most_frequent_colour_and_any_other_score_one() -> None:
    assert picked(balls(1, 0, 1, 0, 1, 2), [0, 2, 4, 1]) == [(0, False), (0, False), (0, False), (1.0, True)]


def test_balls_that_all_match_score_one_when_all_are_picked() -> None:
    assert picked(balls(2, 2, 2), [2, 0, 1]) == [(0, False), (0, False), (1.0, True)]
    assert picked(balls(2), [0]) == [(1.0, True)]


@pytest.mark.parametrize("parameters", [{}, {"one_hot": True, "randomize": True}, {"max_balls": 3}])
def test_picking_the_most_frequent_colour_first_scores_one_in_every_episode(parameters: dict[str, Any]) -> None:
    env = started(PickMatchingBalls(**parameters))
    for _ in range(20):
        obs = env.reset()
        colours = [int(colour) for colour in env.record.colour[: env.record.num_balls]]
        best = max(range(6), key=colours.count)
        order = iter(sorted(range(len(colours)), key=lambda ball: colours[ball] != best))
        rewards = []
        while not obs.done:
            obs = env.act(pick(next(order)))
            rewards.append(obs.reward)
        assert rewards[:-1] == [0.0] * (len(rewards) - 1)
        assert rewards[-1] == pytest.approx(1.0)


# --- Where it starts


def test_colours_are_drawn_uniformly() -> None:
    env = started(PickMatchingBalls)
    counts = np.zeros(6)
    for _ in range(150):
        env.reset()
        counts += np.bincount(env.record.colour[:32], minlength=6)
    # 4,800 balls, 800 of each colour on average; the standard deviation is sqrt(4800 * 1/6 * 5/6) = 25.8
    assert np.abs(counts - 800).max() < 5 * 25.8


def test_with_randomize_there_are_three_to_as_many_balls_as_may_be() -> None:
    env = started(PickMatchingBalls(max_balls=6, randomize=True))
    assert {len(rows(env.reset(), "Ball")) for _ in range(100)} == {3, 4, 5, 6}
    assert len(rows(started(PickMatchingBalls(max_balls=2, randomize=True)).reset(), "Ball")) == 2
