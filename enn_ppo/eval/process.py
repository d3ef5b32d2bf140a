"""The process that evaluates checkpoints during training: it runs one task after the other until the trainer ends."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import pickle
import signal
import sys
from multiprocessing.connection import Connection
from typing import Any

from entity_gym.pools.processes.interpreter import describe_end, exit_when_orphaned, start_interpreter
from entity_gym.pools.processes.pickling import ErrorReport, pickled_for_parent, pickled_for_worker


class ProcessDied(Exception):  # noqa: N818 - says what happened
    """The evaluation process has died. The message says how: `was killed by SIGKILL (signal 9)`."""


class EvaluationProcess:
    """The trainer's handle of the evaluation process.

    Args:
        niceness: of the process; above 0 other processes have priority.

    Raises:
        OSError: the process cannot be started.
    """

    def __init__(self, niceness: int = 0) -> None:
        self._process, connection = start_interpreter(__name__, "main")
        self._connection = Connection(connection.detach())
        self.pid = self._process.pid
        if niceness and hasattr(os, "setpriority"):  # not on Windows
            os.setpriority(os.PRIO_PROCESS, self.pid, niceness)

    def ask(self, task: Any) -> None:
        """Send a task, a function without arguments. `answer` reports a dead process.

        Raises:
            ValueError: the task cannot be pickled.
        """
        message = pickled_for_worker(task)
        with contextlib.suppress(OSError):
            self._connection.send_bytes(message)

    def has_answered(self, seconds: float = 0.0) -> bool:
        """Wait at most `seconds` for an answer. Returns whether there is one, or the process has ended."""
        return self._connection.poll(seconds) or self._process.poll() is not None

    def answer(self) -> Any:
        """Return the result of the task, or an `ErrorReport` of the exception that it raised.

        Raises:
            ProcessDied: the process ended without an answer.
        """
        with contextlib.suppress(EOFError, OSError):
            if self._connection.poll(0):
                return pickle.loads(self._connection.recv_bytes())
        how = describe_end(self._process)
        self._connection.close()
        raise ProcessDied(how)

    def close(self) -> None:
        """Kill the process. May be called twice."""
        self._process.kill()
        self._process.wait()
        self._connection.close()


def main(descriptor: int) -> None:
    """Run tasks in the evaluation process until training closes the connection."""
    signal.signal(
        signal.SIGTERM, signal.SIG_IGN
    )  # schedulers send it to the whole group; the trainer ends this process
    connection = Connection(descriptor)
    libc: Any = ctypes.CDLL(None) if sys.platform == "linux" else None
    exit_when_orphaned(descriptor)
    with contextlib.suppress(EOFError, OSError):  # the trainer has ended
        while True:
            task = connection.recv_bytes()
            try:
                answer = pickled_for_parent(pickle.loads(task)())
            except Exception as error:
                answer = pickle.dumps(ErrorReport.of(error))
            connection.send_bytes(answer)
            gc.collect()  # what an evaluation has made refers to itself: the next one can use its memory
            if hasattr(libc, "malloc_trim"):  # of glibc, which keeps what is freed; see malloc_trim(3)
                libc.malloc_trim(0)
