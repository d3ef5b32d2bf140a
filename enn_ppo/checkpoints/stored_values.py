"""Lossless encoding of nested plain values and arrays as types that `torch.load(weights_only=True)` reads.

A NumPy array, a NumPy scalar, bytes or a very large int becomes a tagged dictionary; other values stay unchanged. Torch's
`safe_globals` could read NumPy arrays directly, but a value that cannot be stored would be noticed only at loading; `encode`
raises at saving, and the error names the value's place.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from entity_gym.untrusted import MAX_DEPTH

_TAG = "__enn_ppo__"  # marks a dictionary that stands for another value
_PLAIN = (str, float, bool, type(None))
_BIG = 2000  # bits; `weights_only` reads integers of up to 255 bytes


def encode(value: Any, where: str) -> Any:
    """Convert `value` into types that `torch.load(weights_only=True)` reads.

    Args:
        value: nested dicts, lists and tuples of str, bytes, int of any size, float, bool, None, tensors, NumPy arrays
            and NumPy scalars. Tensors are moved to the CPU.
        where: name of `value` in errors; keys and indices are appended.

    Raises:
        ValueError: a value has another type; the message names its place.
    """
    kind = type(value)  # exact types: a subclass (an enum, a named tuple) would not come back as itself
    if kind in _PLAIN or (kind is int and value.bit_length() <= _BIG):
        return value
    if kind is int:
        return {_TAG: "int", "hex": hex(value)}
    if kind is bytes:
        return {_TAG: "bytes", "data": _byte_tensor(value)}
    if kind in (list, tuple):
        return kind(encode(item, f"{where}[{index}]") for index, item in enumerate(value))
    if isinstance(value, Mapping):
        for key in value:
            if type(key) not in (*_PLAIN, int):
                raise ValueError(f"{where} has the key {key!r}: a key must be str, int, float, bool or None")
            if key == _TAG:
                raise ValueError(f"{where} has the key {key!r}, which is reserved")
        return {key: encode(item, f"{where}[{key!r}]") for key, item in value.items()}
    if isinstance(value, Tensor):
        if value.layout is not torch.strided:
            raise ValueError(f"{where} is a tensor of layout {value.layout}: it must be dense")
        tensor = value.detach().cpu()
        # of a view, torch would save the whole storage
        return tensor if tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone()
    if kind in (np.ndarray, np.memmap) or isinstance(value, np.generic):
        array = np.asarray(value)
        descr = None if array.dtype.hasobject else np.lib.format.dtype_to_descr(array.dtype)
        if descr is None or np.lib.format.descr_to_dtype(descr) != array.dtype:
            raise ValueError(f"{where} is a NumPy array of dtype {array.dtype}: it must hold numbers, flags or text")
        return {
            _TAG: "scalar" if isinstance(value, np.generic) else "array",
            "dtype": descr,
            "shape": list(array.shape),
            # the memory order affects the order of sums, and so the last bits of a resumed run
            "order": "F" if array.flags.fnc else "C",
            "data": _byte_tensor(array.tobytes("A")),
        }
    raise ValueError(
        f"{where} is {kind.__module__}.{kind.__qualname__}: what can be stored are dicts, lists and tuples of "
        "str, bytes, int, float, bool, None, tensors, NumPy arrays and NumPy scalars"
    )


def _byte_tensor(data: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(data, np.uint8).copy())


def decode(value: Any, size: int) -> Any:
    """The inverse of `encode`: restores every type, dtype, shape and memory order.

    Args:
        value: returned by `encode`.
        size: bytes of the file that holds it. Values that repeat in a file need little room in it, and much in memory.

    Raises:
        ValueError: `value` was not made by `encode`, holds more than `size` values or bytes of arrays, or is nested deeply.
    """
    return _Decoding(size).decode(value, 0)


class _Decoding:
    """Decodes at most `left` values and bytes of arrays."""

    def __init__(self, left: int) -> None:
        self._left = left

    def _count(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise ValueError("holds more values than fit into it without repetition")

    def decode(self, value: Any, depth: int) -> Any:
        if depth == MAX_DEPTH:
            raise ValueError(f"is nested more than {MAX_DEPTH} deep")
        self._count(1)
        if type(value) in (list, tuple):
            return type(value)(self.decode(item, depth + 1) for item in value)
        if isinstance(value, Tensor):
            is_plain = type(value) is Tensor and value.layout is torch.strided and value.device.type == "cpu"
            if not is_plain or value.nbytes != value.untyped_storage().nbytes():
                raise ValueError("holds a tensor whose numbers are not all in the file")
            return value
        if not isinstance(value, dict):
            return value
        match value.get(_TAG):
            case None:
                return {key: self.decode(item, depth + 1) for key, item in value.items()}
            case "int":
                self._count(len(value["hex"]))
                return int(value["hex"], 16)
            case "bytes":
                return self._bytes(value)
            case "array" | "scalar" as kind:
                dtype = np.lib.format.descr_to_dtype(value["dtype"])
                if dtype.hasobject:  # bytes of a file must not become object pointers
                    raise ValueError(f"holds an array of dtype {dtype}")
                data = bytearray(self._bytes(value))
                array = np.ndarray(value["shape"], dtype, data, order=value["order"]).copy("K")
                if array.nbytes != len(data):
                    raise ValueError(f"holds an array of {array.nbytes} bytes in {len(data)}")
                return array[()] if kind == "scalar" else array
            case unknown:
                raise ValueError(f"holds a value of the unknown kind {unknown!r}")

    def _bytes(self, value: dict[str, Any]) -> bytes:
        data = self.decode(value["data"], 0)
        self._count(data.nbytes)
        content: bytes = data.numpy().tobytes()
        return content
