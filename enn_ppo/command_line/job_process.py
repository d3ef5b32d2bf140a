"""One job in a process of its own: started with its settings, watched, asked to end in order, and ended."""

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

GRACE = 60.0  # seconds in which a job that was asked to end must have ended: one update, one checkpoint
_CHECK_INTERVAL = 1.0  # seconds between looks at whether the parent is alive
_TAIL = 4096  # bytes of a log that are read for its last line

# A fresh interpreter, and not a copy made by `multiprocessing`, which would run the user's script a second time.
_PROGRAM = """\
import pickle, sys
sys.path[:] = pickle.load(sys.stdin.buffer)
from enn_ppo.command_line.job_process import main
raise SystemExit(main(int(sys.argv[1])))
"""


class JobProcess:
    """A process that runs `run(config)` and ends with the command line's exit codes.

    It has a process group of its own, so that a Ctrl-C in the terminal reaches only the parent, which decides what
    becomes of the job. If the parent dies, the job ends in order by itself.

    Args:
        run: what to do; a function of the user's own script will do, too.
        config: given to `run`; its class is what an unknown setting is looked up in.
        log: file to whose end everything goes that the job prints; its folder is made.
        environment: variables of the process over those of this one.

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
        ):  # if it died already, its exit code tells
            pipe.write(payload)

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    def poll(self) -> int | None:
        """The exit code, negative if a signal ended the process; None while it runs.

        A job that was asked to end and has not after `GRACE` seconds is killed here.
        """
        if self._asked is not None and time.monotonic() - self._asked > GRACE:
            self.kill()
        return self._process.poll()

    def interrupt(self) -> None:
        """Ask the job to end in order, as Ctrl-C does. A second time it ends at once."""
        self._asked = self._asked or time.monotonic()
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        """End the job and every process that it started, and wait until it is gone."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def reason(self) -> str:
        """Why the job ended: what killed it, or the last line that it printed."""
        code = self._process.returncode
        if code is not None and code < 0:
            names = {number.value: number.name for number in signal.Signals}
            return f"killed by {names.get(-code, f'signal {-code}')}"
        return last_line(self.log) or f"ended with exit code {code} and said nothing"


def last_line(log: Path) -> str:
    """The last line of a log that holds anything, without the word `error:` before it; empty if there is none."""
    with contextlib.suppress(OSError), open(log, "rb") as file:
        file.seek(max(0, log.stat().st_size - _TAIL))
        lines = file.read().decode("utf-8", errors="replace").splitlines()
        return next((line.strip().removeprefix("error: ") for line in reversed(lines) if line.strip()), "")
    return ""


def main(parent: int) -> int:
    """What the process does: read the job from standard input, and run it."""
    threading.Thread(target=_end_without, args=(parent,), daemon=True).start()

    def work() -> None:
        run, config = pickle.load(sys.stdin.buffer)
        schema.append(type(config))
        run(config)

    schema: list[type[Any]] = []
    return guarded(work, lambda: schema[0] if schema else object, debug=lambda: False)


def _end_without(parent: int) -> None:
    """End in order once the parent is gone: nobody would read the result, and nobody could end the job."""
    while os.getppid() == parent:
        time.sleep(_CHECK_INTERVAL)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(GRACE)
    os._exit(INTERRUPTED)


def shared_cores(processes: int) -> dict[str, str]:
    """Environment variables with which `processes` processes share the cores instead of fighting for them.

    OpenMP's idle threads wait without spinning, and unless the user has said how many there are, each process has its
    share of them.
    """
    threads = {} if "OMP_NUM_THREADS" in os.environ else {"OMP_NUM_THREADS": str(max(1, _cores() // processes))}
    return {"OMP_WAIT_POLICY": "PASSIVE", **threads} if processes > 1 else {}


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class StopSignals:
    """Counts Ctrl-C and SIGTERM instead of dying of them, while the context lasts; the third one interrupts as ever.

    Outside the main thread, where Python handles no signals, it counts none.

    Attributes:
        count: how many came.
        exit_code: of a process that ends because of the first of them: 130 after Ctrl-C, 143 after SIGTERM; 0 of none.
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
