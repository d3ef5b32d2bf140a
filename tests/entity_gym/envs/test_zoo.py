"""Promises that all worlds of the package keep, whatever their rules."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from entity_gym.actions.choices import random_actions
from entity_gym.batch.vec_obs import VecObs
from entity_gym.compiled import CompiledEnvironment
from entity_gym.compiled.slots import CompiledSlots
from entity_gym.envs.cart_pole import CartPole, CartPoleV0
from entity_gym.envs.cherry_pick import CherryPick
from entity_gym.envs.connect_four import ConnectFour
from entity_gym.envs.corridor import Corridor
from entity_gym.envs.knapsack import Knapsack, KnapsackUnordered
from entity_gym.envs.minefield import Minefield
from entity_gym.envs.minesweeper import MineSweeper
from entity_gym.envs.multi_snake import MultiSnake
from entity_gym.envs.pairs import Pairs, PairsApart
from entity_gym.envs.pick_matching_balls import PickMatchingBalls
from entity_gym.envs.route import Route
from entity_gym.envs.shells import Shells
from entity_gym.envs.skirmish import Skirmish
from entity_gym.envs.toys import (
    Count,
    FloorIsLava,
    MoveToOrigin,
    MultiArmedBandit,
    NotHotdog,
    RockPaperScissors,
    Xor,
)
from entity_gym.envs.treasure_hunt import TreasureHunt
from entity_gym.pools.pool import ListEnv
from entity_gym.pools.slots import SlotOptions
from entity_gym.pools.vec_env import VecEnv
from tests.entity_gym.compiled.comparing import meaning

#: Every world, those with parameters in more than one form, and the most steps that an episode of it can have.
ZOO: list[tuple[CompiledEnvironment, int]] = [
    (CartPole(), 500),
    (CartPole(show_velocities=False), 500),
    (CartPoleV0(), 200),
    (CherryPick(), 16),
    (CherryPick(num_cherries=7), 3),
    (ConnectFour(), 42),
    (ConnectFour(columns=4, rows=4, opponent=4), 8),
    (ConnectFour(opponent=5, opening=6), 42),
    (Corridor(), 11),
    (Corridor(length=1, num_ways=8), 2),
    (Count(), 1),
    (Count(masked_choices=2), 1),
    (FloorIsLava(), 1),
    (Knapsack(), 1),
    (Knapsack(min_items=1, max_items=200, capacity=1.0), 1),
    (KnapsackUnordered(), 1),
    (Minefield(), 200),
    (Minefield(translate=True, max_mines=3, max_steps=30), 30),
    (MineSweeper(), 100),
    (MineSweeper(orbital_cannon=True, cooldown_period=2, width=9, num_robots=4), 100),
    (MoveToOrigin(), 32),
    (MultiArmedBandit(), 32),
    (MultiSnake(), 180),
    (MultiSnake(num_snakes=4, board_size=8, max_steps=40), 40),
    (NotHotdog(), 1),
    (Pairs(), 1),
    (PairsApart(max_gates=16), 1),
    (PickMatchingBalls(), 32),
    (PickMatchingBalls(randomize=True, one_hot=True, max_balls=10), 10),
    (RockPaperScissors(), 1),
    (RockPaperScissors(cheat=True), 1),
    (Route(), 1),
    (Route(min_cities=3, max_cities=100), 1),
    (Shells(), 9),
    (Shells(min_shells=2, max_shells=16, num_shuffles=1), 2),
    (Skirmish(num_units=3, width=12.0, max_steps=40), 40),
    (Skirmish(opponent=0, num_units=3, continuous=True, width=12.0, max_steps=40), 40),
    (Skirmish(opponent=3, num_units=3, width=12.0), 100),
    (TreasureHunt(), 100),
    (TreasureHunt(num_traps=0, num_treasures=16, max_steps=50), 50),
    (Xor(), 1),
]
WORLDS = [env for env, _ in ZOO]
each_class = pytest.mark.parametrize("env", dict.fromkeys(type(env) for env in WORLDS))

WITHOUT_CHANCE = (MultiArmedBandit,)  # the same whatever the seed
NUM_ENVS = 3


def pool(env: CompiledEnvironment, seed: int = 0, *, compile: bool = False) -> VecEnv:
    return VecEnv(CompiledSlots(env, NUM_ENVS, SlotOptions(final_observations="all", compile=compile)), seed=seed)


def play(env: VecEnv, steps: int, obs: VecObs | None = None, seed: int = 0) -> list[VecObs]:
    """Uniformly random actions from `obs` on, or from a reset."""
    rng = np.random.default_rng(seed)
    seen = [env.reset() if obs is None else obs]
    for _ in range(steps):
        seen.append(env.act(random_actions(seen[-1], rng, env.action_space())))
    return seen


def same(first: list[VecObs], second: list[VecObs]) -> bool:
    return [meaning(obs) for obs in first] == [meaning(obs) for obs in second]


@each_class
def test_a_world_keeps_to_what_all_keep_to(env: type[CompiledEnvironment]) -> None:
    for world in WORLDS:
        if type(world) is env:
            check_seeds(world)
            check_spaces(world)
            check_saving(world)
            check_drawing(world)


def check_seeds(env: CompiledEnvironment) -> None:
    first, again, other = (play(pool(env, seed), steps=10) for seed in (0, 0, 1))
    assert same(first, again)
    assert same(first, other) == isinstance(env, WITHOUT_CHANCE)
    features = [[rows[i].values.tolist() for obs in first for rows in obs.features.values()] for i in range(NUM_ENVS)]
    assert (features[0] == features[1]) == isinstance(env, WITHOUT_CHANCE)  # side by side they differ, too


def check_spaces(env: CompiledEnvironment) -> None:
    # A ListEnv checks every observation against the spaces, and must then show the same as the pool.
    one_by_one = ListEnv(env.as_environment, NUM_ENVS, final_observations="all")
    assert same(play(one_by_one, steps=20), play(pool(env), steps=20))


def check_saving(env: CompiledEnvironment) -> None:
    first = pool(env)
    play(first, steps=7)
    saved = first.state()
    rest = play(first, steps=6, obs=first.load_state(saved), seed=1)
    second = pool(env, seed=99)
    assert same(play(second, steps=6, obs=second.load_state(saved), seed=1), rest)


def check_drawing(env: CompiledEnvironment) -> None:
    world = pool(env)
    obs, rng, images = world.reset(), np.random.default_rng(0), []
    for _ in range(6):
        images += world.render([0])
        assert images[-1].dtype == np.uint8 and images[-1].ndim == 3
        assert images[-1].shape == images[0].shape and images[0].shape[2] == 3
        obs = world.act(random_actions(obs, rng, world.action_space()))
    assert len({image.tobytes() for image in images}) > 1
    before = world.state()["fields"]
    world.render([0])
    after = world.state()["fields"]
    assert all(before[name].tobytes() == after[name].tobytes() for name in before)  # drawing changes nothing


@each_class
def test_parameters_outside_their_ranges_are_refused(env: type[CompiledEnvironment]) -> None:
    for name, (least, most) in env.ranges.items():
        number = "a whole number" if isinstance(env.parameters[name], int) else "a number"
        for wrong in (least - 1, *([] if most is None else [most + 1])):
            with pytest.raises(
                ValueError, match=rf"{env.__name__}: {name}={wrong!r}; it must be {number} (from|>=) {least}"
            ):
                env(**{name: wrong})
        env(**{name: env.parameters[name]})


@pytest.mark.parametrize(
    ("env", "parameters", "message"),
    [
        (
            ConnectFour,
            {"columns": 9, "rows": 7},
            "columns=9 and rows=7; .* at most 63, so with these columns rows may be 6",
        ),
        (Knapsack, {"min_items": 51}, "min_items=51 is more than max_items=50"),
        (
            MineSweeper,
            {"width": 2, "height": 3},
            "num_mines=5 and num_robots=2 need 7 cells; .* width=2 and height=3 has 6",
        ),
        (MultiSnake, {"num_snakes": 3, "num_players": 2}, "num_snakes=3 cannot be shared equally by num_players=2"),
        (
            MultiSnake,
            {"num_snakes": 4, "max_snake_length": 66, "board_size": 20},
            "have 260 body segments; there is room for 256, so max_snake_length may be 65",
        ),
        (MultiSnake, {"board_size": 4}, "max_snake_length=11, .* need 24 cells; the board of board_size=4 has 16"),
        (Pairs, {"min_gates": 5}, "min_gates=5 is more than max_gates=4"),
        (Route, {"max_cities": 5}, "min_cities=20 is more than max_cities=5"),
        (Shells, {"max_shells": 2}, "min_shells=3 is more than max_shells=2"),
        (Skirmish, {"num_obstacles": 3}, "num_obstacles=3; it must be even"),
    ],
)
def test_parameters_that_do_not_go_together_are_refused(env: Any, parameters: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=f"{env.__name__}: .*{message}"):
        env(**parameters)


#: World -> its entity types with their features, and the choices of its actions.
SPACES: dict[type[CompiledEnvironment], tuple[dict[str, str], dict[str, tuple[str, ...]]]] = {
    CherryPick: ({"Cherry": "quality", "Player": ""}, {"Pick Cherry": ()}),
    ConnectFour: (
        {"Player": "their_turn", "Column": "x y their_turn", "MoverDisc": "x y theirs", "OtherDisc": "x y theirs"},
        {"drop": ()},
    ),
    Minefield: (
        {"Vehicle": "x_pos y_pos direction step", "Mine": "x_pos y_pos", "Target": "x_pos y_pos"},
        {"move": ("turn left", "move forward", "turn right")},
    ),
    MineSweeper: (
        {"Mine": "x y", "Robot": "x y", "Orbital Cannon": "cooldown"},
        {"Move": ("x+1", "x-1", "y+1", "y-1", "Defuse Mines"), "Fire Orbital Cannon": ()},
    ),
    MultiSnake: (
        {"SnakeHead": "x y color", "SnakeBody": "x y color", "Food": "x y color"},
        {"move": ("up", "down", "left", "right")},
    ),
    Knapsack: ({"Knapsack": "capacity", "Item": "value weight"}, {"pick": ()}),
    Route: ({"Traveller": "", "City": "x y"}, {"tour": ()}),
    PickMatchingBalls: (
        {"Ball": "color0 color1 color2 color3 color4 color5 selected", "Player": ""},
        {"Pick Ball": ()},
    ),
}


@pytest.mark.parametrize("env", SPACES)
def test_spaces_name_types_features_and_choices_in_order(env: type[CompiledEnvironment]) -> None:
    types, choices = SPACES[env]
    entities = {name: " ".join(entity.features) for name, entity in env.obs_space().entities.items()}
    assert list(entities.items()) == list(types.items())
    assert {name: space.labels for name, space in env.action_space().items()} == choices
