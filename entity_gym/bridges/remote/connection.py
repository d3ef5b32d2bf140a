"""A program is started or waited for, and ended. Nothing here knows what is said."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from contextlib import closing, suppress
from typing import IO, Any

from entity_gym.bridges.remote.channel import Channel
from entity_gym.bridges.remote.settings import ProgramSettings

#: The environment variable that says where a program connects to; without it, it talks by standard input and output.
CONNECT_VARIABLE = "ENTITY_GYM_CONNECT"
_GRACE = 2.0  # seconds that a program has to end once it has been told to, or its input is closed
_LAST_WORDS = 2000  # bytes of its standard error that are kept
_LOOK = 50  # milliseconds between looks at whether a program that should connect is alive


class CannotReach(ValueError):  # noqa: N818 - says what happened
    """A program could not be started, or has not connected."""


class Connection:
    """A way to a program, and the process, where it was started here.

    Args:
        settings: how it is reached.
        num_worlds: how many it will be asked for, for messages.

    Attributes:
        channel: for messages.

    Raises:
        CannotReach: it does not start, or does not connect in time.
    """

    channel: Channel

    def __init__(self, settings: ProgramSettings, num_worlds: int) -> None:
        self._settings, self._num_worlds = settings, num_worlds
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None  # what the program reports: its standard error
        self._socket: socket.socket | None = None
        self._last_words = b""
        try:
            if settings.command is not None and settings.transport == "stdio":
                self._start_with_pipes()
            else:
                self._wait_for_connection(time.monotonic() + settings.start_seconds)
        except BaseException:
            self.close(0)
            raise

    def ending(self) -> str:
        """How the program ended, and what it wrote to standard error last, for messages; waits for it a little."""
        if self._process is None:
            return "it closed the connection"
        self.channel.drain_errors(time.monotonic() + _GRACE / 2)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_GRACE / 2)
        return f"{_how_it_ended(self._process.poll())}{self.last_words()}"

    def last_words(self) -> str:
        """The end of what it wrote to standard error, for messages."""
        text = self._last_words.decode(errors="replace").strip()
        return f"; it last wrote to standard error: {text}" if text else ""

    def close(self, grace: float = _GRACE) -> None:
        """Hang up, and end the process if it does not end by itself within `grace` seconds. May be called twice."""
        if self._socket is not None:
            self._socket.close()
        if self._process is None:
            return
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None and pipe is not self._errors:
                pipe.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(grace)
        if self._process.poll() is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)  # with whatever it has started
            self._process.wait()
        if self._errors is not None:
            self._errors.close()

    def _start_with_pipes(self) -> None:
        process = self._start(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert process.stdin is not None and process.stdout is not None
        self._errors = process.stderr
        self.channel = self._channel(process.stdout.fileno(), process.stdin.fileno())

    def _wait_for_connection(self, deadline: float) -> None:
        host, port = self._settings.address or ("127.0.0.1", 0)
        with closing(_listen(host, port)) as listener:
            if self._settings.command is not None:
                address = f"127.0.0.1:{listener.getsockname()[1]}"
                # There are no messages on its standard output, so what it prints goes where its errors go.
                process = self._start(
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, CONNECT_VARIABLE: address},
                )
                self._errors = process.stdout
            else:
                worlds = "1 world" if self._num_worlds == 1 else f"{self._num_worlds} worlds"
                what = f"waiting for a program to connect to {host}:{port} for {worlds}"
                print(f"{what}, with a connection of their own", file=sys.stderr, flush=True)
            self._socket = self._accept(listener, deadline)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.channel = self._channel(self._socket.fileno(), self._socket.fileno())

    def _start(self, **how: Any) -> subprocess.Popen[bytes]:
        command = self._settings.command
        assert command is not None
        try:
            # In a session of its own: Ctrl-C is for the trainer, which then ends the program when it has finished.
            self._process = subprocess.Popen(list(command), bufsize=0, start_new_session=True, **how)
        except OSError as error:
            raise CannotReach(
                f"{self._settings} cannot be started: {error.strerror}: {command[0]!r}; it must be a program on the PATH, or "
                "the path of one"
            ) from None
        return self._process

    def _accept(self, listener: socket.socket, deadline: float) -> socket.socket:
        """The first connection; meanwhile shows what the program reports, and looks whether it is still alive."""
        poll = select.poll()
        poll.register(listener.fileno(), select.POLLIN)
        if self._errors is not None:
            poll.register(self._errors.fileno(), select.POLLIN)
        while listener.fileno() not in (ready := dict(poll.poll(_LOOK))):
            if self._errors is not None and ready.get(self._errors.fileno(), 0) & select.POLLIN:
                self._report(os.read(self._errors.fileno(), 2**16))
            elif self._process is not None and self._process.poll() is not None:
                ended = _how_it_ended(self._process.returncode)
                raise CannotReach(f"{self._settings} did not connect: {ended}{self.last_words()}")
            if time.monotonic() > deadline:
                seconds = self._settings.start_seconds
                raise CannotReach(f"{self._settings} has not connected within start_seconds={seconds:g}")
        return listener.accept()[0]

    def _channel(self, reads: int, writes: int) -> Channel:
        errors = None if self._errors is None else self._errors.fileno()
        return Channel(reads, writes, self._settings.max_message_bytes, errors, self._report)

    def _report(self, data: bytes) -> None:
        """Show what the program writes to standard error, and keep the end of it for messages."""
        self._last_words = (self._last_words + data)[-_LAST_WORDS:]
        sys.stderr.write(data.decode(errors="replace"))
        sys.stderr.flush()


def _listen(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), backlog=1)
    except OSError as error:
        raise CannotReach(f"listen={host}:{port} is not possible: {error.strerror or error}") from None


def _how_it_ended(code: int | None) -> str:
    if code is None:
        return "it closed its output"
    if code < 0:
        return f"it was killed by signal {-code} ({signal.Signals(-code).name})"
    return f"it ended with exit code {code}"
