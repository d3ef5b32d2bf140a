"""Minefield on hand-made fields. Angles are counterclockwise from the x axis."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from entity_gym.actions import Action, CategoricalAction
from entity_gym.environment import Observation
from entity_gym.envs.minefield import Minefield
from tests.entity_gym.compiled.view import CompiledView
from tests.entity_gym.envs.playing import rows, started

LEFT, FORWARD, RIGHT = range(3)
TURN = math.pi / 8
Point = tuple[float, float]


def field(
    vehicle: Point, direction: float, target: Point = (90.0, 90.0), mines: Sequence[Point] = (), **parameters: Any
) -> CompiledView:
    env = started(Minefield(**parameters))
    s = env.record
    (s.x, s.y), s.direction, (s.target_x, s.target_y) = vehicle, direction, target
    s.num_mines = len(mines)
    s.mine[: len(mines)] = np.reshape(mines, (-1, 2))
    env.observe()
    return env


def move(choice: int) -> dict[str, Action]:
    return {"move": CategoricalAction([("Vehicle", 0)], np.array([choice]))}


def vehicle_of(obs: Observation) -> list[float]:
    return rows(obs, "Vehicle")[0]


# --- What is seen


@pytest.mark.parametrize("translate", [False, True])
def test_positions_are_shown_as_they_are_or_relative_to_the_vehicle(translate: bool) -> None:
    obs = field((10, 20), 1.0, (-30, 40), [(50, 0), (0, -60)], translate=translate).observe()
    x, y = (10, 20) if translate else (0, 0)
    assert vehicle_of(obs) == [10 - x, 20 - y, 1, 0]
    assert rows(obs, "Mine") == [[50 - x, -y], [-x, -60 - y]]
    assert rows(obs, "Target") == [[-30 - x, 40 - y]]


def test_the_vehicles_steps_are_counted_and_start_anew_with_every_episode() -> None:
    env = field((0, 0), 0.0)
    assert [vehicle_of(env.act(move(LEFT)))[3] for _ in range(3)] == [1, 2, 3]
    assert vehicle_of(env.reset())[3] == 0


# --- Moving


def test_a_turn_changes_the_direction_by_an_eighth_of_a_half_turn_on_the_spot() -> None:
    env = field((1, 2), 1.0)
    assert vehicle_of(env.act(move(LEFT)))[:3] == pytest.approx([1, 2, 1 + TURN])
    assert vehicle_of(env.act(move(RIGHT)))[:3] == pytest.approx([1, 2, 1.0])


def test_forward_goes_three_in_the_direction() -> None:
    assert vehicle_of(field((1, 2), 0.0).act(move(FORWARD)))[:2] == pytest.approx([4, 2])
    assert vehicle_of(field((1, 2), math.pi / 2).act(move(FORWARD)))[:2] == pytest.approx([1, 5])
    # 3-4-5 triangle: 3 * (0.6, 0.8)
    assert vehicle_of(field((0, 0), math.atan2(4, 3)).act(move(FORWARD)))[:2] == pytest.approx([1.8, 2.4])


def test_the_direction_stays_between_zero_and_a_full_turn() -> None:
    for choice in (LEFT, RIGHT):
        env = field((0, 0), 0.0)
        for _ in range(16):
            env.act(move(choice))
            assert 0 <= env.record.direction < 2 * math.pi
        assert math.cos(env.record.direction) == pytest.approx(1.0)  # sixteen turns are a full one
    assert vehicle_of(field((0, 0), 0.0).act(move(RIGHT)))[2] == pytest.approx(2 * math.pi - TURN)


# --- Reward and end


def test_coming_within_five_of_the_target_is_rewarded_and_ends_the_episode() -> None:
    env = field((0, 0), 0.0, target=(10.9, 0))
    first, second = env.act(move(FORWARD)), env.act(move(FORWARD))  # 7.9 and 4.9 away
    assert (first.reward, first.done) == (0.0, False)
    assert (second.reward, second.done, second.truncated) == (1.0, True, False)


def test_coming_within_five_of_a_mine_ends_the_episode_without_reward() -> None:
    env = field((0, 0), 0.0, mines=[(-50, 0), (3, 7.9)])
    far, near = env.act(move(LEFT)), env.act(move(RIGHT))
    assert not (far.done or near.done)
    obs = env.act(move(FORWARD))  # 7.9 below the mine
    assert not obs.done
    env = field((0, 0), 0.0, mines=[(-50, 0), (3, 4.9)])
    obs = env.act(move(FORWARD))
    assert (obs.reward, obs.done, obs.truncated) == (0.0, True, False)
    assert obs.end_of_episode_info == {"num_mines": 2}


# --- Where things start


def test_things_start_in_the_square_and_mines_keep_their_distance() -> None:
    counts = set()
    for seed in range(60):
        s = started(Minefield, seed).record
        mines = s.mine[: s.num_mines]
        others = np.array([(s.x, s.y), (s.target_x, s.target_y)])
        assert np.abs(np.concatenate([mines, others])).max() <= 100
        everything = np.concatenate([mines, others])
        distances = np.linalg.norm(mines[:, None] - everything[None], axis=2) + 1e9 * np.eye(
            len(mines), len(everything)
        )
        assert distances.min() >= 15
        assert 0 <= s.direction < 2 * math.pi
        counts.add(int(s.num_mines))
    assert max(counts) == 10
    assert len(counts) > 1  # those too close were dropped


def test_a_crowded_field_drops_mines_and_never_searches_for_room() -> None:
    s = started(Minefield(width=10.0, max_mines=64)).record  # nothing in a square of 10 is 15 away from anything else
    assert s.num_mines == 0
