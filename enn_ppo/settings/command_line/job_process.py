"""A job in a separate process."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

from enn_ppo.settings.command_line.mistakes import guarded
from entity_gym.pools.processes.interpreter import describe_end, exit_when_orphaned, start_interpreter
from entity_gym.pools.processes.pickling import pickled_for_worker

C = TypeVar("C")

GRACE = 60.0  # timeout in seconds for the last update and checkpoint of an interrupted job
_TAIL = 4096  # bytes at the end of a log in which its last line is looked for


class JobProcess:
    """A process that runs `run(config)` and ends with the command line's exit codes.

    The process has its own group, so that Ctrl-C in the terminal reaches only the parent. If the parent dies, the job stops as
    after Ctrl-C.

    Args:
        run: the function to call; it may be defined in the user's script.
        config: argument of `run`.
        log: file that the job's output is appended to; its folder is created.
        environment: additional environment variables.

    Raises:
        ValueError: the log cannot be written.
    """

    def __init__(
        self, run: Callable[[C], object], config: C, log: Path, *, environment: Mapping[str, str] | None = None
    ) -> None:
        self.log = log
        self._asked: float | None = None
        job = pickled_for_worker((run, config))
        try:
            log.parent.mkdir(parents=True, exist_ok=True)
            with open(log, "ab") as output:
                self._process, connection = start_interpreter(
                    __name__,
                    "main",
                    environment=environment or {},
                    ignores_ctrl_c=False,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    process_group=0,
                )
        except OSError as error:
            raise ValueError(f"{log} cannot be written: {error}") from error
        self.pid = self._process.pid
        self._connection = Connection(connection.detach())  # stays open: the job ends when it is closed
        with contextlib.suppress(OSError):  # `poll` reports a process that has died already
            self._connection.send_bytes(job)

    def poll(self) -> int | None:
        """The exit code, negative if a signal ended the process; None while it runs.

        Kills a job that has not ended `GRACE` seconds after `interrupt`.
        """
        if self._asked is not None and time.monotonic() - self._asked > GRACE:
            self.kill()
        return self._process.poll()

    def interrupt(self) -> None:
        """Send SIGINT: the job saves and ends. A second call ends it at once."""
        self._asked = self._asked or time.monotonic()
        if hasattr(os, "killpg"):
            self._process.send_signal(signal.SIGINT)  # does nothing where the process has ended
        else:  # Windows sends no signals to one process; the job ends in the same way when it is alone
            self._connection.close()

    def kill(self) -> None:
        """Kill the job and every process that it has started, and wait for its end."""
        if self._process.poll() is None:
            if hasattr(os, "killpg"):
                os.killpg(self.pid, signal.SIGKILL)
            else:
                self._process.kill()
        self._process.wait()

    def reason(self) -> str:
        """The reason for the job's end: the signal that killed it, or the last line that it printed."""
        how = describe_end(self._process)
        return how if self._process.returncode < 0 else last_line(self.log) or f"{how} and printed nothing"


def last_line(log: Path) -> str:
    """The last non-empty line of a log, without a leading `error: `; empty if there is none."""
    with contextlib.suppress(OSError), open(log, "rb") as file:
        file.seek(max(0, log.stat().st_size - _TAIL))
        lines = file.read().decode("utf-8", errors="replace").splitlines()
        return next((line.strip().removeprefix("error: ") for line in reversed(lines) if line.strip()), "")
    return ""


def main(descriptor: int) -> None:
    """Entry point of the process: receives the job, runs it, and exits with its exit code."""
    exit_when_orphaned(descriptor, GRACE, interrupts=True)

    def work() -> None:
        connection = socket.fromfd(descriptor, socket.AF_INET, socket.SOCK_STREAM)
        run, config = pickle.loads(Connection(connection.detach()).recv_bytes())
        run(config)

    raise SystemExit(guarded(work, object, debug=lambda: False))


def shared_cores(processes: int) -> dict[str, str]:
    """Environment variables for `processes` processes that share the cores.

    Idle OpenMP threads do not spin, and unless the user has set `OMP_NUM_THREADS`, each process has its share of threads.
    """
    threads = {} if "OMP_NUM_THREADS" in os.environ else {"OMP_NUM_THREADS": str(max(1, _cores() // processes))}
    return {"OMP_WAIT_POLICY": "PASSIVE", **threads} if processes > 1 else {}


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class StopSignals:
    """Counts Ctrl-C and SIGTERM while the context lasts; the third one raises KeyboardInterrupt.

    Outside the main thread, where Python handles no signals, the count stays 0.

    Attributes:
        count: number of signals so far.
        exit_code: 130 if the first was Ctrl-C, 143 if it was SIGTERM; 0: none yet.
    """

    def __init__(self) -> None:
        self.count = self.exit_code = 0
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: object) -> None:
        self.count += 1
        self.exit_code = self.exit_code or 128 + number
        if self.count > 2:
            raise KeyboardInterrupt
