"""A program that offers worlds: requests, answers, and the errors of programs that misbehave."""

from __future__ import annotations

import threading
import time
import weakref
from typing import NoReturn

from entity_gym.bridges.remote.connection import Connection, HungUp, NoAnswer, ProgramError, ProgramSettings
from entity_gym.bridges.remote.messages import FLAG, LIST, OBJECT, PROTOCOL, TEXT, Message, Parts, ProtocolError, check
from entity_gym.bridges.remote.wire import spaces_from_json

_OFFER: Parts = {
    "type": TEXT,
    "protocol": (int, "a whole number"),
    "name": TEXT,
    "spaces": OBJECT,
    "parameters": LIST,
    "can_save": FLAG,
}
#: The type of the answer to each type of request.
_ANSWERS = {"reset": "observation", "act": "observation", "save": "saved", "load": "loaded"}


class Program:
    """A program with worlds 0 ... num_worlds - 1. Several threads may use it.

    Requests to several worlds may be under way at once, one for each world; the answers come in any order.

    Attributes:
        name: name of the worlds, as the program says.
        obs_space: of the worlds.
        action_space: of the worlds.
        parameters: names of the parameters that a reset may set.
        can_save: whether worlds can be saved and continued.

    Raises:
        ProgramError: the program does not start, or its greeting is invalid.
    """

    def __init__(self, settings: ProgramSettings, num_worlds: int) -> None:
        self._settings = settings
        self._title = str(settings)  # how messages call the program
        self._lock = threading.RLock()
        self._asked: dict[int, str] = {}  # world -> type of the request that it has not answered yet
        self._answers: dict[int, Message] = {}  # world -> answer that nobody has fetched yet
        self._failure: str | None = None
        self._connection = Connection(settings, num_worlds)
        # Ends the process of a pool that is dropped without being closed.
        self._finalizer = weakref.finalize(self, self._connection.close, 0)
        self._greet(num_worlds)
        self._title = f"{self.name} ({settings})"

    def ask(self, world: int, request: Message) -> None:
        """Send a request to a world. It leaves when somebody waits for an answer.

        The answer to an earlier request of this world that nobody has fetched, because of an error, is dropped.

        Raises:
            ProgramError: the program has failed.
        """
        with self._lock:
            self._check()
            if world in self._asked:
                self.answer(world)
            self._answers.pop(world, None)
            try:
                self._connection.send({**request, "env": world})
            except (ValueError, TypeError) as error:  # such as an env_info that JSON cannot hold
                raise ValueError(f"{self._title} cannot be told {request!r:.200}: {error}") from None
            self._asked[world] = request["type"]

    def answer(self, world: int) -> Message:
        """Wait for the answer to the last request of this world.

        Raises:
            ProgramError: the program failed, or answered with another type of message.
        """
        with self._lock:
            deadline = time.monotonic() + self._settings.answer_seconds
            while world not in self._answers:
                self._check()
                self._file(self._receive(deadline))
            return self._answers.pop(world)

    def close(self) -> None:
        """Tell the program to end, and make sure that it does. May be called twice."""
        with self._lock:
            if not self._finalizer.alive:
                return
            self._connection.send({"type": "close"})
            self._connection.flush()
            self._finalizer.detach()
            self._connection.close()
            self._failure = self._failure or f"{self._title} has been closed"

    def fail(self, what: str) -> NoReturn:
        """End the program because of something it did, and raise a ProgramError with that and its last words."""
        self._finalizer.detach()
        self._connection.close(0)
        self._failure = f"{self._title} {what}{self._connection.last_words()}"
        raise ProgramError(self._failure)

    def _greet(self, num_worlds: int) -> None:
        limit = self._settings.max_message_bytes
        self._connection.send(
            {"type": "hello", "protocol": PROTOCOL, "num_envs": num_worlds, "max_message_bytes": limit}
        )
        offer = self._receive(time.monotonic() + self._settings.start_seconds)
        if offer["type"] == "error":
            self.fail(f"reported an error: {offer.get('message')}")
        if offer["type"] != "worlds":
            self.fail(f"answered {offer['type']!r} to the greeting; 'worlds' was due")
        if offer.get("protocol") != PROTOCOL:
            self.fail(f"speaks version {offer.get('protocol')!r} of the protocol; this is version {PROTOCOL}")
        try:
            check(offer, _OFFER, "what it offers", ("name", "spaces"))
            self.obs_space, self.action_space = spaces_from_json(offer["spaces"])
        except ProtocolError as error:
            self.fail(f"offers no worlds that can be: {error}")
        self.name: str = offer["name"]
        self.parameters: list[str] = list(map(str, offer.get("parameters", [])))
        self.can_save: bool = offer.get("can_save", False)

    def _receive(self, deadline: float) -> Message:
        try:
            message = self._connection.receive(deadline)
        except HungUp:
            self.fail(f"is gone while {self._requests()} was not answered: {self._connection.ending()}")
        except NoAnswer:
            name = "answer_seconds" if self._asked else "start_seconds"
            seconds = getattr(self._settings, name)
            self.fail(f"has not answered {self._requests()} within {name}={seconds:g}")
        except ProtocolError as error:
            self.fail(f"sent {error}")
        if message["type"] == "close":
            self.fail(f"is gone while {self._requests()} was not answered: it sent 'close'")
        return message

    def _requests(self, most: int = 5) -> str:
        """Describe the requests that are under way, such as "'act' of worlds 0, 3"; the first one is the greeting."""
        worlds: dict[str, list[int]] = {}
        for world, kind in sorted(self._asked.items()):
            worlds.setdefault(kind, []).append(world)
        described = []
        for kind, numbers in worlds.items():
            listed = ", ".join(map(str, numbers[:most])) + (
                f" and {len(numbers) - most} more" if numbers[most:] else ""
            )
            described.append(f"{kind!r} of world{'s' if len(numbers) > 1 else ''} {listed}")
        return " and ".join(described) or "the greeting"

    def _file(self, message: Message) -> None:
        """Check an answer, and keep it until it is fetched."""
        world, kind = message.get("env"), message["type"]
        if kind == "error":
            of = f" of world {world}" if type(world) is int else ""
            self.fail(f"reported an error{of}: {message.get('message')}")
        if type(world) is not int or world not in self._asked:
            self.fail(f"sent {kind!r} of world {world!r}, which was not asked anything")
        due = _ANSWERS[self._asked.pop(world)]
        if kind != due:
            self.fail(f"answered {kind!r} where {due!r} was due, of world {world}")
        self._answers[world] = message

    def _check(self) -> None:
        if self._failure is not None:
            raise ProgramError(self._failure)
