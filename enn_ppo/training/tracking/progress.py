"""Progress of a run: a dashboard in a terminal, otherwise plain lines."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from enn_ppo.training.tracking.logger import Row
from enn_ppo.training.tracking.status import Status, clock_text, number_text

if TYPE_CHECKING:
    from rich.live import Live

    from enn_ppo.training.tracking.dashboard import Dashboard

__all__ = ["PLAIN_SECONDS", "Progress", "announce"]

#: Seconds between two plain lines.
PLAIN_SECONDS = 5.0

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
    """Shows the progress of the training of one policy.

    With `live` as a dashboard. Otherwise as plain lines: the first, the last, and in between at most one every `PLAIN_SECONDS`.
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
        run_dir: str = "",
    ) -> None:
        """Start the clock.

        Args:
            total_steps: environment steps when the training is done.
            initial_step: steps trained before the run was resumed; the rate does not count them.
            live: redraws the dashboards of all policies in the terminal; None: plain lines.
            max_seconds: limit of training time; None: no limit.
            clock: returns seconds.
            prefix: beginning of every line, such as the name of a policy.
            title: name of the training, for the dashboard.
            run_dir: for the dashboard.
        """
        self._total, self._initial, self._max_seconds = total_steps, initial_step, max_seconds
        self._prefix, self._clock, self._live = prefix, clock, live
        self._started = clock()
        self._due = -float("inf")  # when the next plain line may be printed
        self._held_back: str | None = None  # the latest plain line that was not printed yet
        self._dashboard: Dashboard | None = None
        if live is not None:
            # imported here: `--help` imports this module, and rich takes longer than the rest of it
            from rich.console import Group

            from enn_ppo.training.tracking.dashboard import Dashboard

            self._dashboard = Dashboard(prefix + title, run_dir)
            live.update(Group(live.get_renderable(), self._dashboard))

    def update(self, row: Row) -> None:
        """Show a row of metrics; a value that is None or missing shows as "-"."""
        status = self._status(row)
        if self._dashboard is not None:
            self._dashboard.update(status, row)
            self._start_live()
            return
        self._held_back = "  ".join([self._head(status), *_fields(status, row)])
        if self._clock() >= self._due:
            self._due = self._clock() + PLAIN_SECONDS
            self._print_held_back()

    def playing(self, step: int, seconds: float, played: float) -> None:
        """Show the progress of a long rollout.

        Args:
            step: environment steps so far, those of this rollout included.
            seconds: of training so far.
            played: part of the rollout that is played, in [0, 1].
        """
        status = self._status({"step": step, "seconds": seconds})._replace(played=played)
        if self._dashboard is not None:
            self._dashboard.playing(status)
            self._start_live()
        elif self._clock() >= self._due:
            self._due = self._clock() + PLAIN_SECONDS
            self._print_held_back()
            self.write("  ".join([self._head(status), *_speed(status)]))

    def saved(self, step: int) -> None:
        """Note that the checkpoint of a step was written."""
        if self._dashboard is not None:
            self._dashboard.saved(step)

    def write(self, text: str) -> None:
        """Print a line of text, which appears above the dashboard as all that is printed."""
        print(text, flush=True)

    def close(self) -> None:
        """Show the last state. Safe to call twice."""
        if self._live is not None and self._live.is_started:
            sys.stdout.flush()  # a line without its end, which rich holds back
            sys.stderr.flush()
            self._live.stop()
        self._print_held_back()

    def _start_live(self) -> None:
        if self._live is not None and not self._live.is_started:
            self._live.start()
            self._live.console.show_cursor()  # a process that is killed could not do it

    def _status(self, row: Row) -> Status:
        step = int(row["step"] or 0)
        total = max(self._total, step)
        seconds = self._clock() - self._started
        rate = (step - self._initial) / seconds if seconds > 0 and step > self._initial else None
        left = [(total - step) / rate] if rate else []
        fraction = step / total if total else 1.0
        trained = row.get("seconds")
        if self._max_seconds is not None and trained is not None:
            left.append(max(0.0, self._max_seconds - float(trained)))
            fraction = max(fraction, min(1.0, float(trained) / self._max_seconds))
        return Status(step, total, rate, min(left, default=None), fraction)

    def _head(self, status: Status) -> str:
        percent = 100 * status.step / status.total if status.total else 100
        return f"{self._prefix}{status.step:,}/{status.total:,} steps ({percent:.0f}%)"

    def _print_held_back(self) -> None:
        if self._held_back is not None:
            self.write(self._held_back)
            self._held_back = None


def _fields(status: Status, row: Row) -> list[str]:
    """The fields of a line, the most important first."""
    fields = _speed(status)
    for key, (name, form) in _SHOWN.items():
        if key in _ALWAYS_SHOWN or row.get(key) is not None:
            fields.append(f"{name} {number_text(row.get(key), form)}")
    return fields


def _speed(status: Status) -> list[str]:
    rollout = [] if status.played is None else [f"rollout {status.played:.0%}"]
    return [f"{number_text(status.rate, ',.0f')} steps/s", f"{clock_text(status.left)} left", *rollout]
