"""A worker process as the main process sees it: its requests, its answers, its death."""

from __future__ import annotations

import contextlib
import os
import pickle
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from entity_gym.batch.vec_obs import VecObs
from entity_gym.pools.processes.arena import Array, Channel, create_arena
from entity_gym.pools.processes.interpreter import describe_end, start_interpreter, wait_until_ended
from entity_gym.pools.processes.pickling import pickled_for_worker
from entity_gym.pools.processes.worker import unpack_frames
from entity_gym.pools.slots import EnvIds

MAX_UNANSWERED = 64  # requests in a pipe; more could fill it, and with a worker that waits as well nobody would move
NOBODY: EnvIds = np.zeros(0, np.int64)
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


@dataclass
class Replies:
    """The answers to one or more requests, collected as they arrive."""

    frames: deque[VecObs] = field(default_factory=deque)
    num_frames: int = 0  # environments in `frames`
    results: dict[int, Any] = field(default_factory=dict)  # by worker
    errors: deque[tuple[Exception, EnvIds]] = field(default_factory=deque)  # with the environments that send no frames
    waiting: int = 0  # requests that are not completely answered yet

    def add(self, frames: VecObs) -> None:
        """Collect frames."""
        self.frames.append(frames)
        self.num_frames += len(frames)

    def pop(self, num_frames: int) -> list[VecObs]:
        """Remove and return the oldest `num_frames` frames, or some more where several arrived together."""
        taken = []
        while num_frames > 0:
            taken.append(self.frames.popleft())
            num_frames -= len(taken[-1])
            self.num_frames -= len(taken[-1])
        return taken


@dataclass
class Request:
    """A request to a worker."""

    pickled: bytes
    arrays: Sequence[Array]
    ids: EnvIds  # environments whose frames are still to come
    replies: Replies | None  # None: the answers are ignored


class WorkerProcess:
    """One worker process and its unanswered requests.

    Args:
        index: its number.
        env_id: its environments.
        first_env: number of the pool's environment 0 in messages.

    Attributes:
        requests: not completely answered, the oldest first.

    Raises:
        OSError: if the process cannot be started.
    """

    def __init__(self, index: int, env_id: range, first_env: int) -> None:
        self.index, self.env_id, self.first_env = index, env_id, first_env
        self.requests: deque[Request] = deque()
        self._num_sent = 0  # of `requests`
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

    def __str__(self) -> str:
        first, last = self.first_env + self.env_id[0], self.first_env + self.env_id[-1]
        which = f"environment {first}" if first == last else f"environments {first} to {last}"
        return f"worker {self.index} ({which}, process {self.process.pid})"

    def ask(
        self, replies: Replies, name: str, *arguments: Any, ids: EnvIds = NOBODY, arrays: Sequence[Array] = ()
    ) -> None:
        """Request a method of `Worker`, whose answers `replies` collects. A worker that is gone is reported by `take`.

        Args:
            replies: collects the answers.
            name: of the method.
            arguments: of the method.
            ids: the environments whose frames will come.
            arrays: more arguments, which travel faster.

        Raises:
            ValueError: if an argument cannot be pickled.
        """
        value = name, *arguments
        # The arguments of a step are plain, so the faster pickler will do.
        pickled = pickle.dumps(value) if name == "step" else pickled_for_worker(value)
        self.requests.append(Request(pickled, arrays, ids, replies))
        replies.waiting += 1
        self._send()

    def _send(self) -> None:
        while self._num_sent < min(len(self.requests), MAX_UNANSWERED):
            request = self.requests[self._num_sent]
            self._num_sent += 1
            with contextlib.suppress(OSError):  # the worker is gone; `take` reports it
                self.channel.send(request.pickled, request.arrays)

    def take(self) -> None:
        """Read the next answer, which has arrived, into the replies of its request.

        Raises:
            WorkerDied: if the worker is gone and has left no answer.
        """
        try:
            last, pickled, arrays = self.channel.receive()
        except (EOFError, OSError) as error:
            raise self.death() from error
        request = self.requests[0]
        if last:
            self.requests.popleft()
            self._num_sent -= 1
            self._send()
        ids = request.ids if last else request.ids[:1]
        request.ids = request.ids[len(ids) :]
        replies = request.replies
        if replies is None:
            return
        replies.waiting -= last
        try:
            kind, *content = pickle.loads(pickled)
        except Exception as error:  # a module is missing here, for example; later answers are not affected
            error.add_note(f"raised while reading an answer of {self}")
            replies.errors.append((error, ids))
            return
        if kind == "error":
            replies.errors.append((content[0].exception(str(self)), ids))
        elif kind == "result":
            replies.results[self.index] = content[0]
        else:
            paths, reports = content
            replies.add(unpack_frames(paths, reports, arrays))

    def death(self) -> WorkerDied:
        """Wait until a worker that hung up has ended, and describe how."""
        how = describe_end(self.process)
        return WorkerDied(f"{self} {how}", self.index, self.process.returncode, self.env_id)


def shut_down(workers: list[WorkerProcess], owner: int) -> None:
    """End the processes: hang up first, then use force. Also called by the garbage collector and when the interpreter exits.

    Args:
        workers: emptied.
        owner: the process that started them; one that was forked from it leaves them alone.
    """
    processes = [worker.process for worker in workers] if owner == os.getpid() else []
    try:
        if processes:
            for worker in workers:
                worker.channel.close()
        wait_until_ended(processes, CLOSE_GRACE)
        for process in processes:
            process.terminate()  # does nothing where the process has ended
        wait_until_ended(processes, KILL_GRACE)
    finally:
        workers.clear()
        for process in processes:
            process.kill()
            process.wait()
