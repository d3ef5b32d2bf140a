"""The command that serves a game to the browser."""

import re
import socket
from collections.abc import Sequence
from queue import SimpleQueue
from typing import Any

import pytest

from entity_gym.play.command import main
from tests.entity_gym.play.served import Client, play_as

WORKSHOP = "tests.entity_gym.play.workshop:Workshop"
GOOD = {"move": [0, 1], "aim": [0, 3], "push": [[0, 1]], "ring": [0]}


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
    monkeypatch.setattr("entity_gym.play.command.open_in_browser", lambda url: pytest.fail("it was opened"))
    monkeypatch.setattr("entity_gym.play.command.SimpleQueue", Interrupted)
    assert main(["MineSweeper", "--port", str(port), "--no-open"]) == 130
    assert f"http://127.0.0.1:{port}/" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
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
