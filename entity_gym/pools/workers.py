"""Workers step the environments of a pool: the calling thread alone, or fixed worker threads.

The hand-off is one raw lock in each direction. Waking a parked thread costs 40 to 100 microseconds, and raw locks cost no more
than that when the cores are shared with other programs, where spinning and barriers of compiled runtimes lose milliseconds.
"""

from __future__ import annotations

import _thread
import os
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import NamedTuple, Self

from entity_gym.pools.slots import EnvIds, run_serially

#: How long `close` waits for steps that are being taken, in seconds.
PATIENCE = 5.0


class Task(NamedTuple):
    """A submitted job, `work(worker)`, on the environments `ids`; `Workers.next` waits for it."""

    ids: EnvIds
    work: Callable[[int], None]


class Finished(NamedTuple):
    """A task that has been done, and what it raised."""

    ids: EnvIds
    error: BaseException | None

    @classmethod
    def by_doing(cls, task: Task, worker: int) -> Finished:
        """Do `task`."""
        try:
            task.work(worker)
        except BaseException as error:  # whatever it is, it belongs to whoever asks for the result
            return cls(task.ids, error)
        return cls(task.ids, None)


class Workers(ABC):
    """Runs functions for a pool, which is the only one to call it, from one thread at a time.

    Attributes:
        num_workers: into how many shares to divide work.
    """

    num_workers: int

    @abstractmethod
    def run(self, fn: Callable[[int], None], n: int) -> None:
        """Call fn(0) ... fn(n - 1), and return when all are done.

        Raises:
            BaseException: what one of them raised, the one with the lowest number if several did.
        """

    @abstractmethod
    def submit(self, task: Task, share: int) -> None:
        """Queue `task`. Tasks of one share, 0 ... num_workers - 1, run in order; `next` returns it when it is done."""

    @abstractmethod
    def next(self) -> Finished:
        """Wait for the next task that is done. There must be one that `next` has not returned yet."""

    @abstractmethod
    def drain(self) -> list[Finished]:
        """Wait until all submitted tasks are done, and return those that `next` has not returned."""

    @abstractmethod
    def clone(self) -> Self:
        """Return as many new workers."""

    @abstractmethod
    def close(self) -> bool:
        """Stop. Returns True if all threads have ended, False if one still runs after `PATIENCE` seconds."""


class SerialWorkers(Workers):
    """The calling thread. A submitted task is done when `next` asks for it."""

    num_workers = 1

    def __init__(self) -> None:
        self._tasks: deque[Task] = deque()

    def run(self, fn: Callable[[int], None], n: int) -> None:
        run_serially(fn, n)

    def submit(self, task: Task, share: int) -> None:
        self._tasks.append(task)

    def next(self) -> Finished:
        return Finished.by_doing(self._tasks.popleft(), 0)

    def drain(self) -> list[Finished]:
        return [self.next() for _ in range(len(self._tasks))]

    def clone(self) -> SerialWorkers:
        return SerialWorkers()

    def close(self) -> bool:
        self._tasks.clear()
        return True


class ThreadWorkers(Workers):
    """Worker threads 1 ... n - 1, while the calling thread is worker 0.

    Submitted tasks of share 0 run in an extra thread, worker n, which is started when it is first needed. So worker 0 is
    always the calling thread.

    Args:
        num_workers: n, at least 1.
        affinity_offset: the thread with share t runs on usable core (offset + t) % cores only; -1: wherever the system puts
            it. The calling thread is left alone. Linux only.

    Raises:
        ValueError: if the system does not let threads choose their core.
    """

    def __init__(self, num_workers: int, affinity_offset: int = -1) -> None:
        check_affinity(affinity_offset)
        self.num_workers = num_workers
        self._affinity_offset = affinity_offset
        self._pid = os.getpid()
        self._finished: SimpleQueue[Finished] = SimpleQueue()
        self._inboxes = [_Inbox() for _ in range(num_workers)]  # by share; worker n has inbox 0
        self._threads: list[threading.Thread | None] = [None] * num_workers
        # Runs at the latest when the interpreter exits. Threads know their inbox only, so that they keep no pool alive.
        self._stop = weakref.finalize(self, _stop, self._inboxes, self._threads)
        for share in range(1, num_workers):
            self._start(share)

    def run(self, fn: Callable[[int], None], n: int) -> None:
        self._check_alive()
        count = min(n, self.num_workers)
        if count <= 1:
            run_serially(fn, n)
            return
        round_ = _Round(fn, n, count)
        for worker in range(1, count):
            self._inboxes[worker].put(partial(round_.work, worker))
        round_.work(0)
        round_.wait()

    def submit(self, task: Task, share: int) -> None:
        self._check_alive()
        if self._threads[share] is None:
            self._start(share)
        self._inboxes[share].put(partial(_do, task, share or self.num_workers, self._finished))

    def next(self) -> Finished:
        self._check_alive()
        return self._finished.get()

    def drain(self) -> list[Finished]:
        self._check_alive()
        for share, thread in enumerate(self._threads):
            if thread is not None:
                done = _thread.allocate_lock()
                done.acquire()
                self._inboxes[share].put(done.release)
                done.acquire()
        return [self._finished.get() for _ in range(self._finished.qsize())]

    def clone(self) -> ThreadWorkers:
        return ThreadWorkers(self.num_workers, self._affinity_offset)

    def close(self) -> bool:
        self._stop()
        return not any(thread is not None and thread.is_alive() for thread in self._threads)

    def _start(self, share: int) -> None:
        thread = threading.Thread(
            target=_serve, args=(self._inboxes[share],), name=f"environments-{share}", daemon=True
        )
        thread.start()
        self._threads[share] = thread
        if self._affinity_offset >= 0:
            cores = usable_cores()
            assert thread.native_id is not None
            os.sched_setaffinity(thread.native_id, {cores[(self._affinity_offset + share) % len(cores)]})

    def _check_alive(self) -> None:
        if not self._stop.alive:
            raise ValueError("the pool is closed")
        if os.getpid() != self._pid:
            raise ValueError("this pool was made in another process, and threads do not survive a fork: make it here")


