"""The policy server as a command; clients that misbehave, fail or are too many: what they are told, and that others go on."""

from __future__ import annotations

import json
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from enn_ppo.checkpoints import Checkpoint, save_policy
from enn_ppo.serve.server import Served
from entity_gym.batch.saving import spaces_to_dict
from entity_gym.bridges.remote.messages import encode
from tests.enn_ppo.served import ACTION_SPACE, OBS_SPACE, Client, Running, garden, one_dropped, train_garden
from tests.processes import start


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return train_garden(tmp_path_factory.mktemp("garden"))


@pytest.fixture
def server(checkpoint: Checkpoint) -> Iterator[Running]:
    with Running(checkpoint, READ_SECONDS=2.0, MAX_MESSAGE_BYTES=100_000) as running:
        yield running


def test_the_command_serves_an_exported_file_until_it_is_interrupted(checkpoint: Checkpoint, tmp_path: Path) -> None:
    file = save_policy(checkpoint.path, tmp_path / "garden.safetensors")
    with start("-m", "enn_ppo.serve", f"checkpoint={file}", "port=0", "device=cpu") as process:
        assert process.stdout is not None and process.stderr is not None
        first = process.stdout.readline()
        assert "; Ctrl-C ends it" in first, process.stderr.read()
        client = Client(int(first.partition("127.0.0.1:")[2].partition(";")[0]), {})
        assert client.ask(garden())["type"] == "actions"
        process.send_signal(signal.SIGINT)
        said, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (0, "")
    assert "served 1 decisions, 1 batches, 1 clients, 0 dropped" in said


def framed(message: str) -> bytes:
    return len(message).to_bytes(4, "big") + message.encode()


LATE = "has not ended the message that it began within 2 s"
HALF = json.dumps({"type": "act", "id": "HALF", "observation": garden()})


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (b"hello\n", "was something printed"),
        (encode({"type": "act", "observation": garden()})[:-1], LATE),
        (framed(HALF.replace("HALF", "\\ud800")), "surrogates not allowed"),
        (framed(HALF.replace("bee 0", "\\ud800")), "surrogates not allowed"),
        (framed("[" * 100_000), "a message that is no JSON: maximum recursion depth"),
        (
            encode({"type": "act", "observation": garden(99, 99), "probabilities": True}),
            "the answer is longer than 100,000 bytes; ask for less",
        ),
    ],
)
def test_a_client_that_sends_what_cannot_be_is_dropped_with_the_reason(server: Running, sent: bytes, why: str) -> None:
    with one_dropped(server, why) as client:
        client.socket.sendall(sent)


def test_a_client_that_goes_on_byte_by_byte_has_no_more_time_than_others(server: Running) -> None:
    def drip() -> None:
        with suppress(OSError):  # until it is hung up on
            for byte in encode({"type": "act", "observation": garden(30, 30)}):
                client.socket.sendall(bytes([byte]))
                time.sleep(0.1)

    dripping = threading.Thread(target=drip)
    with one_dropped(server, LATE) as client:
        dripping.start()
    client.socket.close()
    dripping.join()


def test_a_client_that_is_dropped_for_one_of_many_questions_is_told_and_others_go_on(server: Running) -> None:
    with one_dropped(server, "the observation: global_features have shape (1, 0)", answered=True) as client:
        for k in range(100):
            client.send({"type": "act", "id": k, "observation": garden(9, 40), "probabilities": True})
        client.send({"type": "act", "observation": garden(global_features=[])})
        for _ in range(300):
            client.send({"type": "act", "observation": garden()})


@pytest.mark.parametrize("greeted", [False, True])
@pytest.mark.parametrize("message", [{"type": "close"}, {"type": "error", "message": "my game crashed"}])
def test_a_client_may_close_or_report_its_failure_at_any_time(
    server: Running, greeted: bool, message: dict[str, Any]
) -> None:
    client = server.client() if greeted else Client(server.port)
    client.send(message)
    assert client.receive() == {"type": "hung up"}
    assert message["type"] == "close" or server.has_said(f"{client.name} reported an error: 'my game crashed'")
    assert server.has_said(f"{client.name} left")


def test_a_client_that_breaks_off_harms_nobody(server: Running) -> None:
    client, other = server.client(), server.client()
    client.send({"type": "act", "observation": garden()})
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # closing resets the connection
    client.socket.close()
    assert other.ask(garden())["type"] == "actions"


def test_a_client_that_does_not_read_its_answers_is_dropped(checkpoint: Checkpoint) -> None:
    with Running(checkpoint, MAX_MESSAGE_BYTES=20_000, READ_SECONDS=0.5) as server:
        client = server.client()
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.socket.settimeout(0.2)
        with pytest.raises(OSError):  # in the end nothing more can be sent
            while True:
                client.send({"type": "act", "observation": garden(24, 24), "probabilities": True})
        assert server.has_said("it does not read its answers within 0.5 s")


def test_a_client_that_is_silent_is_dropped_after_its_time_unless_it_shows_that_it_lives(
    checkpoint: Checkpoint,
) -> None:
    with Running(checkpoint, IDLE_SECONDS=1.0, READ_SECONDS=0.5) as server:
        living, idle, silent = server.client(), server.client(), Client(server.port)
        for _ in range(8):
            time.sleep(0.25)
            living.send({"type": "health"})
            assert living.receive()["type"] == "health"
        assert "it has not greeted within 0.5 s" in silent.receive()["message"]
        assert "it has sent nothing for 1 s" in idle.receive()["message"]
        server.client(protocol=2)
        server.client(spaces={})
        server.client().ask({})
        assert living.ask(garden())["type"] == "actions"
    assert server.served == Served(decisions=1, batches=1, clients=6, dropped=5)


