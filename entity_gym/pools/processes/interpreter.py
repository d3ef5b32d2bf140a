"""Child processes that are fresh Python interpreters: starting one, noticing the death of either side, describing the end.

A socket connects parent and child. Either side notices the death of the other by the hang-up.

Forking would copy locks that threads of this process hold (torch and numba have such threads), and the copy would wait for
them forever. `multiprocessing` would run the user's script a second time in every child, which hangs or fails where the
script lacks `if __name__ == "__main__"`, and would leave helper processes behind.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from multiprocessing.spawn import get_executable
from typing import Any

DEATH_GRACE = 3.0  # seconds that a process has to end once it has hung up, for example to write a core dump

# Ctrl-C reaches the whole process group, and the parent alone decides what it means. It is blocked until it is ignored.
IGNORE_CTRL_C = """\
import signal
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
"""
PROGRAM = """\
import importlib, json, sys
path, module, function, descriptors = json.loads(sys.argv.pop())
sys.path[:] = path
getattr(importlib.import_module(module), function)(*descriptors)
"""

# Children share the cores: libraries that start one thread for each core would get in each other's way.
ENVIRONMENT_VARIABLES = {
    "OMP_WAIT_POLICY": "PASSIVE",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "VECLIB_MAXIMUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
}


def start_interpreter(
    module: str,
    function: str,
    descriptors: Sequence[int] = (),
    *,
    environment: Mapping[str, str] = ENVIRONMENT_VARIABLES,
    ignores_ctrl_c: bool = True,
    **options: Any,
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start a process that imports `module` and calls `function(connection, *descriptors)`.

    Its module search path is that of this process. `PYTHONHASHSEED` is 0 unless it is set, so that every child iterates over a
    set of strings in the same order.

    Args:
        module: the module's full name.
        function: takes the descriptor of its end of a pair of connected sockets, and `descriptors`.
        descriptors: open file descriptors, which the child inherits under the same numbers.
        environment: environment variables that differ from those of this process; by default numeric libraries use one thread.
        ignores_ctrl_c: whether the child ignores Ctrl-C from its start.
        options: of `subprocess.Popen`.

    Returns:
        The process, and this end of the pair of sockets.

    Raises:
        OSError: if the process cannot be started.
    """
    connection, its_connection = socket.socketpair()
    inherited = [its_connection.fileno(), *descriptors]
    arguments = json.dumps([[str(entry) for entry in sys.path], module, function, inherited])
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    program = IGNORE_CTRL_C + PROGRAM if ignores_ctrl_c else PROGRAM
    mask_before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT} if ignores_ctrl_c else ())
    try:
        process = subprocess.Popen(
            [os.fsdecode(get_executable()), *flags, "-c", program, arguments],
            stdin=subprocess.DEVNULL,
            env={"PYTHONHASHSEED": "0", **os.environ, **environment},
            pass_fds=inherited,
            **options,
        )
    except BaseException:
        connection.close()
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask_before)
        its_connection.close()
    return process, connection


def exit_when_orphaned(connection: int, grace: float = 0.0, *, interrupts: bool = False) -> None:
    """End this process `grace` seconds after the other end of a socket is closed, whatever its main thread is doing.

    With `interrupts`, the main thread is interrupted first, as by Ctrl-C.
    """

    def watch() -> None:
        poll = select.poll()
        poll.register(connection, 0)  # with no events asked for, only the hang-up is reported
        poll.poll()
        if interrupts:
            os.kill(os.getpid(), signal.SIGINT)
        time.sleep(grace)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def wait_until_ended(processes: Iterable[subprocess.Popen[bytes]], seconds: float) -> None:
    """Wait until all processes have ended, at most `seconds` altogether."""
    deadline = time.monotonic() + seconds
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))


def describe_end(process: subprocess.Popen[bytes]) -> str:
    """Wait for a process that closed its connection, kill it if it goes on, and say how it ended.

    Returns:
        Such as "exited with code 3" or "was killed by SIGKILL (signal 9)".
    """
    wait_until_ended([process], DEATH_GRACE)
    code = process.poll()
    if code is None:
        process.kill()
        process.wait()
        return "closed its connection, and was killed"
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name} (signal {-code})"
    except ValueError:
        return f"was killed by signal {-code}"
