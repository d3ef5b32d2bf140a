"""Programs that offer worlds, in any language: how they are reached, requests and answers, and their worlds as environments."""

from __future__ import annotations

import math
import os
import selectors
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn

from entity_gym.actions import Action, ActionSpace
from entity_gym.bridges.remote.messages import (
    FLAG,
    LIST,
    MAX_MESSAGE_BYTES,
    OBJECT,
    PROTOCOL,
    TEXT,
    Message,
    MessageReader,
    Parts,
    ProtocolError,
    actions_to_json,
    check,
    encode,
    observation_from_json,
    spaces_from_json,
)
from entity_gym.environment import Environment, Observation
from entity_gym.errors import check_whole, nearest
from entity_gym.pools.python_slots import PythonSlots
from entity_gym.pools.slots import SlotOptions
from entity_gym.pools.source import EnvSource
from entity_gym.spaces import ObsSpace

#: Seeds for programs are below this: integers of 32 bits, which every language has.
SEEDS = 2**32
GRACE = 2.0  # seconds that a program has to end after "close" or the end of its input
_CHUNK = 2**16
_IN, _OUT = selectors.EVENT_READ, selectors.EVENT_WRITE
_Selector: type[selectors.BaseSelector] = getattr(selectors, "PollSelector", selectors.SelectSelector)

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


class ProgramError(ValueError):
    """A program that offers worlds failed: it did not start, reported an error, ended, fell silent, or sent an invalid message.

    The message names the program and the request.
    """


