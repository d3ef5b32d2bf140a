"""The process that evaluates while training goes on: started, asked, found dead, ended; and what runs in it.

Training and the process exchange pickled messages over a socket. The process takes one task after the other, and ends by
itself when training is gone.
"""

from __future__ import annotations

import json
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import threading
from multiprocessing.connection import Connection
from multiprocessing.spawn import get_executable
from typing import Any

from entity_gym.pools.processes.handle import ENVIRONMENT_VARIABLES
from entity_gym.pools.processes.pickling import ErrorReport, pickled_for_parent, pickled_for_worker

# A fresh interpreter, for the reasons given in `entity_gym.pools.processes.handle`: forking copies locks that other threads
# hold, and `multiprocessing` would run the user's script once more.
PROGRAM = """\
import json, sys
path, descriptor = json.loads(sys.argv.pop())
sys.path[:] = path
from enn_ppo.evaluation.process import main
main(descriptor)
"""

NICENESS = 10  # training comes first where there are fewer cores than threads
DEATH_GRACE = 3.0  # seconds that a process has to end once it has hung up


class ProcessDied(Exception):  # noqa: N818 - says what happened
    """The process is gone. The message says how: `was killed by SIGKILL (signal 9)`."""


class EvaluationProcess:
    """The process as training sees it.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self) -> None:
        ours, its = socket.socketpair()
        program = json.dumps([[str(entry) for entry in sys.path], its.fileno()])
        flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        try:
            self._process = subprocess.Popen(
                [os.fsdecode(get_executable()), *flags, "-c", PROGRAM, program],
                stdin=subprocess.DEVNULL,
                env={"PYTHONHASHSEED": "0", **os.environ, **ENVIRONMENT_VARIABLES},
                pass_fds=[its.fileno()],
            )
        except BaseException:
            ours.close()
            raise
        finally:
            its.close()
        self._connection = Connection(ours.detach())

    @property
    def pid(self) -> int:
        """Its number."""
        return self._process.pid

    def ask(self, task: Any) -> None:
        """Send a task. That the process is gone is found out when the answer is waited for.

        Raises:
            ValueError: the task cannot be sent.
        """
        message = pickled_for_worker(task)
        try:
            self._connection.send_bytes(message)
        except OSError:
            pass

    def has_answered(self, seconds: float = 0.0) -> bool:
        """Whether there is an answer, or the end of all answers, within that time."""
        return self._connection.poll(seconds) or self._process.poll() is not None

    def answer(self) -> Any:
        """The answer that has come: what the task returned, or an `ErrorReport`.

        Raises:
            ProcessDied: there is none, and the process is gone for certain.
        """
        try:
            if self._connection.poll(0):
                return pickle.loads(self._connection.recv_bytes())
        except (EOFError, OSError):
            pass
        raise ProcessDied(self._end())

    def close(self) -> None:
        """End the process at once, whatever it does. May be called twice."""
        self._process.kill()
        self._process.wait()
        self._connection.close()

    def _end(self) -> str:
        try:
            code = self._process.wait(DEATH_GRACE)
        except subprocess.TimeoutExpired:  # it closed its connection and lives on
            self.close()
            return "closed its connection, and was killed"
        self._connection.close()
        if code < 0:
            try:
                return f"was killed by {signal.Signals(-code).name} (signal {-code})"
            except ValueError:
                return f"was killed by signal {-code}"
        return f"exited with code {code}"


# --- In the process ---


def main(descriptor: int) -> None:
    """Run tasks until training closes the connection.

    Ctrl-C and a scheduler's SIGTERM go to the whole process group, and what they mean is for training to decide.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.nice(NICENESS)
    connection = Connection(descriptor)
    threading.Thread(target=_exit_when_orphaned, args=(descriptor,), daemon=True).start()
    while True:
        try:
            message = connection.recv_bytes()
        except (EOFError, OSError):
            return
        try:
            answer = pickled_for_parent(pickle.loads(message)())
        except Exception as error:
            answer = pickle.dumps(ErrorReport.of(error))
        try:
            connection.send_bytes(answer)
        except OSError:
            return


def _exit_when_orphaned(descriptor: int) -> None:
    """End this process when training is gone, even in the middle of an evaluation."""
    poll = select.poll()
    poll.register(descriptor, 0)  # of no events that are asked for, the hang-up alone is reported
    poll.poll()
    os._exit(1)
