"""Messages over two file descriptors, so that neither side can be stuck because the other one is writing, too."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable

from entity_gym.bridges.remote.messages import MAX_MESSAGE_BYTES, Message, MessageReader, encode

_CHUNK = 2**16


class HungUp(Exception):  # noqa: N818 - says what happened
    """The other side is gone."""


class NoAnswer(Exception):  # noqa: N818 - says what happened
    """The time is over."""


class Channel:
    """Sends and receives messages. What is sent leaves with the next `receive` or `flush`: many messages in one go.

    Args:
        reads: descriptor from which messages come; made non-blocking.
        writes: descriptor to which they go; may be the same.
        limit: the longest message that is read, in bytes.
        errors: descriptor of what the other side reports besides, such as its standard error; None: there is none.
        report: is told what came there.
    """

    def __init__(
        self,
        reads: int,
        writes: int,
        limit: int = MAX_MESSAGE_BYTES,
        errors: int | None = None,
        report: Callable[[bytes], None] = lambda data: None,
    ) -> None:
        self._reads, self._writes, self._errors, self._report = reads, writes, errors, report
        self._reader = MessageReader(limit)
        self._unsent = bytearray()
        self._is_open = True
        for descriptor in {reads, writes, errors} - {None}:
            assert descriptor is not None
            os.set_blocking(descriptor, False)

    def send(self, message: Message) -> None:
        """Send a message, soon."""
        self._unsent += encode(message)

    def flush(self, deadline: float) -> None:
        """Send what is to be sent; `deadline` as in `receive`. What comes meanwhile waits to be received.

        Raises:
            HungUp: the other side does not read any more.
            NoAnswer: it has not read all of it in time.
        """
        while self._unsent:
            self._move(deadline)
            if not self._is_open:
                raise HungUp

    def receive(self, deadline: float) -> Message:
        """The next message.

        Args:
            deadline: on the clock of `time.monotonic`, in seconds.

        Raises:
            HungUp: the other side has hung up, and all that it sent has been received.
            NoAnswer: nothing came in time.
            ProtocolError: what came is no message.
        """
        while True:
            message = self._reader.next()
            if message is not None:
                return message
            if not self._is_open:
                raise HungUp
            self._move(deadline)

    def drain_errors(self, deadline: float) -> None:
        """Read what the other side, which is about to end, still reports, until it closes that or the time is over."""
        while self._errors is not None and time.monotonic() < deadline:
            poll = select.poll()
            poll.register(self._errors, select.POLLIN)
            if poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                self._read_errors()

    def _move(self, deadline: float) -> None:
        """Wait until bytes can be moved, and move them."""
        poll = select.poll()
        poll.register(self._reads, select.POLLIN)
        if self._unsent:
            poll.register(self._writes, select.POLLOUT | (select.POLLIN if self._writes == self._reads else 0))
        if self._errors is not None:
            poll.register(self._errors, select.POLLIN)
        ready = dict(poll.poll(max(0.0, deadline - time.monotonic()) * 1000))
        if not ready and time.monotonic() >= deadline:
            raise NoAnswer
        if self._errors in ready:
            self._read_errors()
        if self._unsent and ready.get(self._writes, 0) & ~select.POLLIN:
            self._write()
        if ready.get(self._reads, 0) & ~select.POLLOUT:
            self._read()

    def _write(self) -> None:
        try:
            sent = os.write(self._writes, self._unsent)
            del self._unsent[:sent]
        except BlockingIOError:
            pass
        except OSError:  # it does not read any more; what it has sent before is still to be received
            self._unsent.clear()

    def _read(self) -> None:
        try:
            data = os.read(self._reads, _CHUNK)
        except BlockingIOError:
            return
        except OSError:  # connection reset
            data = b""
        self._is_open = bool(data)
        self._reader.feed(data)

    def _read_errors(self) -> None:
        assert self._errors is not None
        try:
            data = os.read(self._errors, _CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._report(data)
        else:
            self._errors = None
