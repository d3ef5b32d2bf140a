"""The rules of MultiSnake on hand-made boards. Positions are (x, y), y grows upwards; snakes are written from tail to head."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from entity_gym.actions import Action, CategoricalAction
from entity_gym.envs.multi_snake import MultiSnake
from tests.entity_gym.compiled.view import CompiledView
from tests.entity_gym.envs.playing import rows, started

UP, DOWN, LEFT, RIGHT = range(4)
Cell = tuple[int, int]


def world(snakes: Sequence[Sequence[Cell]], food: Sequence[Cell], **parameters: Any) -> CompiledView:
    """A 5x5 board for snakes of up to 4 segments, unless `parameters` say otherwise."""
    defaults = {"board_size": 5, "num_snakes": len(snakes), "max_snake_length": 4}
    env = started(MultiSnake(**{**defaults, **parameters}))
    s = env.record
    for i, segments in enumerate(snakes):
        s.length[i] = len(segments)
        first = i * s.max_snake_length
        s.segment[first : first + len(segments)] = segments
        s.food[i] = food[i]
    env.observe()
    return env


def move(*choices: int) -> dict[str, Action]:
    return {"move": CategoricalAction([("SnakeHead", i) for i in range(len(choices))], np.array(choices, np.int64))}


def snakes_of(env: CompiledView) -> list[list[Cell]]:
    s = env.record
    firsts = [i * s.max_snake_length for i in range(s.num_snakes)]
    return [[(x, y) for x, y in s.segment[first : first + s.length[i]].tolist()] for i, first in enumerate(firsts)]


def food_of(env: CompiledView) -> list[Cell]:
    return [(x, y) for x, y in env.record.food[: env.record.num_snakes].tolist()]


# --- What is seen


def test_heads_bodies_and_food_are_shown_in_the_order_of_colours_and_bodies_from_the_tail() -> None:
    obs = world([[(0, 0), (1, 0), (1, 1)], [(4, 4)], [(3, 2), (3, 3)]], [(2, 2), (4, 0), (0, 4)]).observe()
    assert rows(obs, "SnakeHead") == [[1, 1, 0], [4, 4, 1], [3, 3, 2]]
    assert rows(obs, "SnakeBody") == [[0, 0, 0], [1, 0, 0], [3, 2, 2]]
    assert rows(obs, "Food") == [[2, 2, 0], [4, 0, 1], [0, 4, 2]]
    assert obs.actions["move"].actor_ids == [("SnakeHead", 0), ("SnakeHead", 1), ("SnakeHead", 2)]


def test_an_episode_starts_with_snakes_of_one_segment_in_cells_of_their_own() -> None:
    env = CompiledView(MultiSnake(board_size=4, num_snakes=4, max_snake_length=3))
    for seed in range(20):
        env.rng = np.random.default_rng(seed)
        obs = env.reset()
        assert len(obs.features["SnakeBody"]) == 0
        cells = [*rows(obs, "SnakeHead"), *rows(obs, "Food")]
        assert len({(x, y) for x, y, _ in cells}) == 8
        assert all(0 <= x < 4 and 0 <= y < 4 for x, y, _ in cells)


# --- Moving


@pytest.mark.parametrize(("choice", "to"), [(UP, (2, 3)), (DOWN, (2, 1)), (LEFT, (1, 2)), (RIGHT, (3, 2))])
def test_a_move_goes_one_cell_in_the_direction_of_its_name(choice: int, to: Cell) -> None:
    env = world([[(2, 2)]], [(0, 0)])
    assert rows(env.act(move(choice)), "SnakeHead") == [[*to, 0]]


def test_the_body_follows_the_head() -> None:
    env = world([[(0, 0), (1, 0), (1, 1)]], [(4, 4)])
    env.act(move(RIGHT))
    assert snakes_of(env) == [[(1, 0), (1, 1), (2, 1)]]


def test_snakes_move_one_after_the_other() -> None:
    # Snake 0 leaves (2, 2) before snake 1 enters it.
    env = world([[(2, 2)], [(1, 2)]], [(0, 0), (4, 4)])
    obs = env.act(move(UP, RIGHT))
    assert (snakes_of(env), obs.done) == ([[(2, 3)], [(2, 2)]], False)


# --- Eating


def test_food_of_the_own_colour_makes_a_snake_one_longer_and_is_replaced_in_a_free_cell() -> None:
    for seed in range(20):
        env = world([[(0, 0), (1, 0)], [(4, 4)]], [(2, 0), (0, 4)])
        env.record.rng += seed
        obs = env.act(move(RIGHT, DOWN))
        assert snakes_of(env) == [[(0, 0), (1, 0), (2, 0)], [(4, 3)]]
        assert food_of(env)[1] == (0, 4)
        assert food_of(env)[0] not in [(0, 0), (1, 0), (2, 0), (4, 3), (0, 4)]
        assert obs.reward == pytest.approx(1 / 3 / 2)


def test_a_snake_of_full_length_eats_without_growing_or_reward() -> None:
    full = [(0, 0), (1, 0), (2, 0), (3, 0)]
    env = world([full, [(0, 4)]], [(4, 0), (2, 2)])
    obs = env.act(move(RIGHT, RIGHT))
    assert snakes_of(env)[0] == [(1, 0), (2, 0), (3, 0), (4, 0)]
    assert food_of(env)[0] != (4, 0)
    assert (obs.reward, obs.done) == (0.0, False)


def test_the_last_free_cell_is_found_on_a_full_board() -> None:
    # 3x3: eight segments after the bite; the only free cell is (0, 2).
    path = [(0, 0), (1, 0), (2, 0), (2, 1), (1, 1), (0, 1), (0, 2), (1, 2)]
    env = world([path[:6]], [(0, 2)], board_size=3, max_snake_length=8)
    env.act(move(UP))
    assert food_of(env)[0] in [(1, 2), (2, 2)]
    env = world([path[::-1][:7]], [(0, 0)], board_size=3, max_snake_length=8)
    env.act(move(LEFT))
    assert food_of(env) == [(2, 2)]


# --- What kills


@pytest.mark.parametrize(
    ("head", "choice"),
    [
        ((2, 4), UP),
        ((2, 0), DOWN),
        ((0, 2), LEFT),
        ((4, 2), RIGHT),
    ],
)
def test_the_wall_kills(head: Cell, choice: int) -> None:
    env = world([[head]], [(2, 2)])
    obs = env.act(move(choice))
    assert (obs.reward, obs.done, obs.truncated) == (0.0, True, False)
    assert snakes_of(env) == [[head]]  # the dead stay where they were


def test_turning_back_on_the_own_neck_kills() -> None:
    assert world([[(1, 1), (2, 1)]], [(4, 4)]).act(move(LEFT)).done


def test_the_own_tail_kills_though_it_would_have_left() -> None:
    # A square of four: the head at (0, 1) steps on the tail at (0, 0), which would move on with this very step.
    square = [(0, 0), (1, 0), (1, 1), (0, 1)]
    assert world([square], [(4, 4)], max_snake_length=5).act(move(DOWN)).done
    assert not world([square], [(4, 4)], max_snake_length=5).act(move(UP)).done


def test_another_snake_kills_whichever_segment_is_hit() -> None:
    for segment in range(3):
        other = [(2, 0), (2, 1), (2, 2)]
        assert world([[(1, segment)], other], [(4, 4), (4, 0)]).act(move(RIGHT, UP)).done


def test_the_tail_of_a_snake_that_moves_later_is_still_there_and_that_of_one_that_moved_is_gone() -> None:
    mover, waiting = [(2, 0), (2, 1)], [(1, 0)]
    assert not world([mover, waiting], [(4, 4), (4, 0)]).act(move(UP, RIGHT)).done
    assert world([waiting, mover], [(4, 0), (4, 4)]).act(move(RIGHT, UP)).done


def test_two_heads_that_want_the_same_cell_kill_the_later_one() -> None:
    env = world([[(1, 2)], [(3, 2)]], [(0, 0), (4, 4)])
    assert env.act(move(RIGHT, LEFT)).done
    assert snakes_of(env) == [[(2, 2)], [(3, 2)]]


def test_food_of_another_colour_kills() -> None:
    env = world([[(0, 0)], [(4, 4)]], [(4, 0), (1, 0)])
    obs = env.act(move(RIGHT, LEFT))
    assert (obs.reward, obs.done) == (0.0, True)
    assert food_of(env) == [(4, 0), (1, 0)]


def test_snakes_after_a_dead_one_still_move_and_eat() -> None:
    env = world([[(0, 0)], [(3, 3)]], [(2, 0), (3, 4)])
    obs = env.act(move(LEFT, UP))
    assert snakes_of(env) == [[(0, 0)], [(3, 3), (3, 4)]]
    assert (obs.reward, obs.done) == (pytest.approx(1 / 3 / 2), True)


# --- End


def test_the_episode_ends_when_all_snakes_are_full_grown() -> None:
    full = [(0, 0), (1, 0), (2, 0), (3, 0)]
    env = world([full, [(0, 4), (1, 4), (2, 4)]], [(4, 2), (3, 4)])
    obs = env.act(move(UP, RIGHT))
    assert (obs.reward, obs.done, obs.truncated) == (pytest.approx(1 / 6), True, False)
    env = world([full, [(0, 4), (1, 4)]], [(4, 2), (2, 4)])
    assert not env.act(move(UP, RIGHT)).done


# --- Players


def test_what_each_player_earns_is_a_metric_and_their_scores_come_with_the_end() -> None:
    env = world([[(0, 0)], [(0, 4)], [(4, 0)], [(4, 4)]], [(1, 0), (2, 4), (4, 1), (3, 4)], num_players=2)
    obs = env.act(move(RIGHT, RIGHT, UP, LEFT))  # snakes 0, 2 and 3 eat
    bite = 1 / 3 / 4
    assert obs.reward == pytest.approx(3 * bite)
    assert obs.metrics == {"reward_0": pytest.approx(bite), "reward_1": pytest.approx(2 * bite)}
    env.record.food[:4] = [(2, 0), (2, 1), (2, 2), (2, 3)]  # nobody's way leads there
    obs = env.act(move(DOWN, DOWN, UP, DOWN))  # snake 0 leaves the board
    assert obs.metrics == {"reward_0": 0.0, "reward_1": 0.0}
    assert obs.end_of_episode_info is not None
    assert obs.end_of_episode_info["score_0"] == pytest.approx(bite)
    assert obs.end_of_episode_info["score_1"] == pytest.approx(2 * bite)


def test_a_player_whose_snakes_are_all_full_grown_ends_the_episode() -> None:
    full, almost = [(0, 0), (1, 0), (2, 0), (3, 0)], [(0, 4), (1, 4), (2, 4)]
    env = world([full, almost], [(4, 2), (0, 2)], num_players=2)
    assert env.act(move(UP, DOWN)).done  # snake 0 alone is player 0
    env = world([full, almost], [(4, 2), (0, 2)], num_players=1)
    assert not env.act(move(UP, DOWN)).done


def test_every_player_sees_the_own_colours_first() -> None:
    values = MultiSnake(num_snakes=6, num_players=3).values
    heads = np.array([[9, 8, colour] for colour in (0, 1, 2, 3, 4, 5)], np.float32)
    seen = [MultiSnake.seen_by(values, player, "SnakeHead", heads) for player in range(3)]
    assert [rows[:, 2].tolist() for rows in seen] == [[0, 1, 2, 3, 4, 5], [4, 5, 0, 1, 2, 3], [2, 3, 4, 5, 0, 1]]
    assert all((rows[:, :2] == [9, 8]).all() for rows in seen)
    assert heads[:, 2].tolist() == [0, 1, 2, 3, 4, 5]  # what was given is left alone


# --- Random play


@given(
    seed=st.integers(0, 2**32 - 1),
    board_size=st.integers(3, 6),
    num_snakes=st.integers(1, 3),
    max_snake_length=st.integers(2, 4),
)
@settings(max_examples=40, deadline=None)
def test_random_play_keeps_the_rules(seed: int, board_size: int, num_snakes: int, max_snake_length: int) -> None:
    num_snakes = min(num_snakes, board_size**2 // (max_snake_length + 1))
    sizes = {"board_size": board_size, "num_snakes": num_snakes, "max_snake_length": max_snake_length}
    env = CompiledView(MultiSnake(**sizes, max_steps=30))
    env.rng = np.random.default_rng(seed)
    policy = np.random.default_rng(seed + 1)
    obs, score = env.reset(), 0.0
    while not obs.done:
        before = snakes_of(env)
        obs = env.act(move(*policy.integers(4, size=num_snakes).tolist()))
        score += obs.reward
        segments = [cell for snake in snakes_of(env) for cell in snake]
        assert len({*segments, *food_of(env)}) == len(segments) + num_snakes  # everything has a cell of its own
        assert all(0 <= x < board_size and 0 <= y < board_size for x, y in (*segments, *food_of(env)))
        for old, new in zip(before, snakes_of(env), strict=True):
            assert new[:-1] in (old[1:], old) or new == old  # moved, grew, or died
            assert len(new) <= max_snake_length
    grown = sum(len(snake) - 1 for snake in snakes_of(env))
    assert score == pytest.approx(grown / (max_snake_length - 1) / num_snakes)
