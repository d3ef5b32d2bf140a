"""Messages between programs, 4 bytes with the length, then JSON; and spaces, observations and actions in them: docs/protocol.md.

Input is not trusted: `ProtocolError`s say what was given and what is allowed. Whether an observation fits the spaces is
checked in `entity_gym.batch.frame`, as for every environment.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions import KINDS, Action, ActionMask, ActionSpace
from entity_gym.batch.saving import spaces_from_dict
from entity_gym.environment import Observation
from entity_gym.errors import check_parts, nearest
from entity_gym.spaces import LARGEST_FLOAT32, ObsSpace

#: The version of the protocol that this package speaks.
PROTOCOL = 1

#: The default limit of messages that are read, in bytes.
MAX_MESSAGE_BYTES = 16 * 2**20

HEADER_BYTES = 4
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")

Message = dict[str, Any]


class ProtocolError(ValueError):
    """The other side sent an invalid message."""


def encode(message: Message) -> bytes:
    """Return the bytes of a message.

    Raises:
        ValueError: a number is not finite.
    """
    body = json.dumps(message, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()
    return len(body).to_bytes(HEADER_BYTES, "big") + body


def body_length(header: bytes, limit: int) -> int:
    """Return the length of the message with this header.

    Raises:
        ProtocolError: the message is longer than the limit.
    """
    length = int.from_bytes(header, "big")
    if length > limit:
        is_text = header.isascii() and header.decode("ascii").isprintable()
        hint = (
            f"; it begins with the text {header.decode('ascii', 'replace')!r}: was something printed where messages go?"
            * is_text
        )
        raise ProtocolError(f"a message of {length:,} bytes; at most {limit:,} are read{hint}")
    return length


class MessageReader:
    """Cuts a stream of bytes into messages.

    Args:
        limit: the longest message that is accepted, in bytes.
    """

    def __init__(self, limit: int = MAX_MESSAGE_BYTES) -> None:
        self.limit = limit
        self._received = bytearray()

    def feed(self, data: bytes) -> None:
        """Append bytes that have come."""
        self._received += data

    def next(self) -> Message | None:
        """Return the next message; None until all of it has come.

        Raises:
            ProtocolError: the bytes are no message, or one longer than the limit. The reader cannot be used any more.
        """
        if len(self._received) < HEADER_BYTES:
            return None
        end = HEADER_BYTES + body_length(bytes(self._received[:HEADER_BYTES]), self.limit)
        if len(self._received) < end:
            return None
        with memoryview(self._received) as received:
            body = bytes(received[HEADER_BYTES:end])
        del self._received[:end]
        return decode(body)


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


# --- Spaces, observations and actions

_SPACES: Parts = {
    "entities": LIST,
    "global_features": LIST,
    "global_kinds": LIST,
    "targets": OBJECT,
    "actions": LIST,
}
_ENTITY: Parts = {"name": TEXT, "features": LIST, "kinds": LIST}
_OBSERVATION: Parts = {
    "features": OBJECT,
    "ids": OBJECT,
    "actions": OBJECT,
    "global_features": LIST,
    "visible": OBJECT,
    "reward": NUMBER,
    "done": FLAG,
    "truncated": FLAG,
    "metrics": OBJECT,
    "end_of_episode_info": ((dict, type(None)), "an object"),
    "player_rewards": LIST,
    "targets": OBJECT,
}
#: Types of the items of a list, and their names in messages.
_IDS, _NAMES, _ANY = ((str, int), " of texts or whole numbers"), ((str,), " of names of entity types"), ((object,), "")


def spaces_from_json(given: Any) -> tuple[ObsSpace, dict[str, ActionSpace]]:
    """Return the spaces that are given in the form of docs/protocol.md.

    Raises:
        ProtocolError: they do not have that form; says where.
    """
    check(given, _SPACES, "'spaces'", ("entities", "actions"))
    for each in given["entities"]:
        where = _named(each, "entity")
        check(each, _ENTITY, where, ("features",))
        _made({"entities": [each]}, f"{where}: ")
    for each in given["actions"]:
        _made({"actions": [each]}, f"{_named(each, 'action', KINDS)}: ")
    for part in ("entities", "actions"):
        if repeated := [name for name, n in Counter(each["name"] for each in given[part]).items() if n > 1]:
            raise ProtocolError(f"{part} of 'spaces' names {repeated} more than once")
    if not given["actions"] or not (given["entities"] or given.get("global_features")):
        raise ProtocolError("the spaces must have an action, and an entity type or global features")
    return _made(given, "")


def _named(given: Any, what: str, types: Mapping[str, type[Any]] = {}) -> str:  # noqa: B006 - is not changed
    """Return the name of an entity or action for messages; of `types`, it must have one, and only its attributes."""
    if not isinstance(given, dict) or not isinstance(given.get("name"), str):
        raise ProtocolError(f"{what} {given!r:.200}: it must be an object with a 'name', a text")
    where = f"{what} {given['name']!r}"
    kind: Any = given.get("type")
    if types and (not isinstance(kind, str) or kind not in types):
        raise ProtocolError(f"{where}: the type is {kind!r:.200}; {nearest(kind, types)}")
    known = ("type", "name", *(each.name for each in fields(types[kind]))) if types else given
    for part in given:
        if part not in known:
            raise ProtocolError(f"{where} has no part {part!r}; {nearest(part, known)}")
    return where


def _made(spaces: Mapping[str, Any], where: str) -> tuple[ObsSpace, dict[str, ActionSpace]]:
    """Make spaces, of one entity or action alone so that an error can name it."""
    try:
        return spaces_from_dict({"entities": [], "global_features": [], "actions": [], **spaces})
    except (ValueError, TypeError) as error:
        raise ProtocolError(f"{where}{error}") from None


def observation_from_json(given: Any, action_space: Mapping[str, ActionSpace]) -> Observation:
    """Return an observation. Parts that are left out have the defaults of `Observation`.

    Args:
        given: a JSON value; "type", "env" and "id" of a message are ignored.
        action_space: the actions by name.

    Raises:
        ProtocolError: a part is unknown, or has another type.
    """
    if isinstance(given, dict):
        given = {name: value for name, value in given.items() if name not in ("type", "env", "id")}
    check(given, _OBSERVATION, "the observation")
    try:
        if not abs(given.get("reward", 0)) <= LARGEST_FLOAT32:
            raise ValueError(f"reward is {given['reward']!r:.200}; it must be a number that float32 can hold")
        for part in ("features", "targets"):
            if part in given:
                given[part] = {name: _numbers(rows, f"{part} of {name!r}") for name, rows in given[part].items()}
        if "global_features" in given:
            given["global_features"] = _numbers(given["global_features"], "global_features")
        for name, ids in given.get("ids", {}).items():
            _check_list(ids, f"ids of {name!r}", *_IDS)
        masks = given.get("actions", {})
        for name in masks:
            if name not in action_space:
                raise ValueError(f"unknown action {name!r}; {nearest(name, action_space)}")
        given["actions"] = {name: mask_from_json(name, mask, action_space[name]) for name, mask in masks.items()}
        return Observation(**given)
    except ValueError as error:
        raise ProtocolError(str(error)) from None


def _numbers(given: Any, what: str) -> NDArray[Any]:
    """Return an array of numbers alone: NumPy would also read the text "1.5" as a number, and null as NaN."""
    try:
        array = np.array(given if isinstance(given, list) else None)
    except ValueError:  # rows of different lengths
        array = np.array(None)
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{what} are {given!r:.200}; they must be numbers, and as many in every row")
    if array.dtype.kind == "f" and not (np.abs(array) <= LARGEST_FLOAT32).all():
        raise ValueError(f"{what} are {given!r:.200}; they must be numbers that float32 can hold")
    return array


def mask_from_json(name: str, given: Any, space: ActionSpace) -> ActionMask:
    """Make the mask of action `name` from a JSON object with any of the mask's attributes."""
    known, where = [each.name for each in fields(space.mask_type)], f"action {name!r}"
    if not isinstance(given, dict):
        raise ValueError(f"{where} is {given!r:.200}; it must be an object with any of {known}")
    check_parts(given, known, where)
    for part, value in given.items():
        kinds = _IDS if part.endswith("_ids") else _NAMES if part.endswith("_types") else _ANY
        if value is not None:
            _check_list(value, f"{part} of {where}", *kinds)
    try:
        mask: ActionMask = space.mask_type(**given)
    except ValueError as error:  # both ids and types
        raise ValueError(f"{where}: {error}") from None
    return mask


def _check_list(given: Any, what: str, types: tuple[type, ...], allowed: str) -> None:
    if not isinstance(given, list) or not all(object in types or type(each) in types for each in given):
        raise ValueError(f"{what} are {given!r:.200}; they must be a list{allowed}")


def actions_to_json(actions: Mapping[str, Action]) -> Message:
    """Return the actions that a world receives as a JSON object."""
    return {name: action.to_json() for name, action in actions.items()}
