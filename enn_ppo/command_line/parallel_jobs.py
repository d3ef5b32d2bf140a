"""The jobs of a sweep side by side, each in a process of its own."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from enn_ppo.command_line.composition import Job
from enn_ppo.command_line.job_process import JobProcess, StopSignals, shared_cores
from enn_ppo.command_line.run_table import RunSummary, summarize_run

C = TypeVar("C")

_POLL_INTERVAL = 0.1  # seconds


def run_parallel(run: Callable[[C], object], jobs: Sequence[Job[C]], at_once: int, finished: list[RunSummary]) -> int:
    """Run the jobs, `at_once` at a time; what each prints goes into `<its run directory>.log`.

    After a job that failed, and after Ctrl-C, no other is started; after Ctrl-C those that run end in order.

    Args:
        run: does one job.
        jobs: have run directories that differ.
        at_once: at least 1.
        finished: takes a summary of each job that is done, in the order of the jobs.

    Returns:
        The exit code: that of the first job that failed, or 130 after Ctrl-C and 143 after SIGTERM.
    """
    waiting, running = list(enumerate(jobs)), dict[int, JobProcess]()
    done: set[int] = set()
    code = asked = 0
    environment = shared_cores(at_once)
    try:
        with StopSignals() as signals:
            while running or (waiting and code == 0):
                while waiting and len(running) < at_once and code == 0:
                    number, job = waiting.pop(0)
                    log = Path(f"{_run_dir(job)}.log")
                    _say(f"job {number + 1} of {len(jobs)}: {' '.join(job.typed)} (it prints into {log})", job.note)
                    running[number] = JobProcess(run, job.config, log, environment=environment)
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
                        done.add(number)
                    else:
                        code = code or (result if result > 0 else 1)
                        _say_failure(number, jobs[number], process, interrupted=asked > 0)
    finally:
        for process in running.values():
            process.kill()
        finished += [summarize_run(jobs[number].typed, _run_dir(jobs[number])) for number in sorted(done)]
    return code


def _run_dir(job: Job[C]) -> str:
    return str(job.config.run_dir)  # type: ignore[attr-defined]


def _say(*lines: str) -> None:
    for line in lines:
        if line:
            print(line, file=sys.stderr, flush=True)


def _say_failure(number: int, job: Job[C], process: JobProcess, *, interrupted: bool) -> None:
    if interrupted:
        _say(f"job {number + 1}: {process.reason()}")
    else:
        where = f"(job {number + 1} of the sweep: {' '.join(job.typed)}; all that it printed: {process.log})"
        _say(f"error: {process.reason()} {where}")
