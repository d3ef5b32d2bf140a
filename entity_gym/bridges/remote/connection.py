"""Connections to programs that offer worlds: processes, sockets and pipes. Nothing here knows the meaning of messages."""

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
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from io import RawIOBase
from typing import Any, Literal, get_args

from entity_gym.bridges.remote.messages import MAX_MESSAGE_BYTES, Message, MessageReader, encode

Transport = Literal["stdio", "tcp"]

#: The environment variable with the address that a program connects to; without it, it uses standard input and output.
CONNECT_VARIABLE = "ENTITY_GYM_CONNECT"
_GRACE = 2.0  # seconds that a program has to end after "close" or the end of its input
_LAST_WORDS = 2000  # bytes of its standard error that are kept for messages
_LOOK = 0.05  # seconds between looks at whether a program that should connect is alive
_CHUNK = 2**16
_IN, _OUT = selectors.EVENT_READ, selectors.EVENT_WRITE
_HAS_POLL = hasattr(selectors, "PollSelector")  # Windows can wait for sockets only
_Selector: type[selectors.BaseSelector] = getattr(selectors, "PollSelector", selectors.SelectSelector)


class ProgramError(ValueError):
    """A program that offers worlds failed: it did not start, reported an error, ended, fell silent, or sent an invalid message.

    The message names the program and the request.
    """


class HungUp(Exception):  # noqa: N818 - reads as a sentence
    """The program has closed the connection."""


class NoAnswer(Exception):  # noqa: N818 - reads as a sentence
    """The program did not answer in time."""


