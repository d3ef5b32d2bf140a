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

    def __init__(self, module: str, function: str, descriptors: Sequence[int]) -> None:
        connection, *arenas = map(os.dup, descriptors)
        self._worker = Worker(Channel(socket.socket(fileno=connection), *arenas))
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
    monkeypatch.setattr(handle, "start_interpreter", ThreadInsteadOfProcess)
