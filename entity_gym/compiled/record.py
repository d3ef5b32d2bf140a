"""Records as ordinary Python sees them: any field name works as an attribute, `s.round` and `s.size` included.

NumPy's own records have methods of such names, which would hide the fields.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from entity_gym.errors import nearest


class Record:
    """One record of a structured array: `record.name` and `record["name"]` read and write the array's own memory."""

    __slots__ = ("_row",)

    def __init__(self, row: np.void) -> None:
        object.__setattr__(self, "_row", row)

    def __getattr__(self, name: str) -> Any:
        try:
            return self._row[name]
        except ValueError:
            raise AttributeError(f"there is no field {name!r}; {nearest(name, self._row.dtype.names or ())}") from None

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

    def __init__(self, rows: NDArray[Any]) -> None:
        self._rows = rows

    def __getitem__(self, i: int) -> Record:
        return Record(self._rows[i])

    def __setitem__(self, i: int, record: Record) -> None:
        self._rows[i] = record._row
