"""Work on parts of a batch at the same time, each in a thread of its own. Threads wait without spinning."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from threading import Lock, Thread


class _Worker(Thread):
    """Does what it is given, and says what came of it: None or an error."""

    def __init__(self) -> None:
        super().__init__(name="kernels", daemon=True)  # it ends with the process
        self.given: SimpleQueue[tuple[Callable[[int], None], int]] = SimpleQueue()
        self.done: SimpleQueue[BaseException | None] = SimpleQueue()
        self.start()

    def run(self) -> None:
        while True:
            work, number = self.given.get()
            error: BaseException | None = None
            try:
                work(number)
            except BaseException as raised:  # raised where the work was given
                error = raised
            del work  # nothing is held while it waits
            self.done.put(error)


_workers: list[_Worker] = []
_in_use = Lock()


def run_parts(work: Callable[[int], None], count: int) -> None:
    """Call `work` with every number below `count`: 0 in this thread, the others at the same time in others.

    What a part raises is raised here, when all have ended. While another thread of Python's has the workers, all parts are done
    in this one.
    """
    if count <= 1 or not _in_use.acquire(blocking=False):
        for number in range(count):
            work(number)
        return
    try:
        while len(_workers) < count - 1:
            _workers.append(_Worker())
        helping: Sequence[_Worker] = _workers[: count - 1]
        for number, worker in enumerate(helping, 1):
            worker.given.put((work, number))
        try:
            work(0)
        finally:
            errors = [worker.done.get() for worker in helping]
    finally:
        _in_use.release()
    for error in errors:
        if error is not None:
            raise error


def _forget_workers() -> None:
    """Forget the threads of the parent process: a fork copies none of them."""
    global _in_use
    _workers.clear()
    _in_use = Lock()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_forget_workers)
