"""The jobs of `--multirun`, in sequence or in parallel processes, and the table of their results."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from enn_ppo.settings.command_line.job_process import JobProcess, StopSignals, shared_cores
from enn_ppo.settings.config import TrainConfig
from enn_ppo.training.tracking.logger import read_metrics
from enn_ppo.training.tracking.run_dir import METRICS

LAST_ROWS = 10
_POLL_INTERVAL = 0.1  # seconds


class Job(NamedTuple):
    """One job, ready to run."""

    config: Any
    typed: tuple[str, ...]  # overrides of this job
    number: int | None  # None without `--multirun`
    note: str  # printed before it starts, or empty


class RunSummary(NamedTuple):
    """The result of one training run. None: the metrics have no such value."""

    overrides: tuple[str, ...]  # overrides of this run, as typed
    run_dir: str
    reward: float | None  # mean episodic_reward of the last rows that have one
    step: int | None  # environment steps
    seconds: float | None


def run_jobs(run: Callable[[Any], object], jobs: Sequence[Job], at_once: int = 1) -> int:
    """Run the jobs, and print a table of the finished training runs of `--multirun`.

    Args:
        run: does one job.
        jobs: of one command.
        at_once: number of parallel jobs. With more than one, each job is a process, and prints into `<its run directory>.log`.

    Returns:
        The exit code.

    Raises:
        ValueError: two jobs have the same run directory; or parallel jobs use ddp, or are not training.
    """
    training = [job.config for job in jobs if isinstance(job.config, TrainConfig)]
    _check_run_dirs([str(config.run_dir) for config in training])
    if at_once > 1 and any(config.distributed.mode == "ddp" for config in training):
        raise ValueError(f"jobs={at_once} and distributed=ddp do not go together; leave one out")
    finished: set[int] = set()
    try:
        if at_once > 1:
            return _run_parallel(run, jobs, at_once, finished)
        for number, job in enumerate(jobs):
            if job.number is not None:
                _say(f"{_name(number, jobs)}: {' '.join(job.typed)}")
            _say(job.note)
            run(job.config)
            finished.add(number)
        return 0
    finally:
        done = [jobs[number] for number in sorted(finished) if training and jobs[number].number is not None]
        if done:
            summaries = [summarize_run(job.typed, str(job.config.run_dir)) for job in done]
            print(format_table(summaries), flush=True)


def _run_parallel(run: Callable[[Any], object], jobs: Sequence[Job], at_once: int, finished: set[int]) -> int:
    """Run the jobs in processes, and add the numbers of the finished jobs to `finished`.

    After a failed job or Ctrl-C, no other job is started; after Ctrl-C the running jobs save and end.

    Returns:
        The exit code of the first failed job, 130 after Ctrl-C, or 143 after SIGTERM; otherwise 0.
    """
    waiting, running = list(enumerate(jobs)), dict[int, JobProcess]()
    code = asked = 0
    try:
        with StopSignals() as signals:
            while running or (waiting and code == 0):
                while waiting and len(running) < at_once and code == 0:
                    number, job = waiting.pop(0)
                    log = Path(f"{job.config.run_dir}.log")
                    _say(f"{_name(number, jobs)}: {' '.join(job.typed)} (it prints into {log})")
                    _say(job.note)
                    running[number] = JobProcess(run, job.config, log, environment=shared_cores(at_once))
                time.sleep(_POLL_INTERVAL)
                if signals.count > asked:
                    asked, code = signals.count, signals.exit_code
                    _say("ending the jobs that run; press again to abort them at once" if asked == 1 else "aborting")
                    for process in running.values():
                        process.interrupt()
                for number, result in [(number, process.poll()) for number, process in running.items()]:
                    if result is None:
                        continue
                    process = running.pop(number)
                    if result == 0:
                        finished.add(number)
                    elif asked:
                        _say(f"job {number + 1}: {process.reason()}")
                    else:
                        code = code or (result if result > 0 else 1)
                        where = f"job {number + 1} of the sweep: {' '.join(jobs[number].typed)}"
                        _say(f"error: {process.reason()} ({where}; all that it printed: {process.log})")
    finally:
        for process in running.values():
            process.kill()
    return code


def _name(number: int, jobs: Sequence[Job]) -> str:
    return f"job {number + 1} of {len(jobs)}"


def _say(line: str) -> None:
    if line:
        print(line, file=sys.stderr, flush=True)


def _check_run_dirs(run_dirs: Sequence[str]) -> None:
    """Refuse jobs with the same run directory, for example because both resume the same run."""
    taken: dict[str, int] = {}
    for job, run_dir in enumerate(run_dirs, start=1):
        other = taken.setdefault(os.path.abspath(run_dir), job)
        if other != job:
            raise ValueError(
                f"run_dir {run_dir} would be written by jobs {other} and {job} of the sweep: "
                "give run_dir=<folder>, and each job gets a folder of its own inside"
            )


# ---- The table


def summarize_run(overrides: Sequence[str], run_dir: str) -> RunSummary:
    """Summarize a run's `metrics.jsonl`; the reward is the mean over the last 10 rows in which an episode ended."""
    file = Path(run_dir) / METRICS
    rows = (
        [row for row in read_metrics(file) if "seconds" in row] if file.exists() else []
    )  # rows without it are evaluations
    rewards = [row.get("episodic_reward") for row in rows[-LAST_ROWS:]]
    finite = [float(reward) for reward in rewards if isinstance(reward, int | float) and math.isfinite(reward)]
    last = rows[-1] if rows else {}
    reward = sum(finite) / len(finite) if finite else None
    return RunSummary(tuple(overrides), run_dir, reward, last.get("step"), last.get("seconds"))


def format_table(runs: Sequence[RunSummary]) -> str:
    """A text table with one line per run; the run with the highest reward is marked with `*` and named below.

    Only overrides that differ between runs are shown; all for a single run.
    """
    common = set.intersection(*(set(run.overrides) for run in runs)) if len(runs) > 1 else set()
    best = max((run for run in runs if run.reward is not None), key=lambda run: run.reward or 0.0, default=None)
    rows = [["", "run", "episodic_reward", "steps", "seconds", "run_dir"]]
    for run in runs:
        name = " ".join(override for override in run.overrides if override not in common) or "(defaults)"
        numbers = [
            "-" if value is None else format(value, form)
            for value, form in ((run.reward, ".3f"), (run.step, ","), (run.seconds, ".1f"))
        ]
        rows.append(["*" if run is best else "", name, *numbers, run.run_dir])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    line = "  ".join(f"{{:{align}{width}}}" for align, width in zip("<<>>><", widths, strict=True))
    note = f"episodic_reward is the mean of the last {LAST_ROWS} updates" + ("; * is the best" if best else "")
    return "\n".join([*(line.format(*row).rstrip() for row in rows), note])
