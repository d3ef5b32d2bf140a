from collections import Counter

import numpy as np
import pytest

from entity_gym.environment import Observation
from entity_gym.envs.rock_paper_scissors import RockPaperScissors
from tests.entity_gym.envs.playing import act, episodic_rewards, resets, rows, started

THROWS = ("rock", "paper", "scissors")
BEATS = {"rock": "scissors", "paper": "rock", "scissors": "paper"}


def counter(obs: Observation) -> dict[str, str]:
    thrown = THROWS[int(np.argmax(rows(obs, "Opponent")[0]))]
    return {"throw": next(throw for throw in THROWS if BEATS[throw] == thrown)}


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


def test_who_sees_the_opponent_scores_two() -> None:
    assert episodic_rewards(started(RockPaperScissors(cheat=True)), counter, 100) == [2.0] * 100


def test_the_drawing_shows_the_opponent_and_then_the_player() -> None:
    env = started(RockPaperScissors, opponent=0)
    image = env.render()
    assert image.shape == (33, 65, 3)
    assert image[16, 16].tolist() == [90, 90, 96] and image[16, 48].tolist() == [232, 228, 216]
    act(env, throw="paper")
    assert env.render()[16, 48].tolist() == [255, 255, 255]
    act(other := started(RockPaperScissors, opponent=0), throw="scissors")
    assert other.render()[16, 48].tolist() == [210, 40, 40]
