"""Playing by hand in the browser: what the page asks for, and what the command says."""

import json
import re
import socket
from collections.abc import Sequence
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest

from entity_gym import SelectEntityActionMask, SelectEntityActionSpace
from entity_gym.batch.ragged import RaggedBuffer
from entity_gym.play.browser import Advice, _Game, _NotAllowed
from entity_gym.play.command import main
from entity_gym.play.session import Session
from tests.entity_gym.play.served import Client, play_as
from tests.entity_gym.play.workshop import NOBODY, Workshop

WORKSHOP = "tests.entity_gym.play.workshop:Workshop"

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

    (view,) = game(policy).replay["episodes"][0]["steps"][0]["views"]
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


def test_an_actor_to_whom_nobody_is_open_takes_nobody() -> None:
    class Alone(Workshop):
        def action_space(self) -> Any:
            return {**super().action_space(), "aim": SelectEntityActionSpace()}

        def _observe(self) -> Any:
            obs = super()._observe()
            if not obs.done:
                obs.actions["aim"] = SelectEntityActionMask(actor_types=["Robot"], actee_ids=[])
            return obs

    played = _Game(Session(Alone, 0, "Alone"), {}, None)
    with pytest.raises(_NotAllowed, match="aim of entity 4 is 0, which is no open choice"):
        played.act({"actions": {**GOOD, "aim": [-1, 0]}})
    played.act({"actions": {**GOOD, "aim": [-1, -1]}})
    assert played._session.now.obs.global_features[2:4] == [NOBODY, NOBODY]


# --- The command


def test_the_command_serves_the_game_until_ctrl_c(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = []

    def person(client: Client) -> None:
        for move, given in (
            ("act", {"actions": {}}), ("act", {"actions": GOOD}), ("next", None), ("undo", None), ("restart", None)
        ):  # fmt: skip
            answers.append(client.post(move, given))
        client.press_ctrl_c()

    assert play_as(person, lambda: main([WORKSHOP, "--seed", "5", "--set", "length=1"]), monkeypatch) == 130
    out, err = capsys.readouterr()
    assert re.fullmatch(r"seed 5\nhttp://127\.0\.0\.1:\d+/ ; Ctrl-C ends it\n\n", out) and err == ""
    assert [status for status, _ in answers] == [400, 200, 200, 200, 200]
    assert answers[0][1] == {"error": "actions must be an object with 'move', 'aim', 'push', 'ring'"}
    assert [(answer["episodes"], answer["steps"]) for _, answer in answers[1:]] == [(1, 2), (2, 1), (1, 2), (1, 1)]


def test_an_exception_of_the_world_is_shown_on_the_page_and_ends_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = []
    code = play_as(
        lambda client: answers.append(client.post("act", {"actions": GOOD})),
        lambda: main([WORKSHOP, "--seed", "5", "--set", "breaks_at=1"]),
        monkeypatch,
    )
    assert (code, answers) == (1, [(400, {"error": "the workshop burns"})])
    assert re.fullmatch(
        r"error: ValueError: the workshop burns \(tests/entity_gym/play/workshop\.py, line \d+, in act\)\n",
        capsys.readouterr().err,
    )


def test_the_page_has_the_port_that_is_asked_for_and_is_not_opened_with_no_open(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Interrupted(SimpleQueue[Any]):
        def get(self, *given: Any, **more: Any) -> Any:
            raise KeyboardInterrupt

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["MineSweeper", "--port", str(port)]) == 2
        assert capsys.readouterr().err.startswith(f"error: port {port} on 127.0.0.1 cannot be used")
    monkeypatch.setattr("entity_gym.play.browser.open_in_browser", lambda url: pytest.fail("it was opened"))
    monkeypatch.setattr("entity_gym.play.browser.SimpleQueue", Interrupted)
    assert main(["MineSweeper", "--port", str(port), "--no-open"]) == 130
    assert f"http://127.0.0.1:{port}/" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["MineSweper"], 2, "error: .*did you mean 'MineSweeper'"),
        (["Xor", "--set", "a=1"], 2, "error: Xor has no parameter 'a'"),
        (["Xor", "--set", "a"], 2, "error: --set takes name=value"),
        (["Xor", "--port", "70000"], 2, "error: port 70000 on 127.0.0.1 cannot be used"),
        (
            ["tests.entity_gym.check.broken:RaisesInReset"],
            1,
            r"error: AttributeError: .*broken\.py, line \d+, in reset",
        ),
        (["tests.entity_gym.check.broken:RaisesInConstructor"], 1, "error: RuntimeError: no disk left"),
    ],
)
def test_mistakes_are_one_line_and_an_exit_code(arguments: Sequence[str], code: int, message: str, capsys: Any) -> None:
    assert main(arguments) == code
    captured = capsys.readouterr()
    assert re.match(message, captured.err)
    assert captured.err.count("\n") == 1
