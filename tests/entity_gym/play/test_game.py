"""A game: an environment that is played step by step, and back, by what a page posts."""

import json
import re
from typing import Any

import numpy as np
import pytest

from entity_gym import Observation
from entity_gym.batch.ragged import RaggedBuffer
from entity_gym.play.game import Advice, Game, NotAllowedError
from entity_gym.pools.pool import ListEnv
from entity_gym.pools.source import as_source
from tests.entity_gym.check import broken, broken_compiled
from tests.entity_gym.play.workshop import Depot, Workshop

STAY = {"actions": {"step": [2], "look at": [0]}}


def walk(*, seed: int = 0, **options: int) -> Game:
    return Game(as_source(broken.Walk).with_values(options), seed)


def now(game: Game) -> tuple[int, int, float, float]:
    """Episode, step, reward so far, and place of the walker."""
    moment = game.moments[-1]
    step, x = len(game.replay["episodes"][-1]["steps"]) - 1, float(moment.obs.features["Walker"].values[0, 0])
    assert int(moment.obs.elapsed_step[0]) == step and len(game.replay["episodes"]) == moment.episode
    return moment.episode, step, moment.total, x


def has_ended(game: Game) -> bool:
    return bool(game.moments[-1].obs.done[0])


# --- The way back


def test_undo_goes_back_step_by_step_over_the_ends_of_episodes() -> None:
    game = walk(max_steps=2)
    seen = []
    for _ in range(3):
        while not has_ended(game):
            seen.append(now(game))
            game.act(STAY)
        seen.append(now(game))
        game.begin_episode()
    seen.append(now(game))
    for expected in reversed(seen[:-1]):
        game.undo()
        assert now(game) == expected
    game.undo()
    assert now(game) == seen[0], "nothing was before the first observation"


def test_restart_goes_back_to_the_beginning_of_this_episode() -> None:
    game = walk(max_steps=3)
    for _ in range(3):
        game.act(STAY)
    game.begin_episode()
    first = now(game)
    assert first[:3] == (2, 0, 0.0)
    game.act(STAY)
    game.act(STAY)
    for _ in range(2):  # the second time the episode has only begun
        game.restart()
        assert now(game) == first


def test_an_environment_that_does_not_repeat_itself_has_no_way_back() -> None:
    class Moody(broken.Walk):
        moods = iter(range(10))

        def reset(self) -> Observation:
            super().reset()
            self.x = next(self.moods)
            return self.observe()

    game = Game(as_source(Moody), 0)
    game.act(STAY)
    with pytest.raises(NotAllowedError, match="Moody does not repeat itself"):
        game.undo()
    assert now(game)[:2] == (1, 1)
    game.act(STAY)
    assert now(game)[:2] == (1, 2)


# --- Observations


def test_the_same_seed_is_environment_0_of_a_pool_with_that_seed() -> None:
    for seed in range(4):
        assert now(walk(seed=seed))[3] == ListEnv(broken.Walk, 2, seed).reset().features["Walker"].values[0, 0]


def test_a_compiled_world_is_played_as_ordinary_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("entity_gym.compiled.compiler.entry", lambda *_, **__: pytest.fail("it was compiled"))
    game = Game(as_source(broken_compiled.Climb), 3)
    game.act({"actions": {"climb": [0]}})
    heights = [step["views"][0]["features"]["Climber"][0][0] for step in game.replay["episodes"][0]["steps"]]
    assert heights[1] == heights[0] - 1
    game.undo()
    assert len(game.replay["episodes"][0]["steps"]) == 1


# --- Requests


def workshop(policy: Any = None, **options: Any) -> Game:
    return Game(as_source(Workshop).with_values(options), 0, policy)


GOOD = {"move": [0, 1], "aim": [0, 3], "push": [[0, 1]], "ring": [0]}


@pytest.mark.parametrize(
    ("given", "refusal"),
    [
        (None, "actions must be an object with 'move', 'aim', 'push', 'ring'"),
        ({"actions": {**GOOD, "move": [0]}}, "move must be a list with a choice of each of 2 actors"),
        ({"actions": {**GOOD, "move": [1, 0]}}, "move of entity 3 is 1, which is no open choice"),
        ({"actions": {**GOOD, "move": [True, 0]}}, "move of entity 3 is True"),
        ({"actions": {**GOOD, "aim": [2, 0]}}, "aim of entity 3 is 2, which is no open choice"),
        ({"actions": {**GOOD, "push": [[0]]}}, "push of entity 3 must be a list of 2 numbers"),
        ({"actions": {**GOOD, "push": [[0, 1.5]]}}, "push of entity 3 is 1.5; it must be a number from 0 to 1"),
    ],
)
def test_a_wrong_request_changes_nothing(given: Any, refusal: str) -> None:
    played = workshop()
    before = json.dumps(played.replay)
    with pytest.raises(NotAllowedError, match=re.escape(refusal)):
        played.act(given)
    assert json.dumps(played.replay) == before
    assert played.act({"actions": GOOD})["steps"] == 2
    assert played.act({"actions": {**GOOD, "push": [[0, 0]]}})["steps"] == 3  # both bounds are numbers that it may take


def test_moves_out_of_turn_are_refused() -> None:
    played = workshop(length=1)
    with pytest.raises(NotAllowedError, match="the episode has not ended"):
        played.begin_episode(None)
    answer = played.act({"actions": GOOD})
    assert (answer["episodes"], answer["steps"], len(answer["tail"])) == (1, 2, 2)
    assert answer["episode"]["info"] == {"bells": 7}
    assert answer["tail"][0]["views"][0]["actions"]["aim"]["chosen"] == [0, 3]
    with pytest.raises(NotAllowedError, match="the episode has ended"):
        played.act({"actions": GOOD})
    assert len(played.begin_episode()["tail"]) == 1


