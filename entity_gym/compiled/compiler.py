"""Compiling with Numba, for worlds and for kernels of networks: less of it, told while it happens, ended by Ctrl-C."""

from __future__ import annotations

import gc
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

import numba
from numba.core.caching import FunctionCache

from entity_gym.output import tell


@contextmanager
def without_collections() -> Iterator[None]:
    """Do not look for reference cycles: a compiler makes so many objects that it takes a sixth of its time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class KeptCode(FunctionCache):
    """Numba's cache of a function. Files that are damaged, or were written by other versions, are replaced."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the compiled function for these types of arguments; None if it is not on disk."""
        try:
            return super().load_overload(sig, target_context)  # type: ignore[no-untyped-call]
        except OSError:
            raise
        except Exception:  # whatever unpickling such a file raises
            self.drop()
            return None

    def drop(self) -> None:
        """Forget what is on disk."""
        with suppress(OSError):
            self.flush()  # type: ignore[no-untyped-call]


def entry(signature: Any, *, cache: bool, **options: Any) -> Callable[[Any], Any]:
    """Decorator: compile a function for these types of arguments, and keep it on disk, or load it; options are Numba's."""

    def compiled(function: Any) -> Any:
        made = numba.njit(**options)(function)
        if cache:
            made._cache = KeptCode(function)  # type: ignore[no-untyped-call]  # as `enable_caching` does
        made.compile(signature)
        made.disable_compile()
        return made

    return compiled


def announce(what: str) -> Callable[[], None]:
    """Say on standard error that `what` is being compiled. Returns a function that says how long it took."""
    begun = time.monotonic()
    tell(f"compiling {what}, once")
    return lambda: tell(f"compiled {what} in {time.monotonic() - begun:.1f} s")


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
