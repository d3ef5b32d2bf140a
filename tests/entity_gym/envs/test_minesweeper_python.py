"""What only the Python form of MineSweeper has: readable states that can be loaded, and forgiving actions.

The rules are in test_minesweeper.py, for both forms.
"""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from entity_gym.actions import CategoricalAction, SelectEntityAction
from entity_gym.environment import Observation
from tests.entity_gym.envs import boards
from tests.entity_gym.envs.boards import (
    DEFUSE,
    DOWN,
    LEFT,
    RIGHT,
    UP,
    Cell,
    cooldown_of,
    fire,
    mines_of,
    move,
    plain,
    random_actions,
    robots_of,
)
from tests.entity_gym.envs.minesweeper_python import PythonMineSweeper


def board(mines: list[Cell], robots: list[Cell], **kwargs: Any) -> PythonMineSweeper:
    env = boards.board(PythonMineSweeper, mines, robots, **kwargs)
    assert isinstance(env, PythonMineSweeper)
    return env


# --- Actions


def test_actors_are_looked_up_by_id_and_not_by_their_place_in_the_action() -> None:
    env = board([(2, 2)], [(0, 0), (1, 1)])
    env.act({"Move": CategoricalAction([("Robot", 1), ("Robot", 0)], np.array([DOWN, UP]))})
    assert robots_of(env) == [(0, 1), (1, 0)]


def test_a_robot_that_is_not_told_to_act_stays() -> None:
    env = board([(2, 2)], [(0, 0), (1, 1)])
    env.act({"Move": CategoricalAction([("Robot", 1)], np.array([DOWN]))})
    assert robots_of(env) == [(0, 0), (1, 0)]
    env.act({})
    assert robots_of(env) == [(0, 0), (1, 0)]


