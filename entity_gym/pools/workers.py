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
from queue import SimpleQueue
from typing import Any

from entity_gym.pools.slots import EnvIds, run_serially

#: How long `close` waits for steps that are being taken, in seconds.
PATIENCE = 5.0

_Jobs = SimpleQueue[Callable[[], None] | None]

#: Takes jobs that are done: what they were for, and the exception that they raised.
_Done = SimpleQueue[tuple[Any, BaseException | None]]


class Workers:
    """Runs functions for a pool, which is the only one to call it, from one thread at a time.

    Worker 0 is the calling thread, and 1 to `num_threads` - 1 are threads; `run` uses these. Submitted tasks are divided into
    shares: a thread for each, which for share 1, 2, ... is the worker of that number. Share 0 has a thread of its own, with
    the number after the last. Threads that only submitted tasks need are started with the first of these. Without shares
    a submitted task is done by the calling thread, when `next` asks for it.

    Args:
        num_threads: at least 1, the calling thread included.
        num_shares: of submitted tasks; 0 without threads for them.
    """

    def __init__(self, num_threads: int = 1, num_shares: int = 0) -> None:
        self.num_threads, self.num_shares = num_threads, num_shares
        self._pid = os.getpid()
        self._own: deque[Callable[[], None]] = deque()  # tasks of the calling thread
        self._finished: _Done = SimpleQueue()
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
        done: _Done = SimpleQueue()  # of its own: a round that was interrupted while waiting does not confuse the next
        for k in range(1, n):
            self._jobs[k].put(partial(_do, partial(fn, k), k, done))
        _do(partial(fn, 0), 0, done)
        errors: dict[int, BaseException] = {}
        for _ in range(n):
            k, error = done.get()
            if error is not None:
                errors[k] = error
                if k == 0 and isinstance(error, KeyboardInterrupt):
                    break  # Ctrl-C comes to the calling thread alone, and is not for waiting for the others
        if errors:
            try:
                raise errors[min(errors)]
            finally:
                errors.clear()  # tracebacks refer to this frame: a reference cycle
                del error

    def submit(self, ids: EnvIds, work: Callable[[int], None], share: int) -> None:
        """Queue the task `work(worker)` on the environments `ids`. Tasks of one share run in order; see `next`."""
        worker = share or (len(self._jobs) if self.num_shares else 0)
        task = partial(_do, partial(work, worker), ids, self._finished)
        if self.num_shares == 0:
            self._own.append(task)
            return
        self._check_alive()
        if share not in self._threads:
            self._start(share)
        self._jobs[share].put(task)

    def next(self) -> tuple[EnvIds, BaseException | None]:
        """Wait for the next submitted task that is done. There must be one that `next` has not returned yet.

        Returns:
            Its environments, and the exception that it raised.
        """
        if self._own:
            self._own.popleft()()
        else:
            self._check_alive()
        return self._finished.get()

    def drain(self) -> list[tuple[EnvIds, BaseException | None]]:
        """Wait until all submitted tasks are done, and return those that `next` has not returned."""
        while self._own:
            self._own.popleft()()
        self._check_alive()
        for share in self._threads:
            done = threading.Event()
            self._jobs[share].put(done.set)
            done.wait()
        return [self._finished.get() for _ in range(self._finished.qsize())]

    def close(self) -> bool:
        """Stop. Returns True if all threads have ended, False if one still runs after `PATIENCE` seconds."""
        self._own.clear()
        self._stop()
        return not any(thread.is_alive() for thread in self._threads.values())

    def _start(self, share: int) -> None:
        name = f"environments-{share}"
        self._threads[share] = threading.Thread(target=self._serve, args=(self._jobs[share],), name=name, daemon=True)
        self._threads[share].start()

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


def _do(work: Callable[[], None], what: Any, done: _Done) -> None:
    """Do a job; whatever it raises belongs to whoever asks for the result."""
    try:
        work()
    except BaseException as error:
        done.put((what, error))
    else:
        done.put((what, None))


def _stop(all_jobs: list[_Jobs], threads: dict[int, threading.Thread], closed: threading.Event) -> None:
    closed.set()
    for jobs in all_jobs:
        jobs.put(None)
    deadline = time.monotonic() + PATIENCE
    for thread in threads.values():
        # The garbage collector may call this from one of the threads themselves.
        if thread is not threading.current_thread():
            thread.join(max(0.0, deadline - time.monotonic()))
