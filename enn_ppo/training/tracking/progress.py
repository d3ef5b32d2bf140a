"""Progress of a run: a dashboard in a terminal, otherwise plain lines."""

from __future__ import annotations

import math
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from enn_ppo.training.tracking.logger import Row

if TYPE_CHECKING:
    from rich.live import Live

__all__ = ["PLAIN_SECONDS", "Progress", "announce", "clock_text", "make_live"]

#: Seconds between two plain lines.
PLAIN_SECONDS = 10.0

# key of the row -> its name and format
_METRICS = {
    "episodic_reward": ("reward", ".3f"),
    "episode_length": ("length", ".1f"),
    "entropy": ("entropy", ".3f"),
    "approx_kl": ("kl", ".4f"),
    "eval/episodic_reward": ("evaluation", ".3f"),
    "self_play/win_rate": ("won", ".2f"),
    "self_play/rating": ("rating", ".1f"),
    "teacher_kl": ("teacher kl", ".4f"),
    "value_loss": ("value loss", ".4f"),
    "policy_loss": ("policy loss", ".4f"),
    "explained_variance": ("explained variance", ".3f"),
    "share_env": ("time in env", ".0%"),
    "share_act": ("time in act", ".0%"),
    "share_update": ("time in update", ".0%"),
}
_ON_A_LINE = 8  # the first metrics
_GRAPH = 12  # the last values, drawn as bars of these heights
_LEVELS = "▁▂▃▄▅▆▇█"
_MAX_COLUMNS = 110


def announce(text: str) -> None:
    """Print a line about the run, on rank 0 only."""
    if os.environ.get("RANK", "0") == "0":
        say(text)


def say(text: str) -> None:
    """Print a line. Where standard output can no longer be written, training goes on without it."""
    try:
        print(text, flush=True)
    except OSError as error:  # the reader of a pipe has ended, or the disk of a log is full
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        with suppress(OSError):
            print(f"standard output cannot be written ({error.strerror}): training goes on", file=sys.stderr)


def clock_text(seconds: float | None) -> str:
    """Format a duration as "mm:ss", "h:mm:ss", or "1d 02:03:04"; None is "-"."""
    if seconds is None:
        return "-"
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days}d {hour:02}:{minute:02}:{second:02}"
    return f"{hour}:{minute:02}:{second:02}" if hour else f"{minute:02}:{second:02}"


def make_live() -> Live | None:
    """Return what redraws dashboards in this terminal; None where the standard streams go elsewhere, or cannot be redrawn."""
    # imported here: `--help` imports this module, and rich takes longer than the rest of it
    from rich.console import Console, Group
    from rich.live import Live

    console = Console(highlight=False, markup=False, emoji=False)
    if not (sys.stdout.isatty() and sys.stderr.isatty()) or console.is_dumb_terminal or console.options.ascii_only:
        return None
    return Live(Group(), console=console, refresh_per_second=2)


