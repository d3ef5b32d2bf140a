"""Clients of the policy server that misbehave, fail or are too many: what they are told, and that others go on."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from enn_ppo.checkpoints import Checkpoint
from entity_gym.bridges.remote.messages import encode
from tests.enn_ppo.served import Client, Running, garden, one_dropped, train_garden


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return train_garden(tmp_path_factory.mktemp("garden"))


@pytest.fixture(scope="module")
def server(checkpoint: Checkpoint) -> Iterator[Running]:
    with Running(checkpoint, read_seconds=2.0, max_message_bytes=100_000, max_entities=50) as running:
        yield running


def test_a_client_that_sends_no_messages_is_dropped(server: Running) -> None:
    with one_dropped(server, "was something printed") as client:
        client.socket.sendall(b"hello\n")
    with one_dropped(server, "as HTTP does, and this is no web server") as client:
        client.socket.sendall(b"GET / HTTP/1.1\r\n\r\n")


def test_a_client_that_does_not_finish_its_message_is_dropped(server: Running) -> None:
    with one_dropped(server, "has not ended the message that it began within read_seconds=2") as client:
        client.socket.sendall(encode({"type": "act", "observation": garden()})[:-1])


def test_a_client_that_goes_on_byte_by_byte_has_no_more_time_than_others(server: Running) -> None:
    def drip() -> None:
        with suppress(OSError):  # until it is hung up on
            for byte in encode({"type": "act", "observation": garden(30, 30)}):
                client.socket.sendall(bytes([byte]))
                time.sleep(0.1)

    dripping = threading.Thread(target=drip)
    with one_dropped(server, "has not ended the message that it began within read_seconds=2") as client:
        dripping.start()
    client.socket.close()
    dripping.join()


def test_a_client_that_is_dropped_for_one_of_many_questions_is_told_and_others_go_on(server: Running) -> None:
    other, client = server.client(), server.client()
    for k in range(100):
        client.send({"type": "act", "id": k, "observation": garden(9, 40), "probabilities": True})
    client.send({"type": "act", "observation": garden(global_features=[])})
    for _ in range(300):
        client.send({"type": "act", "observation": garden()})
    while (told := client.receive())["type"] == "actions":
        pass
    assert "the observation: 0 global_features" in told["message"]
    assert client.receive() == {"type": "hung up"}
    assert other.ask(garden())["type"] == "actions"


@pytest.mark.parametrize("greeted", [False, True])
def test_what_a_client_says_of_its_failure_stands_in_the_output(server: Running, greeted: bool) -> None:
    client = server.client() if greeted else Client(server.port)
    client.send({"type": "error", "message": "my game crashed"})
    assert client.receive() == {"type": "hung up"}
    name = f"client 127.0.0.1:{client.socket.getsockname()[1]}"
    assert server.has_said(f"{name} reported an error: 'my game crashed'")
    assert server.has_said(f"{name} left after 0 decisions")


@pytest.mark.parametrize("greeted", [False, True])
def test_a_client_may_close_at_any_time(server: Running, greeted: bool) -> None:
    client = server.client() if greeted else Client(server.port)
    client.send({"type": "close"})
    assert client.receive() == {"type": "hung up"}
    assert server.has_said(f"client 127.0.0.1:{client.socket.getsockname()[1]} left after 0 decisions")


def test_a_client_that_does_not_greet_is_dropped_and_one_that_thinks_is_not(server: Running) -> None:
    thinking, silent = server.client(), Client(server.port)
    assert "has not greeted within read_seconds=2" in silent.receive()["message"]
    time.sleep(1)  # `thinking` has been silent for longer
    assert thinking.ask(garden())["type"] == "actions"


def test_a_client_that_breaks_off_harms_nobody(server: Running) -> None:
    client, other = server.client(), server.client()
    client.send({"type": "act", "observation": garden()})
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # closing resets the connection
    client.socket.close()
    assert other.ask(garden())["type"] == "actions"


def test_a_client_that_does_not_read_its_answers_is_dropped(checkpoint: Checkpoint) -> None:
    with Running(checkpoint, max_message_bytes=20_000) as server:
        client = server.client()
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.socket.settimeout(0.2)
        with pytest.raises(OSError):  # in the end nothing more can be sent
            while True:
                client.send({"type": "act", "observation": garden(24, 24), "probabilities": True})
        assert server.has_said("it does not read its answers")


def test_more_clients_than_allowed_are_turned_away_until_one_leaves(checkpoint: Checkpoint) -> None:
    with Running(checkpoint, max_clients=1) as server:
        first = server.client()
        assert Client(server.port).receive() == {"type": "error", "message": "the server is full: max_clients=1"}
        talkative = Client(server.port)
        for _ in range(50):  # before it listens: a connection that is closed meanwhile would be reset
            talkative.send({"type": "hello", "protocol": 1, "spaces": {"x": "y" * 100_000}})
        assert talkative.receive() == {"type": "error", "message": "the server is full: max_clients=1"}
        assert talkative.receive() == {"type": "hung up"}
        first.socket.close()
        assert server.has_said("left after 0 decisions")
        assert server.client().ask(garden())["type"] == "actions"