def test_the_cooldown_rests_at_zero_until_a_shot() -> None:
    env = board([(0, 0)], [(2, 2)], cooldown=1)
    assert [cooldown_of(env.act({})) for _ in range(3)] == [0, 0, 0]


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        ({"Mve": None}, "no action 'Mve'.*did you mean 'Move'"),
        ({"Move": SelectEntityAction([], [])}, "'Move' must be a CategoricalAction"),
        ({"Fire Orbital Cannon": CategoricalAction([], np.zeros(0, np.int64))}, "must be a SelectEntityAction"),
        (move(DEFUSE, DEFUSE), r"names the actor \('Robot', 1\); allowed: "),
    ],
)
def test_an_action_that_was_not_offered_is_named(actions: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        board([(0, 0)], [(1, 1)]).act(actions)


@pytest.mark.parametrize(("robot", "choice"), [((2, 1), RIGHT), ((0, 1), LEFT), ((1, 2), UP), ((1, 0), DOWN)])
def test_a_move_off_the_board_is_refused_and_not_wrapped(robot: Cell, choice: int) -> None:
    env = board([(1, 1)], [robot])
    with pytest.raises(ValueError, match=rf"'Move' of \('Robot', 0\) at .* is {choice}, which was not offered"):
        env.act(move(choice))


@pytest.mark.parametrize("choice", [-1, 5])
def test_a_choice_that_does_not_exist_is_refused(choice: int) -> None:
    with pytest.raises(ValueError, match=f"is {choice}, which was not offered"):
        board([(0, 0)], [(1, 1)]).act(move(choice))


def test_a_shot_that_was_not_offered_is_refused() -> None:
    for env in (board([(0, 0)], [(2, 2)], cooldown=1), board([(0, 0)], [(2, 2)])):
        with pytest.raises(ValueError, match="'Fire Orbital Cannon' .* was not offered"):
            env.act(fire("Mine", 0))
    with pytest.raises(ValueError, match=r"at \('Mine', 1\); allowed: "):
        board([(0, 0)], [(2, 2)], cooldown=0).act(fire("Mine", 1))


def test_acting_outside_an_episode_is_refused() -> None:
    over = board([(1, 0)], [(0, 0)])
    over.act(move(DEFUSE))
    cut = board([(1, 0)], [(0, 0)], max_steps=1)
    cut.act({})
    for env in (PythonMineSweeper(), over, cut):
        with pytest.raises(ValueError, match="outside an episode; call reset"):
            env.act({})


# --- States


def trajectory(env: PythonMineSweeper, policy_seed: int, steps: int, obs: Observation) -> list[dict[str, Any]]:
    policy = np.random.default_rng(policy_seed)
    seen = [plain(obs)]
    for _ in range(steps):
        obs = env.reset() if obs.done else env.act(random_actions(obs, policy))
        seen.append(plain(obs))
    return seen


def seeded(seed: int) -> PythonMineSweeper:
    env = PythonMineSweeper(width=4, height=5, orbital_cannon=True, cooldown_period=2, max_steps=12)
    env.rng = np.random.default_rng(seed)
    return env


@given(seed=st.integers(0, 2**32 - 1), steps=st.integers(0, 30))
@settings(max_examples=30, deadline=None)
def test_an_environment_that_loads_a_state_continues_like_the_one_that_saved_it(seed: int, steps: int) -> None:
    original = seeded(seed)
    trajectory(original, seed, steps, original.reset())
    saved = json.loads(json.dumps(original.state()))  # plain values: what JSON keeps is all there is
    copy = seeded(0)
    copy.load_state(saved)
    copy.rng.bit_generator.state = original.rng.bit_generator.state
    assert copy.state() == original.state() == saved
    assert trajectory(copy, 1, 30, copy.observe()) == trajectory(original, 1, 30, original.observe())


def test_a_state_may_be_arrays_and_hold_other_numbers_than_constructed() -> None:
    env = PythonMineSweeper(width=3, height=3, num_mines=1, num_robots=1)
    env.load_state({"mines": np.array([[0, 2], [1, 2]]), "robots": np.array([[0.0, 0.0], [1.0, 0.0], [2.0, 0.0]])})
    assert env.state() == {
        "mines": [[0, 2], [1, 2]],
        "robots": [[0, 0], [1, 0], [2, 0]],
        "orbital_cannon": False,
        "orbital_cannon_cooldown": 5,
        "steps": 0,
    }


def test_reset_returns_to_what_was_constructed() -> None:
    env = PythonMineSweeper(width=3, height=3, num_mines=1, num_robots=1)
    env.load_state({"mines": [(0, 0), (0, 1)], "robots": [(1, 1), (1, 2)], "orbital_cannon": True})
    assert len(env.observe().features["Orbital Cannon"]) == 1
    obs = env.reset()
    assert (len(obs.features["Mine"]), len(obs.features["Robot"]), "Orbital Cannon" in obs.features) == (1, 1, False)


def test_the_state_before_the_first_reset_can_be_saved_and_loaded() -> None:
    env = PythonMineSweeper()
    env.load_state(PythonMineSweeper().state())
    assert env.state()["mines"] == []


def test_changing_a_saved_state_does_not_change_the_environment() -> None:
    env = board([(0, 0)], [(1, 1)])
    env.state()["mines"][0][0] = 2
    assert mines_of(env) == [(0, 0)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mines": [[3, 0]]}, r"mines has \[3, 0\], which is off the board; 0 <= x < 3 and 0 <= y < 2"),
        ({"robots": [[0, 2]]}, r"robots has \[0, 2\], which is off the board"),
        ({"robots": [[-1, 0]]}, r"robots has \[-1, 0\], which is off the board"),
        ({"robots": [[0.5, 0]]}, r"robots is \[\[0.5, 0\]\]; it must be a list of whole numbers \[x, y\]"),
        ({"robots": [0, 1]}, r"robots is \[0, 1\]; it must be"),
        ({"mines": [[0, 0], [0, 0]]}, "name a cell twice"),
        ({"orbital_cannon": 1}, "orbital_cannon=1; it must be True or False"),
        ({"orbital_cannon_cooldown": -1}, "orbital_cannon_cooldown=-1; it must be a whole number >= 0"),
        ({"orbital_cannon_cooldown": 6}, "orbital_cannon_cooldown=6 is above cooldown_period=5"),
        ({"steps": 101}, "steps=101 is above max_steps=100"),
        ({"robot": []}, "unknown key 'robot'.*did you mean 'robots'"),
    ],
)
def test_an_impossible_state_is_named_and_changes_nothing(change: dict[str, Any], message: str) -> None:
    env = board([(0, 0)], [(1, 1)], width=3, height=2)
    before = env.state()
    with pytest.raises(ValueError, match=message):
        env.load_state(before | change)
    assert env.state() == before


def test_a_state_without_mines_or_robots_is_refused() -> None:
    with pytest.raises(ValueError, match="lacks 'robots'"):
        PythonMineSweeper().load_state({"mines": []})


# --- Parameters


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("width", 0, ">= 1"),
        ("height", -2, ">= 1"),
        ("num_mines", 0, ">= 1"),
        ("num_robots", 1.5, "a whole number"),
        ("num_robots", True, "a whole number"),
        ("orbital_cannon", "yes", "True or False"),
        ("cooldown_period", -1, ">= 0"),
        ("max_steps", 0, ">= 1, or None for no limit"),
    ],
)
def test_a_bad_argument_is_named_with_what_is_allowed(field: str, value: Any, allowed: str) -> None:
    with pytest.raises(ValueError, match=f"{field}={value!r}; it must be .*{allowed}"):
        PythonMineSweeper(**{field: value})


def test_mines_and_robots_must_fit_on_the_board() -> None:
    PythonMineSweeper(width=2, height=3, num_mines=4, num_robots=2).reset()
    with pytest.raises(ValueError, match="num_mines=5 and num_robots=2 need 7 cells; .* width=2 and height=3 has 6"):
        PythonMineSweeper(width=2, height=3, num_mines=5, num_robots=2)
