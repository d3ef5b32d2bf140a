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
from collections.abc import Iterable
from multiprocessing.spawn import get_executable
from typing import Any

LOOK = 0.5  # seconds between looks for a hang-up, where the system does not report it
DEATH_GRACE = 3.0  # seconds that a process has to end once it has hung up, for example to write a core dump

# Ctrl-C reaches the whole process group, and the parent alone decides what it means. It is blocked until it is ignored; Windows
# cannot block it.
PROGRAM = """\
import importlib, json, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
if hasattr(signal, "pthread_sigmask"):
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
path, module, function, connection = json.loads(sys.argv.pop())
sys.path[:] = path
sys.stdout.reconfigure(errors="replace")
getattr(importlib.import_module(module), function)(connection)
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


def start_interpreter(module: str, function: str) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start a process that imports `module` and calls `function(connection)`.

    Its module search path is that of this process. `PYTHONHASHSEED` is 0 unless it is set, so that every child iterates over a
    set of strings in the same order. Numeric libraries use one thread. It ignores Ctrl-C from its start.

    Args:
        module: the module's full name.
        function: takes the descriptor of its end of a pair of connected sockets.

    Returns:
        The process, and this end of the pair of sockets.

    Raises:
        OSError: if the process cannot be started.
    """
    connection, its_connection = socket.socketpair()
    inherited = its_connection.fileno()
    arguments = json.dumps([[str(entry) for entry in sys.path], module, function, inherited])
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    can_block = hasattr(signal, "pthread_sigmask")
    mask_before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}) if can_block else ()
    options: dict[str, Any] = {}
    try:
        if sys.platform == "win32":
            os.set_handle_inheritable(inherited, True)
            options["startupinfo"] = subprocess.STARTUPINFO(lpAttributeList={"handle_list": [inherited]})
        else:
            options["pass_fds"] = [inherited]
        process = subprocess.Popen(
            [os.fsdecode(get_executable()), *flags, "-c", PROGRAM, arguments],
            stdin=subprocess.DEVNULL,
            env={"PYTHONHASHSEED": "0", **os.environ, **ENVIRONMENT_VARIABLES},
            **options,
        )
    except BaseException:
        connection.close()
        raise
    finally:
        if can_block:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask_before)
        its_connection.close()
    return process, connection


def exit_when_orphaned(connection: int, grace: float = 0.0) -> None:
    """End this process `grace` seconds after the other end of a socket is closed, whatever its main thread is doing."""

    def watch() -> None:
        _wait_for_hang_up(connection)
        time.sleep(grace)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _wait_for_hang_up(connection: int) -> None:
    if hasattr(select, "poll"):
        poll = select.poll()
        poll.register(connection, 0)  # with no events asked for, only the hang-up is reported
        poll.poll()
        return
    with socket.fromfd(connection, socket.AF_INET, socket.SOCK_STREAM) as same, contextlib.suppress(OSError):
        while same.recv(1, socket.MSG_PEEK):
            time.sleep(LOOK)  # a message that is not read yet


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
