"""Reading enn-trainer's `state.*.msgpack`: MessagePack with arrays, which is data and never code."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

_DEEPEST = 50  # values within values
_DTYPES = re.compile(r"[<|=]?(f[248]|[iu][1248]|b1)")
# first byte -> format of a number that follows
_NUMBERS = {
    0xCA: ">f", 0xCB: ">d", 0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q", 0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q",
}  # fmt: skip
_CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}
# first byte -> format of the length that follows
_BYTES = {0xC4: ">B", 0xC5: ">H", 0xC6: ">I"}
_TEXTS = {0xD9: ">B", 0xDA: ">H", 0xDB: ">I"}
_LISTS = {0xDC: ">H", 0xDD: ">I"}
_MAPS = {0xDE: ">H", 0xDF: ">I"}


def loads(data: bytes) -> Any:
    """Read a value: nested dicts and lists of tensors, numbers, texts, bytes, truth values and None.

    Raises:
        ValueError: the data is cut short, or not of this format.
    """
    reader = _Reader(data)
    value = reader.value(0)
    if reader.at != len(data):
        raise ValueError(f"holds {len(data) - reader.at} bytes too many")
    return value


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, count: int) -> bytes:
        taken = self.data[self.at : self.at + count]
        if len(taken) < count:
            raise ValueError(f"is cut short after {len(self.data)} bytes")
        self.at += count
        return taken

    def number(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def value(self, depth: int) -> Any:
        if depth > _DEEPEST:
            raise ValueError(f"has more than {_DEEPEST} values within values")
        first = self.take(1)[0]
        if first < 0x80 or first >= 0xE0:  # small numbers
            return first if first < 0x80 else first - 256
        if first in _CONSTANTS:
            return _CONSTANTS[first]
        if first in _NUMBERS:
            return self.number(_NUMBERS[first])
        if 0xA0 <= first < 0xC0 or first in _TEXTS:
            return self.take(self.length(first, 0xA0, _TEXTS)).decode()
        if first in _BYTES:
            return self.take(self.number(_BYTES[first]))
        if 0x90 <= first < 0xA0 or first in _LISTS:
            return self.items(self.length(first, 0x90, _LISTS), lambda: self.value(depth + 1))
        if 0x80 <= first < 0x90 or first in _MAPS:
            pairs = self.items(self.length(first, 0x80, _MAPS), lambda: (self.key(depth), self.value(depth + 1)))
            return _as_tensor(dict(pairs))
        raise ValueError(f"has a value of the unknown kind 0x{first:02x}")

    def length(self, first: int, base: int, forms: dict[int, str]) -> int:
        return int(self.number(forms[first])) if first in forms else first - base

    def items(self, count: int, read: Callable[[], Any]) -> list[Any]:
        return [read() for _ in range(count)]

    def key(self, depth: int) -> Any:
        key = self.value(depth + 1)
        if not isinstance(key, str | bytes | int):
            raise ValueError(f"has the key {key!r:.100}")
        return key


def _as_tensor(read: dict[Any, Any]) -> Any:
    """The array that a mapping stands for, or the mapping."""
    if b"__tensor__" not in read:
        return read
    dtype, shape, data = (read.get(key) for key in (b"dtype", b"shape", b"data"))
    if not isinstance(dtype, str) or not _DTYPES.fullmatch(dtype):
        raise ValueError(f"has an array of dtype {dtype!r}, which is none of numbers")
    sizes = shape if isinstance(shape, list) and all(type(size) is int and size >= 0 for size in shape) else None
    if sizes is None or not isinstance(data, bytes) or len(data) != math.prod(sizes) * np.dtype(dtype).itemsize:
        raise ValueError(f"has an array of dtype {dtype} and shape {shape!r:.100} with other data")
    return torch.from_numpy(np.frombuffer(data, dtype).reshape(sizes).copy())
