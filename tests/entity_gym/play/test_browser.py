"""Playing by hand in the browser: what a person chooses on the page is what the world is told."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from entity_gym.play.browser import _Game, _NotAllowed
from entity_gym.play.command import main
from entity_gym.play.loop import Advice
from entity_gym.play.session import Decision, Session
from tests.chromium import Browser, Page
from tests.entity_gym.play.workshop import Workshop


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as made:
        yield made


def told(page: Page) -> list[float]:
    """Return what the world says it was told."""
    found: list[float] = page.evaluate("replay.entities().at(-1).values")
    return found


# --- Requests


def game(policy: Any = None, **options: Any) -> _Game:
    return _Game(Session(lambda: Workshop(**options), 0, "Workshop"), {}, policy)


GOOD = {"move": [0, 1], "aim": [0, 3], "push": [[0, 1]], "ring": [0]}


@pytest.mark.parametrize(
    ("given", "refusal"),
    [
        (None, "actions must be an object with 'move', 'aim', 'push', 'ring'"),
        ({"actions": []}, "actions must be an object"),
        ({"actions": {**GOOD, "other": []}}, "actions must be an object"),
        ({"actions": {**GOOD, "move": [0]}}, "move must be a list with a choice of each of 2 actors"),
        ({"actions": {**GOOD, "move": {"0": 0}}}, "move must be a list"),
        ({"actions": {**GOOD, "move": [1, 0]}}, "move of entity 3 is 1, which is no open choice"),
        ({"actions": {**GOOD, "move": [3, 0]}}, "move of entity 3 is 3, which is no open choice"),
        ({"actions": {**GOOD, "move": [-1, 0]}}, "move of entity 3 is -1, which is no open choice"),
        ({"actions": {**GOOD, "move": [True, 0]}}, "move of entity 3 is True"),
        ({"actions": {**GOOD, "move": ["0", 0]}}, "move of entity 3 is '0'"),
        ({"actions": {**GOOD, "move": [None, 0]}}, "move of entity 3 is None"),
        ({"actions": {**GOOD, "aim": [2, 0]}}, "aim of entity 3 is 2, which is no open choice"),
        ({"actions": {**GOOD, "aim": [4, 0]}}, "aim of entity 3 is 4, which is no open choice"),
        ({"actions": {**GOOD, "push": [[0]]}}, "push of entity 3 must be a list of 2 numbers"),
        ({"actions": {**GOOD, "push": [[0, 1.5]]}}, "push of entity 3 is 1.5; it must be a number from 0 to 1"),
        ({"actions": {**GOOD, "push": [[float("nan"), 1]]}}, "push of entity 3 is nan"),
        ({"actions": {**GOOD, "push": [[float("inf"), 1]]}}, "push of entity 3 is inf"),
        ({"actions": {**GOOD, "push": [[10**400, 1]]}}, "push of entity 3 is 1000"),
        ({"actions": {**GOOD, "push": [["1", 1]]}}, "push of entity 3 is '1'"),
    ],
)
def test_a_wrong_request_changes_nothing(given: Any, refusal: str) -> None:
    played = game()
    before = json.dumps(played.replay)
    with pytest.raises(_NotAllowed, match=re.escape(refusal)):
        played.act(given)
    assert json.dumps(played.replay) == before
    assert played.act({"actions": GOOD})["steps"] == 2


def test_moves_out_of_turn_are_refused() -> None:
    played = game(length=1)
    with pytest.raises(_NotAllowed, match="the episode has not ended"):
        played.begin_episode(None)
    answer = played.act({"actions": GOOD})
    assert (answer["episodes"], answer["steps"], len(answer["tail"])) == (1, 2, 2)
    assert answer["episode"]["info"] == {"bells": 7}
    assert answer["tail"][0]["views"][0]["actions"]["aim"]["chosen"] == [0, 3]
    with pytest.raises(_NotAllowed, match="the episode has ended"):
        played.act({"actions": GOOD})


def test_a_policy_gives_advice() -> None:
    def policy(obs: Any) -> Advice:
        return Advice(
            {
                "move": [Decision(2, [0.25, 0.0, 0.75]), Decision(0, [0.5, 0.5, 0.0])],
                "aim": [Decision(1, [0.5, 0.5, 0.0, 0.0]), Decision(-1, [0.1, 0.1, 0.1, 0.7])],
                "push": [Decision(0.5, []), Decision(1.0, [])],
                "ring": [Decision(1, [0.0, 1.0])],
            },
            2.5,
        )

    (view,) = game(policy).replay["episodes"][0]["steps"][0]["views"]
    actions = view["actions"]
    assert view["value"] == 2.5
    assert actions["move"]["probs"] == [[0.25, 0.0, 0.75], [0.5, 0.5, 0.0]]
    assert actions["move"]["entropy"] == pytest.approx([0.5623351, 0.6931472])
    assert {name: decision["advised"] for name, decision in actions.items()} == {
        "move": [2, 0], "aim": [1, 3], "push": [[0.5, 1]], "ring": [1]
    }  # fmt: skip
    assert {name: decision["chosen"] for name, decision in actions.items()} == {
        "move": [-1, -1], "aim": [-1, -1], "push": [[None, None]], "ring": [-1]
    }  # fmt: skip


def test_a_mistake_in_the_command_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["MineSweper", "--browser"]) == 2
    assert "did you mean 'MineSweeper'?" in capsys.readouterr().err
