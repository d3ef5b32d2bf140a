"""A worker process: slots whose methods are called on request. The main process's side of it, and its own.

A request is a tuple: the name of a method of the slots, its arguments, and the environments whose observations are asked for
after the call, or None for its result. The answer is a tuple, too: whether all went well, and the result or else an
`ErrorReport`. Environments are numbered from 0 in each worker.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import selectors
import socket
import struct
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from entity_gym.pools.processes.interpreter import (
    describe_end,
    exit_when_orphaned,
    start_interpreter,
    wait_until_ended,
)
from entity_gym.pools.processes.pickling import ErrorReport, pickled_for_parent, pickled_for_worker
from entity_gym.pools.slots import EnvIds, EnvSlots, run_serially

CHECK_INTERVAL = 1.0  # seconds between looks at whether a silent worker is alive
CLOSE_GRACE = 3.0  # seconds that workers have to close their environments before they are killed
SIZE = struct.Struct("<q")  # bytes of a message

ORPHAN_GRACE = 3.0  # seconds that a worker has to close its environments once the main process is gone


# ---- the main process's side


class WorkerDied(RuntimeError):  # noqa: N818 - says what happened
    """A worker process is gone: it was killed, crashed, or an environment ended it."""


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
        self._end = ""  # how it ended
        self._is_inside = False  # a message, of which a part is sent or read
        self.process, self._socket = start_interpreter(__name__, "main")
        self._selector = getattr(selectors, "PollSelector", selectors.SelectSelector)()
        self._selector.register(self._socket, selectors.EVENT_READ)

    def __str__(self) -> str:
        first, last = self.first_env + self.env_id[0], self.first_env + self.env_id[-1]
        which = f"environment {first}" if first == last else f"environments {first} to {last}"
        return f"worker {self.index} ({which}, process {self.process.pid})"

    def ask(self, name: str, arguments: Sequence[Any], shown: EnvIds | None = None) -> None:
        """Send a request. A worker that is gone is reported by `answer`.

        Raises:
            ValueError: if an argument cannot be pickled.
            RuntimeError: if Ctrl-C interrupted an earlier call in the middle of a message.
        """
        request = name, arguments, shown
        # The arguments of a step are plain, so the faster pickler will do.
        pickled = pickle.dumps(request, protocol=5) if name == "step" else pickled_for_worker(request)
        if self._is_inside:
            raise RuntimeError("the pool was interrupted in the middle of a message: close it and make a new one")
        if self.is_busy:  # Ctrl-C came before the last answer
            with contextlib.suppress(Exception):
                self.answer()
        self.is_busy = self._is_inside = True
        with contextlib.suppress(OSError):  # the worker is gone; `answer` reports it
            send(self._socket, pickled)
        self._is_inside = False

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
            self._is_inside = True
            pickled, large = receive(self._socket)
        except (EOFError, OSError) as error:
            self._is_inside = False
            raise self._death() from error
        self.is_busy = self._is_inside = False
        try:
            is_result, value = pickle.loads(pickled, buffers=large)
        except Exception as error:  # a module is missing here, for example; later answers are not affected
            error.add_note(f"raised while reading an answer of {self}")
            raise
        if not is_result:
            raise value.exception(str(self))
        return value

    def _has_answered(self) -> bool:
        return bool(self._selector.select(CHECK_INTERVAL))

    def check_alive(self) -> None:
        """Raise WorkerDied if the process has ended."""
        if self._end or self.process.poll() is not None:
            raise self._death()

    def _death(self) -> WorkerDied:
        """Wait until a worker that hung up has ended, and describe how."""
        self._end = self._end or describe_end(self.process)
        return WorkerDied(f"{self} {self._end}")

    def hang_up(self) -> None:
        """End the connection: whoever waits for a message, here or there, gets an EOFError."""
        with contextlib.suppress(OSError):  # the other end is gone already
            self._socket.shutdown(socket.SHUT_RDWR)  # a forked process may hold the socket open

    def close(self) -> None:
        """Close the connection of a process that has ended."""
        with self.lock:  # a thread that waits for an answer learns of the end first
            self._selector.close()
            self._socket.close()


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
            worker.hang_up()
        wait_until_ended(processes, CLOSE_GRACE)
    finally:
        workers.clear()
        for process in processes:
            process.kill()
            process.wait()
        for worker in mine:
            worker.close()


# ---- the worker's side


def main(descriptor: int) -> None:
    """Serve requests until the main process hangs up. `descriptor` is that of the connected socket."""
    exit_when_orphaned(descriptor, ORPHAN_GRACE)
    serve(socket.socket(fileno=descriptor))


def serve(connection: socket.socket) -> None:
    """Serve requests until the main process hangs up; then close the environments. The first request makes them."""
    slots: EnvSlots | None = None
    with connection, contextlib.suppress(EOFError, OSError):  # the pool is closed, or the main process is gone
        try:
            while True:
                request, _ = receive(connection)
                large: list[pickle.PickleBuffer] = []
                try:
                    what = "the result"
                    result: Any
                    name, arguments, shown = pickle.loads(request)
                    if slots is None:
                        source, num_envs, options = arguments
                        slots = pickle.loads(source).make_slots(num_envs, options)
                        environment = slots.where(0).partition(" (")[0]
                        result = slots.obs_space, dict(slots.action_space), environment, slots.can_save
                    else:
                        result = getattr(slots, name)(*arguments)
                    if shown is not None:
                        result = slots.collect(shown, run_serially)
                        what = f"the reports of environments {(shown + slots.options.first_env).tolist()}"
                    answer = pickled_for_parent((True, result), what, large)
                except Exception as error:
                    answer, large = pickle.dumps((False, ErrorReport.of(error))), []
                send(connection, answer, large)
        finally:
            if slots is not None:
                slots.close()


# ---- messages


def send(connection: socket.socket, pickled: bytes, large: Sequence[pickle.PickleBuffer] = ()) -> None:
    """Send a pickle, and the contents of arrays that are not in it.

    Raises:
        OSError: if the other end is closed.
    """
    contents = [buffer.raw() for buffer in large]
    head = pickle.dumps((pickled, [content.nbytes for content in contents]))
    connection.sendall(SIZE.pack(len(head)) + head)
    for content in contents:
        connection.sendall(content)


def receive(connection: socket.socket) -> tuple[bytes, list[memoryview]]:
    """Wait for the next message; returns the arguments of `send`.

    Raises:
        EOFError, OSError: if the other end is closed and no message is left.
    """
    (num_bytes,) = SIZE.unpack(_read(connection, SIZE.size))
    pickled, sizes = pickle.loads(_read(connection, num_bytes))
    return pickled, [_read(connection, size) for size in sizes]


def _read(connection: socket.socket, num_bytes: int) -> memoryview:
    content, done = np.empty(num_bytes, np.uint8).data, 0
    while done < num_bytes:
        got = connection.recv_into(content[done:], 0, socket.MSG_WAITALL)
        if got == 0:
            raise EOFError
        done += got
    return content
