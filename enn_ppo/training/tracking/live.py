"""Lines at the bottom of a terminal that are redrawn in place, while all other output appears above them."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, TextIO, TypeAlias

__all__ = ["Block", "LiveLines", "live_terminal"]

#: (columns, rows) -> at most `rows` lines of at most `columns` characters, with escape sequences for colours alone.
Block: TypeAlias = Callable[[int, int], list[str]]

_BEGIN, _END = "\x1b[?2026h", "\x1b[?2026l"  # terminals that know these show all that is between at once
_ERASE_LINE, _ERASE_BELOW = "\x1b[K", "\x1b[J"
_COLOURS = re.compile(r"\x1b\[[\d;]*m")
_CHARACTERS = "█▒░▁…━"  # drawn by blocks


def live_terminal() -> TextIO | None:
    """Return standard error if lines can be redrawn there, otherwise None.

    Standard output and standard error must be terminals, `TERM` must not be `dumb`, and the encoding must have block characters.
    """
    if not (sys.stderr.isatty() and sys.stdout.isatty()) or os.environ.get("TERM") in ("dumb", "unknown"):
        return None
    try:
        _CHARACTERS.encode(sys.stderr.encoding or "ascii")
    except UnicodeEncodeError:
        return None
    return sys.stderr


class LiveLines:
    """Draws blocks of lines, one below the other, at the bottom of a terminal.

    From the first drawing until `close`, text written to `sys.stdout` and `sys.stderr` appears above the blocks. The cursor is
    never hidden, and stands below them, so that a process may be killed at any time without harm to the terminal. Drawing
    happens in the thread that calls; after a change of the terminal's size, in the main thread.

    Args:
        stream: a terminal.
        interval: seconds between two drawings, at least; messages and changes of size do not wait.
        clock: returns seconds.
    """

    def __init__(self, stream: TextIO, *, interval: float = 0.25, clock: Callable[[], float] = time.monotonic) -> None:
        self.stream, self._interval, self._clock = stream, interval, clock
        self._blocks: list[Block] = []
        self._drawn: list[str] = []  # the lines on the screen
        self._messages: deque[str] = deque()  # not printed yet
        self._stale = False  # whether the lines must be drawn anew
        self._due = -float("inf")
        self._lock = threading.Lock()
        self._streams = ExitStack()  # gives back what `_take_streams` has taken
        self._state = "new"  # then "live", then "closed"

    def add(self, block: Block) -> None:
        """Add a block below the others."""
        self._blocks.append(block)

    def refresh(self) -> None:
        """Draw the blocks if `interval` has passed."""
        if self._state == "new":
            self._streams.enter_context(self._take_streams())
            self._state = "live"
        if self._state == "live" and self._clock() >= self._due:
            self._redraw()

    def write(self, text: str) -> None:
        """Print text above the blocks."""
        self._messages.append(text)
        self._draw()

    def close(self) -> None:
        """Draw the last state, which stays on the screen, and give back the standard streams. Safe to call twice."""
        if self._state == "live":
            self._streams.close()
            self._redraw()
            self._drawn = []
        self._state = "closed"

    def _redraw(self) -> None:
        self._stale = True
        self._draw()

    def _draw(self) -> None:
        # A signal handler or another thread may come here during a drawing. It must not wait, since the handler would wait for
        # its own thread: the one that draws looks for more work after it has released the lock.
        while (self._messages or self._stale) and self._lock.acquire(blocking=False):
            try:
                self._draw_once()
            finally:
                self._lock.release()

    def _draw_once(self) -> None:
        columns, rows = _size(self.stream)
        # A line that is wider than the terminal has become is shown in several rows.
        num_rows = sum(max(1, -(-len(_COLOURS.sub("", line)) // columns)) for line in self._drawn)
        messages = list(self._messages)
        lines = self._drawn
        if self._stale:
            self._stale = False
            # The cursor needs a row, and messages should have one.
            rows_each = max(1, (rows - 2) // max(1, len(self._blocks)))
            lines = [line for block in self._blocks for line in block(columns, rows_each)]
            self._due = self._clock() + self._interval
        text = f"\r\x1b[{num_rows}A" if num_rows else ""
        if messages:
            text += _ERASE_BELOW if num_rows else ""
            text += "".join(f"{message}\n" for message in messages)
        text += "".join(f"{line}{_ERASE_LINE}\n" for line in lines)
        if num_rows > len(lines):
            text += _ERASE_BELOW
        self.stream.write(f"{_BEGIN}{text}{_END}" if num_rows or lines else text)
        self.stream.flush()
        self._drawn = lines
        for _ in messages:
            self._messages.popleft()

    @contextmanager
    def _take_streams(self) -> Iterator[None]:
        """Within this context, output to the standard streams appears above the blocks, and changes of size redraw them."""
        above = {name: _Above(self, getattr(sys, name)) for name in ("stdout", "stderr")}
        with ExitStack() as stack:
            if threading.current_thread() is threading.main_thread() and hasattr(signal, "SIGWINCH"):
                stack.callback(signal.signal, signal.SIGWINCH, signal.getsignal(signal.SIGWINCH))
                signal.signal(signal.SIGWINCH, lambda number, frame: self._on_resize())
                signal.siginterrupt(signal.SIGWINCH, False)  # system calls of libraries go on
            for name, proxy in above.items():
                setattr(sys, name, proxy)
            yield
        for name, proxy in above.items():
            if getattr(sys, name) is proxy:  # unless somebody has put another in its place
                setattr(sys, name, proxy.stream)
            proxy.finish()

    def _on_resize(self) -> None:
        with suppress(RuntimeError):  # the signal has interrupted another write to the stream; the next drawing will do
            self._redraw()


class _Above:
    """A standard stream whose whole lines appear above the live lines."""

    def __init__(self, live: LiveLines, stream: TextIO) -> None:
        self.stream, self._live, self._pid = stream, live, os.getpid()
        self._rest = ""  # an unfinished line
        self._lock = threading.RLock()

    def write(self, text: str) -> int:
        if os.getpid() != self._pid:  # a forked child shares the screen, but not the knowledge of what is on it
            return self.stream.write(text)
        with self._lock:
            *lines, self._rest = (self._rest + text).split("\n")
        if lines:
            # A carriage return begins the line again, so that only the text after the last one is seen.
            self._live.write("\n".join(line.rstrip("\r").rpartition("\r")[2] for line in lines))
        return len(text)

    def writelines(self, lines: list[str]) -> None:
        self.write("".join(lines))

    def flush(self) -> None:
        """Do nothing: whole lines are printed already."""

    def finish(self) -> None:
        """Print an unfinished line."""
        if self._rest.strip():
            self.write("\n")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def _size(stream: TextIO) -> tuple[int, int]:
    """Columns and rows; 80 and 24 for what is no real terminal or does not know its size."""
    try:
        columns, rows = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        columns, rows = 0, 0
    return columns or 80, rows or 24
