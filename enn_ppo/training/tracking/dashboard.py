"""The dashboard of a run: its progress, speed, metrics with their history, and files, in a few lines of a terminal."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TextIO

from rich.console import Console, ConsoleDimensions
from rich.text import Text

from enn_ppo.training.tracking.logger import Row
from enn_ppo.training.tracking.status import Status, clock_text, number_text

__all__ = ["Dashboard", "History"]

_MAX_COLUMNS = 110
_TWO_COLUMNS = 76  # from this width on, metrics stand in two columns
_LABEL, _VALUE = 18, 8  # columns of a metric's name and value
_LEVELS = "▁▂▃▄▅▆▇█"

# key of the row -> its name and format; where there is little room, the first are shown
_METRICS = {
    "episodic_reward": ("reward", ".3f"),
    "episode_length": ("length", ".1f"),
    "eval/episodic_reward": ("evaluation", ".3f"),
    "self_play/win_rate": ("won", ".2f"),
    "self_play/rating": ("rating", ".1f"),
    "entropy": ("entropy", ".3f"),
    "approx_kl": ("kl", ".4f"),
    "value_loss": ("value loss", ".4f"),
    "policy_loss": ("policy loss", ".4f"),
    "explained_variance": ("explained variance", ".3f"),
    "teacher_kl": ("teacher kl", ".4f"),
}
# key of the row -> its name, its character in the bar where there are no colours, and its colour
_SHARES = {
    "share_env": ("env", "█", "green"),
    "share_act": ("act", "▒", "yellow"),
    "share_update": ("update", "░", "blue"),
}


class History:
    """The history of a metric: fewer than 2 `size` means over equally many updates, with the oldest first."""

    def __init__(self, size: int = 128) -> None:
        self._size = size
        self._means: list[float] = []
        self._each = 1  # number of values that a mean is over
        self._rest: list[float] = []  # values after the last mean

    def add(self, value: float) -> None:
        """Add a value."""
        self._rest.append(value)
        if len(self._rest) == self._each:
            self._means.append(sum(self._rest) / self._each)
            self._rest = []
        if len(self._means) == 2 * self._size:
            self._means = [(a + b) / 2 for a, b in zip(self._means[::2], self._means[1::2], strict=True)]
            self._each *= 2

    def sparkline(self, columns: int) -> str:
        """Draw the history from its beginning with at most so many characters, between its minimum and its maximum."""
        values = self._means or self._rest
        count = min(columns, len(values))
        if count < 1:
            return ""
        ends = [i * len(values) // count for i in range(count + 1)]
        means = [sum(values[start:end]) / (end - start) for start, end in pairwise(ends)]
        low, high = min(means), max(means)
        scale = (len(_LEVELS) - 1) / (high - low) if high > low else 0.0
        return "".join(_LEVELS[round((mean - low) * scale)] for mean in means)


class Dashboard:
    """Lines with everything that one looks at while a policy trains.

    Args:
        stream: the terminal, for its colours.
        title: the name of what is trained.
        run_dir: the run's folder.
        clock: returns seconds.
    """

    def __init__(self, stream: TextIO, title: str, run_dir: str, clock: Callable[[], float]) -> None:
        self._console = Console(file=stream, highlight=False, markup=False, emoji=False)
        self._title, self._run_dir, self._clock = _printable(title), _printable(run_dir), clock
        self._started = clock()
        self._status: Status | None = None
        self._row: Row = {}
        self._known: Row = {}  # the last value of each metric
        self._history: dict[str, History] = {}
        self._saved: tuple[int, float] | None = None  # step of the last checkpoint, and when it was written

    def update(self, status: Status, row: Row) -> None:
        """Take over a row of metrics."""
        self._status, self._row = status, row
        for key in _METRICS:
            value = row.get(key)
            if value is not None and math.isfinite(value):
                self._known[key] = value
                self._history.setdefault(key, History()).add(float(value))

    def playing(self, status: Status) -> None:
        """Take over the status within a rollout."""
        self._status = status

    def saved(self, step: int) -> None:
        """Note that the checkpoint of a step was written."""
        self._saved = step, self._clock()

    def lines(self, columns: int, rows: int) -> list[str]:
        """Draw at most `rows` lines of at most `columns` characters, the most important ones if there are more."""
        if self._status is None:
            return []
        width = min(columns, _MAX_COLUMNS)
        metrics = self._metric_lines(width)
        # in the order of the screen, with their ranks: the largest are left out first
        ranked = [
            (4, self._head_line(width)),
            (0, self._bar_line(self._status, width)),
            (1, self._speed_line(self._status, width)),
            (3, self._share_line(width)),
            *((2 if i < 4 else 6, line) for i, line in enumerate(metrics)),
            (5, self._checkpoint_line(width)),
        ]
        kept = sorted(sorted(range(len(ranked)), key=lambda i: ranked[i][0])[:rows])
        text = Text("\n").join(ranked[i][1] for i in kept)
        self._console.size = ConsoleDimensions(columns, rows)
        with self._console.capture() as capture:
            self._console.print(text, no_wrap=True, overflow="crop")
        return capture.get().splitlines()

    def _head_line(self, width: int) -> Text:
        """The title, and the end of the run directory."""
        room = width - len(self._title) - 2
        folder = self._run_dir if len(self._run_dir) <= room else "…" + self._run_dir[len(self._run_dir) - room + 1 :]
        line = Text().append(self._title, style="bold")
        if room >= 8:
            line.append(f"{folder:>{room + 2}}", style="dim")
        return line

    def _bar_line(self, status: Status, width: int) -> Text:
        percent, steps = f"{status.fraction:4.0%} ", f" {status.step:,}/{status.total:,}"
        room = max(0, width - len(percent) - len(steps))
        done = round(status.fraction * room)
        return Text.assemble((percent, "bold"), ("━" * done, "green"), ("━" * (room - done), "bright_black"), steps)

    def _speed_line(self, status: Status, width: int) -> Text:
        fields = [
            (number_text(status.rate, ",.0f"), "steps/s"),
            (clock_text(status.left), "left"),
            (clock_text(self._clock() - self._started), "so far"),
        ]
        if status.played is not None:
            fields.append((f"{status.played:.0%}", "of the rollout"))
        if (memory := _memory()) is not None:
            fields.append((f"{memory / 2**20:,.0f} MB", "memory"))
        return _fields_line(fields, width)

    def _share_line(self, width: int) -> Text:
        line, bar = Text(), Text()
        has_colours = self._console.color_system is not None and not self._console.no_color
        shares = [
            (name, "█" if has_colours else glyph, colour, self._row.get(key))
            for key, (name, glyph, colour) in _SHARES.items()
        ]
        for name, _, colour, share in shares:
            line.append(f"{name} ", style="dim").append(f"{number_text(share, '.0%')}  ", style=colour)
        room = min(max(0, width - len(line)), _LABEL + _VALUE + 14)
        for _, glyph, colour, share in shares:
            bar.append(glyph * round((share or 0.0) * room), style=colour)
        bar.truncate(room)
        return line.append_text(bar)

    def _metric_lines(self, width: int) -> list[Text]:
        """Metrics with their sparklines, row by row."""
        shown = [key for key in _METRICS if key in self._row or key in self._known]
        num_columns = 2 if width >= _TWO_COLUMNS else 1
        num_rows = -(-len(shown) // num_columns)
        label = max(0, min(_LABEL, width // num_columns - _VALUE))
        room = max(0, width // num_columns - label - _VALUE - 1)
        lines = [Text() for _ in range(num_rows)]
        for i, key in enumerate(shown):
            name, form = _METRICS[key]
            value = number_text(self._known.get(key), form)
            graph = self._history[key].sparkline(room - 1) if key in self._history else ""
            lines[i % num_rows].append(f"{name[:label]:<{label}}", style="dim").append(
                f"{value:>{_VALUE}}", style="bold"
            )
            lines[i % num_rows].append(f" {graph:<{room}}", style="cyan")
        return lines

    def _checkpoint_line(self, width: int) -> Text:
        if self._saved is None:
            return Text("no checkpoint since the run was resumed", style="dim")
        step, when = self._saved
        return Text.assemble(
            ("checkpoint of step ", "dim"), f"{step:,}", (f", {clock_text(self._clock() - when)} ago", "dim")
        )


def _fields_line(fields: Sequence[tuple[str, str]], width: int) -> Text:
    """Numbers with their names, as many as there is room for."""
    line = Text()
    for number, name in fields:
        if len(line) + len(number) + 1 + len(name) > width:
            break
        line.append(number, style="bold").append(f" {name}  ", style="dim")
    return line


def _memory() -> int | None:
    """Bytes of memory that this process occupies; None where the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):
        return None


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else "?" for character in text)
