"""What goes to worker processes and back by pickling, where that is more than arrays: factories, settings, exceptions.

A worker does not run the user's script, so things defined in the script itself (module `__main__`) must travel by value.
Pickle cannot do that; cloudpickle can, and lambdas and local functions as well. It is used where it is installed.
"""

from __future__ import annotations

import functools
import io
import pickle
import traceback
from types import FunctionType
from typing import Any, NamedTuple

# What pickle raises for what it cannot do, depending on the object and the version.
_CANNOT = (pickle.PicklingError, AttributeError, TypeError)


def pickled_for_worker(value: Any) -> bytes:
    """Pickle something of the user's for a process that has not run the user's script.

    Raises:
        ValueError: if that is impossible, naming what it is about.
    """
    file = io.BytesIO()
    try:
        _by_value()(file, protocol=5).dump(value)
    except _CANNOT as error:
        by_name = _by_value() is _NothingOfTheScript
        hint = "; move it into a module of its own, or install cloudpickle" if by_name else ""
        raise ValueError(f"{value!r:.200} cannot be sent to a worker process: {error}{hint}") from error
    return file.getvalue()


def pickled_for_parent(value: Any) -> bytes:
    """Pickle what environments returned: as usual, by value where that fails and it can be done."""
    try:
        return pickle.dumps(value, protocol=5)
    except _CANNOT:
        if _by_value() is _NothingOfTheScript:
            raise
        file = io.BytesIO()
        _by_value()(file, protocol=5).dump(value)
        return file.getvalue()


class _NothingOfTheScript(pickle.Pickler):
    """Refuses what would be looked up in the worker's `__main__`, where it is not."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, type | FunctionType) and value.__module__ == "__main__":
            raise pickle.PicklingError(f"{value.__qualname__} is defined in the script itself (__main__)")
        return NotImplemented


@functools.cache
def _by_value() -> type[pickle.Pickler]:
    """The pickler of cloudpickle, or where that is not installed one that goes without."""
    try:
        import cloudpickle  # type: ignore[import-untyped, unused-ignore]
    except ImportError:
        return _NothingOfTheScript
    pickler: type[pickle.Pickler] = cloudpickle.Pickler
    return pickler


class ErrorReport(NamedTuple):
    """An exception on its way from a worker."""

    pickled: bytes | None  # the exception, where it can be pickled
    type_name: str
    message: str
    notes: tuple[str, ...]
    traceback: str

    @staticmethod
    def of(error: BaseException) -> ErrorReport:
        """Take an exception that was caught in a worker apart."""
        text = "".join(traceback.format_exception(error)).rstrip()
        try:
            pickled = pickled_for_parent(error)
        except Exception:
            pickled = None
        return ErrorReport(pickled, type(error).__qualname__, str(error), tuple(getattr(error, "__notes__", ())), text)

    def exception(self, worker: str) -> Exception:
        """The exception with its own type, message and notes, and the worker's traceback as one more note.

        One that cannot be pickled, or not be put together here, becomes a RuntimeError that names its type and message.
        """
        error: Any = None
        if self.pickled is not None:
            try:
                error = pickle.loads(self.pickled)
            except Exception:
                error = None
        if not isinstance(error, Exception) or type(error).__qualname__ != self.type_name:
            error = RuntimeError(f"{self.type_name}: {self.message}")
        raised: Exception = error
        raised.__notes__ = [*self.notes, f"raised in {worker}:\n{self.traceback}"]
        return raised
