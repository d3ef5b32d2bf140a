"""A time limit for every call into somebody else's code."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

ALIVE_EVERY = 1.0  # seconds


class HangError(BaseException):
    """A call took longer than it may. Not an `Exception`: environments catch those."""


class Watch:
    """Interrupts calls that take too long, where that is possible: in the main thread of Linux and macOS.

    Python code is interrupted wherever it is, so that the traceback shows where. Compiled code, and C code that does not come
    back, cannot be interrupted from inside: for these the command line has a second process.

    Args:
        seconds: that a call may take.
        alive: called about once a second while calls come back, with the seconds that the next one may take.
    """

    def __init__(self, seconds: float, alive: Callable[[float], None] | None = None) -> None:
        self.seconds = seconds
        self._alive = alive
        self._said = -math.inf
        self._usable = hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Handle alarms; whoever handled them before does so again afterwards."""
        if not self._usable:
            yield
            return
        before = signal.signal(signal.SIGALRM, _interrupt)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    def begin(self) -> None:
        """Something new begins: the next call says so, however short a time ago the last one did."""
        self._said = -math.inf

    @contextmanager
    def call(self, times: float = 1.0) -> Iterator[None]:
        """Around one call; with `times` it may take that many times as long as others.

        Raises:
            HangError: from within the call, again every second until it gives in.
        """
        seconds = self.seconds * times
        now = time.monotonic()
        if self._alive is not None and (now - self._said >= ALIVE_EVERY or times != 1.0):
            self._alive(seconds)
            self._said = now if times == 1.0 else -math.inf
        if not self._usable:
            yield
            return
        signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise HangError
