"""The dashboard of a run: its progress, speed, metrics with their history, and files, at the bottom of a terminal."""

from __future__ import annotations

import math
import os
import sys
import time
from itertools import pairwise
from pathlib import Path

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.constrain import Constrain
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from enn_ppo.training.tracking.logger import Row
from enn_ppo.training.tracking.status import Status, clock_text, number_text

__all__ = ["Dashboard", "History", "make_live"]

_MAX_COLUMNS = 110
_LABEL, _VALUE, _GRAPH = 18, 8, 12  # columns of a metric's name, value and history
_LEVELS = "▁▂▃▄▅▆▇█"

# key of the row -> its name and format
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
_SHARES = {"share_env": "env", "share_act": "act", "share_update": "update"}


def make_live() -> Live | None:
    """Return what redraws dashboards in this terminal; None where the standard streams go elsewhere, or cannot be redrawn."""
    console = Console(highlight=False, markup=False, emoji=False)
    if not (sys.stdout.isatty() and sys.stderr.isatty()) or console.is_dumb_terminal or console.options.ascii_only:
        return None
    return Live(Group(), console=console, refresh_per_second=2)


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
        values = list(self._means)  # the thread that draws is not the one that adds
        count = min(columns, len(values))
        ends = [i * len(values) // count for i in range(count + 1)] if values else []
        means = [sum(values[start:end]) / (end - start) for start, end in pairwise(ends)]
        low, high = min(means, default=0.0), max(means, default=0.0)
        scale = (len(_LEVELS) - 1) / (high - low) if high > low else 0.0
        return "".join(_LEVELS[round((mean - low) * scale)] for mean in means)


class Dashboard:
    """Progress, speed and metrics of a run, which `rich` draws.

    Args:
        title: the name of what is trained.
        run_dir: the run's folder.
    """

    def __init__(self, title: str, run_dir: str) -> None:
        self._title, self._run_dir = _printable(title), _printable(run_dir)
        self._started = time.monotonic()
        self._status = Status(step=0, total=0, rate=None, left=None, fraction=0.0)
        self._row: Row = {}
        self._known: Row = {}  # the last value of each metric
        self._history = {key: History() for key in _METRICS}
        self._saved: tuple[int, float] | None = None  # step of the last checkpoint, and when it was written

    def update(self, status: Status, row: Row) -> None:
        """Take over a row of metrics."""
        self._status, self._row = status, row
        for key, history in self._history.items():
            value = row.get(key)
            if value is not None and math.isfinite(value):
                self._known[key] = value
                history.add(float(value))

    def playing(self, status: Status) -> None:
        """Take over the status within a rollout."""
        self._status = status

    def saved(self, step: int) -> None:
        """Note that the checkpoint of a step was written."""
        self._saved = step, time.monotonic()

    def __rich__(self) -> RenderableType:
        """Draw the lines."""
        status = self._status
        head = Table.grid(expand=True, padding=(0, 1))
        head.add_column(no_wrap=True)
        head.add_column(justify="right", overflow="fold")
        head.add_row(Text(self._title, style="bold"), Text(self._run_dir, style="dim"))
        bar = Table.grid(expand=True, padding=(0, 1))
        bar.add_row(
            Text(f"{status.fraction:4.0%}", style="bold"),
            ProgressBar(total=1.0, completed=status.fraction),
            f"{status.step:,}/{status.total:,}",
        )
        speed = [
            (number_text(status.rate, ",.0f"), "steps/s"),
            (clock_text(status.left), "left"),
            (clock_text(time.monotonic() - self._started), "so far"),
        ]
        if status.played is not None:
            speed.append((f"{status.played:.0%}", "of the rollout"))
        if (memory := _memory()) is not None:
            speed.append((f"{memory / 2**20:,.0f} MB", "memory"))
        shares = [(name, number_text(self._row.get(key), ".0%")) for key, name in _SHARES.items()]
        metrics = [self._metric(key) for key in _METRICS if key in self._row or key in self._known]
        lines: list[RenderableType] = [
            head,
            bar,
            _pairs(speed),
            _pairs(shares),
            Columns(metrics, column_first=True),
            self._checkpoint(),
        ]
        return Constrain(Group(*lines), _MAX_COLUMNS)

    def _metric(self, key: str) -> Text:
        name, form = _METRICS[key]
        value, graph = number_text(self._known.get(key), form), self._history[key].sparkline(_GRAPH)
        columns = (f"{name:<{_LABEL}}", "dim"), (f"{value:>{_VALUE}}", "bold"), (f" {graph:<{_GRAPH}}", "cyan")
        return Text.assemble(*columns, no_wrap=True, overflow="crop")

    def _checkpoint(self) -> Text:
        if self._saved is None:
            return Text("no checkpoint since the run was resumed", style="dim")
        step, when = self._saved
        ago = clock_text(time.monotonic() - when)
        return Text.assemble(("checkpoint of step ", "dim"), f"{step:,}", (f", {ago} ago", "dim"))


def _pairs(pairs: list[tuple[str, str]]) -> Text:
    return Text("  ").join(Text.assemble((first, "bold"), " ", (second, "dim")) for first, second in pairs)


def _memory() -> int | None:
    """Bytes of memory that this process occupies; None where the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):
        return None


def _printable(text: str) -> str:
    """Names without sequences that would change the terminal."""
    return "".join(character if character.isprintable() else "?" for character in text)
