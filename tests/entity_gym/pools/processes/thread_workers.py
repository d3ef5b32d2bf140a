"""Workers of a `ThreadedVecEnv` in threads of the tests' process: all of the pool but the interpreters, in no time to start."""

import socket
import threading

import pytest

from entity_gym.pools.processes import worker


class ThreadInsteadOfProcess:
    """Stand-in for `subprocess.Popen` with as much of it as a pool asks for."""

    pid = 0
    returncode = 0

    def __init__(self, connection: socket.socket) -> None:
        self._thread = threading.Thread(target=worker.serve, args=(connection,))
        self._thread.start()

    def poll(self) -> int | None:
        return None if self._thread.is_alive() else 0

    def wait(self, timeout: float | None = None) -> int:
        self._thread.join(timeout)
        return 0

    def kill(self) -> None:
        pass

    terminate = kill


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has pools start threads instead of processes."""

    def start(module: str, function: str) -> tuple[ThreadInsteadOfProcess, socket.socket]:
        connection, its_connection = socket.socketpair()
        return ThreadInsteadOfProcess(its_connection), connection

    monkeypatch.setattr(worker, "start_interpreter", start)
