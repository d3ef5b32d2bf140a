"""The rules of MineSweeper on hand-made boards.

Positions are (x, y); y grows upwards.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from entity_gym.actions import Action, CategoricalAction, CategoricalActionMask, SelectEntityAction
from entity_gym.environment import Observation
from tests.entity_gym.envs.minesweeper_python import FIRE, PythonMineSweeper

RIGHT, LEFT, UP, DOWN, DEFUSE = range(5)
Cell = tuple[int, int]


def board(
    mines: Sequence[Cell], robots: Sequence[Cell], *, cooldown: int | None = None, **kwargs: Any
) -> PythonMineSweeper:
    """A 3x3 board (unless `kwargs` say otherwise); it has a cannon if a cooldown is given."""
    arguments = {"width": 3, "height": 3, "num_mines": 1, "num_robots": 1, "orbital_cannon": cooldown is not None}
    env = PythonMineSweeper(**{**arguments, **kwargs})
    env.reset()
    env.put(mines, robots, cooldown=cooldown)
    return env


def mines_of(env: PythonMineSweeper) -> list[Cell]:
    return [(x, y) for x, y in env.record.mine[: env.record.mines_left].tolist()]


def robots_of(env: PythonMineSweeper) -> list[Cell]:
    return [(x, y) for x, y in env.record.robot[: env.record.robots_left].tolist()]


def move(*choices: int) -> dict[str, Action]:
    """Robots 0, 1, ... take these choices."""
    return {"Move": CategoricalAction([("Robot", i) for i in range(len(choices))], np.array(choices, np.int64))}


def fire(at: str, index: int) -> dict[str, Action]:
    return {FIRE: SelectEntityAction([("Orbital Cannon", 0)], [(at, index)])}


def cooldown_of(obs: Observation) -> float:
    return float(np.asarray(obs.features["Orbital Cannon"])[0, 0])


def cannon_may_fire(obs: Observation) -> bool:
    return FIRE in obs.actions


def move_mask(obs: Observation) -> list[list[bool]]:
    mask = obs.actions["Move"]
    assert isinstance(mask, CategoricalActionMask) and list(mask.actor_ids or ()) == list(obs.ids["Robot"])
    return np.asarray(mask.mask).tolist()


# --- Moving and defusing


@pytest.mark.parametrize(("choice", "to"), [(RIGHT, (2, 1)), (LEFT, (0, 1)), (UP, (1, 2)), (DOWN, (1, 0))])
def test_a_move_goes_one_cell_in_the_direction_of_its_name(choice: int, to: Cell) -> None:
    env = board([(0, 0)], [(1, 1)])
    assert np.asarray(env.act(move(choice)).features["Robot"]).tolist() == [list(to)]


def test_the_mask_closes_exactly_the_moves_that_leave_the_board() -> None:
    env = board([(1, 1)], [(0, 0), (3, 0), (0, 1), (3, 1), (2, 0)], width=4, height=2)
    assert move_mask(env.observe()) == [
        [True, False, True, False, True],
        [False, True, True, False, True],
        [True, False, False, True, True],
        [False, True, False, True, True],
        [True, True, True, False, True],
    ]


def test_defusing_removes_the_mines_at_manhattan_distance_one_or_less() -> None:
    everywhere = [(x, y) for x in range(5) for y in range(5)]
    env = board(everywhere, [(2, 2), (0, 4)], width=5, height=5)
    env.act(move(DEFUSE, DEFUSE))
    gone = set(everywhere) - set(mines_of(env))
    assert gone == {(2, 2), (3, 2), (1, 2), (2, 3), (2, 1)} | {(0, 4), (1, 4), (0, 3)}


def test_a_robot_that_steps_on_a_mine_is_lost_and_the_mine_stays() -> None:
    env = board([(1, 0)], [(0, 0), (2, 2)])
    obs = env.act(move(RIGHT, LEFT))
    assert (mines_of(env), robots_of(env)) == ([(1, 0)], [(1, 2)])
    assert list(obs.ids["Robot"]) == [("Robot", 0)]  # ids are positions in the current list
    assert (obs.reward, obs.done) == (0.0, False)


def test_a_robot_is_saved_by_a_later_robot_that_defuses_in_the_same_step() -> None:
    # Robots are lost after all moves: robot 0 steps onto the mine, then robot 1 beside it defuses.
    env = board([(1, 0), (0, 2)], [(0, 0), (2, 0)])
    env.act(move(RIGHT, DEFUSE))
    assert (mines_of(env), robots_of(env)) == ([(0, 2)], [(1, 0), (2, 0)])


def test_robots_may_share_a_cell_and_swap_places() -> None:
    env = board([(2, 2)], [(0, 0), (1, 0)])
    env.act(move(RIGHT, LEFT))
    assert robots_of(env) == [(1, 0), (0, 0)]
    env.act(move(LEFT, DEFUSE))
    assert robots_of(env) == [(0, 0), (0, 0)]


# --- The cannon


def test_an_episode_starts_with_the_full_cooldown_or_without_a_cannon() -> None:
    obs = PythonMineSweeper(orbital_cannon=True, cooldown_period=3).reset()
    assert cooldown_of(obs) == 3
    assert not cannon_may_fire(obs)
    obs = PythonMineSweeper().reset()
    assert len(obs.features["Orbital Cannon"]) == 0 and not cannon_may_fire(obs)


def test_the_cooldown_counts_down_and_a_shot_sets_it_again() -> None:
    env = board([(0, 0), (0, 1), (0, 2)], [(2, 2)], cooldown=3, cooldown_period=3)
    seen = []
    obs = env.observe()
    for _ in range(9):
        seen.append((cooldown_of(obs), cannon_may_fire(obs)))
        obs = env.act((fire("Mine", 0) if cannon_may_fire(obs) else {}) | move(DEFUSE))
    wait = [(3.0, False), (2.0, False), (1.0, False), (0.0, True)]  # three steps pass, then it may fire
    assert seen == [*wait, *wait, (3.0, False)]
    assert len(mines_of(env)) == 1


def test_the_cannon_removes_the_mine_it_aims_at() -> None:
    env = board([(0, 0), (0, 1), (0, 2)], [(2, 2)], cooldown=0)
    env.act(fire("Mine", 1) | move(DEFUSE))
    assert mines_of(env) == [(0, 0), (0, 2)]


def test_the_cannon_fires_before_the_moves() -> None:
    # The mine at (1, 0) is shot before robot 0 steps there.
    for actions in (fire("Mine", 0) | move(RIGHT), move(RIGHT) | fire("Mine", 0)):
        env = board([(1, 0), (2, 2)], [(0, 0)], cooldown=0)
        env.act(actions)
        assert (mines_of(env), robots_of(env)) == ([(2, 2)], [(1, 0)])


def test_a_robot_that_the_cannon_removes_no_longer_acts() -> None:
    # Robot 0 would have defused (0, 1). Robot 1 is still addressed as it was in the observation.
    env = board([(0, 1), (2, 2)], [(0, 0), (1, 0)], cooldown=0)
    obs = env.act(fire("Robot", 0) | move(DEFUSE, RIGHT))
    assert (mines_of(env), robots_of(env)) == ([(0, 1), (2, 2)], [(2, 0)])
    assert list(obs.ids["Robot"]) == [("Robot", 0)]


# --- Reward and end


def test_the_reward_is_one_when_the_last_mine_goes() -> None:
    env = board([(0, 1), (2, 2)], [(0, 0), (1, 1)])
    first = env.act(move(DEFUSE, RIGHT))
    assert (first.reward, first.done) == (0.0, False)
    last = env.act(move(DEFUSE, DEFUSE))
    assert (last.reward, last.done, last.truncated) == (1.0, True, False)
    assert last.end_of_episode_info == {"mines_left": 0, "robots_left": 2}
    assert len(last.features["Mine"]) == 0


def test_the_episode_ends_without_reward_when_no_robot_is_left() -> None:
    stepped = board([(1, 0)], [(0, 0)]).act(move(RIGHT))
    shot = board([(1, 0)], [(0, 0)], cooldown=0).act(fire("Robot", 0) | move(DEFUSE))
    for obs in (stepped, shot):
        assert (obs.reward, obs.done, obs.truncated) == (0.0, True, False)
        assert obs.end_of_episode_info == {"mines_left": 1, "robots_left": 0}


# --- Where things start


@pytest.mark.parametrize(
    ("width", "height", "num_mines", "num_robots"), [(8, 10, 64, 16), (1, 2, 1, 1), (256, 256, 64, 16)]
)
def test_any_board_that_has_room_is_filled_without_a_cell_used_twice(
    width: int, height: int, num_mines: int, num_robots: int
) -> None:
    env = PythonMineSweeper(width=width, height=height, num_mines=num_mines, num_robots=num_robots)
    env.rng = np.random.default_rng(0)
    for _ in range(5):
        env.reset()
        cells = mines_of(env) + robots_of(env)
        assert len(set(cells)) == len(cells) == num_mines + num_robots
        assert all(0 <= x < width and 0 <= y < height for x, y in cells)


def test_every_order_of_things_on_the_board_is_drawn_equally_often() -> None:
    env = PythonMineSweeper(width=2, height=2, num_mines=2, num_robots=1)
    env.rng = np.random.default_rng(0)
    seen: dict[tuple[Cell, ...], int] = {}
    for _ in range(2400):
        env.reset()
        order = (*mines_of(env), *robots_of(env))
        seen[order] = seen.get(order, 0) + 1
    # 4 * 3 * 2 orders, 100 times each on average; the standard deviation is sqrt(2400 * 1/24 * 23/24) = 9.8
    assert len(seen) == 24
    assert max(abs(count - 100) for count in seen.values()) < 5 * 9.8