def test_a_client_that_waits_long_for_its_answer_is_not_idle(checkpoint: Checkpoint) -> None:
    with Running(checkpoint, IDLE_SECONDS=0.2) as server:
        client, decide = server.client(), server.policies.decide

        def slow(requests: Any) -> Any:
            time.sleep(1)
            return decide(requests)

        server.policies.decide = slow  # type: ignore[method-assign]
        assert client.ask(garden())["type"] == "actions"
        assert "it has sent nothing for 0.2 s" in client.receive()["message"]


def test_more_clients_than_allowed_are_turned_away_until_one_leaves(checkpoint: Checkpoint) -> None:
    full = {"type": "error", "message": "the server is full: max_clients=1"}
    with Running(checkpoint, max_clients=1) as server:
        first = server.client()
        assert Client(server.port).receive() == full
        talkative = Client(server.port)
        for _ in range(50):  # before it listens: a connection that is closed meanwhile would be reset
            talkative.send({"type": "hello", "protocol": 1, "spaces": {"x": "y" * 100_000}})
        assert talkative.receive() == full
        assert talkative.receive() == {"type": "hung up"}
        first.socket.close()
        assert server.has_said(f"{first.name} left")
        assert server.client().ask(garden())["type"] == "actions"


def test_an_answer_that_cannot_be_written_ends_its_client_alone(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def write(message: dict[str, Any]) -> bytes:
        if message.get("id") == "bad":
            raise UnicodeEncodeError("utf-8", "x", 0, 1, "cannot be written")
        return encode(message)

    monkeypatch.setattr("enn_ppo.serve.server.encode", write)
    with Running(checkpoint) as server:
        good, bad = server.client(), server.client()
        for k in range(20):  # in the same batches
            good.send({"type": "act", "id": k, "observation": garden()})
        assert "the server could not decide: UnicodeEncodeError" in bad.ask(garden(), id="bad")["message"]
        assert [good.receive()["id"] for _ in range(20)] == list(range(20))
    assert "UnicodeEncodeError" in capfd.readouterr().err


def spaces_with(entities: list[Any] | None = None, actions: list[Any] | None = None) -> dict[str, Any]:
    """The spaces of the garden, and more."""
    spaces = spaces_to_dict(OBS_SPACE, ACTION_SPACE)
    return {
        **spaces,
        "entities": spaces["entities"] + (entities or []),
        "actions": spaces["actions"] + (actions or []),
    }


@pytest.mark.parametrize(
    "spaces",
    [
        spaces_with([{"name": f"{k}", "features": []} for k in range(4096)]),
        spaces_with([{"name": "Wasp", "features": [f"{k}" for k in range(4096)]}]),
        spaces_with(actions=[{"name": f"{k}", "type": "SelectEntityActionSpace"} for k in range(2100)]),
        spaces_with(actions=[{"name": "sing", "type": "ContinuousActionSpace", "low": [0] * 4096, "high": [1] * 4096}]),
        spaces_with([{"name": "Wasp", "features": ["a"], "kinds": [{"type": "Category", "name": "a", "num": 2**24}]}]),
    ],
    ids=["types", "features", "actions", "numbers", "values"],
)
def test_a_greeting_with_too_much_in_it_is_refused(checkpoint: Checkpoint, spaces: dict[str, Any]) -> None:
    with Running(checkpoint) as server:
        client = server.client(spaces=spaces)
        assert client.policy["type"] == "error"
        assert "choices together; at most 1,024 are taken" in client.policy["message"]
        assert server.has_said(f"dropped {client.name}: {client.policy['message']}")


def test_clients_with_too_many_different_spaces_are_refused_until_one_leaves(checkpoint: Checkpoint) -> None:
    others = [spaces_with([{"name": f"Wasp {k}", "features": []}]) for k in range(9)]
    with Running(checkpoint) as server:
        clients = [server.client(spaces=spaces) for spaces in (*others[:8], others[0])]
        assert "clients with 8 other spaces are connected" in server.client(spaces=others[8]).policy["message"]
        assert server.client().ask(garden())["type"] == "actions"  # the spaces of training are always there
        assert clients[0].ask(garden())["type"] == clients[8].ask(garden())["type"] == "actions"  # the last that ask
        for client in (clients[0], clients[8]):
            client.socket.close()
            assert server.has_said(f"{client.name} left")
        assert server.client(spaces=others[8]).policy["type"] == "policy"


def test_a_client_that_asks_little_does_not_wait_for_one_that_asks_much(checkpoint: Checkpoint) -> None:
    with Running(checkpoint) as server:
        much, little = server.client(), server.client()
        for k in range(200):
            much.send({"type": "act", "id": k, "observation": garden(9, 40)})
        assert much.receive()["id"] == 0
        little.ask(garden())
        little.send({"type": "health"})
        told = little.receive()["decisions"]
        assert told < 150  # all of them, if the first that came were the first that is answered
        assert [much.receive()["id"] for _ in range(199)] == list(range(1, 200))
