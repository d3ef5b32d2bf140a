"""Progress output: one live line in a terminal, otherwise plain lines."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

from tqdm import tqdm

from enn_ppo.training.tracking.logger import Row

__all__ = ["Progress", "announce"]

# key of the row -> its name and format on the line
_SHOWN = {
    "episodic_reward": ("reward", ".3f"),
    "episode_length": ("length", ".1f"),
    "entropy": ("entropy", ".3f"),
    "approx_kl": ("kl", ".4f"),
    # only if the row has them
    "self_play/win_rate": ("won", ".2f"),
    "self_play/rating": ("rating", ".1f"),
    "teacher_kl": ("teacher_kl", ".4f"),
}
_ALWAYS_SHOWN = ("episodic_reward", "episode_length", "entropy", "approx_kl")


def announce(text: str) -> None:
    """Print a message about the start of the run, on rank 0 only."""
    if os.environ.get("RANK", "0") == "0":
        print(text, flush=True)


class Progress:
    """Shows the progress of the training.

    In a terminal as one live line on standard error. Otherwise as plain lines on standard output: the first, the last, and in
    between at most one every `plain_interval` seconds.
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
            stream: output stream; None: as described above.
            plain_interval: seconds between plain lines.
            clock: returns seconds.
            prefix: beginning of every line, such as the name of a policy.
        """
        live = stream.isatty() if stream else sys.stderr.isatty() and sys.stdout.isatty()
        self._stream = stream or (sys.stderr if live else sys.stdout)
        self._bar = _live_line(total_steps, initial_step, self._stream, prefix) if live else None
        self._total, self._initial, self._max_seconds = total_steps, initial_step, max_seconds
        self._interval, self._prefix, self._clock = plain_interval, prefix, clock
        self._started = clock()
        self._due = -float("inf")  # when the next plain line may be printed
        self._held_back: str | None = None  # the latest plain line that was not printed yet

    def update(self, row: Row) -> None:
        """Show a row of metrics; a value that is None or missing shows as "-"."""
        step = int(row["step"] or 0)
        total = max(self._total, step)
        seconds = self._clock() - self._started
        rate = (step - self._initial) / seconds if seconds > 0 and step > self._initial else None
        left = [max(0, self._total - step) / rate] if rate else []
        if self._max_seconds is not None and row.get("seconds") is not None:
            left.append(max(0.0, self._max_seconds - float(row["seconds"] or 0.0)))
        text = f"{_number(rate, ',.0f')} steps/s  {tqdm.format_interval(min(left)) if left else '-'} left"
        for key, (name, form) in _SHOWN.items():
            if key in _ALWAYS_SHOWN or row.get(key) is not None:
                text += f"  {name} {_number(row.get(key), form)}"
        if self._bar is not None:
            self._bar.total = total
            self._bar.set_description_str(f"  {text}", refresh=False)
            self._bar.update(step - self._bar.n)  # draws at most ten times a second
            return
        percent = 100 * step / total if total else 100
        self._held_back = f"{self._prefix}{step:,}/{total:,} steps ({percent:.0f}%)  {text}"
        if self._clock() >= self._due:
            self._due = self._clock() + self._interval
            self._print_held_back()

    def write(self, text: str) -> None:
        """Write a line of text above the live line."""
        if self._bar is not None:
            self._bar.write(text, file=self._stream)
        else:
            print(text, file=self._stream, flush=True)

    def close(self) -> None:
        """Print the last state. Safe to call twice."""
        if self._bar is not None:
            self._bar.close()
        self._print_held_back()

    def _print_held_back(self) -> None:
        if self._held_back is not None:
            self.write(self._held_back)
            self._held_back = None


class _Bar(tqdm):  # type: ignore[misc, type-arg, unused-ignore]
    monitor_interval = 0  # no background thread: it would be alive when worker processes are forked


def _live_line(total: int, initial: int, stream: TextIO, prefix: str) -> tqdm[Any]:
    layout = prefix + "{percentage:3.0f}%|{bar:12}| {n:,}/{total:,}{desc}"
    # some pseudo-terminals report 0 columns, with which tqdm would print nothing
    width = {"dynamic_ncols": True} if _columns(stream) > 0 else {"ncols": 120, "nrows": 24}
    return _Bar(total=total, initial=initial, file=stream, bar_format=layout, miniters=1, **width)


def _columns(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):  # not a real terminal
        return 0


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
