"""Hash of all that a compiled environment's code depends on: Numba's own cache does not notice edited helpers."""

from __future__ import annotations

import enum
import hashlib
import inspect
import platform
import sys
import sysconfig
import types
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numba
import numpy as np

from entity_gym.compiled import runtime
from entity_gym.compiled.declare import Description

#: Libraries that change only with their versions, which are in the hash.
_VERSIONED = ("numpy", "numba", "llvmlite")


class Reached:
    """Functions, modules and constants that `reset`, `step` and `observe` name, directly or not.

    Attributes:
        functions: of the user, all that are compiled.
        constants: texts that stand for the code of the functions, and for the values that they name.
    """

    def __init__(self, env: type[Description]) -> None:
        self.functions: set[types.FunctionType] = set()
        self.constants: set[str] = set()
        self._modules: set[tuple[types.ModuleType, frozenset[str]]] = set()
        for function in (env.reset, env.step, env.observe):
            self._visit(function)

    def key(self, *parts: str) -> str:
        """A hash of `parts`, of all that was reached, and of versions."""
        digest = hashlib.sha256(Path(runtime.__file__).read_bytes())
        for part in (
            *parts,
            sys.version,
            numba.__version__,
            np.__version__,
            platform.machine(),
            *sorted(self.constants),
        ):
            digest.update(part.encode() + b"\0")
        return digest.hexdigest()[:20]

    def _visit(self, function: Any) -> None:
        """Take in a function, and whatever it names."""
        function = inspect.unwrap(getattr(function, "py_func", function))  # a jitted function's Python source
        if not isinstance(function, types.FunctionType) or function in self.functions:
            return
        self.functions.add(function)
        where = f"{function.__module__}.{function.__qualname__}"
        self.constants.add(f"{where} is {_text(function.__code__)}")
        for cell in function.__closure__ or ():
            self._value(f"{where} closure", cell.cell_contents, frozenset())
        for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self._value(f"{where} default", value, frozenset())
        names = frozenset(_names(function.__code__))
        for name in names & function.__globals__.keys():
            self._value(f"{function.__module__}.{name}", function.__globals__[name], names)

    def _value(self, where: str, value: Any, names: frozenset[str]) -> None:
        """Take in a value; of a module, those of `names` that it has."""
        if isinstance(value, types.ModuleType):
            if _is_users(getattr(value, "__file__", None)) and (value, names) not in self._modules:
                self._modules.add((value, names))
                for name in names & vars(value).keys():
                    self._value(f"{value.__name__}.{name}", vars(value)[name], names)
        elif isinstance(value, types.FunctionType) or hasattr(value, "py_func"):
            if _is_users(inspect.unwrap(getattr(value, "py_func", value)).__code__.co_filename):
                self._visit(value)
        elif isinstance(value, type) and issubclass(value, enum.Enum):
            self.constants.add(f"{where}={[(member.name, member.value) for member in value]!r}")
        elif isinstance(value, type):
            self.constants.add(f"{where}={value.__qualname__}{getattr(value, '_fields', '')}")
            with suppress(OSError, TypeError):
                self.constants.add(inspect.getsource(value))
        elif isinstance(value, tuple):
            self.constants.add(f"{where}=({len(value)})")
            for place, item in enumerate(value):
                self._value(f"{where}[{place}]", item, frozenset())
        elif isinstance(value, np.ndarray):
            self.constants.add(f"{where}={value.dtype}{value.shape}{hashlib.sha256(value.tobytes()).hexdigest()}")
        elif isinstance(value, bool | int | float | str | np.generic | None):
            self.constants.add(f"{where}={value!r}")


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