class Progress:
    """Shows the progress of the training of one policy: as a dashboard, or as lines at most every `PLAIN_SECONDS`.

    Args:
        total_steps: environment steps when the training is done.
        initial_step: steps trained before the run was resumed; the rate does not count them.
        live: redraws the dashboards of all policies in the terminal; None: plain lines.
        max_seconds: limit of training time; None: no limit.
        clock: returns seconds.
        prefix: beginning of every line, such as the name of a policy.
        title: name of the training, for the dashboard.
    """

    def __init__(
        self,
        total_steps: int,
        initial_step: int = 0,
        *,
        live: Live | None = None,
        max_seconds: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        prefix: str = "",
        title: str = "",
    ) -> None:
        self._total, self._initial, self._max_seconds = total_steps, initial_step, max_seconds
        self._prefix, self._title, self._clock, self._live = prefix, title, clock, live
        self._started = clock()
        self._step, self._trained, self._played = initial_step, 0.0, ""  # `_played`: of a long rollout
        self._known: dict[str, list[float]] = defaultdict(list)  # metric -> its last values
        self._due = -math.inf  # when the next plain line may be printed
        self._is_held_back = False  # whether the newest row has not been printed yet
        self._saved: tuple[int, float] | None = None  # step of the last checkpoint, and when it was written
        if live is not None:
            from rich.console import Group

            live.update(Group(live.get_renderable(), self))

    def update(self, row: Row) -> None:
        """Show a row of metrics, and of metrics without a value in it the last one."""
        for key in _METRICS:
            value = row.get(key)
            if value is not None and math.isfinite(value):
                self._known[key] = [*self._known[key][1 - _GRAPH :], float(value)]
        self._is_held_back = True
        self._show(row, "")

    def playing(self, step: int, seconds: float, played: float) -> None:
        """Show the progress of a long rollout.

        Args:
            step: environment steps so far, those of this rollout included.
            seconds: of training so far.
            played: part of the rollout that is played, in [0, 1].
        """
        self._show({"step": step, "seconds": seconds}, f"{played:.0%}")

    def saved(self, step: int) -> None:
        """Note that the checkpoint of a step was written."""
        self._saved = step, self._clock()

    def say(self, text: str) -> None:
        """Print a line, which appears above the dashboard as all that is printed."""
        say(self._prefix + text)

    def close(self) -> None:
        """Show the last state. Safe to call twice."""
        if self._live is None:
            self._print_held_back()
        elif self._live.is_started:
            with suppress(OSError):
                sys.stdout.flush()  # a line without its end, which rich holds back
                sys.stderr.flush()
                self._live.stop()

    def _show(self, row: Row, played: str) -> None:
        self._step, self._trained, self._played = int(row["step"] or 0), float(row.get("seconds") or 0.0), played
        if self._live is None:
            if self._clock() >= self._due:
                self._due = self._clock() + PLAIN_SECONDS
                self._is_held_back = True
                self._print_held_back()
        elif not self._live.is_started:
            self._live.start()
            self._live.console.show_cursor()  # a process that is killed could not do it

    def _print_held_back(self) -> None:
        if self._is_held_back:
            self._is_held_back = False
            speed = [f"{number} {unit}" for number, unit in self._speed()]
            values = [f"{name} {values[-1]:{form}}" for _, name, form, values in self._metrics(_ON_A_LINE)]
            self.say("  ".join([f"{self._step:,}/{self._last:,} steps ({self._fraction:.0%})", *speed, *values]))

    @property
    def _last(self) -> int:
        return max(self._total, self._step)

    @property
    def _fraction(self) -> float:
        """Part of the training that is done, by steps or by the limit of time, whichever is nearer to its end."""
        by_time = self._trained / self._max_seconds if self._max_seconds else 0.0
        return min(1.0, max(self._step / self._last if self._last else 1.0, by_time))

    def _speed(self) -> list[tuple[str, str]]:
        """Numbers and their units: the rate since the run was started or resumed, and the time that is left."""
        seconds, steps = self._clock() - self._started, self._step - self._initial
        pairs = []
        if seconds > 0 and steps > 0:
            left = (self._last - self._step) * seconds / steps
            if self._max_seconds is not None:
                left = min(left, max(0.0, self._max_seconds - self._trained))
            pairs = [(f"{steps / seconds:,.0f}", "steps/s"), (clock_text(left), "left")]
        return [*pairs, (self._played, "of the rollout")] if self._played else pairs

    def _metrics(self, most: int | None = None) -> list[tuple[str, str, str, list[float]]]:
        """Key, name, format and last values of the metrics that are known."""
        return [(key, *_METRICS[key], self._known[key]) for key in list(_METRICS)[:most] if key in self._known]

    def __rich__(self) -> Any:
        """Draw the dashboard."""
        from rich.columns import Columns
        from rich.console import Group
        from rich.constrain import Constrain
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        title = "".join(each if each.isprintable() else "?" for each in self._prefix + self._title)
        bar = Table.grid(expand=True, padding=(0, 1))
        bar.add_row(
            Text(f"{self._fraction:4.0%}", style="bold"),
            ProgressBar(total=1.0, completed=self._fraction),
            f"{self._step:,}/{self._last:,}",
        )
        speed = [*self._speed(), (clock_text(self._clock() - self._started), "so far")]
        if self._saved is not None:
            speed.append((f"{self._saved[0]:,}", f"saved {clock_text(self._clock() - self._saved[1])} ago"))
        pairs = [Text.assemble((number, "bold"), " ", (unit, "dim")) for number, unit in speed]
        metrics = [
            Text.assemble(
                (f"{name:<18}", "dim"),
                (f"{values[-1]:>8{form}}", "bold"),
                (f" {_graph(values):<{_GRAPH}}", "cyan"),
                no_wrap=True,
                overflow="crop",
            )
            for _, name, form, values in self._metrics()
        ]
        lines: list[Any] = [Text(title, style="bold", overflow="fold"), bar, Text("  ").join(pairs)]
        return Constrain(Group(*lines, Columns(metrics, column_first=True)), _MAX_COLUMNS)


def _graph(values: list[float]) -> str:
    low, high = min(values), max(values)
    scale = (len(_LEVELS) - 1) / (high - low) if high > low else 0.0
    return "".join(_LEVELS[round((value - low) * scale)] for value in values)
