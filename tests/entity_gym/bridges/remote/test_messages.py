"""The bytes of messages, and the spaces, observations and actions in them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from entity_gym import (
    Angle,
    CategoricalActionSpace,
    Category,
    ContinuousActionSpace,
    Entity,
    Flag,
    GlobalCategoricalActionSpace,
    ObsSpace,
    SelectEntitiesActionSpace,
    SelectEntityActionSpace,
)
from entity_gym.batch.saving import spaces_to_dict
from entity_gym.bridges.remote.messages import (
    MessageReader,
    ProtocolError,
    encode,
    observation_from_json,
    spaces_from_json,
)

MESSAGES: list[dict[str, object]] = [
    {"type": "act", "x": [0.1, -3, 2**53], "é": {"a": None, "b": [True, False]}},
    {"type": ""},
    {"type": "observation", "features": {"Head": [[1.5], []]}, "log": 'line\n\u2028"quoted"'},
]


def read_all(reader: MessageReader) -> list[dict[str, object]]:
    read = []
    while (message := reader.next()) is not None:
        read.append(message)
    return read


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def test_a_message_is_four_bytes_of_length_and_json_in_utf8() -> None:
    assert encode({"type": "é"}) == b"\x00\x00\x00\x0d" + '{"type":"é"}'.encode()


@pytest.mark.parametrize("size", [1, 3, 31, 1000])
def test_messages_come_out_as_they_went_in_however_the_stream_is_cut(size: int) -> None:
    stream = b"".join(encode(message) for message in MESSAGES)
    reader, received = MessageReader(), []
    for start in range(0, len(stream), size):
        reader.feed(stream[start : start + size])
        received += read_all(reader)
    assert received == MESSAGES


def test_numbers_that_json_does_not_have_are_not_sent() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        encode({"type": "act", "x": float("nan")})


def test_a_message_as_long_as_the_limit_is_read_and_a_longer_one_refused_before_it_has_come() -> None:
    body = json.dumps({"type": "x" * 90}).encode()
    reader = MessageReader(len(body))
    reader.feed(framed(body))
    assert reader.next() == {"type": "x" * 90}

    reader = MessageReader(len(body) - 1)
    reader.feed(framed(body)[:4])
    with pytest.raises(ProtocolError, match="a message of 102 bytes; at most 101 are read$"):
        reader.next()


def test_text_among_the_messages_is_recognised() -> None:
    reader = MessageReader()
    reader.feed(b"loading the level\n")
    with pytest.raises(ProtocolError, match="begins with the text 'load': was something printed where messages go"):
        reader.next()


def test_a_character_beyond_the_first_65536_may_be_written_as_a_surrogate_pair() -> None:
    reader = MessageReader()
    reader.feed(framed(b'{"type": "act", "id": "\\ud83d\\udc1d"}'))
    assert reader.next() == {"type": "act", "id": "\U0001f41d"}


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"{]", "no JSON"),
        (b'{"type": "a\xff"}', "no JSON"),
        (b'{"type": "a", "x": NaN}', "no JSON: NaN is no number that JSON has"),
        (b'{"type": "a", "x": ' + b"9" * 5000 + b"}", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b'{"kind": "act"}', "no object with a 'type'"),
        (b'{"type": 3}', "no object with a 'type'"),
        (b'{"type": "act", "id": "a\\ud800"}', "no JSON: .*surrogates not allowed"),
    ],
)
def test_what_is_no_message_is_refused(body: bytes, why: str) -> None:
    reader = MessageReader()
    reader.feed(framed(body))
    with pytest.raises(ProtocolError, match=why):
        reader.next()


# --- Spaces, observations and actions

ACTIONS = {
    "move": CategoricalActionSpace(["left", "right"]),
    "shoot": SelectEntityActionSpace(nobody=True),
    "load": SelectEntitiesActionSpace(max=3, ordered=True, cost="x", budget="turn"),
    "mark": SelectEntitiesActionSpace(exclude_self=True, min=1),
    "wait": GlobalCategoricalActionSpace(["no", "yes"]),
    "steer": ContinuousActionSpace([-1.0], [np.inf]),
}
PLAIN = {"name": "A", "features": []}


def test_every_space_goes_there_and_back() -> None:
    entities = {"Ship": Entity(["x", Angle("turn")]), "Mine": Entity([Flag("live")])}
    obs_space = ObsSpace(entities, [Category("level", 3)], targets={"wind": 2})
    plain = spaces_to_dict(obs_space, ACTIONS)
    assert encode({"type": "worlds", "spaces": plain})  # nothing in it that JSON does not have
    assert spaces_from_json(plain) == (obs_space, ACTIONS)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (None, "'spaces' is None; it must be an object with any of 'entities'"),
        (
            {"entities": [{"name": "A", "features": []}], "actions": []},
            "the spaces must have an action, and an entity type or global features",
        ),
        (
            {"entities": [{"features": []}], "actions": []},
            r"entity \{'features': \[\]\}: it must be an object with a 'name'",
        ),
        ({"entities": [{"name": "A", "features": []}] * 2, "actions": []}, r"names \['A'\] more than once"),
        (
            {"entities": [{"name": "A", "features": ["x", "x"]}], "actions": []},
            r"entity 'A': .* names \['x'\] more than",
        ),
        (
            {"entities": [PLAIN], "actions": [{"name": "a", "type": "SelectEntityActionSpace", "foo": 1}]},
            "action 'a' has no part 'foo'; allowed: 'type', 'name', 'after', 'allowed', 'exclude_self', 'nobody'",
        ),
        (
            {"entities": [PLAIN], "actions": [{"name": "a", "type": "SelectEntitiesActionSpace", "max": 1.5}]},
            "action 'a': SelectEntitiesActionSpace.max is 1.5",
        ),
        (
            {"entities": [PLAIN], "actions": [{"name": "a", "type": "Choice"}]},
            "action 'a': the type is 'Choice'; allowed: ",
        ),
        (
            {"entities": [PLAIN], "actions": [{"name": "a", "type": "CategoricalActionSpace", "choices": "ab"}]},
            "action 'a': CategoricalActionSpace.choices is 'ab'; it must be a list of names",
        ),
    ],
)
def test_spaces_that_cannot_be_are_refused(given: Any, why: str) -> None:
    with pytest.raises(ProtocolError, match=why):
        spaces_from_json(given)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ([], "it must be an object"),
        ({"feature": {}}, "has no part 'feature'; .*did you mean 'features'"),
        ({"features": []}, "features of the observation is .*; it must be an object"),
        ({"reward": 1e300}, "reward is 1e.300; it must be a number that float32 can hold"),
        ({"done": 1}, "done of the observation is 1; it must be true or false"),
        ({"features": {"Mine": [["1.5"]]}}, "features of 'Mine' are .* they must be numbers"),
        ({"features": {"Mine": [[1], [1, 2]]}}, "as many in every row"),
        ({"ids": {"Ship": [1.5]}}, "they must be a list of texts or whole numbers"),
        ({"actions": {"jump": {}}}, "unknown action 'jump'; allowed: 'move'"),
        ({"actions": {"move": {"actee_ids": []}}}, "action 'move' has no part 'actee_ids'; .* 'actor_ids'"),
        ({"actions": {"move": {"actor_ids": [], "actor_types": []}}}, "action 'move': .* give one"),
        ({"truncated": True}, "a truncated episode has ended"),
    ],
)
def test_an_observation_that_cannot_be_is_refused_and_named(given: Any, why: str) -> None:
    with pytest.raises(ProtocolError, match=why):
        observation_from_json(given, ACTIONS)
