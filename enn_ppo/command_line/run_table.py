"""The table at the end of a sweep: settings and result of each run."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from enn_ppo.tracking.logger import read_metrics
from enn_ppo.tracking.run_dir import METRICS

LAST_ROWS = 10


class RunSummary(NamedTuple):
    """One run of a sweep. None: its metrics have no such value."""

    overrides: tuple[str, ...]  # as typed, this run's own values
    run_dir: str
    reward: float | None  # mean episodic_reward of the last rows that have one
    step: int | None  # environment steps
    seconds: float | None


def check_run_dirs(run_dirs: Sequence[str]) -> None:
    """Refuse a sweep in which two jobs would write into one directory, for example because both resume the same run.

    Raises:
        ValueError: naming the directory and the jobs, counted from 1.
    """
    taken: dict[str, int] = {}
    for job, run_dir in enumerate(run_dirs, start=1):
        other = taken.setdefault(os.path.abspath(run_dir), job)
        if other != job:
            raise ValueError(
                f"run_dir {run_dir} would be written by jobs {other} and {job} of the sweep: "
                "give run_dir=<folder>, and each job gets a folder of its own inside"
            )


def summarize_run(overrides: Sequence[str], run_dir: str) -> RunSummary:
    """Summarize a run's `metrics.jsonl`; the reward is the mean of those of the last 10 rows in which an episode ended."""
    file = Path(run_dir) / METRICS
    rows = [row for row in read_metrics(file) if "seconds" in row] if file.exists() else []  # others are of evaluations
    given = [row.get("episodic_reward") for row in rows[-LAST_ROWS:]]
    rewards = [float(reward) for reward in given if isinstance(reward, int | float) and math.isfinite(reward)]
    last = rows[-1] if rows else {}
    step, seconds = last.get("step"), last.get("seconds")
    return RunSummary(
        overrides=tuple(overrides),
        run_dir=run_dir,
        reward=sum(rewards) / len(rewards) if rewards else None,
        step=int(step) if isinstance(step, int | float) else None,
        seconds=float(seconds) if isinstance(seconds, int | float) else None,
    )


def format_table(runs: Sequence[RunSummary]) -> str:
    """A text table with one line for each run; the run with the highest reward is marked with `*` and named below.

    Only the overrides that differ between the runs are shown; with one run, all.
    """
    common = set.intersection(*(set(run.overrides) for run in runs)) if len(runs) > 1 else set()
    best = max((run for run in runs if run.reward is not None), key=lambda run: run.reward or 0.0, default=None)
    rows = [("", "run", "episodic_reward", "steps", "seconds", "run_dir")]
    for run in runs:
        rows.append(
            (
                "*" if run is best else "",
                " ".join(override for override in run.overrides if override not in common) or "(defaults)",
                "-" if run.reward is None else f"{run.reward:.3f}",
                "-" if run.step is None else f"{run.step:,}",
                "-" if run.seconds is None else f"{run.seconds:.1f}",
                run.run_dir,
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    numbers = {2, 3, 4}
    lines = [
        "  ".join(
            cell.rjust(width) if column in numbers else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    lines.append(f"episodic_reward is the mean of the last {LAST_ROWS} updates" + ("; * is the best" if best else ""))
    return "\n".join(lines)
