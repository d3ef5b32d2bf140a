"""The rules of MineSweeper on hand-made boards, in both forms: as Python objects and as a compiled environment.

Positions are (x, y); y grows upwards.
"""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from entity_gym.actions import CategoricalAction, CategoricalActionSpace, SelectEntityAction, SelectEntityActionSpace
from tests.entity_gym.envs import boards
from tests.entity_gym.envs.boards import (
    DEFUSE,
    DOWN,
    FORMS,
    LEFT,
    RIGHT,
    UP,
    Cell,
    MakeWorld,
    World,
    cannon_may_fire,
    cooldown_of,
    fire,
    mines_of,
    move,
    move_mask,
    plain,
    put,
    random_actions,
    robots_of,
)

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "minesweeper_internals.json").read_text())
Board = Callable[..., World]


@pytest.fixture(params=FORMS)
def make(request: pytest.FixtureRequest) -> MakeWorld:
    return FORMS[request.param]


@pytest.fixture
def board(make: MakeWorld) -> Board:
    return partial(boards.board, make)


def golden(make: MakeWorld, i: int) -> World:
    """The i-th of the golden states."""
    state = GOLDEN["states"][i]
    env = make(num_mines=1, num_robots=1, orbital_cannon=state["orbital_cannon"], **GOLDEN["env_kwargs"])
    env.reset()
    put(env, state["mines"], state["robots"], cooldown=state["orbital_cannon_cooldown"])
    return env


# --- What is seen


def test_the_spaces_name_types_features_and_choices_in_order(make: MakeWorld) -> None:
    env = make()
    entities = {name: entity.features for name, entity in env.obs_space().entities.items()}
    assert list(entities.items()) == [
        ("Mine", ("x", "y")),
        ("Robot", ("x", "y")),
        ("Orbital Cannon", ("cooldown",)),
    ]
    assert list(entities) == GOLDEN["entity_order"]
    assert env.action_space() == {
        "Move": CategoricalActionSpace(["x+1", "x-1", "y+1", "y-1", "Defuse Mines"]),
        "Fire Orbital Cannon": SelectEntityActionSpace(),
    }


@pytest.mark.parametrize("i", range(3))
def test_a_golden_state_gives_the_golden_observation(make: MakeWorld, i: int) -> None:
    obs = golden(make, i).observe()
    expected = GOLDEN["vec_obs"]
    may_fire = bool(expected["action_masks"]["Fire Orbital Cannon"]["actors"][i])

    shown = {name: rows[i] for name, rows in expected["features"].items() if rows[i]}
    ids = {name: [(name, k) for k in range(len(rows))] for name, rows in shown.items()}
    assert plain(obs) == {
        "features": shown,
        "ids": ids,
        "mask": expected["action_masks"]["Move"]["mask"][i],
        "targets": [*ids["Mine"], *ids["Robot"]] if may_fire else None,
        "end": (0.0, False, False, None),
    }


@pytest.mark.parametrize(
    ("i", "mines", "robots", "reward"),
    [
        # The robot at (1, 1) defuses (0, 1) and (1, 0), its neighbours; the corners stay.
        (0, [(0, 2), (2, 2), (0, 0)], [(1, 1)], 0.0),
        # The cannon removes the only mine; the robot goes left from (2, 0).
        (1, [], [(1, 0)], 1.0),
        # Robot 0 at (0, 0) defuses (1, 0) and (0, 1); robot 1 goes up from (2, 0).
        (2, [(2, 2)], [(0, 0), (2, 1)], 0.0),
    ],
)
def test_the_golden_actions_do_what_they_say(
    make: MakeWorld, i: int, mines: list[Cell], robots: list[Cell], reward: float
) -> None:
    env = golden(make, i)
    moves, shots = (GOLDEN["env_actions"][i][name] for name in ("Move", "Fire Orbital Cannon"))
    obs = env.act(
        {
            "Move": CategoricalAction([tuple(a) for a in moves["actors"]], np.array(moves["actions"])),
            "Fire Orbital Cannon": SelectEntityAction(
                [tuple(a) for a in shots["actors"]], [tuple(a) for a in shots["actees"]]
            ),
        }
    )
    assert (mines_of(env), robots_of(env), obs.reward) == (mines, robots, reward)


