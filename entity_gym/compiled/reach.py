"""Everything that a compiled environment's code depends on, as one hash: Numba's own cache does not notice edited helpers."""

from __future__ import annotations

import enum
import hashlib
import inspect
import platform
import sys
import sysconfig
import types
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numba
import numpy as np

from entity_gym.compiled import runtime
from entity_gym.compiled.description import Description

#: Libraries that are hashed by their version, and not file by file.
_VERSIONED = ("numpy", "numba", "llvmlite")


def reached_by(env: type[Description]) -> Reached:
    """Everything that the functions of `env` name, directly or not."""
    reached = Reached()
    reached.file(str(runtime.__file__), runtime)
    for function in (env.reset, env.step, env.observe):
        reached.visit(function)
    return reached


def source_key(seen: Reached, *parts: str) -> str:
    """A hash of `parts`, and of the source files and the constants that were reached."""
    digest = hashlib.sha256()
    for part in (*parts, sys.version, numba.__version__, np.__version__, platform.machine()):
        digest.update(part.encode() + b"\0")
    for path in sorted(seen.files):
        digest.update(path.encode() + b"\0" + Path(path).read_bytes() + b"\0")
    for constant in sorted(seen.constants):
        digest.update(constant.encode() + b"\0")
    return digest.hexdigest()[:20]


class Reached:
    """Walks from functions to the functions, modules, classes and constants that they name."""

    def __init__(self) -> None:
        self.functions: set[types.FunctionType] = set()
        self.files: set[str] = set()
        self.constants: set[str] = set()
        self._visited: set[Any] = set()

    def visit(self, function: Any) -> None:
        """Take in a function, and whatever it names."""
        function = inspect.unwrap(getattr(function, "py_func", function))  # a jitted function's Python source
        if not isinstance(function, types.FunctionType) or not self._is_new(function):
            return
        self.functions.add(function)
        where = f"{function.__module__}.{function.__qualname__}"
        self.file(function.__code__.co_filename, function)
        # Two functions in one file can have the same name, so that the file does not identify the function.
        self.constants.add(f"{where} is {_text(function.__code__)}")
        for cell in function.__closure__ or ():
            self._value(f"{where} closure", cell.cell_contents, ())
        for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self._value(f"{where} default", value, ())
        names = frozenset(_names(function.__code__))
        for name in names & function.__globals__.keys():
            self._value(f"{function.__module__}.{name}", function.__globals__[name], names)

    def file(self, path: str, owner: Any) -> None:
        """Add a file to the hash; if there is none, at a prompt or in a notebook, the source text of `owner`."""
        if Path(path).is_file():
            self.files.add(path)
            return
        try:
            self.constants.add(inspect.getsource(owner))
        except (OSError, TypeError):
            self.constants.add(getattr(owner, "__qualname__", type(owner).__name__))

    def _value(self, where: str, value: Any, names: Iterable[str]) -> None:
        if isinstance(value, types.ModuleType):
            if _is_users(getattr(value, "__file__", None)) and self._is_new((id(value), names)):
                self.file(value.__file__ or "", value)
                for name in names:
                    if hasattr(value, name):
                        self._value(f"{value.__name__}.{name}", getattr(value, name), names)
        elif isinstance(value, types.FunctionType) or hasattr(value, "py_func"):
            if _is_users(inspect.unwrap(getattr(value, "py_func", value)).__code__.co_filename):
                self.visit(value)
        elif isinstance(value, type):
            module = sys.modules.get(value.__module__)
            path = getattr(module, "__file__", None)
            if path is not None and _is_users(path):
                self.file(path, value)
            if issubclass(value, enum.Enum):
                self.constants.add(f"{where}={[(member.name, member.value) for member in value]!r}")
        elif isinstance(value, tuple):
            self.constants.add(f"{where}=({len(value)})")
            for place, item in enumerate(value):
                self._value(f"{where}[{place}]", item, ())
        elif isinstance(value, np.ndarray):
            self.constants.add(f"{where}={value.dtype}{value.shape}{hashlib.sha256(value.tobytes()).hexdigest()}")
        elif isinstance(value, bool | int | float | str | np.generic | None):
            self.constants.add(f"{where}={value!r}")

    def _is_new(self, thing: Any) -> bool:
        if thing in self._visited:
            return False
        self._visited.add(thing)
        return True


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _text(constant: Any) -> str:
    """Return a text of a constant of a function's code. Sets are sorted, so that it is the same in every process."""
    if isinstance(constant, types.CodeType):
        return f"{constant.co_code.hex()} {constant.co_names} {[_text(each) for each in constant.co_consts]}"
    if isinstance(constant, frozenset):
        return str(sorted(map(_text, constant)))
    return repr(constant)


def _is_users(path: str | None) -> bool:
    """True for files of the user. Those of Python and of `_VERSIONED` change only with a version, which is in the hash."""
    if path is None:
        return False
    parts = Path(path).parts
    if "site-packages" in parts:
        return parts[parts.index("site-packages") + 1] not in _VERSIONED
    return not path.startswith(sysconfig.get_path("stdlib"))
