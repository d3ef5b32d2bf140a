"""A worker process as the main process sees it: its requests, its answers, its death."""

from __future__ import annotations

import contextlib
import copy
import os
import pickle
import socket
import threading
from typing import Any

from entity_gym.pools.processes.arena import Channel, create_arena
from entity_gym.pools.processes.interpreter import describe_end, start_interpreter, wait_until_ended
from entity_gym.pools.processes.pickling import Buffers, pickled_for_worker

CHECK_INTERVAL = 1.0  # seconds between looks at whether a silent worker is alive
CLOSE_GRACE = 3.0  # seconds that workers have to close their environments before they are terminated
KILL_GRACE = 1.0  # seconds after that before they are killed


class WorkerDied(RuntimeError):  # noqa: N818 - says what happened
    """A worker process is gone: it was killed, crashed, or an environment ended it.

    Attributes:
        worker: its number.
        exit_code: its exit code; -n if signal n killed it.
        env_id: its environments.
    """

    def __init__(self, message: str, worker: int, exit_code: int | None, env_id: range) -> None:
        super().__init__(message)
        self.worker, self.exit_code, self.env_id = worker, exit_code, env_id

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.worker, self.exit_code, self.env_id)


class WorkerProcess:
    """One worker process, which answers one request after the other.

    Args:
        index: its number.
        env_id: its environments.
        first_env: number of the pool's environment 0 in messages.

    Attributes:
        lock: held from a request to its answer.
        is_busy: an answer is outstanding.

    Raises:
        OSError: if the process cannot be started.
    """

    def __init__(self, index: int, env_id: range, first_env: int) -> None:
        self.index, self.env_id, self.first_env = index, env_id, first_env
        self.lock = threading.Lock()
        self.is_busy = False
        self._died: WorkerDied | None = None
        self._is_reading = False
        its_arena, our_arena = create_arena(), create_arena()
        try:
            self.process, connection = start_interpreter(
                "entity_gym.pools.processes.worker", "main", [its_arena, our_arena]
            )
        except BaseException:
            os.close(its_arena)
            os.close(our_arena)
            raise
        self.channel = Channel(connection, our_arena, its_arena)
        connection.settimeout(CHECK_INTERVAL)

    def __str__(self) -> str:
        first, last = self.first_env + self.env_id[0], self.first_env + self.env_id[-1]
        which = f"environment {first}" if first == last else f"environments {first} to {last}"
        return f"worker {self.index} ({which}, process {self.process.pid})"

    def ask(self, name: str, *arguments: Any) -> None:
        """Request a method of `Worker` or of its slots. A worker that is gone is reported by `answer`.

        Raises:
            ValueError: if an argument cannot be pickled.
            RuntimeError: if Ctrl-C interrupted an earlier call while it read an answer.
        """
        value = name, *arguments
        buffers: Buffers = []
        if name == "step":  # its arguments are plain, so the faster pickler will do
            pickled = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
        else:
            pickled = pickled_for_worker(value, buffers)
        if self._is_reading:
            raise RuntimeError("the pool was interrupted in the middle of a message: close it and make a new one")
        if self.is_busy:  # Ctrl-C came before the last answer
            with contextlib.suppress(Exception):
                self.answer()
        self.is_busy = True
        with contextlib.suppress(OSError):  # the worker is gone; `answer` reports it
            self.channel.send(pickled, buffers)

    def answer(self) -> Any:
        """Wait for the answer to the request.

        Raises:
            WorkerDied: if the worker is gone.
            Exception: what was raised there.
        """
        try:
            while not self._has_answered():  # a dead worker hangs up, unless a process that it started keeps the socket
                if self.process.poll() is not None:
                    raise EOFError
            self._is_reading = True  # until the whole message is read
            pickled, contents = self.channel.receive()
        except (EOFError, OSError) as error:
            self._is_reading = False
            raise self._death() from error
        self.is_busy = self._is_reading = False
        try:
            is_result, value = pickle.loads(pickled, buffers=contents)
        except Exception as error:  # a module is missing here, for example; later answers are not affected
            error.add_note(f"raised while reading an answer of {self}")
            raise
        if not is_result:
            raise value.exception(str(self))
        return value

    def _has_answered(self) -> bool:
        try:
            self.channel.connection.recv(1, socket.MSG_PEEK)
        except TimeoutError:
            return False
        return True

    def check_alive(self) -> None:
        """Raise WorkerDied if the process has ended."""
        if self._died is not None or self.process.poll() is not None:
            raise self._death()

    def _death(self) -> WorkerDied:
        """Wait until a worker that hung up has ended, and describe how."""
        if self._died is None:
            how = describe_end(self.process)
            self._died = WorkerDied(f"{self} {how}", self.index, self.process.returncode, self.env_id)
        return copy.copy(self._died)  # without its traceback


def shut_down(workers: list[WorkerProcess], owner: int) -> None:
    """End the processes: hang up first, then use force. Also called by the garbage collector and when the interpreter exits.

    Args:
        workers: emptied.
        owner: the process that started them; one that was forked from it leaves them alone.
    """
    mine = list(workers) if owner == os.getpid() else []
    processes = [worker.process for worker in mine]
    try:
        for worker in mine:
            worker.channel.hang_up()
        wait_until_ended(processes, CLOSE_GRACE)
        for process in processes:
            process.terminate()  # does nothing where the process has ended
        wait_until_ended(processes, KILL_GRACE)
    finally:
        workers.clear()
        for process in processes:
            process.kill()
            process.wait()
        for worker in mine:
            with worker.lock:  # a thread that waits for an answer learns of the end first
                worker.channel.close()