def test_reset_draws_distinct_cells_for_mines_and_robots(make: MakeWorld) -> None:
    env = make(width=4, height=2, num_mines=5, num_robots=3)
    for seed in range(20):
        env.rng = np.random.default_rng(seed)
        obs = env.reset()
        assert (len(obs.features["Mine"]), len(obs.features["Robot"])) == (5, 3)
        # 8 things on 8 cells: every cell is taken once
        assert sorted(mines_of(env) + robots_of(env)) == [(x, y) for x in range(4) for y in range(2)]


def test_every_cell_is_drawn_equally_often(make: MakeWorld) -> None:
    env = make(width=3, height=2, num_mines=1, num_robots=1)
    env.rng = np.random.default_rng(0)
    counts = np.zeros((3, 2))
    for _ in range(3000):
        env.reset()
        counts[mines_of(env)[0]] += 1
    # 500 each on average; the standard deviation is sqrt(3000 * 1/6 * 5/6) = 20.4
    assert np.abs(counts - 500).max() < 5 * 20.4


# --- Moving and defusing


@pytest.mark.parametrize(("choice", "to"), [(RIGHT, (2, 1)), (LEFT, (0, 1)), (UP, (1, 2)), (DOWN, (1, 0))])
def test_a_move_goes_one_cell_in_the_direction_of_its_name(board: Board, choice: int, to: Cell) -> None:
    env = board([(0, 0)], [(1, 1)])
    assert np.asarray(env.act(move(choice)).features["Robot"]).tolist() == [list(to)]


def test_the_mask_closes_exactly_the_moves_that_leave_the_board(board: Board) -> None:
    env = board([(1, 1)], [(0, 0), (3, 0), (0, 1), (3, 1), (2, 0)], width=4, height=2)
    assert move_mask(env.observe()) == [
        [True, False, True, False, True],
        [False, True, True, False, True],
        [True, False, False, True, True],
        [False, True, False, True, True],
        [True, True, True, False, True],
    ]


def test_defusing_removes_the_mines_at_manhattan_distance_one_or_less(board: Board) -> None:
    everywhere = [(x, y) for x in range(5) for y in range(5)]
    env = board(everywhere, [(2, 2), (0, 4)], width=5, height=5)
    env.act(move(DEFUSE, DEFUSE))
    gone = set(everywhere) - set(mines_of(env))
    assert gone == {(2, 2), (3, 2), (1, 2), (2, 3), (2, 1)} | {(0, 4), (1, 4), (0, 3)}


def test_defusing_does_not_reach_around_the_edge(board: Board) -> None:
    # Cells (2, 0) and (0, 1) follow each other in the numbering and are far apart on the board.
    env = board([(0, 1)], [(2, 0)])
    env.act(move(DEFUSE))
    assert mines_of(env) == [(0, 1)]


def test_a_robot_that_steps_on_a_mine_is_lost_and_the_mine_stays(board: Board) -> None:
    env = board([(1, 0)], [(0, 0), (2, 2)])
    obs = env.act(move(RIGHT, LEFT))
    assert (mines_of(env), robots_of(env)) == ([(1, 0)], [(1, 2)])
    assert list(obs.ids["Robot"]) == [("Robot", 0)]  # ids are positions in the current list
    assert (obs.reward, obs.done) == (0.0, False)


def test_a_robot_is_saved_by_a_later_robot_that_defuses_in_the_same_step(board: Board) -> None:
    # Robots are lost after all moves: robot 0 steps onto the mine, then robot 1 beside it defuses.
    env = board([(1, 0), (0, 2)], [(0, 0), (2, 0)])
    env.act(move(RIGHT, DEFUSE))
    assert (mines_of(env), robots_of(env)) == ([(0, 2)], [(1, 0), (2, 0)])


def test_robots_may_share_a_cell_and_swap_places(board: Board) -> None:
    env = board([(2, 2)], [(0, 0), (1, 0)])
    env.act(move(RIGHT, LEFT))
    assert robots_of(env) == [(1, 0), (0, 0)]
    env.act(move(LEFT, DEFUSE))
    assert robots_of(env) == [(0, 0), (0, 0)]


