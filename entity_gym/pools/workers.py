"""Workers step the environments of a pool: the calling thread alone, or fixed threads.

The hand-off is one queue in each direction. Waking a parked thread costs 40 to 100 microseconds, and a queue costs no more than
that when the cores are shared with other programs, where spinning and barriers of compiled runtimes lose milliseconds.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from operator import itemgetter
from queue import SimpleQueue
from typing import NamedTuple

from entity_gym.pools.slots import EnvIds, run_serially

#: How long `close` waits for steps that are being taken, in seconds.
PATIENCE = 5.0

MAX_THREADS = 1024

_Jobs = SimpleQueue[Callable[[], None] | None]


class Finished(NamedTuple):
    """A submitted task that has been done: its environments, and the exception that it raised."""

    ids: EnvIds
    error: BaseException | None


class Workers:
    """Runs functions for a pool, which is the only one to call it, from one thread at a time.

    Worker 0 is the calling thread, and 1 to `num_threads` - 1 are threads; `run` uses these. Submitted tasks are divided into
    shares: a thread for each, which for share 1, 2, ... is the worker of that number. Share 0 has a thread of its own, with
    the number after the last. Threads that only submitted tasks need are started with the first of these. Without shares
    a submitted task is done by the calling thread, when `next` asks for it.

    Args:
        num_threads: at least 1, the calling thread included.
        num_shares: of submitted tasks; 0 without threads for them.
        affinity_offset: thread t runs on usable core (offset + t) % cores only; -1: wherever the system puts it. The calling
            thread is left alone. Linux only.

    Raises:
        ValueError: if the system does not let threads choose their core.
    """

    def __init__(self, num_threads: int = 1, num_shares: int = 0, affinity_offset: int = -1) -> None:
        check_affinity(affinity_offset)
        self.num_threads, self.num_shares = num_threads, num_shares
        self._affinity_offset = affinity_offset
        self._pid = os.getpid()
        self._own: deque[Callable[[], None]] = deque()  # tasks of the calling thread
        self._finished: SimpleQueue[Finished] = SimpleQueue()
        self._jobs: list[_Jobs] = [SimpleQueue() for _ in range(max(num_threads, num_shares))]
        self._threads: dict[int, threading.Thread] = {}  # by share
        closed = threading.Event()
        # Runs at the latest when the interpreter exits. Threads know their queue only, so that they keep no pool alive.
        self._stop = weakref.finalize(self, _stop, self._jobs, self._threads, closed)
        self._serve = partial(_serve, closed)
        for share in range(1, num_threads):
            self._start(share)

    def run(self, fn: Callable[[int], None], n: int) -> None:
        """Call fn(0) ... fn(n - 1), n at most `num_threads`, at the same time, and return when all are done.

        Raises:
            BaseException: what one of them raised, the one with the lowest number if several did.
        """
        if n <= 1 or self.num_threads == 1:
            run_serially(fn, n)
            return
        self._check_alive()
        # A queue of its own: a round that was interrupted while waiting does not confuse the next.
        done: SimpleQueue[tuple[int, BaseException | None]] = SimpleQueue()
        for k in range(1, n):
            self._jobs[k].put(partial(_do_part, fn, k, done))
        _do_part(fn, 0, done)
        failed: list[tuple[int, BaseException]] = []
        for _ in range(n):
            k, error = done.get()
            if error is not None:
                failed.append((k, error))
                if k == 0 and isinstance(error, KeyboardInterrupt):
                    break  # Ctrl-C comes to the calling thread alone, and is not for waiting for the others
        if failed:
            try:
                raise min(failed, key=itemgetter(0))[1]
            finally:
                failed.clear()  # tracebacks refer to this frame: a reference cycle
                del error

    def submit(self, ids: EnvIds, work: Callable[[int], None], share: int) -> None:
        """Queue the task `work(worker)` on the environments `ids`. Tasks of one share run in order; see `next`."""
        if self.num_shares == 0:
            self._own.append(partial(_do_task, ids, work, 0, self._finished))
            return
        self._check_alive()
        if share not in self._threads:
            self._start(share)
        self._jobs[share].put(partial(_do_task, ids, work, share or len(self._jobs), self._finished))

    def next(self) -> Finished:
        """Wait for the next task that is done. There must be one that `next` has not returned yet."""
        if self._own:
            self._own.popleft()()
        else:
            self._check_alive()
        return self._finished.get()

    def drain(self) -> list[Finished]:
        """Wait until all submitted tasks are done, and return those that `next` has not returned."""
        while self._own:
            self._own.popleft()()
        self._check_alive()
        for share in self._threads:
            done = threading.Event()
            self._jobs[share].put(done.set)
            done.wait()
        return [self._finished.get() for _ in range(self._finished.qsize())]

    def clone(self) -> Workers:
        """Return as many new workers."""
        return Workers(self.num_threads, self.num_shares, self._affinity_offset)

    def close(self) -> bool:
        """Stop. Returns True if all threads have ended, False if one still runs after `PATIENCE` seconds."""
        self._own.clear()
        self._stop()
        return not any(thread.is_alive() for thread in self._threads.values())

    def _start(self, share: int) -> None:
        thread = threading.Thread(
            target=self._serve, args=(self._jobs[share],), name=f"environments-{share}", daemon=True
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
        if self._threads and os.getpid() != self._pid:
            raise ValueError("this pool was made in another process, and threads do not survive a fork: make it here")


def _serve(closed: threading.Event, jobs: _Jobs) -> None:
    """Run jobs, which raise nothing, until the workers are closed: the main function of a thread."""
    while (job := jobs.get()) is not None and not closed.is_set():
        job()
        del job  # it holds environments, which may be gone before there is more to do


def _do_part(fn: Callable[[int], None], k: int, done: SimpleQueue[tuple[int, BaseException | None]]) -> None:
    try:
        fn(k)
    except BaseException as error:  # raised by `run`, in the thread that called it
        done.put((k, error))
    else:
        done.put((k, None))


def _do_task(ids: EnvIds, work: Callable[[int], None], worker: int, finished: SimpleQueue[Finished]) -> None:
    try:
        work(worker)
    except BaseException as error:  # whatever it is, it belongs to whoever asks for the result
        finished.put(Finished(ids, error))
    else:
        finished.put(Finished(ids, None))


def _stop(all_jobs: list[_Jobs], threads: dict[int, threading.Thread], closed: threading.Event) -> None:
    closed.set()
    for jobs in all_jobs:
        jobs.put(None)
    deadline = time.monotonic() + PATIENCE
    for thread in threads.values():
        # The garbage collector may call this from one of the threads themselves.
        if thread is not threading.current_thread():
            thread.join(max(0.0, deadline - time.monotonic()))


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


def check_num_threads(num_threads: object) -> int:
    """Return `num_threads`.

    Raises:
        ValueError: if it is no number of threads.
    """
    if isinstance(num_threads, bool) or not isinstance(num_threads, int) or not 1 <= num_threads <= MAX_THREADS:
        raise ValueError(f"num_threads is {num_threads!r}; it must be a whole number, 1 to {MAX_THREADS}")
    return num_threads
