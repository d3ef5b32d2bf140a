"""Kernels compiled before they are needed: by two processes if they are not on disk yet, as Numba uses one core."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeAlias

from numba.core.compiler_lock import global_compiler_lock

from rogue_net.kernels.cpu.compiling import Const, KernelCache, signature

Job: TypeAlias = tuple[Any, tuple[Const, ...]]  # a kernel, and the `Const`s that it is compiled for


def compile_all(jobs: Sequence[Job]) -> None:
    """Compile kernels that are neither compiled nor on disk, and say so, as it takes some seconds.

    A forked child compiles every second one and leaves it on disk, where there are two cores and a folder to write to.

    Args:
        jobs: those that take longest first.
    """
    missing = [job for job in jobs if not _is_there(*job)]
    if not missing:
        return
    print(f"compiling {len(missing)} kernels of the network: takes some seconds, once", file=sys.stderr, flush=True)
    child = None
    if _can_share(missing):
        with global_compiler_lock:  # a lock that another thread holds would be held in the child for ever
            child = os.fork()
    if child == 0:
        _compile_and_exit(missing[1::2])
    with interrupts_between_kernels() as check:
        try:
            _compile(missing[::2] if child else missing, check)
        except BaseException:
            if child:
                os.kill(child, signal.SIGKILL)
            raise
        finally:
            if child:
                os.waitpid(child, 0)
        _compile(missing, check)  # loads what the child has compiled, or compiles what it could not


@contextmanager
def interrupts_between_kernels() -> Iterator[Callable[[], None]]:
    """Hold Ctrl-C back until the yielded function is called: what is raised while LLVM compiles may be lost."""
    if threading.current_thread() is not threading.main_thread():  # which alone is interrupted
        yield lambda: None
        return
    pressed: list[tuple[int, FrameType | None]] = []

    def check() -> None:
        if pressed and callable(before):
            before(*pressed.pop())

    before = signal.signal(signal.SIGINT, lambda *how: pressed.append(how))
    try:
        yield check
        check()
    finally:
        signal.signal(signal.SIGINT, before)


def _is_there(compiled: Any, consts: tuple[Const, ...]) -> bool:
    wanted = signature(compiled, *consts)
    return wanted in compiled.overloads or (
        isinstance(compiled._cache, KernelCache) and compiled._cache.has(wanted, compiled.targetctx)
    )


def _can_share(missing: Sequence[Job]) -> bool:
    is_kept = all(isinstance(compiled._cache, KernelCache) for compiled, _ in missing)
    return len(missing) > 1 and is_kept and hasattr(os, "fork") and (os.cpu_count() or 1) > 1


def _compile(jobs: Sequence[Job], check: Callable[[], None] = lambda: None) -> None:
    for compiled, consts in jobs:
        check()
        compiled.compile(signature(compiled, *consts))


def _compile_and_exit(jobs: Sequence[Job]) -> None:
    """In a forked child, which must not do anything that the parent will do at its end."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends it
        _compile(jobs)
    finally:
        os._exit(0)