# --- The cannon


def test_without_a_cannon_none_is_shown_and_nobody_fires(make: MakeWorld) -> None:
    obs = make().reset()
    assert "Orbital Cannon" not in plain(obs)["features"]
    assert not cannon_may_fire(obs)


def test_an_episode_starts_with_the_full_cooldown(make: MakeWorld) -> None:
    obs = make(orbital_cannon=True, cooldown_period=3).reset()
    assert cooldown_of(obs) == 3
    assert not cannon_may_fire(obs)


def test_the_cooldown_counts_down_and_a_shot_sets_it_again(board: Board) -> None:
    env = board([(0, 0), (0, 1), (0, 2)], [(2, 2)], cooldown=3, cooldown_period=3)
    seen = []
    obs = env.observe()
    for _ in range(9):
        seen.append((cooldown_of(obs), cannon_may_fire(obs)))
        obs = env.act((fire("Mine", 0) if cannon_may_fire(obs) else {}) | move(DEFUSE))
    wait = [(3.0, False), (2.0, False), (1.0, False), (0.0, True)]  # three steps pass, then it may fire
    assert seen == [*wait, *wait, (3.0, False)]
    assert len(mines_of(env)) == 1


def test_with_a_period_of_zero_the_cannon_fires_in_every_step(board: Board) -> None:
    env = board([(0, 0), (0, 1), (0, 2)], [(2, 2)], cooldown=0, cooldown_period=0)
    for left in (2, 1):
        assert cannon_may_fire(env.act(fire("Mine", 0) | move(DEFUSE)))
        assert len(mines_of(env)) == left


def test_the_cannon_removes_the_mine_it_aims_at(board: Board) -> None:
    env = board([(0, 0), (0, 1), (0, 2)], [(2, 2)], cooldown=0)
    env.act(fire("Mine", 1) | move(DEFUSE))
    assert mines_of(env) == [(0, 0), (0, 2)]


def test_the_cannon_fires_before_the_moves(board: Board) -> None:
    # The mine at (1, 0) is shot before robot 0 steps there.
    env = board([(1, 0), (2, 2)], [(0, 0)], cooldown=0)
    env.act(fire("Mine", 0) | move(RIGHT))
    assert (mines_of(env), robots_of(env)) == ([(2, 2)], [(1, 0)])


def test_the_order_of_the_actions_in_the_dictionary_does_not_matter(board: Board) -> None:
    env = board([(1, 0), (2, 2)], [(0, 0)], cooldown=0)
    env.act(move(RIGHT) | fire("Mine", 0))
    assert (mines_of(env), robots_of(env)) == ([(2, 2)], [(1, 0)])


def test_a_robot_that_the_cannon_removes_no_longer_acts(board: Board) -> None:
    # Robot 0 would have defused (0, 1). Robot 1 is still addressed as it was in the observation.
    env = board([(0, 1), (2, 2)], [(0, 0), (1, 0)], cooldown=0)
    obs = env.act(fire("Robot", 0) | move(DEFUSE, RIGHT))
    assert (mines_of(env), robots_of(env)) == ([(0, 1), (2, 2)], [(2, 0)])
    assert list(obs.ids["Robot"]) == [("Robot", 0)]


# --- Reward and end


def test_the_reward_is_one_when_the_last_mine_goes(board: Board) -> None:
    env = board([(0, 1), (2, 2)], [(0, 0), (1, 1)])
    first = env.act(move(DEFUSE, RIGHT))
    assert (first.reward, first.done) == (0.0, False)
    last = env.act(move(DEFUSE, DEFUSE))
    assert (last.reward, last.done, last.truncated) == (1.0, True, False)
    assert last.end_of_episode_info == {"mines_left": 0, "robots_left": 2}
    assert "Mine" not in plain(last)["features"]


def test_shooting_the_last_mine_counts(board: Board) -> None:
    obs = board([(0, 1)], [(1, 2)], cooldown=0).act(fire("Mine", 0) | move(RIGHT))
    assert (obs.reward, obs.done, obs.truncated) == (1.0, True, False)