@dataclass(frozen=True)
class ProgramWorlds(EnvSource):
    """The worlds of a program that is started, `ProgramWorlds(command=["node", "world.mjs"])`, or that connects (`listen`).

    Pools take it in place of an environment's class. A pool starts one program for all its environments, and one for each worker
    process.

    Attributes:
        name: the program's name in messages.
        command: the program and its arguments, such as ("node", "world.mjs"). It is found as a shell finds it, runs in the
            current folder, and exchanges messages by standard input and output. Linux and macOS only.
        listen: "host:port" where a program that is already running connects.
        start_seconds: time limit for connecting, and for the greeting. Above 0.
        answer_seconds: time limit for one answer. Above 0.
        max_message_bytes: the longest message that is read. At least 1,024.

    Raises:
        ValueError: a value is invalid.
    """

    name: str = "program"
    command: Sequence[str] | None = None
    listen: str | None = None
    start_seconds: float = 30.0
    answer_seconds: float = 30.0
    max_message_bytes: int = MAX_MESSAGE_BYTES

    def __post_init__(self) -> None:
        command = self.command
        if (command is None) == (self.listen is None):
            raise ValueError(
                f"command is {command!r} and listen is {self.listen!r}; give one: command=[node,world.mjs] starts a "
                "program, and listen=127.0.0.1:5577 waits for one to connect"
            )
        if command is None:
            self.address()
        else:
            # The command line reads a word such as 8 in [node,world.mjs,8] as a number.
            is_list = isinstance(command, Sequence) and not isinstance(command, str)
            if not command or not is_list or not all(isinstance(word, str | int | float) for word in command):
                raise ValueError(f"command is {command!r}; it must be a list of words, such as [node,world.mjs]")
            object.__setattr__(self, "command", tuple(map(str, command)))
        for name in ("start_seconds", "answer_seconds"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
                raise ValueError(f"{name} is {value!r}; it must be a number of seconds above 0")
        check_whole(self.max_message_bytes, "max_message_bytes", 1024)

    def address(self) -> tuple[str, int]:
        """Return the host and port to listen on."""
        host, _, port = str(self.listen).rpartition(":")
        if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 2**16:
            raise ValueError(
                f"listen is {self.listen!r}; it must be host:port, a port from 1 to 65535, such as 127.0.0.1:5577"
            )
        return host, int(port)

    def __str__(self) -> str:
        return f"{self.name} `{shlex.join(self.command)}`" if self.command else f"{self.name} at {self.listen}"

    def as_environment(self) -> RemoteEnvironment:
        return RemoteEnvironment(Program(self, num_worlds=1), 0)

    def make_slots(self, num_envs: int, options: SlotOptions = SlotOptions()) -> PythonSlots:
        """Make the worlds of one program, and of another one for a copy of the slots."""

        def worlds() -> Iterator[Environment]:
            while True:
                program = Program(self, num_envs)
                for world in range(num_envs):
                    yield RemoteEnvironment(program, world)

        return PythonSlots(worlds().__next__, num_envs, options)


class Program:
    """A program with worlds 0 ... num_worlds - 1. Several threads may use it.

    Requests to several worlds may be under way at once, one for each world; the answers come in any order. Requests leave
    when somebody waits for an answer, many at once. While it writes, it also reads, so that two sides that write at the same
    time do not block each other.

    Attributes:
        name: name of the worlds, as the program says.
        obs_space: of the worlds.
        action_space: of the worlds.
        parameters: names of the parameters that a reset may set.
        can_save: whether worlds can be saved and continued.

    Raises:
        ProgramError: the program does not start, does not connect in time, or its greeting is invalid.
    """

    def __init__(self, settings: ProgramWorlds, num_worlds: int) -> None:
        self._settings = settings
        self._title = str(settings)  # how messages call the program
        self._lock = threading.RLock()
        self._asked: dict[int, str] = {}  # world -> type of the request that it has not answered yet
        self._answers: dict[int, Message] = {}  # world -> answer that nobody has fetched yet
        self._failure: str | None = None
        self._messages = MessageReader(settings.max_message_bytes)
        self._unsent = bytearray()
        self._process: subprocess.Popen[bytes] | None = None
        self._input: Any
        self._output: Any
        if settings.command is None:
            self._input = self._output = _await_connection(settings, num_worlds)
        else:
            self._process = _start(settings)
            self._input, self._output = self._process.stdin, self._process.stdout
            os.set_blocking(self._input.fileno(), False)
            os.set_blocking(self._output.fileno(), False)
        # Ends the process of a pool that is dropped without being closed.
        self._finalizer = weakref.finalize(self, _end, self._process, (self._input, self._output), 0.0)
        self._reads, self._reads_and_writes = _Selector(), _Selector()  # wait for what the program sends, or takes
        self._reads.register(self._output, _IN)
        if self._input is self._output:
            self._reads_and_writes.register(self._output, _IN | _OUT)
        else:
            self._reads_and_writes.register(self._output, _IN)
            self._reads_and_writes.register(self._input, _OUT)
        self._greet(num_worlds)
        self._title = f"{self.name} ({settings})"

    def ask(self, world: int, request: Message) -> None:
        """Send a request to a world.

        The answer to an earlier request of this world that nobody has fetched, because of an error, is dropped.

        Raises:
            ProgramError: the program has failed.
        """
        with self._lock:
            self._check()
            if world in self._asked:
                self.answer(world)
            self._answers.pop(world, None)
            self._unsent += encode({**request, "env": world})  # raises for an env_info that JSON cannot hold
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
                message = self._receive(deadline)
                kind, sender = message["type"], message.get("env")
                if type(sender) is not int or sender not in self._asked:
                    self.fail(f"sent {kind!r} of world {sender!r}, which was not asked anything")
                if kind != (due := _ANSWERS[self._asked.pop(sender)]):
                    self.fail(f"answered {kind!r} where {due!r} was due, of world {sender}")
                self._answers[sender] = message
            return self._answers.pop(world)

    def close(self) -> None:
        """Tell the program to end, and make sure that it does. May be called twice."""
        with self._lock:
            if self._finalizer.detach() is not None:
                self._unsent += encode({"type": "close"})
                self._send()
                _end(self._process, (self._input, self._output), GRACE)
                self._failure = self._failure or f"{self._title} has been closed"

    def fail(self, what: str) -> NoReturn:
        """End the program because of something it did, and raise a ProgramError with that."""
        self._finalizer()
        self._failure = f"{self._title} {what}"
        raise ProgramError(self._failure)

    def _check(self) -> None:
        if self._failure is not None:
            raise ProgramError(self._failure)

    def _greet(self, num_worlds: int) -> None:
        limit = self._settings.max_message_bytes
        self._unsent += encode(
            {"type": "hello", "protocol": PROTOCOL, "num_envs": num_worlds, "max_message_bytes": limit}
        )
        offer = self._receive(time.monotonic() + self._settings.start_seconds)
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
        """Return the next message that comes before the deadline, on the clock of `time.monotonic` in seconds."""
        try:
            while (message := self._messages.next()) is None:
                self._send()
                selector = self._reads_and_writes if self._unsent else self._reads
                ready = selector.select(max(0.0, deadline - time.monotonic()))
                if not ready and time.monotonic() >= deadline:
                    name = "answer_seconds" if self._asked else "start_seconds"
                    self.fail(f"has not answered {self._requests()} within {name}={getattr(self._settings, name):g}")
                if any(event & _IN for _, event in ready):
                    try:
                        data = self._output.read(_CHUNK)
                    except OSError:  # connection reset
                        data = b""
                    if data == b"":
                        self.fail(f"is gone while {self._requests()} was not answered: it {self._ending()}")
                    self._messages.feed(data or b"")
        except ProtocolError as error:
            self.fail(f"sent {error}")
        if message["type"] == "error":
            of = f" of world {message['env']}" if "env" in message else ""
            self.fail(f"reported an error{of}: {message.get('message')}")
        return message

    def _requests(self) -> str:
        """Name the first requests that are under way, such as "'act' of world 0, 'act' of world 3"."""
        under_way = [f"{kind!r} of world {world}" for world, kind in sorted(self._asked.items())]
        return ", ".join(under_way[:5]) + ", ..." * (len(under_way) > 5) or "the greeting"

    def _send(self) -> None:
        """Send as much of all requests as the program takes at once."""
        if self._unsent:
            try:
                del self._unsent[: self._input.write(self._unsent) or 0]
            except OSError:  # the program does not read any more, but may have sent something before
                self._unsent.clear()

    def _ending(self) -> str:
        """Wait a second for the program to end, and say how it did."""
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                code = self._process.wait(GRACE / 2)
                return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return "closed the connection"


def _start(settings: ProgramWorlds) -> subprocess.Popen[bytes]:
    """Start the program; what it writes to standard error is seen where the trainer's is."""
    command = settings.command
    assert command is not None
    if sys.platform == "win32":
        raise ProgramError("command= needs Linux or macOS; with listen=host:port, a program that is running connects")
    try:
        # In a session of its own: Ctrl-C reaches the trainer alone, which ends the program when it is done.
        return subprocess.Popen(
            command, bufsize=0, start_new_session=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
    except (OSError, ValueError) as error:
        raise ProgramError(
            f"{settings} cannot be started: {error}; {command[0]!r} must be a program on the PATH, or the path of one"
        ) from None


def _await_connection(settings: ProgramWorlds, num_worlds: int) -> Any:
    """Return the stream of the first connection, which does not block."""
    host, port = settings.address()
    try:
        listener = socket.create_server((host, port), backlog=1)
    except OSError as error:
        raise ProgramError(f"listen={settings.listen} is not possible: {error.strerror or error}") from None
    worlds = f"{num_worlds} world{'s' * (num_worlds > 1)}, with a connection of their own"
    print(f"waiting for a program to connect to {settings.listen} for {worlds}", file=sys.stderr, flush=True)
    with listener:
        listener.settimeout(settings.start_seconds)
        try:
            connection = listener.accept()[0]
        except TimeoutError:
            seconds = settings.start_seconds
            raise ProgramError(f"{settings} has not connected within start_seconds={seconds:g}") from None
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setblocking(False)
        return connection.makefile("rwb", buffering=0)  # keeps it open


def _end(process: subprocess.Popen[bytes] | None, streams: Sequence[Any], grace: float) -> None:
    """Hang up, and kill the process, with those that it has started, unless it ends within `grace` seconds."""
    for stream in streams:
        stream.close()
    if process is not None:
        with suppress(subprocess.TimeoutExpired):
            process.wait(grace)
        if process.poll() is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


class RemoteEnvironment(Environment):
    """One world of a program. Raises a `ProgramError` (a `ValueError`) that names the program if it fails.

    Args:
        program: the program. Closing one of its environments ends it.
        world: the world's number there.
    """

    def __init__(self, program: Program, world: int) -> None:
        self._program, self._world = program, world
        self.display_name = program.name  # in messages of pools
        self._parameters: dict[str, Any] = {}
        self._is_asked = False  # whether `begin` has sent the request that `reset` or `act` waits for

    def obs_space(self) -> ObsSpace:
        return self._program.obs_space

    def action_space(self) -> Mapping[str, ActionSpace]:
        return self._program.action_space

    def configure(self, info: Mapping[str, Any]) -> None:
        """Set parameters of the coming episodes.

        Raises:
            ValueError: the program does not know a parameter.
        """
        for name in info:
            if name not in self._program.parameters:
                raise ValueError(
                    f"{self._program.name} takes no parameter {name!r}; {nearest(name, self._program.parameters)}"
                )
        self._parameters = {**self._parameters, **info}

    def begin(self, actions: Mapping[str, Action] | None) -> None:
        """Ask the world for a step, or with None for an episode with a seed drawn from `rng`."""
        request: Message
        if actions is None:
            info = {"info": self._parameters} if self._parameters else {}
            request = {"type": "reset", "seed": int(self.rng.integers(SEEDS)), **info}
        else:
            request = {"type": "act", "actions": actions_to_json(actions)}
        self._program.ask(self._world, request)
        self._is_asked = True

    def reset(self) -> Observation:
        return self._answer(None)

    def act(self, actions: Mapping[str, Action]) -> Observation:
        return self._answer(actions)

    def _answer(self, actions: Mapping[str, Action] | None) -> Observation:
        """Wait for the observation of a step or, with None, of an episode."""
        if not self._is_asked:
            self.begin(actions)
        self._is_asked = False
        answer = self._program.answer(self._world)
        try:
            return observation_from_json(answer, self._program.action_space)
        except ProtocolError as error:
            self._program.fail(f"sent an invalid observation of world {self._world}: {error}")

    def can_save(self) -> bool:  # type: ignore[override]  # depends on the program, and not on the class
        return self._program.can_save

    def state(self) -> dict[str, Any]:
        """Return the program's state of this world, and the parameters of coming episodes."""
        if not self._program.can_save:
            return super().state()
        self._program.ask(self._world, {"type": "save"})
        return {"world": self._program.answer(self._world).get("state"), "parameters": self._parameters}

    def load_state(self, state: Mapping[str, Any]) -> None:
        if not self._program.can_save:
            super().load_state(state)
        self._parameters = dict(state["parameters"])
        self._program.ask(self._world, {"type": "load", "state": state["world"]})
        self._program.answer(self._world)

    def close(self) -> None:
        self._program.close()
