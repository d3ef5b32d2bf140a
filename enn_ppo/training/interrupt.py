"""Handling of Ctrl-C and SIGTERM: the current update is finished and a checkpoint is written, once there is something to save."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

#: "interrupted" or "terminated", as `finish_on_interrupt` returns it -> exit code of the process.
EXIT_CODES = {"interrupted": 128 + signal.SIGINT, "terminated": 128 + signal.SIGTERM}
_SIGNALS = {signal.SIGINT: ("Ctrl-C", "interrupted"), signal.SIGTERM: ("SIGTERM", "terminated")}


@contextmanager
def finish_on_interrupt(say: Callable[[str], None]) -> Iterator[Callable[[], str | None]]:
    """Within this context the first Ctrl-C or SIGTERM only sets a flag and is told; the second ends the process at once.

    Yields:
        A function that returns "interrupted" after Ctrl-C, "terminated" after SIGTERM, and None before a signal.
    """
    came: list[str] = []
    if threading.current_thread() is not threading.main_thread():  # signals are the main thread's alone
        yield lambda: None
        return
    previous = {number: signal.getsignal(number) for number in _SIGNALS}

    def on_signal(number: int, frame: FrameType | None) -> None:
        name, state = _SIGNALS[signal.Signals(number)]
        came.append(state)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        with suppress(RuntimeError):  # the signal interrupted another print, which is not reentrant
            again = "press" if number == signal.SIGINT else "send it"
            say(f"{name}: finishing this update and writing a checkpoint; {again} again to abort at once")

    for number in _SIGNALS:
        signal.signal(number, on_signal)
    try:
        yield lambda: came[0] if came else None
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
