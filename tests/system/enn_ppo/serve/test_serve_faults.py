"""Clients of the policy server that misbehave, fail or are too many: what they are told, and that others go on."""

from __future__ import annotations

import gc
import json
import socket
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from enn_ppo.checkpoints import Checkpoint
from entity_gym.batch.saving import spaces_to_dict
from entity_gym.bridges.remote.messages import decode, encode
from tests.enn_ppo.served import ACTION_SPACE, OBS_SPACE, Client, Running, garden, one_dropped, train_garden


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


@pytest.mark.parametrize("where", ["id", "bee 0"])
def test_half_of_a_surrogate_pair_ends_its_client_alone(server: Running, where: str) -> None:
    body = json.dumps({"type": "act", "id": "id", "observation": garden()}).replace(f'"{where}"', '"\\ud800"').encode()
    if where == "id":
        body = json.dumps({"type": "act", "observation": garden()})[:-1].encode() + b', "id": "\\ud800"}'
    with one_dropped(server, "half of a surrogate pair, which is no character") as client:
        client.socket.sendall(len(body).to_bytes(4, "big") + body)


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


CHOICES = {"type": "CategoricalActionSpace", "choices": [str(k) for k in range(1100)]}
NUMBERS = {"type": "ContinuousActionSpace", "low": [0] * 1100, "high": [1] * 1100}
VALUES = {"name": "Wasp", "features": ["kind"], "kinds": [{"type": "Category", "name": "kind", "num": 2**24}]}


@pytest.mark.parametrize(
    ("spaces", "why"),
    [
        (
            spaces_with([{"name": f"{k}", "features": []} for k in range(2000)]),
            "the spaces have 2,002 entity types; at most max_entity_types=64 are taken",
        ),
        (
            spaces_with([{"name": "Wasp", "features": [f"{k}" for k in range(2000)]}]),
            "the spaces have 2,004 features; at most max_features=1,024 are taken",
        ),
        (
            spaces_with(actions=[{"name": f"{k}", "type": "SelectEntityActionSpace"} for k in range(70)]),
            "the spaces have 74 actions; at most max_actions=64 are taken",
        ),
        (spaces_with(actions=[{"name": "sing", **CHOICES}]), "at most max_choices=1,024 are taken"),
        (spaces_with(actions=[{"name": "sing", **NUMBERS}]), "at most max_choices=1,024 are taken"),
        (spaces_with([VALUES]), "the spaces have 16,777,223 choices; at most max_choices=1,024 are taken"),
    ],
)
def test_a_greeting_with_too_much_in_it_is_refused(server: Running, spaces: dict[str, Any], why: str) -> None:
    client = server.client(spaces=spaces)
    assert client.policy["type"] == "error"
    assert why in client.policy["message"]
    assert server.has_said(f"refused client 127.0.0.1:{client.socket.getsockname()[1]}: {client.policy['message']}")


