"""Pickles for other processes: environments, settings and exceptions.

A worker does not run the user's script, so classes and functions of the script itself (module `__main__`) must travel by
value. Pickle cannot do that; cloudpickle can, and lambdas and local functions as well.
"""

from __future__ import annotations

import pickle
import traceback
from typing import Any, NamedTuple

import cloudpickle

# Pickle raises any of these for an object that it cannot take, depending on the object and the version of Python.
_CANNOT = (pickle.PicklingError, AttributeError, TypeError)

#: Bytes from which on an array is copied from process to process by itself, and not into a pickle and out of it again.
LARGE = 1 << 14


def pickled_for_worker(value: Any) -> bytes:
    """Pickle a user's object for a process that has not run the user's script.

    Raises:
        ValueError: if it cannot be pickled; names the object.
    """
    try:
        pickled: bytes = cloudpickle.dumps(value, protocol=5)
    except _CANNOT as error:
        raise ValueError(f"{value!r:.200} cannot be sent to a worker process: {error}") from error
    return pickled


def pickled_for_parent(value: Any, name: str = "the result", large: list[pickle.PickleBuffer] | None = None) -> bytes:
    """Pickle an object that an environment returned: by reference, and by value where that fails.

    Args:
        value: the object.
        name: its name, in a note to any exception of it.
        large: takes the contents of large arrays, which travel beside the pickle; None: all are in the pickle.
    """

    def is_small(buffer: pickle.PickleBuffer) -> bool:
        if large is None or buffer.raw().nbytes < LARGE:
            return True
        large.append(buffer)
        return False

    try:
        try:
            return pickle.dumps(value, protocol=5, buffer_callback=is_small)
        except _CANNOT:
            if large:
                large.clear()
            pickled: bytes = cloudpickle.dumps(value, protocol=5, buffer_callback=is_small)
            return pickled
    except Exception as error:
        error.add_note(f"raised while sending {name} to the main process")
        raise


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
