"""The policy server: answers, clients together, clients that misbehave, and how it ends."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from enn_ppo.checkpoints import Checkpoint
from enn_ppo.eval.policy import fit
from enn_ppo.serve.agent import load_policy
from enn_ppo.serve.server import serve
from enn_ppo.settings.command_line.cli import run_serve
from enn_ppo.settings.serving import ServeConfig
from entity_gym import Entity, ObsSpace
from entity_gym.batch.batching import batch_observations
from entity_gym.batch.saving import spaces_to_dict
from entity_gym.bridges.remote.messages import observation_from_json
from rogue_net import ObsBatch
from tests.enn_ppo.served import ACTION_SPACE, OBS_SPACE, Client, Running, garden, one_dropped, train_garden


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return train_garden(tmp_path_factory.mktemp("garden"))


@pytest.fixture(scope="module")
def server(checkpoint: Checkpoint) -> Iterator[Running]:
    with Running(checkpoint, READ_SECONDS=2.0, MAX_MESSAGE_BYTES=100_000) as running:
        yield running


def test_a_client_is_told_what_is_served(server: Running, checkpoint: Checkpoint) -> None:
    policy = server.client().policy
    assert policy["type"] == "policy"
    assert policy["protocol"] == 1
    assert policy["checkpoint"] == str(checkpoint.path)
    assert policy["spaces"] == spaces_to_dict(OBS_SPACE, ACTION_SPACE)
    assert policy["news"] == ""
    assert (policy["max_message_bytes"], policy["max_entities"]) == (100_000, 2048)


def test_greedy_answers_are_those_of_the_network_in_the_clients_own_ids(
    server: Running, checkpoint: Checkpoint
) -> None:
    obs = observation_from_json(garden(), ACTION_SPACE)
    batch = ObsBatch.from_vec_obs(batch_observations([obs], OBS_SPACE, ACTION_SPACE))
    net = fit(checkpoint, OBS_SPACE, ACTION_SPACE, "garden", torch.Generator()).fitted.net
    expected = net.act(batch, greedy=True)
    entities = ["bee 0", "bee 1", 100, 101, 102]
    visited = [
        (bee, entities[k])
        for bee, k in zip(entities[:2], expected.actions["visit"].values[:, 0].tolist(), strict=True)
        if k >= 0
    ]

    answer = server.client().ask(garden(), greedy=True, value=True, id=7)
    assert (answer["type"], answer["id"]) == ("actions", 7)
    actions = answer["actions"]
    assert actions["turn"] == {"actors": ["bee 0", "bee 1"], "choices": expected.actions["turn"].values[:, 0].tolist()}
    assert list(zip(actions["visit"]["actors"], actions["visit"]["actees"], strict=True)) == visited
    assert actions["speed"]["values"] == pytest.approx(expected.actions["speed"].values.numpy())
    choice = int(expected.actions["dance"].values[0, 0])
    assert actions["dance"] == {"choice": choice, "label": ["no", "yes"][choice]}
    assert answer["value"] == pytest.approx(float(expected.values[0]), abs=1e-5)


def test_probabilities_are_of_every_choice_and_masked_ones_have_none(server: Running) -> None:
    told = server.client().ask(garden(), probabilities=True)["probabilities"]
    assert list(told) == ["turn", "visit", "dance"]  # numbers have none
    assert np.sum(told["turn"], axis=1) == pytest.approx([1, 1])
    assert told["turn"][1][1] == 0
    assert told["visit"]["actees"] == [100, 101, 102]
    assert np.array(told["visit"]["rows"]).shape == (2, 4)  # the last one is nobody's
    assert np.sum(told["visit"]["rows"], axis=1) == pytest.approx([1, 1])
    assert np.sum(told["dance"]) == pytest.approx(1)


def test_without_actors_there_are_no_rows_of_probabilities(server: Running, checkpoint: Checkpoint) -> None:
    told = server.client().ask(garden(0), probabilities=True)
    assert told["actions"]["turn"] == {"actors": [], "choices": []}
    assert (told["probabilities"]["turn"], told["probabilities"]["visit"]["rows"]) == ([], [])
    decided = load_policy(checkpoint.path).act(observation_from_json(garden(0), ACTION_SPACE))
    assert decided.probabilities["turn"] == []


def test_many_clients_at_once_get_the_answers_that_each_gets_alone(checkpoint: Checkpoint) -> None:
    with Running(checkpoint) as server:
        alone = server.client()
        expected = [alone.ask(garden(1 + k % 4, k), greedy=True, id=k)["actions"] for k in range(12)]
        clients = [server.client() for _ in range(4)]
        for _ in range(5):  # without waiting for answers
            for client in clients:
                for k in range(12):
                    client.send({"type": "act", "id": k, "observation": garden(1 + k % 4, k), "greedy": True})
        for client in clients:
            answers = [client.receive() for _ in range(60)]
            assert [answer["id"] for answer in answers] == 5 * list(range(12))
            for answer in answers:
                actions = dict(answer["actions"])
                wanted = dict(expected[answer["id"]])
                assert actions.pop("speed")["values"] == pytest.approx(
                    np.array(wanted.pop("speed")["values"]), abs=1e-4
                )
                assert actions == wanted
    assert server.served is not None
    assert server.served.decisions == 12 + 4 * 60
    assert server.served.batches < server.served.decisions
    assert server.served.clients == 5


def test_samples_differ_where_greedy_answers_do_not(server: Running) -> None:
    client = server.client()
    assert len({str(client.ask(garden())["actions"]) for _ in range(20)}) > 1
    assert len({str(client.ask(garden(), greedy=True)["actions"]) for _ in range(20)}) == 1


def test_a_client_that_has_said_all_still_gets_its_answers(server: Running) -> None:
    client = server.client()
    for k in range(10):
        client.send({"type": "act", "id": k, "observation": garden()})
    client.socket.shutdown(socket.SHUT_WR)
    assert [client.receive().get("id") for _ in range(11)] == [*range(10), None]
    assert server.has_said(f"{client.name} left")


def test_features_that_the_policy_does_not_know_are_ignored_and_told(server: Running) -> None:
    newer = ObsSpace({"Bee": Entity(["age", "x", "y"]), "Flower": Entity(["open"])}, ["wind"])
    client = server.client(spaces=spaces_to_dict(newer, ACTION_SPACE))
    assert "age" in client.policy["news"]
    told = garden()
    told["features"]["Bee"] = [[99, 0, 0], [-99, 1, -0.5]]
    assert (
        client.ask(told, greedy=True)["actions"]["turn"]
        == server.client().ask(garden(), greedy=True)["actions"]["turn"]
    )


@pytest.mark.parametrize(
    ("greeting", "why"),
    [
        ({"type": "act"}, "a message of the type 'act'; allowed: 'hello', 'health', 'close', 'error'"),
        ({"protocol": True}, "version True of the protocol; this is version 1"),
        ({"protocol": 2}, "version 2 of the protocol; this is version 1"),
        (
            {"space": {}},
            "'hello' has no part 'space'; allowed: 'type', 'protocol', 'token', 'spaces'; did you mean 'spaces'?",
        ),
        ({"spaces": 3}, "'spaces' is 3; it must be an object"),
        (
            {"spaces": spaces_to_dict(ObsSpace({"Bee": Entity(["x"])}), ACTION_SPACE)},
            "does not fit the observation",
        ),
    ],
)
def test_a_greeting_that_cannot_be_is_answered_with_the_reason(server: Running, greeting: Any, why: str) -> None:
    client = server.client(**greeting)
    assert client.policy["type"] == "error"
    assert why in client.policy["message"]
    assert client.receive() == {"type": "hung up"}


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ({"type": "reset"}, "a message of the type 'reset'; allowed: 'act', 'health', 'close', 'error'"),
        ({"type": "act"}, "'act' lacks 'observation', an object"),
        ({"type": "act", "observation": garden(), "gredy": True}, "'act' has no part 'gredy'; "),
        ({"type": "act", "observation": garden(), "greedy": 1}, "greedy of 'act' is 1; it must be true or false"),
        ({"type": "act", "observation": garden(), "id": [1]}, "id of 'act' is [1]"),
        (
            {"type": "act", "observation": garden(global_features=[])},
            "the observation: global_features have shape (1, 0)",
        ),
        ({"type": "act", "observation": garden(global_features=[1e300])}, "they must be numbers that float32 can hold"),
        ({"type": "act", "observation": garden(global_features=[10**400])}, "they must be numbers"),
        (
            {"type": "act", "observation": garden(player_rewards=[1e300])},
            "player_rewards is [1e+300]; it must be a finite",
        ),
        ({"type": "act", "observation": garden(1, 2048)}, "has 2,049 entities; at most 2,048 are taken"),
        ({"type": "act", "observation": garden(), "x": "y" * 200_000}, "at most 100,000 are read"),
    ],
)
def test_a_client_that_asks_nonsense_is_dropped_with_the_reason_and_others_go_on(
    server: Running, message: dict[str, Any], why: str
) -> None:
    with one_dropped(server, why) as client:
        client.send(message)


TOKEN = "correct horse battery staple"


def test_with_a_token_only_clients_that_know_it_are_answered(checkpoint: Checkpoint) -> None:
    with Running(checkpoint, token=TOKEN) as server:
        for wrong in ({}, {"token": TOKEN[:-1]}, {"token": TOKEN + "x"}, {"token": 3}, {"token": None}, {"token": "ü"}):
            client = server.client(**wrong)
            assert client.policy == {"type": "error", "message": "the token is missing or wrong"}
            assert client.receive() == {"type": "hung up"}
            asking = Client(server.port)
            asking.send({"type": "health", **wrong})
            assert asking.receive() == {"type": "error", "message": "the token is missing or wrong"}
        assert server.client(token=TOKEN).ask(garden())["type"] == "actions"
    assert not any(TOKEN in line for line in server.said)
    assert TOKEN not in repr(ServeConfig(checkpoint="x", token=TOKEN))


def test_a_server_that_other_machines_reach_needs_a_token_which_can_come_from_the_environment(
    checkpoint: Checkpoint, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = [f"checkpoint={checkpoint.path}", "port=0"]
    for host in ("0.0.0.0", "::", "192.168.0.1", "example.org"):
        assert run_serve(serve, [*arguments, f"host='{host}'"]) == 2
        assert f"host={host} lets other machines connect, so a token is needed" in capsys.readouterr().err
    for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost"):
        assert ServeConfig(checkpoint="x", host=host).token is None
    monkeypatch.setenv("MY_TOKEN", TOKEN)
    taken: list[ServeConfig] = []
    assert run_serve(taken.append, ["checkpoint=x", "host='0.0.0.0'", "token=${oc.env:MY_TOKEN}"]) == 0
    assert (taken[0].host, taken[0].token) == ("0.0.0.0", TOKEN)


def test_health_tells_what_the_server_has_done_before_and_after_the_greeting(checkpoint: Checkpoint) -> None:
    with Running(checkpoint) as server:
        server.client(protocol=2)
        asking = Client(server.port)
        asking.send({"type": "health"})
        health = asking.receive()
        assert health.pop("seconds") > 0
        assert health == {
            "type": "health",
            "protocol": 1,
            "checkpoint": str(checkpoint.path),
            "connected": 1,
            "decisions": 0,
            "batches": 0,
            "clients": 2,
            "dropped": 1,
        }
        asking.send({"type": "hello", "protocol": 1})
        assert asking.receive()["type"] == "policy"
        asking.ask(garden())
        asking.send({"type": "health"})
        assert asking.receive()["decisions"] == 1


def test_when_the_server_ends_requests_that_have_come_are_answered_and_all_clients_are_told(
    checkpoint: Checkpoint,
) -> None:
    with Running(checkpoint) as server:
        client = server.client()
        for k in range(100):
            client.send({"type": "act", "id": k, "observation": garden()})
        silent = server.client()
        assert client.receive()["id"] == 0
    assert silent.receive() == {"type": "error", "message": "the server is ending"}
    received = [client.receive() for _ in range(server.served.decisions + 1)] if server.served else []
    assert [each.get("id") for each in received[:-2]] == list(range(1, len(received) - 1))
    assert received[-2:] == [{"type": "error", "message": "the server is ending"}, {"type": "hung up"}]


def test_a_port_that_is_taken_is_a_mistake_of_the_user(
    checkpoint: Checkpoint, server: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_serve(serve, [f"checkpoint={checkpoint.path}", f"port={server.port}", "device=cpu"]) == 2
    assert f"port={server.port} cannot be listened on" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"token": "short"}, "token has 5 characters; it must have at least 16"),
        ({"token": "ü" * 20}, "all of them printable ASCII"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        ServeConfig(**{"checkpoint": "x", **settings})
