"""float32 arrays as lists of numbers that JSON writes shortly."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_LARGEST_WHOLE = 2.0**53  # float64 and the numbers of JavaScript are exact up to here


def to_decimals(values: NDArray[Any]) -> Any:
    """Return nested lists: whole numbers as int, others as the shortest decimal that float32 reads as the same number.

    Numbers that are not finite, which JSON does not have, become None.
    """
    array = np.asarray(values, np.float32)
    if np.isfinite(array).all() and (array == np.round(array)).all() and (np.abs(array) < _LARGEST_WHOLE).all():
        return array.astype(np.int64).tolist()
    return _shortened(array)


def _shortened(array: NDArray[np.float32]) -> Any:
    if array.ndim:
        return [_shortened(each) for each in array]
    return float(str(array[()])) if np.isfinite(array) else None
