"""The rules of MineSweeper on hand-made boards. Positions are (x, y); y grows upwards."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from entity_gym.action import Action, CategoricalAction, SelectEntityAction
from entity_gym.envs.minesweeper import MineSweeper
from entity_gym.observation import CategoricalActionMask, Observation, SelectEntityActionMask
from entity_gym.spaces import CategoricalActionSpace, SelectEntityActionSpace

GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "minesweeper_internals.json").read_text())
RIGHT, LEFT, UP, DOWN, DEFUSE = range(5)
Cell = tuple[int, int]


def board(mines: Sequence[Cell], robots: Sequence[Cell], *, cooldown: int | None = None, **kwargs: Any) -> MineSweeper:
    """A 3x3 board (unless `kwargs` say otherwise); it has a cannon if a cooldown is given."""
    env = MineSweeper(**{"width": 3, "height": 3, "num_mines": 1, "num_robots": 1, **kwargs})
    state: dict[str, Any] = {"mines": list(mines), "robots": list(robots)}
    if cooldown is not None:
        state |= {"orbital_cannon": True, "orbital_cannon_cooldown": cooldown}
    env.load_state(state)
    return env


def move(*choices: int) -> dict[str, Action]:
    """Robots 0, 1, ... take these choices."""
    return {"Move": CategoricalAction([("Robot", i) for i in range(len(choices))], np.array(choices, np.int64))}


def fire(at: str, index: int) -> dict[str, Action]:
    return {"Fire Orbital Cannon": SelectEntityAction([("Orbital Cannon", 0)], [(at, index)])}


def mines_of(env: MineSweeper) -> list[Cell]:
    return [(x, y) for x, y in env.state()["mines"]]


def robots_of(env: MineSweeper) -> list[Cell]:
    return [(x, y) for x, y in env.state()["robots"]]


def cooldown_of(obs: Observation) -> float:
    return float(obs.features["Orbital Cannon"][0][0])


def cannon_may_fire(obs: Observation) -> bool:
    mask = obs.actions["Fire Orbital Cannon"]
    assert isinstance(mask, SelectEntityActionMask)
    return mask.actor_types == ["Orbital Cannon"]


def move_mask(obs: Observation) -> list[list[bool]]:
    mask = obs.actions["Move"]
    assert isinstance(mask, CategoricalActionMask)
    return np.asarray(mask.mask).tolist()


def play(env: MineSweeper, obs: Observation, policy: np.random.Generator) -> tuple[Observation, dict[str, Action]]:
    """One step with random choices among the open ones; every robot moves, and the cannon fires when it may."""
    mask = move_mask(obs)
    actions = move(*(int(policy.choice(np.flatnonzero(row))) for row in mask))
    if cannon_may_fire(obs):
        targets = [*obs.ids["Mine"], *obs.ids["Robot"]]
        target = targets[policy.integers(len(targets))]
        actions["Fire Orbital Cannon"] = SelectEntityAction([("Orbital Cannon", 0)], [target])
    return env.act(actions), actions


def plain(obs: Observation) -> dict[str, Any]:
    """An observation as lists, to be compared."""
    return {
        "features": {name: np.asarray(rows).tolist() for name, rows in obs.features.items()},
        "ids": {name: list(ids) for name, ids in obs.ids.items()},
        "mask": move_mask(obs) if obs.actions else None,
        "may_fire": cannon_may_fire(obs) if obs.actions else None,
        "end": (obs.reward, obs.done, obs.truncated, obs.end_of_episode_info),
    }


# --- What is seen


def test_the_spaces_name_types_features_and_choices_in_order() -> None:
    env = MineSweeper()
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
def test_a_golden_state_gives_the_golden_observation(i: int) -> None:
    env = MineSweeper(num_mines=1, num_robots=1, **GOLDEN["env_kwargs"])
    env.load_state(GOLDEN["states"][i])
    obs = env.observe()
    expected = GOLDEN["vec_obs"]

    shown = {name: rows[i] for name, rows in expected["features"].items() if rows[i]}
    assert {name: np.asarray(rows).tolist() for name, rows in obs.features.items()} == shown
    assert {name: list(ids) for name, ids in obs.ids.items()} == {
        name: [(name, k) for k in range(len(rows))] for name, rows in shown.items()
    }
    assert move_mask(obs) == expected["action_masks"]["Move"]["mask"][i]
    assert (obs.actions["Move"].actor_types, obs.actions["Move"].actor_ids) == (["Robot"], None)
    assert obs.actions["Fire Orbital Cannon"] == SelectEntityActionMask(
        actor_types=["Orbital Cannon"] if expected["action_masks"]["Fire Orbital Cannon"]["actors"][i] else [],
        actee_types=["Mine", "Robot"],
    )
    assert (obs.reward, obs.done, obs.truncated, obs.end_of_episode_info) == (0.0, False, False, None)


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
def test_the_golden_actions_do_what_they_say(i: int, mines: list[Cell], robots: list[Cell], reward: float) -> None:
    env = MineSweeper(num_mines=1, num_robots=1, **GOLDEN["env_kwargs"])
    env.load_state(GOLDEN["states"][i])
    golden = GOLDEN["env_actions"][i]
    moves, shots = golden["Move"], golden["Fire Orbital Cannon"]
    obs = env.act(
        {
            "Move": CategoricalAction([tuple(a) for a in moves["actors"]], np.array(moves["actions"])),
            "Fire Orbital Cannon": SelectEntityAction(
                [tuple(a) for a in shots["actors"]], [tuple(a) for a in shots["actees"]]
            ),
        }
    )
    assert (mines_of(env), robots_of(env), obs.reward) == (mines, robots, reward)


def test_reset_draws_distinct_cells_for_mines_and_robots() -> None:
    env = MineSweeper(width=4, height=2, num_mines=5, num_robots=3)
    for seed in range(20):
        env.rng = np.random.default_rng(seed)
        obs = env.reset()
        assert (len(obs.features["Mine"]), len(obs.features["Robot"])) == (5, 3)
        # 8 things on 8 cells: every cell is taken once
        assert sorted(mines_of(env) + robots_of(env)) == [(x, y) for x in range(4) for y in range(2)]


def test_every_cell_is_drawn_equally_often() -> None:
    env = MineSweeper(width=3, height=2, num_mines=1, num_robots=1)
    env.rng = np.random.default_rng(0)
    counts = np.zeros((3, 2))
    for _ in range(3000):
        env.reset()
        counts[mines_of(env)[0]] += 1
    # 500 each on average; the standard deviation is sqrt(3000 * 1/6 * 5/6) = 20.4
    assert np.abs(counts - 500).max() < 5 * 20.4


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


@pytest.mark.parametrize(("robot", "choice"), [((2, 1), RIGHT), ((0, 1), LEFT), ((1, 2), UP), ((1, 0), DOWN)])
def test_a_move_off_the_board_is_refused_and_not_wrapped(robot: Cell, choice: int) -> None:
    env = board([(1, 1)], [robot])
    with pytest.raises(ValueError, match=rf"'Move' of \('Robot', 0\) at .* is {choice}, which was not offered"):
        env.act(move(choice))


@pytest.mark.parametrize("choice", [-1, 5])
def test_a_choice_that_does_not_exist_is_refused(choice: int) -> None:
    with pytest.raises(ValueError, match=f"is {choice}, which was not offered"):
        board([(0, 0)], [(1, 1)]).act(move(choice))


def test_defusing_removes_the_mines_at_manhattan_distance_one_or_less() -> None:
    everywhere = [(x, y) for x in range(5) for y in range(5)]
    env = board(everywhere, [(2, 2), (0, 4)], width=5, height=5)
    env.act(move(DEFUSE, DEFUSE))
    gone = set(everywhere) - set(mines_of(env))
    assert gone == {(2, 2), (3, 2), (1, 2), (2, 3), (2, 1)} | {(0, 4), (1, 4), (0, 3)}


def test_defusing_does_not_reach_around_the_edge() -> None:
    # Cells (2, 0) and (0, 1) follow each other in the numbering and are far apart on the board.
    env = board([(0, 1)], [(2, 0)])
    env.act(move(DEFUSE))
    assert mines_of(env) == [(0, 1)]


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


# --- The cannon


def test_without_a_cannon_none_is_shown_and_nobody_fires() -> None:
    obs = MineSweeper().reset()
    assert "Orbital Cannon" not in obs.features
    assert not cannon_may_fire(obs)


def test_an_episode_starts_with_the_full_cooldown() -> None:
    obs = MineSweeper(orbital_cannon=True, cooldown_period=3).reset()
    assert cooldown_of(obs) == 3
    assert not cannon_may_fire(obs)


def test_the_cooldown_counts_down_and_a_shot_sets_it_again() -> None:
    env = board([(0, 0), (0, 1), (0, 2)], [(2, 2)], cooldown=3, cooldown_period=3)
    seen = []
    obs = env.observe()
    for _ in range(9):
        seen.append((cooldown_of(obs), cannon_may_fire(obs)))
        obs = env.act(fire("Mine", 0) if cannon_may_fire(obs) else {})
    wait = [(3.0, False), (2.0, False), (1.0, False), (0.0, True)]  # three steps pass, then it may fire
    assert seen == [*wait, *wait, (3.0, False)]
    assert len(mines_of(env)) == 1


def test_the_cooldown_rests_at_zero_until_a_shot() -> None:
    env = board([(0, 0)], [(2, 2)], cooldown=1)
    assert [cooldown_of(env.act({})) for _ in range(3)] == [0, 0, 0]


def test_with_a_period_of_zero_the_cannon_fires_in_every_step() -> None:
    env = board([(0, 0), (0, 1), (0, 2)], [(2, 2)], cooldown=0, cooldown_period=0)
    for left in (2, 1):
        assert cannon_may_fire(env.act(fire("Mine", 0)))
        assert len(mines_of(env)) == left


def test_the_cannon_removes_the_mine_it_aims_at() -> None:
    env = board([(0, 0), (0, 1), (0, 2)], [(2, 2)], cooldown=0)
    env.act(fire("Mine", 1))
    assert mines_of(env) == [(0, 0), (0, 2)]


def test_the_cannon_fires_before_the_moves() -> None:
    # The mine at (1, 0) is shot before robot 0 steps there.
    env = board([(1, 0), (2, 2)], [(0, 0)], cooldown=0)
    env.act(fire("Mine", 0) | move(RIGHT))
    assert (mines_of(env), robots_of(env)) == ([(2, 2)], [(1, 0)])


def test_the_order_of_the_actions_in_the_dictionary_does_not_matter() -> None:
    env = board([(1, 0), (2, 2)], [(0, 0)], cooldown=0)
    env.act(move(RIGHT) | fire("Mine", 0))
    assert (mines_of(env), robots_of(env)) == ([(2, 2)], [(1, 0)])


def test_a_robot_that_the_cannon_removes_no_longer_acts() -> None:
    # Robot 0 would have defused (0, 1). Robot 1 is still addressed as it was in the observation.
    env = board([(0, 1), (2, 2)], [(0, 0), (1, 0)], cooldown=0)
    obs = env.act(fire("Robot", 0) | move(DEFUSE, RIGHT))
    assert (mines_of(env), robots_of(env)) == ([(0, 1), (2, 2)], [(2, 0)])
    assert list(obs.ids["Robot"]) == [("Robot", 0)]


def test_a_shot_that_was_not_offered_is_refused() -> None:
    for env in (board([(0, 0)], [(2, 2)], cooldown=1), board([(0, 0)], [(2, 2)])):
        with pytest.raises(ValueError, match="'Fire Orbital Cannon' .* was not offered"):
            env.act(fire("Mine", 0))
    with pytest.raises(ValueError, match=r"at \('Mine', 1\); allowed: "):
        board([(0, 0)], [(2, 2)], cooldown=0).act(fire("Mine", 1))


# --- Reward and end


def test_the_reward_is_one_when_the_last_mine_goes() -> None:
    env = board([(0, 1), (2, 2)], [(0, 0), (1, 1)])
    first = env.act(move(DEFUSE, RIGHT))
    assert (first.reward, first.done) == (0.0, False)
    last = env.act(move(DEFUSE, DEFUSE))
    assert (last.reward, last.done, last.truncated) == (1.0, True, False)
    assert last.end_of_episode_info == {"mines_left": 0, "robots_left": 2}
    assert "Mine" not in last.features


def test_shooting_the_last_mine_counts() -> None:
    obs = board([(0, 1)], [(2, 2)], cooldown=0).act(fire("Mine", 0))
    assert (obs.reward, obs.done, obs.truncated) == (1.0, True, False)


def test_the_episode_ends_without_reward_when_no_robot_is_left() -> None:
    stepped = board([(1, 0)], [(0, 0)]).act(move(RIGHT))
    shot = board([(1, 0)], [(0, 0)], cooldown=0).act(fire("Robot", 0) | move(DEFUSE))
    for obs in (stepped, shot):
        assert (obs.reward, obs.done, obs.truncated) == (0.0, True, False)
        assert obs.end_of_episode_info == {"mines_left": 1, "robots_left": 0}


def test_after_max_steps_the_episode_is_truncated() -> None:
    env = board([(2, 2)], [(0, 0)], max_steps=3)
    ends = [(obs.done, obs.truncated) for obs in (env.act(move(DEFUSE)) for _ in range(3))]
    assert ends == [(False, False), (False, False), (True, True)]
    assert env.observe().end_of_episode_info == {"mines_left": 1, "robots_left": 1}


def test_max_steps_is_a_hundred_by_default_and_starts_anew_with_reset() -> None:
    env = MineSweeper()
    for _ in range(2):
        obs, steps = env.reset(), 0
        while not obs.done:
            obs, steps = env.act({}), steps + 1
        assert (steps, obs.truncated) == (100, True)


def test_without_a_limit_an_episode_goes_on() -> None:
    env = board([(2, 2)], [(0, 0)], max_steps=None)
    assert not any(env.act({}).done for _ in range(300))


@pytest.mark.parametrize(("choice", "reward"), [(DEFUSE, 1.0), (RIGHT, 0.0)])
def test_an_end_by_the_rules_in_the_last_step_is_no_truncation(choice: int, reward: float) -> None:
    obs = board([(1, 0)], [(0, 0)], max_steps=1).act(move(choice))
    assert (obs.reward, obs.done, obs.truncated) == (reward, True, False)


def test_acting_outside_an_episode_is_refused() -> None:
    over = board([(1, 0)], [(0, 0)])
    over.act(move(DEFUSE))
    cut = board([(1, 0)], [(0, 0)], max_steps=1)
    cut.act({})
    for env in (MineSweeper(), over, cut):
        with pytest.raises(ValueError, match="outside an episode; call reset"):
            env.act({})


# --- Seeds and states


def trajectory(env: MineSweeper, policy_seed: int, steps: int, obs: Observation | None = None) -> list[dict[str, Any]]:
    policy = np.random.default_rng(policy_seed)
    obs = obs or env.reset()
    seen = [plain(obs)]
    for _ in range(steps):
        obs = env.reset() if obs.done else play(env, obs, policy)[0]
        seen.append(plain(obs))
    return seen


def seeded(seed: int) -> MineSweeper:
    env = MineSweeper(width=4, height=5, orbital_cannon=True, cooldown_period=2, max_steps=12)
    env.rng = np.random.default_rng(seed)
    return env


def test_the_same_seed_gives_the_same_episodes_and_another_seed_others() -> None:
    assert trajectory(seeded(3), 0, 80) == trajectory(seeded(3), 0, 80)
    assert trajectory(seeded(3), 0, 80) != trajectory(seeded(4), 0, 80)


@given(seed=st.integers(0, 2**32 - 1), steps=st.integers(0, 30))
@settings(max_examples=30, deadline=None)
def test_an_environment_that_loads_a_state_continues_like_the_one_that_saved_it(seed: int, steps: int) -> None:
    original = seeded(seed)
    trajectory(original, seed, steps)
    saved = json.loads(json.dumps(original.state()))  # plain values: what JSON keeps is all there is
    copy = seeded(0)
    copy.load_state(saved)
    copy.rng.bit_generator.state = original.rng.bit_generator.state
    assert copy.state() == original.state() == saved
    assert trajectory(copy, 1, 30, copy.observe()) == trajectory(original, 1, 30, original.observe())


def test_a_state_may_be_arrays_and_hold_other_numbers_than_constructed() -> None:
    env = MineSweeper(width=3, height=3, num_mines=1, num_robots=1)
    env.load_state({"mines": np.array([[0, 2], [1, 2]]), "robots": np.array([[0.0, 0.0], [1.0, 0.0], [2.0, 0.0]])})
    assert env.state() == {
        "mines": [[0, 2], [1, 2]],
        "robots": [[0, 0], [1, 0], [2, 0]],
        "orbital_cannon": False,
        "orbital_cannon_cooldown": 5,
        "steps": 0,
    }


def test_reset_returns_to_what_was_constructed() -> None:
    env = board([(0, 0), (0, 1)], [(1, 1), (1, 2)], cooldown=2)
    obs = env.reset()
    assert (len(obs.features["Mine"]), len(obs.features["Robot"]), "Orbital Cannon" in obs.features) == (1, 1, False)


def test_the_state_before_the_first_reset_can_be_saved_and_loaded() -> None:
    env = MineSweeper()
    env.load_state(MineSweeper().state())
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
        MineSweeper().load_state({"mines": []})


# --- What is accepted


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
        MineSweeper(**{field: value})


def test_mines_and_robots_must_fit_on_the_board() -> None:
    MineSweeper(width=2, height=3, num_mines=4, num_robots=2).reset()
    with pytest.raises(ValueError, match="num_mines=5 and num_robots=2 need 7 cells; .* width=2 and height=3 has 6"):
        MineSweeper(width=2, height=3, num_mines=5, num_robots=2)


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


# --- Random play


@given(
    seed=st.integers(0, 2**32 - 1),
    width=st.integers(1, 5),
    height=st.integers(2, 5),
    num_robots=st.integers(1, 4),
    num_mines=st.integers(1, 6),
    cannon=st.booleans(),
    period=st.integers(0, 4),
)
@settings(max_examples=60, deadline=None)
def test_random_play_keeps_the_rules(
    seed: int, width: int, height: int, num_robots: int, num_mines: int, cannon: bool, period: int
) -> None:
    num_robots = min(num_robots, width * height - 1)
    num_mines = min(num_mines, width * height - num_robots)
    env = MineSweeper(width, height, num_mines, num_robots, cannon, period, max_steps=20)
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
        before, (obs, actions) = env.state(), play(env, obs, policy)
        after = env.state()
        steps += 1
        rewards.append(obs.reward)
        assert all(0 <= x < width and 0 <= y < height for x, y in robots_of(env))
        assert all(mine in before["mines"] for mine in after["mines"])
        assert len(after["robots"]) <= len(before["robots"])
        if cannon:
            fired = "Fire Orbital Cannon" in actions
            assert cooldown_of(obs) == (period if fired else before["orbital_cannon_cooldown"] - 1)
    assert sum(rewards) == (0 if mines_of(env) else 1)
    assert obs.truncated == (steps == 20 and bool(mines_of(env)) and bool(robots_of(env)))
    assert obs.end_of_episode_info == {"mines_left": len(mines_of(env)), "robots_left": len(robots_of(env))}


def test_one_robot_that_walks_beside_each_mine_clears_every_board() -> None:
    # The best score is 1: walking to the nearest mine and defusing it from the cell beside it never fails.
    for seed in range(50):
        env = MineSweeper()
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
            obs = env.act({"Move": CategoricalAction([("Robot", 0)], np.array([choice]))})
        assert obs.reward == 1.0


# --- The picture


def test_render_is_a_picture_of_the_board() -> None:
    image = board([(0, 0)], [(3, 1)], width=4, height=2).render()
    assert (image.shape, image.dtype) == ((2 * 32 + 17, 4 * 32 + 1, 3), np.dtype(np.uint8))


def test_y_grows_upwards_in_the_picture() -> None:
    low, high = (board([(0, y)], [(1, 1)]).render()[16:] for y in (0, 2))
    middle_of = {"top": (16, 16), "bottom": (2 * 32 + 16, 16)}
    assert low[middle_of["bottom"]].max() < 60 < low[middle_of["top"]].min()  # a mine is dark
    assert high[middle_of["top"]].max() < 60 < high[middle_of["bottom"]].min()


def test_different_states_are_drawn_differently() -> None:
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


def test_the_same_state_is_drawn_the_same_without_touching_it() -> None:
    env = board([(0, 0)], [(1, 1)], cooldown=2)
    before = env.state()
    assert np.array_equal(env.render(), env.render())
    assert env.state() == before
