"""Pickles for other processes: environment factories, settings and exceptions.

A worker does not run the user's script, so classes and functions of the script itself (module `__main__`) must travel by
value. Pickle cannot do that; cloudpickle can, and lambdas and local functions as well. It is used where it is installed.
"""

from __future__ import annotations

import functools
import io
import pickle
import traceback
from types import FunctionType
from typing import Any, NamedTuple

# Pickle raises any of these for an object that it cannot take, depending on the object and the version of Python.
_CANNOT = (pickle.PicklingError, AttributeError, TypeError)


def pickled_for_worker(value: Any) -> bytes:
    """Pickle a user's object for a process that has not run the user's script.

    Raises:
        ValueError: if it cannot be pickled; names the object.
    """
    try:
        return _pickled_by_value(value)
    except _CANNOT as error:
        hint = "" if _by_value() else "; move it into a module of its own, or install cloudpickle"
        raise ValueError(f"{value!r:.200} cannot be sent to a worker process: {error}{hint}") from error


def pickled_for_parent(value: Any, name: str = "the result") -> bytes:
    """Pickle an object that an environment returned: by reference, and by value where that fails and cloudpickle is there.

    Whatever is raised gets a note with `name`, that of the object.
    """
    try:
        try:
            return pickle.dumps(value, protocol=5)
        except _CANNOT:
            if not _by_value():
                raise
            return _pickled_by_value(value)
    except Exception as error:
        error.add_note(f"raised while sending {name} to the main process")
        raise


def _pickled_by_value(value: Any) -> bytes:
    file = io.BytesIO()
    (_by_value() or _NothingOfTheScript)(file, protocol=5).dump(value)
    return file.getvalue()


class _NothingOfTheScript(pickle.Pickler):
    """Refuses classes and functions that would be looked up in the worker's `__main__`, which does not have them."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, type | FunctionType) and value.__module__ == "__main__":
            raise pickle.PicklingError(f"{value.__qualname__} is defined in the script itself (__main__)")
        return NotImplemented


@functools.cache
def _by_value() -> type[pickle.Pickler] | None:
    """Return cloudpickle's pickler, or None where cloudpickle is not installed."""
    try:
        import cloudpickle  # type: ignore[import-untyped, unused-ignore]
    except ImportError:
        return None
    pickler: type[pickle.Pickler] = cloudpickle.Pickler
    return pickler


class ErrorReport(NamedTuple):
    """An exception of another process, in parts that can always be pickled."""

    pickled: bytes | None  # the exception itself; None where it cannot be pickled
    type_name: str
    message: str
    notes: tuple[str, ...]
    traceback: str

    @staticmethod
    def of(error: BaseException) -> ErrorReport:
        """Take an exception apart, in the process that caught it."""
        text = "".join(traceback.format_exception(error)).rstrip()
        try:
            pickled = pickled_for_parent(error)
        except Exception:
            pickled = None
        return ErrorReport(pickled, type(error).__qualname__, str(error), tuple(getattr(error, "__notes__", ())), text)

    def exception(self, process: str) -> Exception:
        """Put the exception together again, with its type, message and notes, and one more note with its traceback.

        Returns:
            A RuntimeError that names the type and message, where the exception cannot be pickled or unpickled. Also for
            StopIteration: raised here, it would end a caller's loop or generator silently.
        """
        error: Any = None
        if self.pickled is not None:
            try:
                error = pickle.loads(self.pickled)
            except Exception:
                error = None
        right = isinstance(error, Exception) and type(error).__qualname__ == self.type_name
        if not right or isinstance(error, StopIteration | StopAsyncIteration):
            error = RuntimeError(f"{self.type_name}: {self.message}" if self.message else self.type_name)
        raised: Exception = error
        raised.__notes__ = [*self.notes, f"raised in {process}:\n{self.traceback}"]
        return raised
