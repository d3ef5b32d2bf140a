"""Kernels compiled before they are needed, by two processes if they are not on disk yet: Numba uses one core."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any, TypeAlias

from numba.core.compiler_lock import global_compiler_lock

from entity_gym.compiled.compiler import announce, interrupts_between_kernels, without_collections
from rogue_net.kernels.cpu.compiling import Const, KernelCache, signature

Job: TypeAlias = tuple[Any, tuple[Const, ...]]  # a kernel, and the `Const`s that it is compiled for


class _Jobs:
    """Jobs that this process and a forked child take from one pipe, in which their numbers stand.

    The child leaves kernels on disk. It ends when there are no more jobs, or when this process ends.
    """

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._jobs, self._parent = jobs, os.getpid()
        self._numbers, end = os.pipe()
        os.write(end, b"".join(number.to_bytes(2, "little") for number in range(len(jobs))))
        os.close(end)
        with global_compiler_lock:  # a lock that another thread holds would be held in the child for ever
            self._child = os.fork()
        if not self._child:
            self._compile_and_exit()

    def _take(self) -> Job | None:
        taken = os.read(self._numbers, 2)
        if not taken:
            return None
        return self._jobs[int.from_bytes(taken, "little")]

    def _compile_and_exit(self) -> None:
        """Compile jobs in the child, which must not do anything that the parent will do at its end."""
        try:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends it
            while os.getppid() == self._parent and (job := self._take()):
                _compile(job)
        finally:
            os._exit(0)

    def finish(self, check: Callable[[], None]) -> None:
        """Compile jobs here, too, until there are no more; then wait for the child."""
        while job := self._take():
            check()
            _compile(job)
        os.waitpid(self._child, 0)
        self._child = 0

    def close(self) -> None:
        """End the child."""
        os.close(self._numbers)
        if self._child:
            os.kill(self._child, signal.SIGKILL)
            os.waitpid(self._child, 0)


def compile_all(jobs: Sequence[Job]) -> None:
    """Compile kernels that are neither compiled nor on disk, and say so, as it takes some seconds.

    Args:
        jobs: those that take longest first.
    """
    missing = _missing(jobs)
    if not missing:
        return
    with without_collections(), interrupts_between_kernels() as check:
        tell_end = announce(f"the network: {len(missing)} kernels")
        if _can_share(missing):
            with closing(_Jobs(missing)) as shared:
                shared.finish(check)
        for job in missing:  # loads what a child has left on disk
            check()
            _compile(job)
        tell_end()


def _missing(jobs: Sequence[Job]) -> list[Job]:
    """The jobs that are neither compiled nor on disk, each once."""
    unique = {(compiled, signature(compiled, *consts)): (compiled, consts) for compiled, consts in jobs}
    return [job for (compiled, wanted), job in unique.items() if not _is_there(compiled, wanted)]


def _is_there(compiled: Any, wanted: tuple[Any, ...]) -> bool:
    return wanted in compiled.overloads or (
        isinstance(compiled._cache, KernelCache) and compiled._cache.has(wanted, compiled.targetctx)
    )


def _can_share(missing: Sequence[Job]) -> bool:
    is_kept = all(isinstance(compiled._cache, KernelCache) for compiled, _ in missing)
    return (
        len(missing) > 1 and is_kept and sys.platform == "linux" and hasattr(os, "fork") and (os.cpu_count() or 1) > 1
    )


def _compile(job: Job) -> None:
    compiled, consts = job
    compiled.compile(signature(compiled, *consts))
