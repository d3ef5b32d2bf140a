"""Ctrl-C finishes what it can."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType


@contextmanager
def finish_on_interrupt(say: Callable[[str], None]) -> Iterator[Callable[[], bool]]:
    """Within this context the first Ctrl-C only raises a flag; the second interrupts at once, as ever.

    Args:
        say: prints a line for the user.

    Yields:
        A function that tells whether Ctrl-C was pressed.
    """
    pressed = threading.Event()
    if threading.current_thread() is not threading.main_thread():  # signals are the main thread's alone
        yield pressed.is_set
        return
    previous = signal.getsignal(signal.SIGINT)

    def on_interrupt(number: int, frame: FrameType | None) -> None:
        pressed.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with suppress(RuntimeError):  # it came in the middle of another print, which cannot be entered twice
            say("Ctrl-C: finishing this update and writing a checkpoint; press again to abort at once")

    signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield pressed.is_set
    finally:
        signal.signal(signal.SIGINT, previous)
