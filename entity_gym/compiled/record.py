"""Records and arrays as ordinary Python sees them.

A record's fields are attributes of any name, `s.round` and `s.size` included, which NumPy's own records would hide behind
methods. Where an action can select nobody (-1), arrays refuse negative indices: -1 as an index is a mistake in the world's rules,
and compiled code would change the last row without a word.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from entity_gym.errors import nearest


class Guarded(np.ndarray[Any, Any]):
    """An array whose indices are not negative.

    Attributes:
        reason: the end of the message, which names the actions that can select nobody.
    """

    reason: str = ""

    def __array_finalize__(self, source: Any) -> None:
        self.reason = getattr(source, "reason", "")

    def __getitem__(self, index: Any) -> Any:
        self._check(index)
        return super().__getitem__(index)

    def __setitem__(self, index: Any, value: Any) -> None:
        self._check(index)
        super().__setitem__(index, value)

    def _check(self, index: Any) -> None:
        for place in index if isinstance(index, tuple) else (index,):
            if isinstance(place, int | np.integer) and place < 0:
                raise IndexError(f"the index {place} is negative; {self.reason}")


def guarded(array: NDArray[Any], reason: str) -> NDArray[Any]:
    """A view of `array` that refuses negative indices; `array` itself if there is no reason to."""
    if not reason:
        return array
    view = array.view(Guarded)
    view.reason = reason
    return view


class Record:
    """One record of a structured array: `record.name` and `record["name"]` read and write the array's own memory.

    Args:
        row: of the structured array.
        reason: why arrays among the fields refuse negative indices; "" if they do not.
    """

    __slots__ = ("_reason", "_row")

    def __init__(self, row: np.void, reason: str = "") -> None:
        object.__setattr__(self, "_row", row)
        object.__setattr__(self, "_reason", reason)

    def __getattr__(self, name: str) -> Any:
        try:
            value = self._row[name]
        except ValueError:
            raise AttributeError(f"there is no field {name!r}; {nearest(name, self._row.dtype.names or ())}") from None
        return guarded(value, self._reason) if self._reason and isinstance(value, np.ndarray) else value

    def __setattr__(self, name: str, value: Any) -> None:
        try:
            self._row[name] = value
        except ValueError:
            if name in (self._row.dtype.names or ()):
                raise
            raise AttributeError(f"there is no field {name!r}; {nearest(name, self._row.dtype.names or ())}") from None

    __getitem__ = __getattr__
    __setitem__ = __setattr__

    def __repr__(self) -> str:
        return f"Record({', '.join(f'{name}={self._row[name]}' for name in self._row.dtype.names or ())})"


class Records:
    """A structured array whose items are `Record`s."""

    def __init__(self, rows: NDArray[Any], reason: str = "") -> None:
        self._rows, self._reason = rows, reason

    def __getitem__(self, i: int) -> Record:
        return Record(self._rows[i], self._reason)

    def __setitem__(self, i: int, record: Record) -> None:
        self._rows[i] = record._row
