"""The seven toys, each on the questions that it asks."""

import math
from collections import Counter
from itertools import product

import numpy as np
import pytest

from entity_gym.actions import CategoricalActionMask
from entity_gym.actions.choices import random_actions
from entity_gym.compiled.slots import CompiledSlots
from entity_gym.environment import Observation
from entity_gym.envs.toys import (
    Count,
    FloorIsLava,
    MoveToOrigin,
    MultiArmedBandit,
    NotHotdog,
    RockPaperScissors,
    Xor,
)
from entity_gym.pools.slots import SlotOptions
from entity_gym.pools.vec_env import VecEnv
from tests.entity_gym.envs.playing import act, episode, resets, rows, started

# --- Xor


@pytest.mark.parametrize(("first", "second", "negate"), list(product((0, 1), repeat=3)))
def test_the_right_output_is_the_exclusive_or_unless_it_is_to_be_negated(first: int, second: int, negate: int) -> None:
    bits, right = (first, second), str(first ^ second ^ negate)
    for output in "01":
        env = started(Xor, bits=bits, negate=negate)
        obs = env.observe()
        assert rows(obs, "Input") == [[bits[0]], [bits[1]]] and list(obs.global_features) == [negate]
        obs = act(env, output=output)
        assert obs.reward == (1.0 if output == right else 0.0)
        assert obs.done and not obs.truncated


def test_all_eight_questions_are_equally_likely() -> None:
    asked = Counter((*env.record.bits.tolist(), int(env.record.negate)) for env in resets(Xor, 1600))
    assert asked == {question: pytest.approx(200, abs=65) for question in product((0, 1), repeat=3)}


# --- Count


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


# --- NotHotdog


def shown(obs: Observation) -> tuple[list[list[float]], int]:
    """The object's features, and the number of hotdogs."""
    return rows(obs, "Object"), len(obs.features["Hotdog"])


@pytest.mark.parametrize(
    ("is_hotdog", "by_type", "expected"),
    [
        (True, True, ([], 1)),
        (True, False, ([[1.0]], 0)),
        (False, True, ([[0.0]], 0)),
        (False, False, ([[0.0]], 0)),
    ],
)
def test_a_hotdog_is_a_hotdog_or_an_object_that_is_one(
    is_hotdog: bool, by_type: bool, expected: tuple[list[list[float]], int]
) -> None:
    obs = started(NotHotdog, is_hotdog=is_hotdog, by_type=by_type).observe()
    assert shown(obs) == expected
    assert rows(obs, "Player") == [[0.0]]


@pytest.mark.parametrize("by_type", [True, False])
@pytest.mark.parametrize(
    ("is_hotdog", "answer", "reward"),
    [(True, "hotdog", 1), (True, "not_hotdog", 0), (False, "hotdog", 0), (False, "not_hotdog", 1)],
)
def test_the_labels_mean_what_they_say(by_type: bool, is_hotdog: bool, answer: str, reward: float) -> None:
    # An ancestor rewarded "hotdog" for what was none: its labels were in the other order than the numbers compared.
    obs = act(started(NotHotdog, is_hotdog=is_hotdog, by_type=by_type), classify=answer)
    assert obs.reward == reward
    assert obs.done and not obs.truncated
    assert rows(obs, "Player") == [[1.0]]


def test_the_three_sights_come_with_their_probabilities() -> None:
    seen = Counter(str(shown(env.observe())) for env in resets(NotHotdog, 1000))
    assert seen == {
        str(([], 1)): pytest.approx(250, abs=60),
        str(([[1.0]], 0)): pytest.approx(250, abs=60),
        str(([[0.0]], 0)): pytest.approx(500, abs=70),
    }


def test_nobody_is_ever_offered_the_unused_action() -> None:
    env = VecEnv(CompiledSlots(NotHotdog, 8, SlotOptions(compile=False)))
    obs, rng = env.reset(), np.random.default_rng(0)
    for _ in range(5):
        assert obs.action_masks["unused_action"].actors.size1().tolist() == [0] * 8
        assert obs.action_masks["classify"].actors.size1().tolist() == [1] * 8
        obs = env.act(random_actions(obs, rng, env.action_space()))


# --- MultiArmedBandit


@pytest.mark.parametrize(("lever", "reward"), [("A", 1 / 32), ("B", 0), ("C", 0), ("D", 0), ("E", 0)])
def test_only_lever_a_pays(lever: str, reward: float) -> None:
    assert act(started(MultiArmedBandit), pull=lever).reward == reward


def test_an_episode_counts_its_32_steps_and_ends_by_itself() -> None:
    seen = episode(started(MultiArmedBandit), lambda obs: {"pull": "B"})
    assert [list(obs.global_features) for obs in seen] == [[step] for step in range(33)]
    assert seen[-1].done and not seen[-1].truncated
    assert seen[-1].actions == {}


# --- RockPaperScissors


THROWS = ("rock", "paper", "scissors")
BEATS = {"rock": "scissors", "paper": "rock", "scissors": "paper"}


@pytest.mark.parametrize("opponent", range(3))
@pytest.mark.parametrize("throw", THROWS)
def test_only_a_win_is_rewarded(opponent: int, throw: str) -> None:
    env = started(RockPaperScissors, opponent=opponent)
    assert rows(env.observe(), "Opponent") == [[float(i == opponent) for i in range(3)]]
    obs = act(env, throw=throw)
    assert obs.reward == (2.0 if BEATS[throw] == THROWS[opponent] else 0.0)
    assert obs.done and not obs.truncated


