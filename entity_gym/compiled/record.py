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
    """An array whose indices are not negative."""

    def __getitem__(self, index: Any) -> Any:
        _check(index)
        return super().__getitem__(index)

    def __setitem__(self, index: Any, value: Any) -> None:
        _check(index)
        super().__setitem__(index, value)


def _check(index: Any) -> None:
    for place in index if isinstance(index, tuple) else (index,):
        if isinstance(place, int | np.integer) and place < 0:
            raise IndexError(
                f"the index {place} is negative; -1 stands for nobody where an action selects entities, and is no index: test "
                "for it first"
            )


class Record:
    """One record of a structured array: `record.name` and `record["name"]` read and write the array's own memory.

    Args:
        row: of the structured array.
        is_guarded: whether arrays among the fields refuse negative indices.
    """

    __slots__ = ("_is_guarded", "_row")

    def __init__(self, row: np.void, is_guarded: bool = False) -> None:
        object.__setattr__(self, "_row", row)
        object.__setattr__(self, "_is_guarded", is_guarded)

    def __getattr__(self, name: str) -> Any:
        try:
            value = self._row[name]
        except ValueError:
            raise AttributeError(f"there is no field {name!r}; {nearest(name, self._row.dtype.names or ())}") from None
        return value.view(Guarded) if self._is_guarded and isinstance(value, np.ndarray) else value

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

    def __init__(self, rows: NDArray[Any], is_guarded: bool) -> None:
        self._rows, self._is_guarded = rows, is_guarded

    def __getitem__(self, i: int) -> Record:
        return Record(self._rows[i], self._is_guarded)

    def __setitem__(self, i: int, record: Record) -> None:
        self._rows[i] = record._row
