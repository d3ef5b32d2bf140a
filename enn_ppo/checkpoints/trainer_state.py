"""The trainer's state as JSON and tensors of a safetensors file, without loss.

A JSON mapping with one key stands for a value that JSON does not have: `dict` (a list of pairs), `tuple`, `bytes` (hexadecimal),
and the number of a tensor: `tensor` itself, or `array` and `scalar`, whose tensors hold NumPy's own format.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

_MOST_BITS = 2000  # of an int; Python reads at most 4,300 digits
_HEADER_BYTES = 2**20  # of an array, whose dtype may have many fields


def encode(value: Any, where: str, tensors: list[Tensor]) -> Any:
    """Convert `value` to what JSON can hold; its tensors and arrays are appended to `tensors`.

    It is made of nested dicts, lists and tuples of str, bytes, int, float, bool, None, tensors on any device, NumPy arrays and
    NumPy scalars. `where` is its name in errors, to which keys and indices are appended.

    Raises:
        ValueError: a value has another type; the message names its place.
    """
    kind = type(value)  # exact types: a subclass (an enum, a named tuple) would not come back as itself
    if kind in (str, bool, float, type(None)) or (kind is int and value.bit_length() <= _MOST_BITS):
        return value
    if kind is bytes:
        return {"bytes": value.hex()}
    if kind in (list, tuple):
        items = [encode(item, f"{where}[{index}]", tensors) for index, item in enumerate(value)]
        return items if kind is list else {"tuple": items}
    if isinstance(value, Mapping) and all(type(key) in (str, int, float, bool, type(None)) for key in value):
        return {"dict": [[key, encode(item, f"{where}[{key!r}]", tensors)] for key, item in value.items()]}
    if isinstance(value, Tensor) and value.layout is torch.strided:
        tensors.append(value.detach().cpu().contiguous().clone())  # safetensors refuses shared memory
        return {"tensor": len(tensors) - 1}
    if kind in (np.ndarray, np.memmap) or isinstance(value, np.generic):
        array = np.asarray(value)
        described = not array.dtype.hasobject and np.lib.format.dtype_to_descr(array.dtype)
        if described and np.lib.format.descr_to_dtype(described) == array.dtype:
            # the format keeps the memory order, which affects the order of sums, and so the last bits of a resumed run
            buffer = io.BytesIO()
            np.lib.format.write_array(buffer, array, (3, 0), allow_pickle=False)
            tensors.append(torch.from_numpy(np.frombuffer(buffer.getvalue(), np.uint8).copy()))
            return {"scalar" if isinstance(value, np.generic) else "array": len(tensors) - 1}
    raise ValueError(
        f"{where} is {kind.__module__}.{kind.__qualname__}: what can be stored are lists, tuples, dicts with plain keys, str, "
        f"bytes, int of at most {_MOST_BITS} bits, float, bool, None, dense tensors, and NumPy arrays and scalars without objects"
    )


def decode(value: Any, tensors: dict[int, Tensor]) -> Any:
    """The inverse of `encode`: restores every type, dtype, shape and memory order.

    Each tensor is taken out of `tensors`, so that a small file cannot become a large value.

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
        case [("bytes", text)]:
            return bytes.fromhex(text)
        case [("tensor", number)] if number in tensors:
            return tensors.pop(number)
        case [("array" | "scalar" as kind, number)] if number in tensors:
            buffer = io.BytesIO(tensors.pop(number).numpy().tobytes())
            array = np.lib.format.read_array(buffer, allow_pickle=False, max_header_size=_HEADER_BYTES).copy("K")
            return array[()] if kind == "scalar" else array
    raise ValueError(f"it holds the value {value!r:.80}, which no trainer has written")
