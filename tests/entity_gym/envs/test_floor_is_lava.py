from collections import Counter

import numpy as np
import pytest

from entity_gym.actions.choices import random_actions
from entity_gym.compiled.slots import CompiledSlots
from entity_gym.envs.floor_is_lava import FloorIsLava
from entity_gym.pools.pool import SlotVecEnv
from entity_gym.pools.slots import SlotOptions
from tests.entity_gym.envs.playing import act, resets, rows, started

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


def test_only_the_high_ground_is_rewarded() -> None:
    rewards = [act(started(FloorIsLava, x=0, y=0, high_ground=(1, 0)), move=name).reward for name in OFFSETS]
    assert rewards == [1.0 if name == "e" else 0.0 for name in OFFSETS]


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
    env = SlotVecEnv(CompiledSlots(FloorIsLava, 1, SlotOptions(compile=False)))
    obs, rng = env.reset(), np.random.default_rng(0)
    while obs.features["Lava"].size1(0) != num_lava:
        obs = env.act(random_actions(obs, rng, env.action_space()))
    assert obs.action_masks["move"].actors.values.tolist() == [[num_lava + 1]]


def test_the_drawing_is_centred_on_the_player() -> None:
    env = started(FloorIsLava, x=0, y=0, num_lava=1, lava=[(0, 1)], high_ground=(1, 0))

    def tile(x: int, y: int) -> list[int]:
        return env.render()[32 * (2 - y) + 4, 32 * (x + 2) + 4].tolist()  # beside the disc that is the player

    assert env.render().shape == (161, 161, 3)
    assert tile(0, 1) == [210, 40, 40] and tile(1, 0) == [30, 150, 90]
    act(env, move="e")
    assert tile(0, 0) == [30, 150, 90] and tile(-1, 1) == [210, 40, 40]
    assert env.render()[80, 80].tolist() == [38, 110, 200]
