"""A job in a process of its own."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import cloudpickle

from enn_ppo.command_line.mistakes import INTERRUPTED, guarded

C = TypeVar("C")

GRACE = 60.0  # seconds that an interrupted job has for its last update and checkpoint
_CHECK_INTERVAL = 1.0  # seconds between checks whether the parent is alive
_TAIL = 4096  # bytes at the end of a log in which its last line is looked for

# A new interpreter: `multiprocessing` would run the user's script a second time.
_PROGRAM = """\
import pickle, sys
sys.path[:] = pickle.load(sys.stdin.buffer)
from enn_ppo.command_line.job_process import main
raise SystemExit(main(int(sys.argv[1])))
"""


class JobProcess:
    """A process that runs `run(config)` and ends with the command line's exit codes.

    It has its own process group, so that Ctrl-C in the terminal reaches the parent only. If the parent dies, the job stops as
    after Ctrl-C.

    Args:
        run: the function to call; it may be defined in the user's script.
        config: its argument; errors about unknown settings refer to its class.
        log: file that the job's output is appended to; its folder is created.
        environment: additional environment variables.

    Raises:
        ValueError: the log cannot be written.
    """

    def __init__(
        self,
        run: Callable[[C], object],
        config: C,
        log: Path,
        *,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.log = log
        self._asked: float | None = None
        payload = pickle.dumps(sys.path) + cloudpickle.dumps((run, config))
        try:
            log.parent.mkdir(parents=True, exist_ok=True)
            with open(log, "ab") as output:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", _PROGRAM, str(os.getpid())],
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **(environment or {})},
                    process_group=0,
                )
        except OSError as error:
            raise ValueError(f"{log} cannot be written: {error}") from error
        assert self._process.stdin is not None
        with (
            contextlib.suppress(BrokenPipeError),
            self._process.stdin as pipe,
        ):  # if it has died already, its exit code says so
            pipe.write(payload)

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    def poll(self) -> int | None:
        """The exit code, negative if a signal ended the process; None while it runs.

        Kills a job that has not ended `GRACE` seconds after `interrupt`.
        """
        if self._asked is not None and time.monotonic() - self._asked > GRACE:
            self.kill()
        return self._process.poll()

    def interrupt(self) -> None:
        """Send Ctrl-C (SIGINT): the job saves and ends. The second one ends it at once."""
        self._asked = self._asked or time.monotonic()
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        """Kill the job and every process that it has started, and wait for its end."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def reason(self) -> str:
        """Reason of its end: the signal that killed it, or the last line that it printed."""
        code = self._process.returncode
        if code is not None and code < 0:
            names = {number.value: number.name for number in signal.Signals}
            return f"killed by {names.get(-code, f'signal {-code}')}"
        return last_line(self.log) or f"ended with exit code {code} and said nothing"


def last_line(log: Path) -> str:
    """The last line of a log that is not empty, without `error: ` at its start; empty if there is none."""
    with contextlib.suppress(OSError), open(log, "rb") as file:
        file.seek(max(0, log.stat().st_size - _TAIL))
        lines = file.read().decode("utf-8", errors="replace").splitlines()
        return next((line.strip().removeprefix("error: ") for line in reversed(lines) if line.strip()), "")
    return ""


def main(parent: int) -> int:
    """Entry point of the process: reads the job from standard input, and runs it."""
    threading.Thread(target=_end_without, args=(parent,), daemon=True).start()

    def work() -> None:
        run, config = pickle.load(sys.stdin.buffer)
        schema.append(type(config))
        run(config)

    schema: list[type[Any]] = []
    return guarded(work, lambda: schema[0] if schema else object, debug=lambda: False)


def _end_without(parent: int) -> None:
    """Stop this process as after Ctrl-C once the parent has died."""
    while os.getppid() == parent:
        time.sleep(_CHECK_INTERVAL)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(GRACE)
    os._exit(INTERRUPTED)


def shared_cores(processes: int) -> dict[str, str]:
    """Environment variables for `processes` processes that share the cores.

    Idle OpenMP threads do not spin, and unless the user has set `OMP_NUM_THREADS`, each process gets its share of the cores.
    """
    threads = {} if "OMP_NUM_THREADS" in os.environ else {"OMP_NUM_THREADS": str(max(1, _cores() // processes))}
    return {"OMP_WAIT_POLICY": "PASSIVE", **threads} if processes > 1 else {}


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class StopSignals:
    """Counts Ctrl-C and SIGTERM while the context lasts; the third one raises KeyboardInterrupt.

    In other threads than the main one, where Python handles no signals, it counts none.

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
