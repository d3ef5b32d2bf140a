"""The bytes that travel."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from entity_gym.bridges.remote.messages import MessageReader, ProtocolError, encode

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
MESSAGES = st.lists(
    st.dictionaries(st.text(), JSON, max_size=4).map(lambda parts: {**parts, "type": "act"}), min_size=1, max_size=4
)


def read_all(reader: MessageReader) -> list[dict[str, object]]:
    messages = []
    while (message := reader.next()) is not None:
        messages.append(message)
    return messages


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def test_a_message_is_four_bytes_of_length_and_json_in_utf8() -> None:
    assert encode({"type": "é"}) == b"\x00\x00\x00\x0d" + '{"type":"é"}'.encode()


@given(messages=MESSAGES, data=st.data())
def test_messages_come_out_as_they_went_in_however_the_stream_is_cut(messages: list[dict[str, object]], data) -> None:  # type: ignore[no-untyped-def]
    stream = b"".join(encode(message) for message in messages)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    reader, received = MessageReader(), []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        reader.feed(stream[start:end])
        received += read_all(reader)
    assert received == messages
    assert not reader.is_in_message


def test_part_of_a_message_is_not_yet_one() -> None:
    reader = MessageReader()
    reader.feed(encode({"type": "act"})[:-1])
    assert reader.next() is None
    assert reader.is_in_message


@pytest.mark.parametrize("start", [b"GET / HTTP/1.1\r\n", b"POST / HTTP/1.1\r\n"])
def test_a_browser_is_told_that_this_is_no_web_server(start: bytes) -> None:
    reader = MessageReader()
    reader.feed(start)
    with pytest.raises(ProtocolError, match="as HTTP does, and this is no web server"):
        reader.next()


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
    with pytest.raises(ProtocolError, match="begins with the text 'load': was something printed to standard output"):
        reader.next()


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "no JSON"),
        (b"{]", "no JSON"),
        (b'{"type": "a\xff"}', "no JSON"),
        (b'{"type": "a", "x": NaN}', "no JSON: x is NaN, which is no number that JSON has"),
        (
            b'{"type": "a", "features": {"Head": [[1, 2], [3, -Infinity]]}}',
            r"features\.Head\[1\]\[1\] is -Infinity, which is no number",
        ),
        (b"NaN", "no JSON: it is NaN"),
        ('{"type": "a"}'.encode("utf-16"), "no JSON"),
        (b'{"type": "a", "x": ' + b"9" * 5000 + b"}", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b"[1]", "no object with a 'type'"),
        (b'{"kind": "act"}', "no object with a 'type'"),
        (b'{"type": 3}', "no object with a 'type'"),
    ],
)
def test_what_is_no_message_is_refused(body: bytes, why: str) -> None:
    reader = MessageReader()
    reader.feed(framed(body))
    with pytest.raises(ProtocolError, match=why):
        reader.next()
