"""A program that offers worlds, as the trainer sees it: asked, found silent or dead, ended."""

from __future__ import annotations

import threading
import time
import weakref
from collections import defaultdict, deque
from collections.abc import Iterable
from typing import Any

from entity_gym.bridges.remote.channel import HungUp, NoAnswer
from entity_gym.bridges.remote.connection import CannotReach, Connection
from entity_gym.bridges.remote.messages import PROTOCOL, Message, ProtocolError, check_parts
from entity_gym.bridges.remote.settings import ProgramSettings
from entity_gym.bridges.remote.wire import Spaces, spaces_from_json

_OFFER = ("type", "protocol", "name", "spaces", "parameters", "can_save")


class ProgramError(ValueError):
    """A program that offers worlds failed: it could not be started, reported an error, ended, fell silent, or sent nonsense.

    The message says which program, and what it was to do.
    """


class Program:
    """A program with worlds 0 ... num_worlds - 1, which knows no other numbers.

    Requests of several worlds may be on their way at once, one of each world; the answers come in any order. Several threads
    may ask.

    Attributes:
        name: of the worlds, as the program says.
        spaces: what they show and take.
        parameters: names of what episodes may be told.
        can_save: whether worlds can be saved and continued.

    Raises:
        ProgramError: it does not start, or does not say properly what it offers.
    """

    def __init__(self, settings: ProgramSettings, num_worlds: int) -> None:
        self.settings = settings
        self._lock = threading.RLock()
        self._answers: defaultdict[int, deque[Message]] = defaultdict(deque)
        self._asked: dict[int, str] = {}  # world -> what it was asked and has not answered
        self._failure: str | None = None
        try:
            self._connection = Connection(settings, num_worlds)
        except CannotReach as error:
            raise ProgramError(str(error)) from None
        # Nothing stays behind where a pool is forgotten rather than closed.
        self._finalizer = weakref.finalize(self, self._connection.close, 0)
        self._called = str(settings)
        offer = self._greet(num_worlds)
        self.name, self.spaces, self.parameters = offer["name"], self._spaces(offer), offer.get("parameters", [])
        self.can_save: bool = offer.get("can_save", False)
        self._called = f"{self.name} ({settings})"

    def ask(self, world: int, message: Message) -> None:
        """Send a request of a world whose last one has been answered. It leaves when somebody waits for an answer.

        Raises:
            ProgramError: the program has failed before.
        """
        with self._lock:
            self._check()
            assert world not in self._asked, f"world {world} was asked twice"
            try:
                self._connection.channel.send({**message, "env": world})
            except (ValueError, TypeError) as error:  # such as an env_info that JSON cannot hold
                raise ValueError(f"{self._called} cannot be told {message!r:.200}: {error}") from None
            self._asked[world] = message["type"]

    def answer(self, world: int, kind: str) -> Message:
        """Wait for the answer to what this world was asked; it must be of this type.

        Raises:
            ProgramError: there is none, or another.
        """
        with self._lock:
            deadline = time.monotonic() + self.settings.answer_seconds
            while not self._answers[world]:
                self._check()
                self._file(self._receive(deadline, self._asked))
            message = self._answers[world].popleft()
            if message["type"] != kind:
                self._fail(f"answered {message['type']!r} where {kind!r} was due, of world {world}")
            return message

    def close(self) -> None:
        """Tell the program to end, and see that it does. May be called twice."""
        with self._lock:
            if not self._finalizer.alive:
                return
            try:
                self._connection.channel.send({"type": "close"})
                self._connection.channel.flush(time.monotonic() + 1)
            except (HungUp, NoAnswer):
                pass
            self._finalizer.detach()
            self._connection.close()
            self._failure = self._failure or f"{self._called} has been closed"

    def refuse(self, reason: str) -> None:
        """Give the program up because of what it sent; raises the ProgramError."""
        self._fail(reason)

    def _greet(self, num_worlds: int) -> Message:
        limit = self.settings.max_message_bytes
        hello = {"type": "hello", "protocol": PROTOCOL, "num_envs": num_worlds, "max_message_bytes": limit}
        self._connection.channel.send(hello)
        offer = self._receive(time.monotonic() + self.settings.start_seconds, {0: "hello"})
        if offer["type"] == "error":
            self._fail(f"reported an error: {offer.get('message')}", with_last_words=True)
        if offer["type"] != "worlds":
            self._fail(f"answered {offer['type']!r} to the greeting; 'worlds' was due")
        try:
            check_parts(offer, _OFFER, "what it offers")
        except ProtocolError as error:
            self._fail(f"offers no worlds that can be: {error}")
        if type(offer.get("protocol")) is not int or offer["protocol"] != PROTOCOL:
            self._fail(f"speaks version {offer.get('protocol')!r} of the protocol; this is version {PROTOCOL}")
        if not isinstance(offer.get("name"), str) or not offer["name"]:
            self._fail(f"calls its worlds {offer.get('name')!r}; 'name' must be a text")
        parameters = offer.get("parameters", [])
        if not isinstance(parameters, list) or not all(isinstance(name, str) for name in parameters):
            self._fail(f"says that its 'parameters' are {parameters!r:.200}; they must be a list of names")
        if not isinstance(offer.get("can_save", False), bool):
            self._fail(f"says that 'can_save' is {offer['can_save']!r}; it must be true or false")
        return offer

    def _spaces(self, offer: Message) -> Spaces:
        try:
            return spaces_from_json(offer.get("spaces"))
        except ProtocolError as error:
            self._fail(f"offers no worlds that can be: {error}")
            raise AssertionError from None

    def _receive(self, deadline: float, asked: dict[int, str]) -> Message:
        try:
            message = self._connection.channel.receive(deadline)
            if message["type"] == "close":
                self._fail(f"is gone while {_told(asked)} was not answered: it sent 'close'", with_last_words=True)
            return message
        except HungUp:
            self._fail(f"is gone while {_told(asked)} was not answered: {self._connection.ending()}")
        except NoAnswer:
            name = "start_seconds" if "hello" in asked.values() else "answer_seconds"
            seconds = getattr(self.settings, name)
            self._fail(f"has not answered {_told(asked)} within {name}={seconds:g}", with_last_words=True)
        except ProtocolError as error:
            self._fail(f"sent {error}", with_last_words=True)
        raise AssertionError

    def _file(self, message: Message) -> None:
        """Put an answer where its world finds it."""
        world = message.get("env")
        if message["type"] == "error":
            of = f" of world {world}" if type(world) is int else ""
            self._fail(f"reported an error{of}: {message.get('message')}", with_last_words=True)
        if type(world) is not int or world not in self._asked:
            self._fail(f"sent {message['type']!r} of world {world!r}, which was not asked anything")
        assert isinstance(world, int)
        del self._asked[world]
        self._answers[world].append(message)

    def _check(self) -> None:
        if self._failure is not None:
            raise ProgramError(self._failure)

    def _fail(self, what: str, *, with_last_words: bool = False) -> None:
        last_words = self._connection.last_words() if with_last_words else ""
        self._failure = f"{self._called} {what}{last_words}"
        self._finalizer.detach()
        self._connection.close(0)
        raise ProgramError(self._failure)


def _told(asked: dict[int, str]) -> str:
    """What was asked, such as "'act' of worlds 0, 3"."""
    worlds: dict[str, list[int]] = {}
    for world, kind in asked.items():
        worlds.setdefault(kind, []).append(world)
    if "hello" in worlds:
        return "the greeting"
    return " and ".join(f"{kind!r} of world{_listed(of)}" for kind, of in worlds.items())


def _listed(numbers: Iterable[int], most: int = 5) -> str:
    shown: list[Any] = sorted(numbers)
    plural = "s" if len(shown) > 1 else ""
    more = f" and {len(shown) - most} more" if len(shown) > most else ""
    return f"{plural} {', '.join(map(str, shown[:most]))}{more}"