def test_others_are_answered_while_the_policy_is_fitted_to_new_spaces(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = threading.Event()
    with Running(checkpoint) as server:
        fit = server.policies.policy
        monkeypatch.setattr(server.policies, "policy", lambda given: fit(given) if answered.wait(20) else None)
        other, late = server.client(), Client(server.port)
        late.send({"type": "hello", "protocol": 1, "spaces": spaces_with([{"name": "Wasp", "features": []}])})
        assert other.ask(garden())["type"] == "actions"
        answered.set()
        assert "Wasp" in late.receive()["news"]


def test_clients_with_too_many_different_spaces_are_refused_until_one_leaves(checkpoint: Checkpoint) -> None:
    with Running(checkpoint, max_spaces=1) as server:
        wasps = server.client(spaces=spaces_with([{"name": "Wasp", "features": []}]))
        assert server.client(spaces=spaces_with([{"name": "Wasp", "features": []}])).policy["type"] == "policy"
        ants = spaces_with([{"name": "Ant", "features": []}])
        assert "other spaces are connected: max_spaces=1" in server.client(spaces=ants).policy["message"]
        assert server.client().ask(garden())["type"] == "actions"  # the spaces of training are always there
        wasps.socket.close()


def test_an_observation_that_offers_too_many_choices_is_refused(checkpoint: Checkpoint) -> None:
    with Running(checkpoint) as server:
        with one_dropped(server, "choices to all actors together; at most 262,144 are taken") as client:
            client.send({"type": "act", "observation": garden(600, 600)})


def test_probabilities_that_do_not_fit_into_a_message_are_refused(checkpoint: Checkpoint) -> None:
    with Running(checkpoint, max_message_bytes=50_000) as server:
        assert server.client().ask(garden(60, 60))["type"] == "actions"
        with one_dropped(server, "do not fit into max_message_bytes=50,000; ask without them") as client:
            client.send({"type": "act", "observation": garden(60, 60), "probabilities": True})


def test_a_message_of_very_many_lists_is_refused_before_it_is_read(server: Running) -> None:
    with one_dropped(server, "a message of 32,904 lists and objects; at most 32,768 are taken") as client:
        body = b'{"type":"act","observation":{"features":{"x":[' + b"[]," * 32_899 + b"[]]}}}"
        client.socket.sendall(len(body).to_bytes(4, "big") + body)


def test_messages_of_clients_that_have_left_do_not_wait_for_the_garbage_collector(server: Running) -> None:
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            names = [f"leak {k}" for k in range(1000)]
            client = server.client(spaces=spaces_with([{"name": name, "features": []} for name in names]))
            assert client.policy["type"] == "error"
            client.socket.close()
        server.client().socket.close()  # the server keeps the message that it has read last
        deadline = time.monotonic() + 10
        while (kept := _names_in_memory("leak ")) and time.monotonic() < deadline:
            time.sleep(0.1)
    finally:
        gc.enable()
    assert kept == 0


def _names_in_memory(start: str) -> int:
    found = (each.get("name") for each in gc.get_objects() if type(each) is dict)
    return sum(type(name) is str and name.startswith(start) for name in found)


def test_a_silent_client_is_dropped_after_its_time_unless_it_shows_that_it_lives(checkpoint: Checkpoint) -> None:
    with Running(checkpoint, idle_seconds=1.0) as server:
        silent, living = server.client(), server.client()
        for _ in range(8):
            time.sleep(0.25)
            living.send({"type": "health"})
            assert living.receive()["type"] == "health"
        assert "it has sent nothing for idle_seconds=1" in silent.receive()["message"]
        assert living.ask(garden())["type"] == "actions"
    assert server.served is not None
    assert server.served.slow == 1


def test_a_client_that_asks_little_does_not_wait_for_one_that_asks_much(checkpoint: Checkpoint) -> None:
    with Running(checkpoint, max_batch=1) as server:
        much, little = server.client(), server.client()
        for k in range(200):
            much.send({"type": "act", "id": k, "observation": garden(9, 40)})
        assert much.receive()["id"] == 0
        little.ask(garden())
        little.send({"type": "health"})
        assert (
            little.receive()["decisions"] < 150
        )  # all of them, if the first that came were the first that is answered
        assert [much.receive()["id"] for _ in range(199)] == list(range(1, 200))


def test_a_place_that_is_held_without_a_greeting_goes_to_the_next_client(checkpoint: Checkpoint) -> None:
    with Running(checkpoint, max_clients=1) as server:
        holder = Client(server.port)
        holder.send({"type": "health"})
        assert holder.receive()["connected"] == 1
        assert server.client().policy["message"] == "the server is full: max_clients=1"  # it may be about to greet
        time.sleep(1.2)
        assert server.client().ask(garden())["type"] == "actions"
        assert holder.receive() == {"type": "error", "message": "the server is full, and it has not greeted"}


def test_long_messages_that_do_not_end_leave_room_for_those_that_do(checkpoint: Checkpoint) -> None:
    with Running(checkpoint, read_seconds=1.0) as server:
        slow = [server.client() for _ in range(20)]  # more than may send a long message at the same time
        for client in slow:
            client.socket.sendall((500_000).to_bytes(4, "big") + b"[" * 100_000)
        short, long = server.client(), server.client()
        assert short.ask(garden())["type"] == "actions"
        assert long.ask(garden(2, 1900))["type"] == "actions"
        for client in slow:
            assert "within read_seconds=1" in client.receive()["message"]


class Kept(dict[str, Any]):
    """A message to which there may be weak references."""


def test_messages_of_a_client_that_says_no_more_do_not_stay(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    messages: list[weakref.ref[Kept]] = []

    def decoded(body: bytes) -> Kept:
        message = Kept(decode(body))
        messages.append(weakref.ref(message))
        return message

    monkeypatch.setattr("enn_ppo.serve.server.decode", decoded)
    client = server.client()
    assert client.ask(garden())["type"] == "actions"
    client.send({"type": "health", "token": ["long"]})
    assert client.receive()["type"] == "health"
    time.sleep(0.2)  # the answer was sent before the messages were forgotten
    assert len(messages) == 3 and not any(message() for message in messages)


def test_counts_of_clients_that_were_refused_slow_and_broken_are_told_at_the_end(checkpoint: Checkpoint) -> None:
    with Running(checkpoint, read_seconds=0.5) as server:
        server.client(protocol=2)
        server.client(spaces={})
        server.client().ask({})
        assert "has not greeted" in Client(server.port).receive()["message"]
    assert server.served is not None
    assert (server.served.refused, server.served.slow, server.served.broken) == (2, 1, 1)
    assert str(server.served) == (
        "served 0 decisions in 0 batches to 4 clients; refused 2, dropped 1 slow and 1 broken ones"
    )