def test_a_policy_gives_advice() -> None:
    def logs(*probabilities: float) -> Any:
        with np.errstate(divide="ignore"):
            return np.log(np.array(probabilities, np.float32))

    def policy(obs: Any) -> Advice:
        actions: Any = {
            "move": RaggedBuffer.from_flattened(np.array([[2], [0]]), [2]),
            "aim": RaggedBuffer.from_flattened(np.array([[1], [-1]]), [2]),
            "push": RaggedBuffer.from_flattened(np.array([[0.5, 1]], np.float32), [1]),
            "ring": RaggedBuffer.from_flattened(np.array([[1]]), [1]),
        }
        logits = {
            "move": logs(0.25, 0.0, 0.75, 0.5, 0.5, 0.0).reshape(2, 3),
            "aim": logs(0.5, 0.5, 0.0, 0.0, 0.1, 0.1, 0.1, 0.7).reshape(8, 1),
            "push": np.zeros((1, 4), np.float32),
            "ring": logs(0.0, 1.0).reshape(1, 2),
        }
        return Advice(actions, logits, 2.5)

    (view,) = workshop(policy).replay["episodes"][0]["steps"][0]["views"]
    actions = view["actions"]
    assert view["value"] == 2.5
    assert actions["move"]["probs"] == [[0.25, 0.0, 0.75], [0.5, 0.5, 0.0]]
    assert actions["move"]["entropy"] == pytest.approx([0.5623351, 0.6931472])
    assert actions["aim"]["probs"] == pytest.approx(np.array([[0.5, 0.5, 0, 0], [0.1, 0.1, 0.1, 0.7]]), abs=1e-6)
    assert {name: decision["advised"] for name, decision in actions.items()} == {
        "move": [2, 0], "aim": [1, 3], "push": [[0.5, 1]], "ring": [1]
    }  # fmt: skip
    assert {name: decision["chosen"] for name, decision in actions.items()} == {
        "move": [-1, -1], "aim": [-1, -1], "push": [[None, None]], "ring": [-1]
    }  # fmt: skip


# --- Sets


def depot(policy: Any = None) -> Game:
    return Game(as_source(Depot), 0, policy)


SETS = {"load": [[1, 0]], "paint": [[2, 0], []]}


def test_a_set_is_posted_as_a_list_of_columns_in_its_order() -> None:
    played = depot()
    (before,) = played.replay["episodes"][0]["steps"][0]["views"]
    assert {name: each["chosen"] for name, each in before["actions"].items()} == {"load": [None], "paint": [None, None]}
    (before, after) = played.act({"actions": SETS})["tail"]
    assert {name: each["chosen"] for name, each in before["views"][0]["actions"].items()} == SETS
    assert after["views"][0]["globals"] == [1, 0, 1, 0, 1]
    (_, after) = played.act({"actions": {"load": [[]], "paint": [[1], []]}})["tail"]
    assert after["views"][0]["globals"] == [-1, -1, 0, 1, 0]
    (again,) = played.undo()["tail"]
    assert again["views"][0]["globals"] == [1, 0, 1, 0, 1]


@pytest.mark.parametrize(
    ("given", "refusal"),
    [
        ({"load": [1]}, "load of entity 3 is 1; it must be a list of open choices, each once"),
        ({"load": [[True]]}, "load of entity 3 is [True]; it must be"),
        ({"load": [[3]]}, "load of entity 3 is [3]; it must be"),
        ({"load": [[2]]}, "load of entity 3 is [2]; it must be"),
        ({"load": [[0, 0]]}, "load of entity 3 is [0, 0]; it must be"),
        ({"paint": [[0], -1]}, "paint of entity 5 is -1; it must be"),
        ({"paint": [[], []]}, "this position: action 'paint' of entity 4 is [0, 0, 0], a number for each actee"),
    ],
)
def test_a_wrong_set_changes_nothing(given: Any, refusal: str) -> None:
    played = depot()
    with pytest.raises(NotAllowedError, match=re.escape(refusal)):
        played.act({"actions": {**SETS, **given}})
    assert played.act({"actions": SETS})["steps"] == 2


def test_a_policy_advises_sets_with_the_probabilities_of_its_picks() -> None:
    def policy(obs: Any) -> Advice:
        actions: Any = {
            "load": RaggedBuffer.from_flattened(np.array([[0], [1], [0]]), [3]),
            "paint": RaggedBuffer.from_flattened(np.array([[1], [0], [1], [0], [0], [0]]), [6]),
        }
        never = [1, 1e-30] * 3
        logits = {
            "load": np.log(np.array([0.25, 0.5, 1e-30, 0.25, 0.625, 1e-30, 1e-30, 0.375], np.float32))[:, None],
            "paint": np.log(np.array([0.25, 0.75, 0.5, 0.5, 0.125, 0.875, *never], np.float32)).reshape(6, 2),
        }
        return Advice(actions, logits)

    actions = depot(policy).replay["episodes"][0]["steps"][0]["views"][0]["actions"]
    assert actions["load"]["advised"] == [[1]] and actions["paint"]["advised"] == [[0, 2], []]
    assert actions["load"]["probs"] == [[0.625, 0.5, 0, 0.375]]
    assert actions["paint"]["probs"] == [[0.75, 0.5, 0.875], [0, 0, 0]]
    assert actions["load"]["chosen"] == [None]
