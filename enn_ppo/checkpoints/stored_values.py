"""Lossless storage of nested plain values, tensors and NumPy arrays, as JSON and tensors of a safetensors file.

Numbers, texts, flags, None and lists are JSON as they are. A JSON mapping with one key stands for any other value: `dict` (a list
of pairs), `tuple`, `float` (NaN or infinite), and the number of a tensor: `tensor` itself, or `bytes`, `array` and `scalar`,
whose tensors hold bytes, for NumPy in its own format.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

_MOST_BITS = 2000  # of an int; Python reads at most 4,300 digits
_HEADER_BYTES = 2**20  # of an array, whose dtype may have many fields


def encode(value: Any, where: str, tensors: list[Tensor]) -> Any:
    """Convert `value` to what JSON can hold; its tensors and arrays are appended to `tensors`.

    Args:
        value: nested dicts, lists and tuples of str, bytes, int, float, bool, None, tensors on any device, NumPy arrays
            and NumPy scalars.
        where: name of `value` in errors; keys and indices are appended.
        tensors: of the file.

    Raises:
        ValueError: a value has another type; the message names its place.
    """

    def stored(tag: str, tensor: Tensor) -> dict[str, int]:
        tensors.append(tensor)
        return {tag: len(tensors) - 1}

    kind = type(value)  # exact types: a subclass (an enum, a named tuple) would not come back as itself
    if kind in (str, bool, type(None)) or (kind is int and value.bit_length() <= _MOST_BITS):
        return value
    if kind is float:
        return value if math.isfinite(value) else {"float": str(value)}
    if kind is bytes:
        return stored("bytes", _byte_tensor(value))
    if kind in (list, tuple):
        items = [encode(item, f"{where}[{index}]", tensors) for index, item in enumerate(value)]
        return items if kind is list else {"tuple": items}
    if isinstance(value, Mapping):
        if other := [key for key in value if type(key) not in (str, int, float, bool, type(None))]:
            raise ValueError(f"{where} has the key {other[0]!r}: a key must be str, int, float, bool or None")
        return {"dict": [[key, encode(item, f"{where}[{key!r}]", tensors)] for key, item in value.items()]}
    if isinstance(value, Tensor) and value.layout is torch.strided:
        return stored("tensor", value.detach().cpu().contiguous().clone())  # safetensors refuses shared memory
    if kind in (np.ndarray, np.memmap) or isinstance(value, np.generic):
        array = np.asarray(value)
        if array.dtype.hasobject or not _is_plain(array.dtype):
            raise ValueError(f"{where} is a NumPy array of dtype {array.dtype}: it must hold numbers, flags or text")
        # the format keeps the memory order, which affects the order of sums, and so the last bits of a resumed run
        buffer = io.BytesIO()
        np.lib.format.write_array(buffer, array, (3, 0), allow_pickle=False)
        return stored("scalar" if isinstance(value, np.generic) else "array", _byte_tensor(buffer.getvalue()))
    raise ValueError(
        f"{where} is {kind.__module__}.{kind.__qualname__}: what can be stored are dicts, lists and tuples of "
        f"str, bytes, int of at most {_MOST_BITS} bits, float, bool, None, dense tensors, NumPy arrays and NumPy scalars"
    )


def decode(value: Any, tensors: dict[int, Tensor]) -> Any:
    """The inverse of `encode`: restores every type, dtype, shape and memory order.

    Args:
        value: returned by `encode`, from JSON.
        tensors: number -> tensor of the file. Each is taken out, so that a small file cannot become a large value.

    Raises:
        ValueError: `value` was not made by `encode`.
    """
    if isinstance(value, list):
        return [decode(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    match list(value.items()):
        case [("dict", pairs)]:
            return {key: decode(item, tensors) for key, item in pairs}
        case [("tuple", items)]:
            return tuple(decode(item, tensors) for item in items)
        case [("float", "nan" | "inf" | "-inf" as text)]:
            return float(text)
        case [("tensor", number)] if number in tensors:
            return tensors.pop(number)
        case [("bytes", number)] if number in tensors:
            return tensors.pop(number).numpy().tobytes()
        case [("array" | "scalar" as kind, number)] if number in tensors:
            buffer = io.BytesIO(tensors.pop(number).numpy().tobytes())
            array = np.lib.format.read_array(buffer, allow_pickle=False, max_header_size=_HEADER_BYTES).copy("K")
            return array[()] if kind == "scalar" else array
    raise ValueError(f"it holds the value {value!r:.80}, which no trainer has written")


def _is_plain(dtype: np.dtype[Any]) -> bool:
    return bool(np.lib.format.descr_to_dtype(np.lib.format.dtype_to_descr(dtype)) == dtype)


def _byte_tensor(data: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(data, np.uint8).copy())