def test_the_episode_ends_without_reward_when_no_robot_is_left(board: Board) -> None:
    stepped = board([(1, 0)], [(0, 0)]).act(move(RIGHT))
    shot = board([(1, 0)], [(0, 0)], cooldown=0).act(fire("Robot", 0) | move(DEFUSE))
    for obs in (stepped, shot):
        assert (obs.reward, obs.done, obs.truncated) == (0.0, True, False)
        assert obs.end_of_episode_info == {"mines_left": 1, "robots_left": 0}


def test_after_max_steps_the_episode_is_truncated(board: Board) -> None:
    env = board([(2, 2)], [(0, 0)], max_steps=3)
    ends = [(obs.done, obs.truncated) for obs in (env.act(move(DEFUSE)) for _ in range(3))]
    assert ends == [(False, False), (False, False), (True, True)]
    assert env.observe().end_of_episode_info == {"mines_left": 1, "robots_left": 1}


def test_max_steps_is_a_hundred_by_default_and_starts_anew_with_reset(make: MakeWorld) -> None:
    env = make()
    for _ in range(2):
        env.reset()
        put(env, [(5, 5)], [(0, 0)])
        obs, steps = env.observe(), 0
        while not obs.done:
            obs, steps = env.act(move(DEFUSE)), steps + 1
        assert (steps, obs.truncated) == (100, True)


def test_without_a_limit_an_episode_goes_on(board: Board) -> None:
    env = board([(2, 2)], [(0, 0)], max_steps=None)
    assert not any(env.act(move(DEFUSE)).done for _ in range(300))


@pytest.mark.parametrize(("choice", "reward"), [(DEFUSE, 1.0), (RIGHT, 0.0)])
def test_an_end_by_the_rules_in_the_last_step_is_no_truncation(board: Board, choice: int, reward: float) -> None:
    obs = board([(1, 0)], [(0, 0)], max_steps=1).act(move(choice))
    assert (obs.reward, obs.done, obs.truncated) == (reward, True, False)


# --- Seeds and states


def trajectory(make: MakeWorld, seed: int) -> list[dict[str, Any]]:
    env = make(width=4, height=5, orbital_cannon=True, cooldown_period=2, max_steps=12)
    env.rng = np.random.default_rng(seed)
    policy = np.random.default_rng(0)
    obs = env.reset()
    seen = [plain(obs)]
    for _ in range(80):
        obs = env.reset() if obs.done else env.act(random_actions(obs, policy))
        seen.append(plain(obs))
    return seen


def test_the_same_seed_gives_the_same_episodes_and_another_seed_others(make: MakeWorld) -> None:
    assert trajectory(make, 3) == trajectory(make, 3)
    assert trajectory(make, 3) != trajectory(make, 4)


# --- Random play


@pytest.mark.parametrize("make", FORMS.values(), ids=FORMS)
@given(
    seed=st.integers(0, 2**32 - 1),
    width=st.integers(1, 5),
    height=st.integers(2, 5),
    num_robots=st.integers(1, 4),
    num_mines=st.integers(1, 6),
    cannon=st.booleans(),
    period=st.integers(0, 4),
)
@settings(max_examples=40, deadline=None)
def test_random_play_keeps_the_rules(
    make: MakeWorld, seed: int, width: int, height: int, num_robots: int, num_mines: int, cannon: bool, period: int
) -> None:
    num_robots = min(num_robots, width * height - 1)
    num_mines = min(num_mines, width * height - num_robots)
    env = make(
        width=width,
        height=height,
        num_mines=num_mines,
        num_robots=num_robots,
        orbital_cannon=cannon,
        cooldown_period=period,
        max_steps=20,
    )
    env.rng = np.random.default_rng(seed)
    policy = np.random.default_rng(seed + 1)
    obs = env.reset()
    rewards = [obs.reward]
    steps = 0
    while not obs.done:
        assert obs.reward == 0
        assert obs.end_of_episode_info is None
        assert not set(mines_of(env)) & set(robots_of(env))
        if cannon:
            assert cannon_may_fire(obs) == (cooldown_of(obs) == 0)
        mines, robots, before = mines_of(env), robots_of(env), obs
        actions = random_actions(obs, policy)
        obs = env.act(actions)
        steps += 1
        rewards.append(obs.reward)
        assert all(0 <= x < width and 0 <= y < height for x, y in robots_of(env))
        assert [mine for mine in mines if mine in mines_of(env)] == mines_of(env)
        assert len(robots_of(env)) <= len(robots)
        if cannon:
            assert cooldown_of(obs) == (period if boards.FIRE in actions else cooldown_of(before) - 1)
    assert sum(rewards) == (0 if mines_of(env) else 1)
    assert obs.truncated == (steps == 20 and bool(mines_of(env)) and bool(robots_of(env)))
    assert obs.end_of_episode_info == {"mines_left": len(mines_of(env)), "robots_left": len(robots_of(env))}