@pytest.mark.parametrize("cheat", [False, True])
def test_the_opponent_is_hidden_unless_cheating(cheat: bool) -> None:
    env = started(RockPaperScissors(cheat=cheat))
    for obs in (env.observe(), act(env, throw="rock")):
        assert np.asarray(obs.visible.get("Opponent", [True])).tolist() == [cheat]
        assert len(rows(obs, "Opponent")) == 1  # the value function sees it in any case
    assert "Player" not in obs.visible


def test_the_opponent_throws_rock_in_half_paper_in_three_and_scissors_in_two_tenths_of_the_episodes() -> None:
    thrown = Counter(int(env.record.opponent) for env in resets(RockPaperScissors, 2000))
    assert thrown == {0: pytest.approx(1000, abs=100), 1: pytest.approx(600, abs=100), 2: pytest.approx(400, abs=90)}


# --- FloorIsLava


OFFSETS = {
    "n": (0, 1),
    "ne": (1, 1),
    "e": (1, 0),
    "se": (1, -1),
    "s": (0, -1),
    "sw": (-1, -1),
    "w": (-1, 0),
    "nw": (-1, 1),
}


@pytest.mark.parametrize(("direction", "offset"), OFFSETS.items())
def test_a_move_leads_where_the_compass_says(direction: str, offset: tuple[int, int]) -> None:
    env = started(FloorIsLava, x=100, y=-200, high_ground=(100 + offset[0], -200 + offset[1]))
    obs = act(env, move=direction)
    assert rows(obs, "Player") == rows(obs, "HighGround") == [[100 + offset[0], -200 + offset[1]]]
    assert (obs.reward, obs.done, obs.truncated) == (1.0, True, False)


def test_tiles_are_different_neighbours_of_a_player_who_is_anywhere() -> None:
    num_tiles, safe, players = Counter(), Counter(), []
    for env in resets(FloorIsLava, 1600):
        obs = env.observe()
        [[x, y]] = rows(obs, "Player")
        offsets = [(a - x, b - y) for a, b in [*rows(obs, "HighGround"), *rows(obs, "Lava")]]
        assert len(set(offsets)) == len(offsets) and set(offsets) <= set(OFFSETS.values())
        num_tiles[len(offsets)] += 1
        safe[offsets[0]] += 1
        players.append((x, y))
    assert num_tiles == {number: pytest.approx(200, abs=65) for number in range(1, 9)}
    assert safe == {offset: pytest.approx(200, abs=65) for offset in OFFSETS.values()}
    assert np.abs(players).max() <= 1000 < np.abs(players).max() + 20  # and the edges are reached


@pytest.mark.parametrize("num_lava", [0, 7])
def test_the_player_is_the_actor_whatever_stands_before_it(num_lava: int) -> None:
    # An ancestor took the first lava for the player: types without ids did not advance the index.
    env = VecEnv(CompiledSlots(FloorIsLava, 1, SlotOptions(compile=False)))
    obs, rng = env.reset(), np.random.default_rng(0)
    while obs.features["Lava"].size1()[0] != num_lava:
        obs = env.act(random_actions(obs, rng, env.action_space()))
    assert obs.action_masks["move"].actors.values.tolist() == [[num_lava + 1]]


# --- MoveToOrigin


def hold(obs: Observation) -> dict[str, str]:
    return {"horizontal_thruster": "hold", "vertical_thruster": "hold"}


def test_an_episode_starts_at_rest_on_the_unit_circle_in_every_direction() -> None:
    angles = []
    for env in resets(MoveToOrigin, 400):
        [[x, y, x_velocity, y_velocity, step]] = rows(env.observe(), "Spaceship")
        assert (x_velocity, y_velocity, step) == (0, 0, 0)
        assert math.hypot(x, y) == pytest.approx(1.0, abs=1e-6)
        angles.append(math.atan2(y, x))
    quarters = np.histogram(angles, bins=4, range=(-math.pi, math.pi))[0]
    assert quarters.min() > 60  # 100 expected; 9 is the standard deviation


@pytest.mark.parametrize(
    ("horizontal", "vertical", "velocity"),
    [
        ("100% right", "100% up", (0.01, 0.01)),
        ("10% left", "10% down", (-0.001, -0.001)),
        ("100% left", "10% up", (-0.01, 0.001)),
    ],
)
def test_thrusters_change_the_velocity_and_the_new_velocity_the_position(
    horizontal: str, vertical: str, velocity: tuple[float, float]
) -> None:
    env = started(MoveToOrigin, x=1.0, y=0.0)
    obs = act(env, horizontal_thruster=horizontal, vertical_thruster=vertical)
    assert rows(obs, "Spaceship") == [pytest.approx([1 + velocity[0], velocity[1], *velocity, 1])]


def test_the_reward_is_the_distance_gained() -> None:
    env = started(MoveToOrigin, x=0.3, y=0.4, x_velocity=-0.29, y_velocity=-0.4, distance=0.5)
    obs = act(env, horizontal_thruster="100% left", vertical_thruster="hold")  # from (0.3, 0.4) to (0, 0)
    assert obs.reward == pytest.approx(0.5)
    obs = act(env, horizontal_thruster="hold", vertical_thruster="hold")  # and on to (-0.3, -0.4)
    assert obs.reward == pytest.approx(-0.5)


def test_an_episode_has_32_steps_and_ends_by_itself() -> None:
    env = started(MoveToOrigin)
    seen = episode(env, hold)
    assert len(seen) == 1 + 32
    assert seen[-1].done and not seen[-1].truncated
    assert seen[-1].end_of_episode_info == {"distance": 1.0}
    assert rows(env.reset(), "Spaceship")[0][4] == 0  # the clock starts again
