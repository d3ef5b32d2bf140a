"""Progress in the terminal: one live line, or plain lines if the output is not a terminal."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any, Protocol, TextIO

from tqdm import tqdm

from enn_ppo.tracking.logger import Row

__all__ = ["Progress", "announce"]

# key of the row -> its name and format on the line
_SHOWN = {
    "episodic_reward": ("reward", ".3f"),
    "episode_length": ("length", ".1f"),
    "entropy": ("entropy", ".3f"),
    "approx_kl": ("kl", ".4f"),
}
# shown if a row has them
_SHOWN_IF_KNOWN = {
    "self_play/win_rate": ("won", ".2f"),
    "self_play/rating": ("rating", ".1f"),
    "teacher_kl": ("teacher_kl", ".4f"),
}


def announce(text: str) -> None:
    """Print what a starting run is doing. Only the first rank of torchrun prints."""
    if os.environ.get("RANK", "0") == "0":
        print(text, flush=True)


class Progress:
    """Shows the progress of the training.

    On a terminal as one live line on standard error. Otherwise as plain lines on standard output: the first, the last, and
    between them at most one every `plain_interval` seconds.
    """

    def __init__(
        self,
        total_steps: int,
        initial_step: int = 0,
        *,
        max_seconds: float | None = None,
        stream: TextIO | None = None,
        plain_interval: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
        prefix: str = "",
    ) -> None:
        """Start the clock.

        Args:
            total_steps: environment steps when the training is done.
            initial_step: steps trained before the run was resumed; the rate does not count them.
            max_seconds: limit of training time; None: no limit.
            stream: to write to; None: as described above.
            plain_interval: seconds between plain lines.
            clock: returns seconds.
            prefix: of every line, such as the name of a policy.
        """
        self._total = total_steps
        self._initial, self._max_seconds = initial_step, max_seconds
        self._clock = clock
        self._started = clock()
        live = stream.isatty() if stream else sys.stderr.isatty() and sys.stdout.isatty()
        if live:
            self._display: _Display = _LiveLine(total_steps, initial_step, stream or sys.stderr, prefix)
        else:
            self._display = _PlainLines(stream or sys.stdout, plain_interval, clock, prefix)

    def update(self, row: Row) -> None:
        """Show a row of metrics; a value that is None or missing shows as "-"."""
        step = int(row["step"] or 0)
        seconds = self._clock() - self._started
        rate = (step - self._initial) / seconds if seconds > 0 and step > self._initial else None
        left = max(0, self._total - step) / rate if rate else None
        if self._max_seconds is not None and row.get("seconds") is not None:
            in_time = max(0.0, self._max_seconds - float(row["seconds"] or 0.0))
            left = in_time if left is None else min(left, in_time)
        values = [f"{name} {_number(row.get(key), form)}" for key, (name, form) in _SHOWN.items()]
        values += [
            f"{name} {_number(row[key], form)}"
            for key, (name, form) in _SHOWN_IF_KNOWN.items()
            if row.get(key) is not None
        ]
        timing = [f"{_number(rate, ',.0f')} steps/s", f"{'-' if left is None else tqdm.format_interval(left)} left"]
        self._display.show(step, max(self._total, step), "  ".join(timing + values))

    def write(self, text: str) -> None:
        """Write a line of text above the live line."""
        self._display.write(text)

    def close(self) -> None:
        """Leave the last state on the screen. Safe to call twice."""
        self._display.close()


class _Display(Protocol):
    def show(self, step: int, total: int, text: str) -> None: ...
    def write(self, text: str) -> None: ...
    def close(self) -> None: ...


class _Bar(tqdm):  # type: ignore[misc, type-arg, unused-ignore]
    monitor_interval = 0  # no background thread: it would be alive when worker processes are forked


class _LiveLine:
    def __init__(self, total: int, initial: int, stream: TextIO, prefix: str) -> None:
        self._stream = stream
        layout = prefix + "{percentage:3.0f}%|{bar:12}| {n:,}/{total:,}{desc}"
        # some pseudo-terminals report 0 columns, with which tqdm would print nothing
        width = {"dynamic_ncols": True} if _columns(stream) > 0 else {"ncols": 120, "nrows": 24}
        self._bar: tqdm[Any] = _Bar(total=total, initial=initial, file=stream, bar_format=layout, miniters=1, **width)

    def show(self, step: int, total: int, text: str) -> None:
        self._bar.total = total
        self._bar.set_description_str(f"  {text}", refresh=False)
        self._bar.update(step - self._bar.n)  # draws at most ten times a second

    def write(self, text: str) -> None:
        self._bar.write(text, file=self._stream)

    def close(self) -> None:
        self._bar.close()


class _PlainLines:
    def __init__(self, stream: TextIO, interval: float, clock: Callable[[], float], prefix: str) -> None:
        self._stream = stream
        self._prefix = prefix
        self._interval = interval
        self._clock = clock
        self._due = -float("inf")
        self._held_back: str | None = None

    def show(self, step: int, total: int, text: str) -> None:
        line = f"{self._prefix}{step:,}/{total:,} steps ({100 * step / total if total else 100:.0f}%)  {text}"
        if self._clock() < self._due:
            self._held_back = line
            return
        self._due = self._clock() + self._interval
        self._held_back = None
        self.write(line)

    def write(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    def close(self) -> None:
        if self._held_back is not None:
            self.write(self._held_back)
            self._held_back = None


def _columns(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):  # not a real terminal
        return 0


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