@dataclass(frozen=True, kw_only=True)
class ProgramSettings:
    """How to reach a program that offers worlds: start it (`command`), or wait until it connects (`listen`).

    Attributes:
        name: the program's name in messages.
        command: the program and its arguments, such as ("node", "world.mjs"). It is found as a shell finds it, and runs in
            the current folder.
        transport: how a started program exchanges messages: by standard input and output, or over TCP with the address in
            its environment variable `ENTITY_GYM_CONNECT`.
        listen: "host:port" where a program that is already running connects.
        start_seconds: time limit for starting or connecting, and for the greeting. Above 0.
        answer_seconds: time limit for one answer. Above 0.
        max_message_bytes: the longest message that is read. At least 1,024.

    Raises:
        ValueError: a value is invalid.
    """

    name: str = "program"
    command: Sequence[str] | None = None
    transport: Transport = "stdio"
    listen: str | None = None
    start_seconds: float = 30.0
    answer_seconds: float = 30.0
    max_message_bytes: int = MAX_MESSAGE_BYTES

    def __post_init__(self) -> None:
        if (self.command is None) == (self.listen is None):
            raise ValueError(
                f"command is {self.command!r} and listen is {self.listen!r}; give one: command=[node,world.mjs] starts a "
                "program, and listen=127.0.0.1:5577 waits for one to connect"
            )
        if self.command is not None:
            object.__setattr__(self, "command", _checked_command(self.command))
        else:
            self.address()
        if self.transport not in get_args(Transport):
            raise ValueError(f"transport is {self.transport!r}; allowed: {', '.join(map(repr, get_args(Transport)))}")
        for name in ("start_seconds", "answer_seconds"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
                raise ValueError(f"{name} is {value!r}; it must be a number of seconds above 0")
        limit = self.max_message_bytes
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1024:
            raise ValueError(f"max_message_bytes is {limit!r}; it must be a whole number of at least 1024")

    def address(self) -> tuple[str, int]:
        """Return the host and port to listen on; of a program that is started, any free port of this machine."""
        if self.listen is None:
            return "127.0.0.1", 0
        host, _, port = self.listen.rpartition(":") if isinstance(self.listen, str) else ("", "", "")
        if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 2**16:
            raise ValueError(
                f"listen is {self.listen!r}; it must be host:port, a port from 1 to 65535, such as 127.0.0.1:5577"
            )
        return host, int(port)

    def __str__(self) -> str:
        if self.command is not None:
            return f"{self.name} `{shlex.join(self.command)}`"
        return f"{self.name} at {self.listen}"


def _checked_command(command: Sequence[str]) -> tuple[str, ...]:
    if isinstance(command, str):
        words = ",".join(command.split())
        raise ValueError(f"command is the text {command!r}; give a list of words, as in 'command=[{words}]'")
    given: list[object] = list(command) if isinstance(command, Sequence) else []
    # The command line reads a word such as 8 in [node,world.mjs,8] as a number.
    texts = [str(word) if isinstance(word, int | float) and not isinstance(word, bool) else word for word in given]
    checked = tuple(word for word in texts if isinstance(word, str) and word and "\0" not in word)
    if not checked or len(checked) != len(texts):
        raise ValueError(f"command is {command!r}; it must be a list of texts, the program first")
    return checked


class Connection:
    """A connection to a program, which is started or waited for.

    Messages leave with the next `receive`, many at once. While it writes, a connection also reads, so that two
    sides that write at the same time do not block each other.

    Args:
        settings: how to reach the program.
        num_worlds: number of worlds it will be asked for, for messages.

    Raises:
        ProgramError: the program does not start, or does not connect in time.
    """

    def __init__(self, settings: ProgramSettings, num_worlds: int) -> None:
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        self._streams: list[RawIOBase] = []
        self._errors: threading.Thread | None = None  # shows what a started program writes to standard error
        self._reader = MessageReader(settings.max_message_bytes)
        self._unsent = bytearray()
        self._last_words = b""
        self._is_open = True
        try:
            if settings.command is not None and settings.transport == "stdio":
                process = self._start(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                self._read_from, self._write_to = _watchable(process.stdout), _watchable(process.stdin)
            else:
                with self._await_connection(num_worlds) as connection:
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    connection.setblocking(False)
                    self._read_from = self._write_to = connection.makefile("rwb", buffering=0)  # keeps it open
            self._streams = [self._read_from, self._write_to]
            self._reads, self._reads_and_writes = _Selector(), _Selector()  # wait for what the program sends, or takes
            self._reads.register(self._read_from, _IN)
            if self._read_from is self._write_to:
                self._reads_and_writes.register(self._read_from, _IN | _OUT)
            else:
                self._reads_and_writes.register(self._read_from, _IN)
                self._reads_and_writes.register(self._write_to, _OUT)
        except BaseException:
            self.close(0)
            raise

    def send(self, message: Message) -> None:
        """Append a message to those that leave with the next `receive`."""
        self._unsent += encode(message)

    def flush(self) -> None:
        """Send as much of all messages as the program takes at once."""
        if self._unsent:
            try:
                del self._unsent[: self._write_to.write(self._unsent) or 0]
            except OSError:  # the program does not read any more, but may have sent something before
                self._unsent.clear()

    def receive(self, deadline: float) -> Message:
        """Wait for the next message.

        Args:
            deadline: on the clock of `time.monotonic`, in seconds.

        Raises:
            HungUp: the program has closed the connection, and all its messages have been received.
            NoAnswer: nothing came before the deadline.
            ProtocolError: the bytes that came are no message.
        """
        while (message := self._reader.next()) is None:
            if not self._is_open:
                raise HungUp
            self._transfer(deadline)
        return message

    def ending(self) -> str:
        """Say how the program ended. Waits a second for it to end, and reads its standard error meanwhile."""
        if self._process is None:
            return "it closed the connection"
        if self._errors is not None:
            self._errors.join(_GRACE / 2)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_GRACE / 2)
        return _how_it_ended(self._process.poll())

    def last_words(self) -> str:
        """Return the end of the program's standard error, for messages."""
        text = self._last_words.decode(errors="replace").strip()
        return f"; it last wrote to standard error: {text}" if text else ""

    def close(self, grace: float = _GRACE) -> None:
        """Hang up, and kill the process unless it ends within `grace` seconds. May be called twice."""
        for stream in self._streams:
            stream.close()
        if self._process is None:
            return
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(grace)
        if self._process.poll() is None:
            with suppress(ProcessLookupError, PermissionError):
                if hasattr(os, "killpg"):
                    os.killpg(self._process.pid, signal.SIGKILL)  # the processes that it has started, too
                else:
                    self._process.kill()
            self._process.wait()
        if self._errors is not None:
            self._errors.join(_GRACE / 2)  # longer if a process that it has started lives on

    def _start(self, **streams: Any) -> subprocess.Popen[bytes]:
        command = self._settings.command
        assert command is not None
        try:
            # In a session or group of its own: Ctrl-C reaches the trainer alone, which ends the program when it is done.
            flags = getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)
            self._process = subprocess.Popen(
                list(command), bufsize=0, start_new_session=True, creationflags=flags, **streams
            )
        except OSError as error:
            raise ProgramError(
                f"{self._settings} cannot be started: {error.strerror}: {command[0]!r}; it must be a program on the PATH, or "
                "the path of one"
            ) from None
        shown = self._process.stderr or self._process.stdout
        self._errors = threading.Thread(target=self._show_errors, args=[shown], daemon=True)
        self._errors.start()
        return self._process

    def _await_connection(self, num_worlds: int) -> socket.socket:
        deadline = time.monotonic() + self._settings.start_seconds
        host, port = self._settings.address()
        try:
            listener = socket.create_server((host, port), backlog=1)
        except OSError as error:
            raise ProgramError(f"listen={host}:{port} is not possible: {error.strerror or error}") from None
        with closing(listener):
            if self._settings.command is not None:
                address = f"{host}:{listener.getsockname()[1]}"
                # Messages do not use its standard output, so what it prints there is shown like its standard error.
                self._start(
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, CONNECT_VARIABLE: address},
                )
            else:
                worlds = "1 world" if num_worlds == 1 else f"{num_worlds} worlds"
                what = f"waiting for a program to connect to {host}:{port} for {worlds}"
                print(f"{what}, with a connection of their own", file=sys.stderr, flush=True)
            return self._accept(listener, deadline)

    def _accept(self, listener: socket.socket, deadline: float) -> socket.socket:
        """Return the first connection, or notice that the program has ended."""
        listener.settimeout(_LOOK)
        while True:
            with suppress(TimeoutError):
                return listener.accept()[0]
            if self._process is not None and self._process.poll() is not None:
                raise ProgramError(f"{self._settings} did not connect: {self.ending()}{self.last_words()}")
            if time.monotonic() > deadline:
                seconds = self._settings.start_seconds
                raise ProgramError(f"{self._settings} has not connected within start_seconds={seconds:g}")

    def _transfer(self, deadline: float) -> None:
        """Send what can be sent, and wait until bytes can be received, or more be sent."""
        self.flush()
        selector = self._reads_and_writes if self._unsent else self._reads
        ready = selector.select(max(0.0, deadline - time.monotonic()))
        if not ready and time.monotonic() >= deadline:
            raise NoAnswer
        if any(event & _IN for _, event in ready):
            try:
                data = self._read_from.read(_CHUNK)
            except OSError:  # connection reset
                data = b""
            if data is not None:
                self._is_open = bool(data)
                self._reader.feed(data)

    def _show_errors(self, stream: RawIOBase) -> None:
        """Show the program's standard error until it is closed, and keep the end of it for messages."""
        with stream:
            while data := stream.read(_CHUNK):
                self._last_words = (self._last_words + data)[-_LAST_WORDS:]
                sys.stderr.write(data.decode(errors="replace"))
                sys.stderr.flush()


def _watchable(pipe: Any) -> RawIOBase:
    """The pipe, which no longer blocks. Where only sockets can be waited for (Windows), a socket that a thread connects to it."""
    assert isinstance(pipe, RawIOBase)
    if _HAS_POLL:
        os.set_blocking(pipe.fileno(), False)
        return pipe
    here, there = socket.socketpair()

    def copy(reads: bool) -> None:
        with suppress(OSError), there, pipe:
            while reads and (data := pipe.read(_CHUNK)):
                there.sendall(data)
            while not reads and (data := there.recv(_CHUNK)):
                while data:
                    data = data[pipe.write(data) :]

    threading.Thread(target=copy, args=[pipe.readable()], daemon=True).start()
    with here:
        here.setblocking(False)
        return here.makefile("rwb", buffering=0)


def _how_it_ended(code: int | None) -> str:
    if code is None:
        return "it closed its output"
    if code < 0:
        return f"it was killed by signal {-code} ({signal.Signals(-code).name})"
    return f"it ended with exit code {code}"
