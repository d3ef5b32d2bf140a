"""All worker processes of a pool: waited for, replaced where they die, and ended together."""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np

from entity_gym.batch.vec_obs import VecObs
from entity_gym.pools.processes.frames import joined
from entity_gym.pools.processes.handle import (
    CHECK_INTERVAL,
    Replies,
    Request,
    WorkerDied,
    WorkerProcess,
    wait_for,
)
from entity_gym.pools.processes.worker import NOBODY, Op, Reset, Start
from entity_gym.pools.slots import EnvIds

#: What a pool does when a worker process dies.
OnCrash = Literal["raise", "restart"]

CLOSE_GRACE = 3.0  # seconds that workers have to close their environments before they are terminated
KILL_GRACE = 1.0  # seconds after that before they are killed


class WorkerPool:
    """All workers of a pool. They end when this is closed, collected as garbage, or the interpreter exits.

    Args:
        starts: the environments of each worker.

    Raises:
        OSError: if this system cannot do it, or a process cannot be started.
    """

    def __init__(self, starts: Sequence[Start]) -> None:
        if os.name != "posix":
            raise OSError("worker processes share memory in a way that needs Linux or macOS; use ListEnv here")
        self.owner = os.getpid()
        self.workers: list[WorkerProcess] = []
        self._finalizer = weakref.finalize(self, shut_down, self.workers)
        self._broken = False
        try:
            for index, start in enumerate(starts):
                self.workers.append(WorkerProcess(index, start))
        except BaseException:
            self.close()
            raise
        self._watch()

    @property
    def closed(self) -> bool:
        return not self._finalizer.alive

    def close(self) -> None:
        """End all workers. May be called twice."""
        self._finalizer()

    def ask_all(self, op: Op, values: Sequence[Any], ids: Sequence[EnvIds] | None = None) -> Replies:
        """Send every worker a request of its own; `ids` are the environments whose frames are to come."""
        replies = Replies()
        for worker, value in zip(self.workers, values, strict=True):
            worker.ask(op, value, replies, NOBODY if ids is None else ids[worker.index])
        return replies

    def abandon(self, replies: Replies) -> None:
        """Nobody waits for these answers any more."""
        for worker in self.workers:
            for request in worker.requests.values():
                if request.replies is replies:
                    request.replies = None

    def take_next(self) -> WorkerDied | None:
        """Wait for any answers, at most `CHECK_INTERVAL`. Returns what is to be said of a worker that is gone.

        Raises:
            RuntimeError: if Ctrl-C interrupted this while a message was read, which left half of it.
        """
        if self._broken:
            raise RuntimeError("the pool was interrupted in the middle of a message: close it and make a new one")
        answered = [self._by_descriptor[fd] for fd, _ in self._poll.poll(CHECK_INTERVAL * 1000)]
        for worker in answered:
            try:
                worker.take(*worker.receive())
            except WorkerDied as died:
                return died
            except KeyboardInterrupt:
                self._broken = True
                raise
        if not answered:  # a dead worker hangs up, unless a process that it started keeps the line open
            return next((worker.death() for worker in self.workers if worker.process.poll() is not None), None)
        return None

    def replace(
        self, worker: WorkerProcess, start: Start, env_info: Sequence[Mapping[str, Any]] | None
    ) -> tuple[list[Request], VecObs]:
        """Put a new process in the place of a dead one, and reset its environments.

        Returns:
            What the old one did not answer, and what its environments show.

        Raises:
            WorkerDied: if it dies again. What its environments raise, is raised here.
        """
        lost = worker.relaunch(start)
        self._watch()
        ids = np.arange(worker.env_id.start, worker.env_id.stop)
        worker.converse(Op.START, start)
        return lost, joined(worker.converse(Op.RESET, Reset(ids, False, env_info=env_info), ids).frames)

    def _watch(self) -> None:
        self._by_descriptor = {worker.channel.connection.fileno(): worker for worker in self.workers}
        self._poll = select.poll()
        for descriptor in self._by_descriptor:
            self._poll.register(descriptor, select.POLLIN)


def crash_seed(seed: int, restart: int) -> int:
    """The seed of a slice after its worker was restarted for the `restart`-th time (from 1) since it was seeded with `seed`.

    Deterministic, and other than any seed that a user is likely to give, so that no episode is a repetition.
    """
    return int(np.random.SeedSequence((seed, restart), spawn_key=(0,)).generate_state(1, np.uint64)[0])


def shut_down(workers: list[WorkerProcess]) -> None:
    """End the processes: ask first, then use force. Also called by the garbage collector and when the interpreter exits."""
    here = [worker for worker in workers if worker.owner == os.getpid()]  # not those of the process we were forked from
    workers.clear()
    processes = [worker.process for worker in here]
    try:
        for worker in here:
            descriptor = worker.channel.connection.fileno()
            if descriptor < 0:  # it could not be put in the place of one that died
                continue
            poll = select.poll()
            poll.register(descriptor, select.POLLOUT)
            if poll.poll(0):  # else its pipe is full, and it finds out that we are gone
                with contextlib.suppress(OSError):
                    worker.channel.send(Op.CLOSE, 0, pickle.dumps(None))
        for worker in here:
            worker.channel.close()
        wait_for(processes, CLOSE_GRACE)
        for process in processes:
            process.terminate()  # does nothing where the process has ended
        wait_for(processes, KILL_GRACE)
    finally:
        for process in processes:
            process.kill()
            process.wait()


def check_workers(num_processes: object, on_crash: object) -> None:
    """Raise a ValueError for arguments of a pool that cannot be."""
    if isinstance(num_processes, bool) or not isinstance(num_processes, int) or num_processes < 1:
        raise ValueError(f"num_processes is {num_processes!r}; it must be a whole number, at least 1")
    if on_crash not in get_args(OnCrash):
        raise ValueError(f"on_crash is {on_crash!r}; allowed: {get_args(OnCrash)}")
