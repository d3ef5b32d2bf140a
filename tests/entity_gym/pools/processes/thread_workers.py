"""Workers of a `ProcessVecEnv` in threads of the tests' process: all of the pool but the interpreters, in no time to start."""

import os
import socket
import threading
from collections.abc import Sequence

import pytest

from entity_gym.pools.processes import handle
from entity_gym.pools.processes.arena import Channel
from entity_gym.pools.processes.worker import Worker


class ThreadInsteadOfProcess:
    """As much of `subprocess.Popen` as a pool asks for."""

    pid = 0
    returncode = 0

    def __init__(self, connection: socket.socket, descriptors: Sequence[int]) -> None:
        self._worker = Worker(Channel(connection, *map(os.dup, descriptors)))
        self._thread = threading.Thread(target=self._worker.serve)
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

    def start(module: str, function: str, descriptors: Sequence[int]) -> tuple[ThreadInsteadOfProcess, socket.socket]:
        connection, its_connection = socket.socketpair()
        return ThreadInsteadOfProcess(its_connection, descriptors), connection

    monkeypatch.setattr(handle, "start_interpreter", start)
