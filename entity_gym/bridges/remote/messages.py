"""Messages between programs: 4 bytes with the length, then JSON. See docs/protocol.md."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from entity_gym.errors import nearest

#: The version of the protocol that this package speaks.
PROTOCOL = 1

#: The default limit of messages that are read, in bytes.
MAX_MESSAGE_BYTES = 16 * 2**20

HEADER_BYTES = 4
_MOST_BYTES = 2**32 - 1  # fits the header
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")

Message = dict[str, Any]


class ProtocolError(ValueError):
    """The other side sent an invalid message."""


def encode(message: Message) -> bytes:
    """Return the bytes of a message.

    Raises:
        ValueError: a number is not finite, or the message is too long for its header.
    """
    body = json.dumps(message, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()
    if len(body) > _MOST_BYTES:
        raise ValueError(f"a message of {len(body):,} bytes cannot be sent; at most {_MOST_BYTES:,}")
    return len(body).to_bytes(HEADER_BYTES, "big") + body


class MessageReader:
    """Cuts a stream of bytes into messages.

    Args:
        limit: the longest message that is accepted, in bytes.
    """

    def __init__(self, limit: int = MAX_MESSAGE_BYTES) -> None:
        self.limit = limit
        self._received = bytearray()

    @property
    def is_in_message(self) -> bool:
        """True if only a part of a message has come."""
        return bool(self._received)

    def feed(self, data: bytes) -> None:
        """Append bytes that have come."""
        self._received += data

    def next(self) -> Message | None:
        """Return the next message; None until all of it has come.

        Raises:
            ProtocolError: the bytes are no message, or one longer than the limit. The reader cannot be used any more.
        """
        body = self.next_body()
        return None if body is None else decode(body)

    def next_body(self) -> bytes | None:
        """Return the bytes of the next message without its header, for `decode`; None until all of them have come.

        Raises:
            ProtocolError: the message is longer than the limit. The reader cannot be used any more.
        """
        if len(self._received) < HEADER_BYTES:
            return None
        header = bytes(self._received[:HEADER_BYTES])
        length = int.from_bytes(header, "big")
        if length > self.limit:
            is_text = header.isascii() and header.decode("ascii").isprintable()
            hint = (
                f"; it begins with the text {header.decode('ascii', 'replace')!r}: was something printed where messages go?"
                * is_text
            )
            raise ProtocolError(f"a message of {length:,} bytes; at most {self.limit:,} are read{hint}")
        end = HEADER_BYTES + length
        if len(self._received) < end:
            return None
        with memoryview(self._received) as received:
            body = bytes(received[HEADER_BYTES:end])
        del self._received[:end]
        return body


def decode(body: bytes) -> Message:
    """Return the message with these bytes, which do not include its header.

    Raises:
        ProtocolError: the bytes are no message.
    """
    try:
        message = json.loads(body.decode("utf-8"), parse_constant=_refuse_number)
        # `json` reads the half of a pair, "\\ud800", as a character that cannot be sent back
        if _SURROGATE.search(body):
            json.dumps(message, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"a message that is no JSON: {error} in {body[:80]!r}") from None
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise ProtocolError(f"a message that is no object with a 'type': {body[:80]!r}")
    return message


def _refuse_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number that JSON has")


#: What a part of a message may be: its types in Python, and their name in messages.
Type = tuple[type | tuple[type, ...], str]
OBJECT: Type = (dict, "an object")
LIST: Type = (list, "a list")
TEXT: Type = (str, "a text")
FLAG: Type = (bool, "true or false")
NUMBER: Type = ((int, float), "a number")
#: The parts of an object by name.
Parts = Mapping[str, Type]


def check(given: Any, parts: Parts, what: str, required: Sequence[str] = ()) -> None:
    """Raise a ProtocolError unless `given` is an object with none but these parts, and all that are required.

    Args:
        given: a JSON value.
        parts: the parts that it may have.
        what: the object in messages.
        required: names of parts that must not be left out.
    """
    if not isinstance(given, dict):
        raise ProtocolError(f"{what} is {given!r:.200}; it must be an object with any of {', '.join(map(repr, parts))}")
    for name, value in given.items():
        if name not in parts:
            raise ProtocolError(f"{what} has no part {name!r}; {nearest(name, parts)}")
        types, called = parts[name]
        if not isinstance(value, types) or isinstance(value, bool) != (types is bool):
            raise ProtocolError(f"{name} of {what} is {value!r:.200}; it must be {called}")
    for name in required:
        if name not in given:
            raise ProtocolError(f"{what} lacks {name!r}, {parts[name][1]}")