def test_one_robot_that_walks_beside_each_mine_clears_every_board(make: MakeWorld) -> None:
    # The best score is 1: walking to the nearest mine and defusing it from the cell beside it never fails.
    for seed in range(50):
        env = make(num_robots=1)
        env.rng = np.random.default_rng(seed)
        obs = env.reset()
        while not obs.done:
            x, y = robots_of(env)[0]
            dx, dy = min(((mx - x, my - y) for mx, my in mines_of(env)), key=lambda d: abs(d[0]) + abs(d[1]))
            if abs(dx) + abs(dy) <= 1:
                choice = DEFUSE
            elif dx:
                choice = RIGHT if dx > 0 else LEFT
            else:
                choice = UP if dy > 0 else DOWN
            obs = env.act(move(choice))
        assert obs.reward == 1.0


# --- The picture


def test_render_is_a_picture_of_the_board(board: Board) -> None:
    image = board([(0, 0)], [(3, 1)], width=4, height=2).render()
    assert (image.shape, image.dtype) == ((2 * 32 + 17, 4 * 32 + 1, 3), np.dtype(np.uint8))


def test_robots_carry_their_entity_index(board: Board) -> None:
    lonely = board([(0, 0)], [(2, 2)]).render()
    one_more_mine = board([(0, 0), (0, 1)], [(2, 2)]).render()
    cell = np.s_[16 + 1 : 16 + 32, 2 * 32 + 1 : 3 * 32]
    white = [(image[cell] == 255).all(-1) for image in (lonely, one_more_mine)]
    assert [int(each.sum()) for each in white] == [4 * 8, 4 * 11]  # a 1 and a 2, whose pixels are 2 x 2 large


def test_y_grows_upwards_in_the_picture(board: Board) -> None:
    low, high = (board([(0, y)], [(1, 1)]).render()[16:] for y in (0, 2))
    middle_of = {"top": (16, 16), "bottom": (2 * 32 + 16, 16)}
    assert low[middle_of["bottom"]].max() < 60 < low[middle_of["top"]].min()  # a mine is dark
    assert high[middle_of["top"]].max() < 60 < high[middle_of["bottom"]].min()


def test_different_states_are_drawn_differently(board: Board) -> None:
    envs = [
        board([(0, 0)], [(2, 2)]),
        board([(0, 1)], [(2, 2)]),
        board([(0, 0), (0, 1)], [(2, 2)]),
        board([(2, 2)], [(0, 0)]),
        board([(0, 0)], [(2, 1)]),
        board([(0, 0)], [(2, 2), (2, 2)]),
        board([(0, 0)], [(2, 2), (2, 1)]),
        board([(0, 0)], [(2, 1), (2, 2)]),
        board([(0, 0)], [(0, 0)]),
        *(board([(0, 0)], [(2, 2)], cooldown=cooldown) for cooldown in range(6)),
    ]
    assert len({env.render().tobytes() for env in envs}) == len(envs)


def test_the_same_state_is_drawn_the_same_without_touching_it(board: Board) -> None:
    env = board([(0, 0)], [(1, 1)], cooldown=2)
    before = plain(env.observe())
    assert np.array_equal(env.render(), env.render())
    assert plain(env.observe()) == before
