"""Compiling with Numba, for worlds and for kernels of networks: less of it, told while it happens, ended by Ctrl-C."""

from __future__ import annotations

import gc
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import register_pass
from numba.core.typed_passes import NativeLowering


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


class _InnerLibrary(JITCodeLibrary):
    """Code that is optimized and becomes machine code as a part of its callers' libraries."""

    def _optimize_functions(self, ll_module: Any) -> None:
        ll_module.data_layout = self._codegen._data_layout

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True


@register_pass(mutates_CFG=True, analysis_only=False)
class _InnerLowering(NativeLowering):
    """Numba's lowering to LLVM's language, and not to machine code."""

    _name = "inner_lowering"

    def run_pass(self, state: Any) -> bool:
        state.flags.no_compile = True
        state.library = _InnerLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        super().run_pass(state)
        result = state["cr"]
        nothing: list[Any] = []
        key = nothing.append  # callers find the function by it, and Numba wants a function of C, which is never called
        state.targetctx.insert_user_function(key, result.fndesc, [state.library])
        state["cr"] = result._replace(cfunc=key)
        return True


class InnerCompiler(CompilerBase):
    """`pipeline_class` of functions that only compiled functions call."""

    def define_pipelines(self) -> list[Any]:
        """See Numba."""
        manager = DefaultPassBuilder.define_nopython_pipeline(self.state)
        manager.passes = [(_InnerLowering if each is NativeLowering else each, text) for each, text in manager.passes]
        manager._finalized = False
        manager.finalize()
        return [manager]


class Progress:
    """A line on standard error that says what is compiled and how far it is.

    In a terminal it changes; elsewhere there is a line at the beginning and one at the end.

    Args:
        what: is compiled.
        unit: of what is counted, such as "functions".
        total: how many there are.
    """

    def __init__(self, what: str, unit: str, total: int) -> None:
        self.what, self.unit, self.total = what, unit, total
        self._begun = time.monotonic()
        self._is_live = sys.stderr.isatty()
        if not self._is_live:
            self._say(f"compiling {what}: {total} {unit}, once\n")

    def show(self, done: int) -> None:
        """Say that `done` of them are compiled."""
        if self._is_live:
            self._say(f"\rcompiling {self.what}: {done} of {self.total} {self.unit}")

    def end(self) -> None:
        """Say that all are compiled, and how long it took."""
        line = f"compiled {self.what}: {self.total} {self.unit} in {time.monotonic() - self._begun:.1f} s"
        self._say(f"\r{line}\x1b[K\n" if self._is_live else f"{line}\n")

    def give_up(self) -> None:
        """End the line: what comes next is said below."""
        if self._is_live:
            self._say("\n")

    def _say(self, text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()


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
