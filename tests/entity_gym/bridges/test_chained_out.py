"""Chained actions in the padded form, and played by hand: what an earlier choice closes is replaced, or refused."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

gymnasium = pytest.importorskip("gymnasium")

from entity_gym import make_gym  # noqa: E402
from entity_gym.play.game import Game, NotAllowedError  # noqa: E402
from entity_gym.pools.source import as_source  # noqa: E402
from tests.chain_worlds import Doorway  # noqa: E402

ROOM: dict[str, Any] = {
    "max_entities": {"Robot": 4, "Door": 3},
    "max_actors": dict.fromkeys(["use", "aim", "fire", "move", "turn"], 4),
}


@pytest.mark.parametrize("num_envs", [None, 3])
def test_choices_that_earlier_choices_close_become_the_next_open_ones(num_envs: int | None) -> None:
    """The world asserts that nothing closed reaches it."""
    env = make_gym(Doorway, **ROOM) if num_envs is None else make_gym(Doorway, num_envs=num_envs, **ROOM)
    env.reset(seed=0)
    env.action_space.seed(0)
    replaced = 0
    for _ in range(30):
        _, _, ended, _, info = env.step(env.action_space.sample())
        replaced += int(np.sum(info["replaced_actions"]))
        if num_envs is None and ended:
            env.reset()
    assert replaced > 0
    env.close()


def test_a_player_is_told_which_combinations_are_closed() -> None:
    game = Game(as_source(Doorway), 1)
    frame = game.moments[-1].obs
    robots = len(frame.features["Robot"].values)
    assert robots > 0
    right = {
        "use": [0] * robots,
        "aim": [0] * robots,
        "turn": [[0, 1]] * robots,
        "fire": [1] * robots,
        "move": [0] * robots,
    }
    message = "action 'fire' of entity 0 is 1 ('yes'), which is closed after its choice in action 'move'"
    with pytest.raises(NotAllowedError, match=re.escape(message)):
        game.act({"actions": {**right, "move": [1] * robots}})
    game.act({"actions": right})