class _Inbox:
    """The queue of jobs of one thread."""

    __slots__ = ("jobs", "stop", "wake")

    def __init__(self) -> None:
        self.jobs: deque[Callable[[], None]] = deque()
        self.wake = _thread.allocate_lock()  # free when there may be something to do
        self.wake.acquire()
        self.stop = False

    def put(self, job: Callable[[], None]) -> None:
        """Add a job. It must not raise."""
        self.jobs.append(job)
        self.ring()

    def ring(self) -> None:
        try:
            self.wake.release()
        except RuntimeError:  # released already: the thread has not looked yet, and will find this task too
            pass


class _Round:
    """One call of `ThreadWorkers.run`: fn(k) for k < n, shared out among the workers 0 ... count - 1."""

    def __init__(self, fn: Callable[[int], None], n: int, count: int) -> None:
        self._fn = fn
        self._n = n
        self._errors: dict[int, BaseException] = {}  # by k
        # Locks of its own: a round that was interrupted while waiting does not confuse the next.
        self._done = [_thread.allocate_lock() for _ in range(count)]
        for lock in self._done:
            lock.acquire()

    def work(self, worker: int) -> None:
        k = worker
        try:
            for k in range(worker, self._n, len(self._done)):
                self._fn(k)
        except BaseException as error:  # raised by `wait`, in the thread that called `run`
            if worker == 0 and isinstance(error, KeyboardInterrupt):
                raise  # Ctrl-C comes to the calling thread alone, and is not for waiting for the others
            self._errors[k] = error
        self._done[worker].release()

    def wait(self) -> None:
        for lock in self._done:
            lock.acquire()
        if self._errors:
            try:
                raise self._errors[min(self._errors)]
            finally:
                self._errors.clear()  # their tracebacks refer to this object: a reference cycle


def _serve(inbox: _Inbox) -> None:
    """Run jobs of the inbox until it is told to stop: the main function of a worker thread."""
    while not inbox.stop:
        inbox.wake.acquire()
        while inbox.jobs and not inbox.stop:
            job = inbox.jobs.popleft()
            job()
            del job  # it holds environments, which may be gone before there is more to do


def _do(task: Task, worker: int, finished: SimpleQueue[Finished]) -> None:
    finished.put(Finished.by_doing(task, worker))


def _stop(inboxes: list[_Inbox], threads: list[threading.Thread | None]) -> None:
    for inbox in inboxes:
        inbox.stop = True
        inbox.ring()
    deadline = time.monotonic() + PATIENCE
    for thread in threads:
        # The garbage collector may call this from one of the threads themselves.
        if thread is not None and thread is not threading.current_thread():
            thread.join(max(0.0, deadline - time.monotonic()))


def numbers_of_workers(num_threads: int, *, background: bool = False) -> int:
    """Return the number of different `worker` arguments with which this many threads call slots; see `ThreadWorkers`."""
    return num_threads + 1 if num_threads > 1 or background else 1


def usable_cores() -> list[int]:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def check_affinity(offset: int) -> None:
    """Raise a ValueError if threads cannot be bound to cores, or not to this one."""
    if offset < -1:
        raise ValueError(f"thread_affinity_offset is {offset}; it must be a core's number, or -1 for no choice")
    if offset >= 0 and not hasattr(os, "sched_setaffinity"):
        raise ValueError(
            f"thread_affinity_offset is {offset}; only Linux lets threads choose their core: leave it at -1 here"
        )


MAX_THREADS = 1024


def check_num_threads(num_threads: object) -> int:
    """Return `num_threads`.

    Raises:
        ValueError: if it is no number of threads.
    """
    if isinstance(num_threads, bool) or not isinstance(num_threads, int) or not 1 <= num_threads <= MAX_THREADS:
        raise ValueError(f"num_threads is {num_threads!r}; it must be a whole number, 1 to {MAX_THREADS}, or 'auto'")
    return num_threads
