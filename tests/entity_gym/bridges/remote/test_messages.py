"""The bytes that travel."""

from __future__ import annotations

import json

import pytest

from entity_gym.bridges.remote.messages import MessageReader, ProtocolError, encode

MESSAGES: list[dict[str, object]] = [
    {"type": "act", "x": [0.1, -3, 2**53], "é": {"a": None, "b": [True, False]}},
    {"type": ""},
    {"type": "observation", "features": {"Head": [[1.5], []]}, "log": 'line\n\u2028"quoted"'},
]


def read_all(reader: MessageReader) -> list[dict[str, object]]:
    messages = []
    while (message := reader.next()) is not None:
        messages.append(message)
    return messages


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
    assert not reader.is_in_message


def test_part_of_a_message_is_not_yet_one() -> None:
    reader = MessageReader()
    reader.feed(encode({"type": "act"})[:-1])
    assert reader.next() is None
    assert reader.is_in_message


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
        (b"", "no JSON"),
        (b"{]", "no JSON"),
        (b'{"type": "a\xff"}', "no JSON"),
        (b'{"type": "a", "x": NaN}', "no JSON: NaN is no number that JSON has"),
        ('{"type": "a"}'.encode("utf-16"), "no JSON"),
        (b'{"type": "a", "x": ' + b"9" * 5000 + b"}", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b"[1]", "no object with a 'type'"),
        (b'{"kind": "act"}', "no object with a 'type'"),
        (b'{"type": 3}', "no object with a 'type'"),
        (b'{"type": "act", "id": "a\\ud800"}', "no JSON: .*surrogates not allowed"),
        (b'{"type": "act", "ids": {"\\uDFFF": []}}', "no JSON: .*surrogates not allowed"),
    ],
)
def test_what_is_no_message_is_refused(body: bytes, why: str) -> None:
    reader = MessageReader()
    reader.feed(framed(body))
    with pytest.raises(ProtocolError, match=why):
        reader.next()
