"""Builds the program of an environment's class: compiled and cached, or as ordinary Python."""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import numba
from numba.core import event

from entity_gym.compiled.compiler import (
    Progress,
    interrupts_between_kernels,
    without_collections,
)
from entity_gym.compiled.description import Description
from entity_gym.compiled.explain import explain
from entity_gym.compiled.generate import Bound, bound_arrays, generate
from entity_gym.compiled.layout import Layout, layout_of
from entity_gym.compiled.reach import reached_by, source_key
from entity_gym.compiled.source_check import check_source

CACHE_VARIABLE = "ENTITY_GYM_CACHE_DIR"


@dataclass(frozen=True)
class Program:
    """The loops of one environment, ready to run.

    Attributes:
        arrays: the arrays that `run` works on.
        run: `run(address of the table, todo, lo, hi, ids, *actions)`, without the GIL; None when it runs as ordinary Python.
        module: the generated module; `module.work(arrays, todo, lo, hi)` is the ordinary Python form.
        folder: the folder of the compiled code.
    """

    layout: Layout
    arrays: list[Bound]
    run: Callable[..., None] | None
    module: ModuleType
    folder: Path


_programs: dict[tuple[type[Description], bool, bool], Program] = {}


def build(env: type[Description], *, compile: bool = True, boundscheck: bool = False) -> Program:
    """Compile `env`, or load it from the cache; or make it ready to run as ordinary Python.

    Args:
        env: the class.
        compile: false, like Numba's NUMBA_DISABLE_JIT=1, runs the same source as ordinary Python.
        boundscheck: compile a check into every use of an index.

    Raises:
        CompileError: one paragraph with the file, the line and the likely cause.
    """
    jit = compile and not vars(numba.config)["DISABLE_JIT"]
    key = (env, jit, boundscheck)
    if key not in _programs:
        _programs[key] = _build(env, jit, boundscheck)
    return _programs[key]


def cache_dir() -> Path:
    """Folder of compiled environments: $ENTITY_GYM_CACHE_DIR, or the user's cache folder."""
    given = os.environ.get(CACHE_VARIABLE)
    if given:
        return Path(given)
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home())) / "entity_gym" / "compiled"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "entity_gym" / "compiled"


def _build(env: type[Description], jit: bool, boundscheck: bool) -> Program:
    layout = layout_of(env)
    check_source(env, layout)
    source = generate(layout)
    reached = reached_by(env)
    key = source_key(reached, source, str(layout.record), str(jit), str(boundscheck))
    folder = _write(f"{layout.name}_{key}", source)
    try:
        with without_collections(), _told(layout.name, folder / "loops.py", source, reached.functions):
            module = _load_or_compile(folder / "loops.py", env, layout, jit, boundscheck)
    except (RecursionError, MemoryError, OSError):
        raise
    except Exception as error:  # most are a NumbaError, but a KeyError or a RuntimeError may come through as it is
        raise explain(error, env, layout) from None
    return Program(layout, bound_arrays(layout), getattr(module, "run", None), module, folder)


@contextmanager
def _told(name: str, path: Path, source: str, functions: Collection[FunctionType]) -> Iterator[None]:
    """Say how many of the world's functions are compiled: those of `source`, which is at `path`, and those that it reaches."""
    done: set[FunctionType] = set()
    progress: list[Progress] = []

    class Listener(event.Listener):
        def on_start(self, compiling: Any) -> None:
            check()
            if not progress and own(compiling):
                progress.append(Progress(name, "functions", source.count("\ndef ") + 1 + len(functions)))

        def on_end(self, compiling: Any) -> None:
            if (function := own(compiling)) and progress:
                done.add(function)
                progress[0].show(len(done))

    def own(compiling: Any) -> FunctionType | None:
        function: FunctionType = compiling.data["dispatcher"].py_func
        return function if function in functions or function.__code__.co_filename == str(path) else None

    with interrupts_between_kernels() as check, event.install_listener("numba:compile", Listener()):
        try:
            yield
        except BaseException:
            for each in progress:
                each.give_up()
            raise
    for each in progress:
        each.end()


def _write(name: str, source: str) -> Path:
    """Put `source` in the cache, once: Numba takes a newer file for a changed one."""
    for parent in (
        cache_dir(),
        Path(tempfile.gettempdir()) / f"entity_gym_{os.getuid() if hasattr(os, 'getuid') else ''}",
    ):
        folder, path = parent / name, parent / name / "loops.py"
        try:
            if not path.exists():
                folder.mkdir(parents=True, exist_ok=True)
                with tempfile.NamedTemporaryFile(
                    "w", dir=folder, suffix=".tmp", delete=False, encoding="utf-8"
                ) as file:
                    file.write(source)
                os.utime(file.name, (0, 0))  # the same whoever writes it, or Numba would take it for changed
                os.replace(file.name, path)  # another process may be writing the same text
            return folder
        except OSError as error:
            warnings.warn(
                f"{folder} cannot be written ({error}); set {CACHE_VARIABLE} to a folder that can", stacklevel=2
            )
    raise OSError(f"neither {cache_dir()} nor {tempfile.gettempdir()} can be written; set {CACHE_VARIABLE}")


def _load_or_compile(path: Path, env: type[Description], layout: Layout, jit: bool, boundscheck: bool) -> ModuleType:
    """The generated module, from the cache if that can be read and written."""
    try:
        return _load(path, env, layout, jit, boundscheck)
    except OSError as error:  # such as a full disk
        warnings.warn(
            f"compiled, {layout.name} cannot be kept on disk ({error.strerror or error}): each process compiles it again, which "
            f"takes some seconds; set {CACHE_VARIABLE} to a folder that can be written",
            stacklevel=2,
        )
        return _load(path, env, layout, jit, boundscheck, cache=False)


def _load(
    path: Path, env: type[Description], layout: Layout, jit: bool, boundscheck: bool, *, cache: bool = True
) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"entity_gym_{path.parent.name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    given = {"ENV": env, "RECORD": layout.record, "COUNTS": layout.counts, "JIT": jit}
    options = {"error_model": "numpy", "boundscheck": boundscheck}
    # Only `run` is called from Python: the others need no wrappers. They do need machine code of their own: an exception that a
    # world raises with values computed in it is put together by a function of their library.
    inner = {**options, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    vars(module).update(given, OPTIONS={**options, "cache": cache}, INNER=inner)
    sys.modules[spec.name] = module  # Numba's cache looks it up by name
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[spec.name]
        raise
    return module
