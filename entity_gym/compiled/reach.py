"""Everything that a compiled environment's code depends on, as one hash: Numba's own cache does not notice edited helpers."""

from __future__ import annotations

import hashlib
import inspect
import platform
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numba
import numpy as np

from entity_gym.compiled.environment import CompiledEnvironment


def source_key(env: type[CompiledEnvironment], *parts: str) -> str:
    """A hash of `parts`, of every source file that the functions of `env` reach, and of the constants that they use."""
    seen = _Reached()
    for function in (env.reset, env.step, env.observe):
        seen.visit(function)
    digest = hashlib.sha256()
    for part in (*parts, sys.version, numba.__version__, np.__version__, platform.machine()):
        digest.update(part.encode() + b"\0")
    for path in sorted(seen.files):
        digest.update(path.encode() + b"\0" + Path(path).read_bytes() + b"\0")
    for constant in sorted(seen.constants):
        digest.update(constant.encode() + b"\0")
    return digest.hexdigest()[:20]


class _Reached:
    """Walks from functions to the functions, modules and constants that they name."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.constants: set[str] = set()
        self._visited: set[int] = set()

    def visit(self, function: Callable[..., Any]) -> None:
        function = inspect.unwrap(getattr(function, "py_func", function))  # a jitted function's Python source
        if not isinstance(function, types.FunctionType) or id(function) in self._visited:
            return
        self._visited.add(id(function))
        self._file(function.__code__.co_filename, function)
        for cell in function.__closure__ or ():
            self._value(f"{function.__qualname__} closure", cell.cell_contents, ())
        names = set(_names(function.__code__))
        for name in names & function.__globals__.keys():
            self._value(f"{function.__module__}.{name}", function.__globals__[name], tuple(names))

    def _value(self, where: str, value: Any, names: tuple[str, ...]) -> None:
        if isinstance(value, types.ModuleType):
            if _is_users(getattr(value, "__file__", None)):
                self._file(value.__file__ or "", value)
                for name in names:
                    if hasattr(value, name):
                        self._value(f"{value.__name__}.{name}", getattr(value, name), names)
        elif isinstance(value, types.FunctionType) or hasattr(value, "py_func"):
            if _is_users(inspect.unwrap(getattr(value, "py_func", value)).__code__.co_filename):
                self.visit(value)
        elif isinstance(value, np.ndarray):
            self.constants.add(f"{where}={value.dtype}{value.shape}{hashlib.sha256(value.tobytes()).hexdigest()}")
        elif isinstance(value, bool | int | float | str | tuple | np.generic | None):
            self.constants.add(f"{where}={value!r}")

    def _file(self, path: str, owner: Any) -> None:
        if Path(path).is_file():
            self.files.add(path)
            return
        try:  # written at a prompt or in a notebook: there is the text, if not a file
            self.constants.add(inspect.getsource(owner))
        except (OSError, TypeError):
            code = getattr(owner, "__code__", None)
            self.constants.add(f"{owner!r}" if code is None else f"{code.co_code.hex()}{code.co_consts!r}")


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _is_users(path: str | None) -> bool:
    """Whether a file may change while its package keeps its version: neither Python's own nor an installed library."""
    if path is None:
        return False
    library = Path(path).parts
    return "site-packages" not in library and not path.startswith(sys.base_prefix + "/lib/python")
