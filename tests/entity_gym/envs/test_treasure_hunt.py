"""TreasureHunt: its rules on hand-made boards, and the same rules in plain Python, step by step."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from entity_gym.actions import GlobalCategoricalAction
from entity_gym.environment import Observation
from entity_gym.envs.treasure_hunt import TreasureHunt
from examples.treasure_hunt import PythonTreasureHunt
from tests.entity_gym.compiled.view import CompiledView
from tests.entity_gym.envs.playing import act, resets, started

MOVES = {"up": (0, 1), "down": (0, -1), "left": (-1, 0), "right": (1, 0)}
Square = tuple[int, int]


def board(player: Square, traps: Sequence[Square], treasures: Sequence[Square], **kwargs: Any) -> CompiledView:
    env = TreasureHunt(num_traps=len(traps), num_treasures=len(treasures), **kwargs)
    return started(env, x=player[0], y=player[1], trap=traps, treasure=treasures)


def player_of(obs: Observation) -> Square:
    x, y = np.asarray(obs.global_features).tolist()
    return int(x), int(y)


def squares(obs: Observation, entity: str) -> list[Square]:
    return [(int(x), int(y)) for x, y in np.asarray(obs.features[entity]).reshape(-1, 2).tolist()]


@pytest.mark.parametrize(
    ("corner", "name"), [((10, 10), "up"), ((10, 10), "right"), ((-10, -10), "down"), ((-10, -10), "left")]
)
def test_a_move_over_the_border_does_nothing_but_takes_a_step(corner: Square, name: str) -> None:
    env = board(corner, [], [(0, 0)])
    assert player_of(act(env, move=name)) == corner
    assert env.record.steps == 1


def test_a_treasure_is_collected_by_standing_on_it_and_the_others_keep_their_order() -> None:
    env = board((0, 0), [(5, 5)], [(3, 3), (1, 0), (-2, 4)])
    obs = act(env, move="right")
    assert (obs.reward, obs.done) == (1.0, False)
    assert squares(obs, "Treasure") == [(3, 3), (-2, 4)]
    assert squares(obs, "Trap") == [(5, 5)]
    assert act(env, move="right").reward == 0.0


def test_a_board_starts_with_the_player_in_the_middle_and_everything_else_on_squares_of_its_own() -> None:
    taken: Counter[Square] = Counter()
    for env in resets(TreasureHunt(num_traps=4, num_treasures=8), 500):
        obs = env.observe()
        traps, treasures = squares(obs, "Trap"), squares(obs, "Treasure")
        assert (len(traps), len(treasures), player_of(obs)) == (4, 8, (0, 0))
        assert len({*traps, *treasures, (0, 0)}) == 13
        taken.update(traps + treasures)
    assert set(taken) == {(x, y) for x in range(-5, 6) for y in range(-5, 6)} - {(0, 0)}
    assert max(taken.values()) < 50 + 40  # 50 expected on each of the 120 squares; 7 is the standard deviation


# --- The plain Python form


def plain(obs: Observation) -> dict[str, Any]:
    return {
        "player": player_of(obs),
        "traps": squares(obs, "Trap"),
        "treasures": squares(obs, "Treasure"),
        "actions": list(obs.actions),
        "end": (obs.reward, obs.done, obs.truncated, obs.end_of_episode_info),
    }


@pytest.mark.parametrize("arguments", [{}, {"num_traps": 0, "num_treasures": 16, "max_steps": 40}, {"num_traps": 16}])
def test_both_forms_show_the_same_step_by_step(arguments: dict[str, int]) -> None:
    policy = np.random.default_rng(1)
    compiled, python = started(TreasureHunt(**arguments)), PythonTreasureHunt(**arguments)
    assert compiled.obs_space() == python.obs_space()
    assert compiled.action_space() == python.action_space()
    for _ in range(30):
        obs = compiled.reset()
        board = {"traps": squares(obs, "Trap"), "treasures": squares(obs, "Treasure")}
        python.load_state({"player": (0, 0), "steps": 0, **board})
        assert plain(python.observe()) == plain(obs)
        while not obs.done:
            choice = int(policy.integers(4))
            action = {"move": GlobalCategoricalAction(choice, list(MOVES)[choice])}
            obs = compiled.act(action)
            assert plain(python.act(action)) == plain(obs)
