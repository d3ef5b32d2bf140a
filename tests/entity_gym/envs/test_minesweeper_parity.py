"""The compiled MineSweeper against the Python one, step by step, and what only the compiled form has.

Both start from the same board, are told the same actions, and must show and draw the same after every step.
"""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from entity_gym.envs.minesweeper import MineSweeper
from tests.entity_gym.envs.boards import Cell, compiled, mines_of, plain, put, random_actions, robots_of
from tests.entity_gym.envs.minesweeper_python import PythonMineSweeper


@st.composite
def worlds(draw: st.DrawFn) -> tuple[dict[str, Any], list[Cell], list[Cell], int]:
    """Parameters, mines, robots and a cooldown. Robots may share cells; as many of either as there can ever be."""
    width, height = draw(st.integers(1, 7)), draw(st.integers(2, 7))
    cells = draw(st.permutations([(x, y) for x in range(width) for y in range(height)]))
    num_mines = draw(st.integers(1, len(cells) - 1))
    free = st.sampled_from(cells[num_mines:])
    robots = draw(st.lists(free, min_size=1, max_size=16))
    period = draw(st.integers(0, 3))
    parameters = {
        "width": width,
        "height": height,
        "num_mines": 1,
        "num_robots": 1,
        "orbital_cannon": draw(st.booleans()),
        "cooldown_period": period,
        "max_steps": draw(st.sampled_from([None, 1, 5, 12])),
    }
    return parameters, cells[:num_mines], robots, draw(st.integers(0, period))


@given(world=worlds(), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_both_forms_show_the_same_after_every_step(
    world: tuple[dict[str, Any], list[Cell], list[Cell], int], seed: int
) -> None:
    parameters, mines, robots, cooldown = world
    python, under_test = PythonMineSweeper(**parameters), compiled(**parameters)
    policy = np.random.default_rng(seed)
    for env in (python, under_test):
        env.reset()
        put(env, mines, robots, cooldown=cooldown)
    obs, other = python.observe(), under_test.observe()
    for _ in range(15):
        assert plain(other) == plain(obs)
        assert (mines_of(under_test), robots_of(under_test)) == (mines_of(python), robots_of(python))
        if obs.done:
            break
        actions = random_actions(obs, policy)
        obs, other = python.act(actions), under_test.act(actions)
    assert np.array_equal(under_test.render(), python.render())


def test_both_forms_agree_over_whole_episodes_of_the_default_board() -> None:
    python, under_test = PythonMineSweeper(), compiled()
    under_test.rng = np.random.default_rng(0)
    policy = np.random.default_rng(1)
    rewards = []
    for _ in range(20):
        other = under_test.reset()
        python.reset()
        put(python, mines_of(under_test), robots_of(under_test))
        obs = python.observe()
        while not obs.done:
            assert plain(other) == plain(obs)
            actions = random_actions(obs, policy)
            obs, other = python.act(actions), under_test.act(actions)
        assert plain(other) == plain(obs)
        rewards.append(obs.reward)
    assert set(rewards) == {0.0, 1.0}  # both ends were seen


# --- Where things start


@pytest.mark.parametrize(
    ("width", "height", "num_mines", "num_robots"), [(8, 10, 64, 16), (1, 2, 1, 1), (256, 256, 64, 16)]
)
def test_any_board_that_has_room_is_filled_without_a_cell_used_twice(
    width: int, height: int, num_mines: int, num_robots: int
) -> None:
    env = compiled(width=width, height=height, num_mines=num_mines, num_robots=num_robots)
    env.rng = np.random.default_rng(0)
    for _ in range(5):
        env.reset()
        cells = mines_of(env) + robots_of(env)
        assert len(set(cells)) == len(cells) == num_mines + num_robots
        assert all(0 <= x < width and 0 <= y < height for x, y in cells)


def test_every_order_of_things_on_the_board_is_drawn_equally_often() -> None:
    env = compiled(width=2, height=2, num_mines=2, num_robots=1)
    env.rng = np.random.default_rng(0)
    seen: dict[tuple[Cell, ...], int] = {}
    for _ in range(2400):
        env.reset()
        order = (*mines_of(env), *robots_of(env))
        seen[order] = seen.get(order, 0) + 1
    # 4 * 3 * 2 orders, 100 times each on average; the standard deviation is sqrt(2400 * 1/24 * 23/24) = 9.8
    assert len(seen) == 24
    assert max(abs(count - 100) for count in seen.values()) < 5 * 9.8


# --- What is accepted


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("width", 0, "a whole number from 1 to 256"),
        ("height", 257, "a whole number from 1 to 256"),
        ("num_mines", 65, "a whole number from 1 to 64"),
        ("num_mines", 0, "a whole number from 1 to 64"),
        ("num_robots", 17, "a whole number from 1 to 16"),
        ("cooldown_period", -1, "a whole number >= 0"),
        ("num_robots", 1.5, "a whole number"),
        ("orbital_cannon", "yes", "True or False"),
        ("max_steps", -1, "None for no limit"),
    ],
)
def test_a_bad_parameter_is_named_with_what_is_allowed(field: str, value: Any, allowed: str) -> None:
    with pytest.raises(ValueError, match=f"MineSweeper.*{field}.*{value!r}; it must be .*{allowed}"):
        MineSweeper(**{field: value})


def test_mines_and_robots_must_fit_on_the_board() -> None:
    with pytest.raises(ValueError, match="num_mines=5 and num_robots=2 need 7 cells; .* width=2 and height=3 has 6"):
        MineSweeper(width=2, height=3)
