"""From an environment's class to something that runs: compiled and cached, or as ordinary Python."""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from entity_gym.compiled.codegen import Buffer, buffers, generate
from entity_gym.compiled.environment import CompiledEnvironment
from entity_gym.compiled.explain import explain
from entity_gym.compiled.layout import Layout, layout_of
from entity_gym.compiled.reach import source_key
from entity_gym.compiled.record import Records
from entity_gym.compiled.source_check import check_source

CACHE_VARIABLE = "ENTITY_GYM_CACHE_DIR"


@dataclass(frozen=True)
class Program:
    """An environment's loops, ready to run.

    Attributes:
        layout: of the environment.
        buffers: the arrays that `run` works on.
        run: `run(address of a pointer table, mode, lo, hi)`, without the GIL; None when it runs as ordinary Python.
        module: the generated one; `module.work(buffers, mode, lo, hi)` is the ordinary Python form.
        folder: where the compiled code is kept.
    """

    layout: Layout
    buffers: list[Buffer]
    run: Callable[[int, int, int, int], None] | None
    module: ModuleType
    folder: Path


_programs: dict[tuple[type[CompiledEnvironment], bool, bool], Program] = {}


def build(env: type[CompiledEnvironment], *, compile: bool = True, boundscheck: bool = False) -> Program:
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
    """Where compiled environments are kept: $ENTITY_GYM_CACHE_DIR, or the user's cache folder."""
    given = os.environ.get(CACHE_VARIABLE)
    if given:
        return Path(given)
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home())) / "entity_gym" / "compiled"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "entity_gym" / "compiled"


def _build(env: type[CompiledEnvironment], jit: bool, boundscheck: bool) -> Program:
    layout = layout_of(env)  # type: ignore[arg-type]  # mypy takes the hash of instances for the class's
    check_source(env, layout)
    source = generate(layout)
    key = source_key(env, source, str(layout.record), str(jit), str(boundscheck))
    folder = _write(f"{layout.name}_{key}", source)
    if jit and not any(folder.glob("**/*.nbi")):
        print(f"compiling {layout.name}: takes some seconds, once", file=sys.stderr, flush=True)
    try:
        module = _load(folder / "loops.py", env, layout, jit, boundscheck)
    except (RecursionError, MemoryError, OSError):
        raise
    except Exception as error:  # most are a NumbaError, but a KeyError or a RuntimeError may come through as it is
        raise explain(error, env, layout) from None
    return Program(layout, buffers(layout), getattr(module, "run", None), module, folder)


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


def _load(path: Path, env: type[CompiledEnvironment], layout: Layout, jit: bool, boundscheck: bool) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"entity_gym_{path.parent.name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    given = {"ENV": env, "RECORD": layout.record, "COUNTS": layout.counts, "JIT": jit}
    options = {"error_model": "numpy", "boundscheck": boundscheck}
    # only `run` is called from Python: wrappers for the others would double the time it takes to compile
    inner = {**options, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    vars(module).update(given, OPTIONS=options, INNER=inner)
    sys.modules[spec.name] = module  # Numba's cache looks it up by name
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[spec.name]
        raise
    return module


class Table:
    """The arrays of one caller of a program: bound by name, then worked on.

    Args:
        program: what runs.
        num_slots: N.
        arrays: those that stay, by name.
    """

    def __init__(self, program: Program, num_slots: int, arrays: dict[str, NDArray[Any]]) -> None:
        self._program = program
        self._places = {buffer.name: place for place, buffer in enumerate(program.buffers, 2)}
        self._pointers = np.zeros(len(program.buffers) + 2, dtype=np.int64)
        self._pointers[0] = num_slots
        self._address = self._pointers.ctypes.data
        self._address_of = getattr(program.module, "address_of", _address)  # ten times faster than asking NumPy
        self.arrays: dict[str, NDArray[Any]] = {}  # keeps them alive, too
        for name, array in arrays.items():
            self.bind_at(name, array, _address(array))

    def bind(self, name: str, array: NDArray[Any]) -> None:
        """Use `array`, which has the buffer's dtype, under `name` from now on."""
        if self.arrays.get(name) is array:
            return
        try:
            address = self._address_of(array)
        except TypeError:  # read-only, or not in one piece, as it may come from elsewhere
            array = np.array(array, order="C")
            address = self._address_of(array)
        self.bind_at(name, array, address)
        if name == "ids":
            self._pointers[1] = len(array)

    def bind_at(self, name: str, array: NDArray[Any], address: int) -> None:
        """The same for an array whose address is known: asking for it takes as long as a hundred steps."""
        self.arrays[name] = array
        self._pointers[self._places[name]] = address

    def bind_rows(self, rows: Mapping[str, NDArray[Any]], addresses: list[int]) -> None:
        """Use `rows`, one array for each stream of the layout, as where to copy to."""
        if self._program.run is None:
            self.arrays.update({f"out_{slot}": array for slot, array in rows.items()})
        else:
            self._pointers[len(self._pointers) - len(addresses) :] = addresses  # they come last

    def run(self, mode: int, lo: int, hi: int) -> None:
        """Do `mode` to `ids[lo:hi]`; faults are left in the array `err`."""
        if self._program.run is not None:
            self._program.run(self._address, mode, lo, hi)
            return
        module = self._program.module
        arrays: dict[str, Any] = {
            name: Records(array) if array.dtype.names else array for name, array in self.arrays.items()
        }
        for action in self._program.layout.actions:  # the compiled form, too, sees one choice for each actor
            values = arrays.get(f"a_{action.attribute}")
            if values is not None and not action.bounds:
                arrays[f"a_{action.attribute}"] = values[:, 0]
        with np.errstate(over="ignore"):  # random numbers wrap around on purpose
            module.work(module.Buffers(*(arrays.get(b.name) for b in self._program.buffers)), mode, lo, hi)


def _address(array: NDArray[Any]) -> int:
    return array.ctypes.data
