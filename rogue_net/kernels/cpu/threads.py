"""Work on parts of a batch at the same time, each in a thread of its own that computes alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

T = TypeVar("T")

_pool: ThreadPoolExecutor | None = None
_pool_size = 0


def run_parts(work: Callable[[T], None], parts: Sequence[T]) -> None:
    """Call `work` with every part: the first in this thread, the others at the same time in others.

    Matrix products inside `work` use one thread each. Nothing in it is recorded for autograd. What a part raises is raised
    here, when all have ended. A thread of Python's that uses torch for the first time meanwhile finds its number of threads
    set to 1, as torch hands the latest number on. A forked child starts threads of its own.
    """
    if not parts:
        return
    threads = torch.get_num_threads()
    if threads == 1 and len(parts) == 1:
        work(parts[0])
        return
    torch.set_num_threads(1)
    try:
        inference = torch.is_inference_mode_enabled()
        others = [_workers(len(parts) - 1).submit(_unrecorded, work, part, inference) for part in parts[1:]]
        try:
            work(parts[0])
        finally:
            errors = [future.exception() for future in others]  # waits
    finally:
        torch.set_num_threads(threads)
    for error in errors:
        if error is not None:
            raise error


def _unrecorded(work: Callable[[T], None], part: T, inference: bool) -> None:
    # torch's modes belong to a thread too
    with torch.inference_mode(inference), torch.no_grad():
        work(part)


def _workers(count: int) -> ThreadPoolExecutor:
    global _pool, _pool_size
    if _pool is None or _pool_size < count:
        # torch's number of threads belongs to a thread: a new one computes alone from its start
        _pool, _pool_size = ThreadPoolExecutor(count, "fused", initializer=torch.set_num_threads, initargs=(1,)), count
    return _pool


def _forget_workers() -> None:
    """Drop the pool of the parent process: a fork copies the pool, and none of its threads."""
    global _pool, _pool_size
    _pool, _pool_size = None, 0


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_forget_workers)
