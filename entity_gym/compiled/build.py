"""Builds the program of an environment's class: compiled and cached, or as ordinary Python."""

from __future__ import annotations

import functools
import inspect
import linecache
import os
import stat
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numba
from numba.core import event

from entity_gym.compiled.compiler import announce, interrupts_between_kernels, without_collections
from entity_gym.compiled.declare import Description
from entity_gym.compiled.explain import check_source, explain
from entity_gym.compiled.generate import Bound, bound_arrays, generate
from entity_gym.compiled.layout import Layout, layout_of
from entity_gym.compiled.reach import Reached

CACHE_VARIABLE = "ENTITY_GYM_CACHE_DIR"


@dataclass(frozen=True)
class Program:
    """The loops of one environment, ready to run.

    Attributes:
        arrays: the arrays that `run` works on.
        run: `run(address of the table, todo, lo, hi, ids, *actions)`, without the GIL; None when it runs as ordinary Python.
        module: the generated module; `module.work(arrays, todo, lo, hi)` is the ordinary Python form.
        folder: the folder of the compiled code; None where it cannot be kept.
    """

    layout: Layout
    arrays: list[Bound]
    run: Callable[..., None] | None
    module: ModuleType
    folder: Path | None


def build(env: type[Description], *, compile: bool = True) -> Program:
    """Compile `env`, or load it from the cache; or make it ready to run as ordinary Python.

    Args:
        env: the class.
        compile: false, like Numba's NUMBA_DISABLE_JIT=1, runs the same source as ordinary Python.

    Raises:
        CompileError: one paragraph with the file, the line and the likely cause.
    """
    return _build(env, compile and not vars(numba.config)["DISABLE_JIT"])


def cache_dir() -> Path:
    """Folder of compiled environments: $ENTITY_GYM_CACHE_DIR, or the user's cache folder."""
    given = os.environ.get(CACHE_VARIABLE)
    if given:
        return Path(given)
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home())) / "entity_gym" / "compiled"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "entity_gym" / "compiled"


@functools.cache  # for each class and each way to run it
def _build(env: type[Description], jit: bool) -> Program:
    layout, reached = layout_of(env), Reached(env)
    check_source(layout, reached.functions)
    source = generate(layout)
    checks = [f"{action.space} {inspect.getsource(action.space.compiled_check)}" for action in layout.actions]
    key = reached.key(source, str(layout.record), str(jit), *checks)
    path = cache_dir() / f"{layout.name}_{key}" / "loops.py"
    folder: Path | None = path.parent
    try:
        _write(path, source)
    except OSError as error:
        _warn_not_kept(layout.name, error)
        folder = None
    linecache.cache[str(path)] = len(source), None, source.splitlines(keepends=True), str(path)  # for tracebacks
    load = functools.partial(_load, source, path, layout, jit)
    functions = source.count("\ndef ") + 1 + len(reached.functions)
    try:
        with without_collections(), _told(f"{layout.name}: {functions} functions"):
            try:
                module = load(cache=folder is not None)
            except OSError as error:  # such as a full disk
                _warn_not_kept(layout.name, error)
                module = load(cache=False)
    except (RecursionError, MemoryError, OSError):
        raise
    except Exception as error:  # most are a NumbaError, but a KeyError or a RuntimeError may come through as it is
        raise explain(error, layout, reached.functions) from None
    return Program(layout, bound_arrays(layout), getattr(module, "run", None), module, folder)


@contextmanager
def _told(what: str) -> Iterator[None]:
    """Say that `what` is compiled, unless it is loaded; Ctrl-C ends it between two functions."""
    tell_end: list[Callable[[], None]] = []

    class Listener(event.Listener):
        def on_start(self, compiling: Any) -> None:
            check()
            if not tell_end:
                tell_end.append(announce(what))

        def on_end(self, compiling: Any) -> None: ...

    with interrupts_between_kernels() as check, event.install_listener("numba:compile", Listener()):
        yield
    for tell in tell_end:
        tell()


def _write(path: Path, source: str) -> None:
    """Put `source` at `path` in a private folder, unless it is there: Numba takes a newer file for a changed one.

    Raises:
        OSError: it cannot be written, or somebody else could write there, too: what is loaded from the folder is executed.
    """
    folder = path.parent
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    about = folder.lstat()
    is_ours = not hasattr(os, "geteuid") or (about.st_uid == os.geteuid() and not about.st_mode & 0o022)
    if not stat.S_ISDIR(about.st_mode) or not is_ours:
        raise PermissionError(f"{folder} is a link, or others own it or can write to it; remove it")
    if path.exists() and path.read_bytes() == source.encode():
        return
    with tempfile.NamedTemporaryFile("wb", dir=folder, suffix=".tmp", delete=False) as file:
        file.write(source.encode())
    os.utime(file.name, (0, 0))  # the same whoever writes it, or Numba would take it for changed
    os.replace(file.name, path)  # another process may be writing the same text


def _warn_not_kept(name: str, error: OSError) -> None:
    reason = error.strerror or str(error)
    where = f": {error.filename}" if error.filename else ""
    warnings.warn(
        f"compiled, {name} cannot be kept on disk ({reason}{where}): each process compiles it again, which takes some seconds; "
        f"set {CACHE_VARIABLE} to a folder that can be written",
        stacklevel=2,
    )


def _load(source: str, path: Path, layout: Layout, jit: bool, *, cache: bool) -> ModuleType:
    module = ModuleType(f"entity_gym_{path.parent.name}")
    given = {"ENV": layout.env, "RECORD": layout.record, "COUNTS": layout.counts, "JIT": jit}
    given["CHECKS"] = {f"check_{action.attribute}": action.space.compiled_check() for action in layout.actions}
    options = {"error_model": "numpy", "boundscheck": False}
    # Only `run` is called from Python: the others need no wrappers. They do need machine code of their own: an exception that a
    # world raises with values computed in it is put together by a function of their library.
    inner = {**options, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    vars(module).update(given, OPTIONS={**options, "cache": cache}, INNER=inner)
    sys.modules[module.__name__] = module  # Numba's cache looks it up by name
    try:
        exec(compile(source, str(path), "exec"), vars(module))
    except BaseException:
        del sys.modules[module.__name__]
        raise
    return module
