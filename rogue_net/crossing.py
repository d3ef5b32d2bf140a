"""Tensors between the host and a device: many of them as one copy.

A copy of a few kilobytes takes as long as one of a hundred: what counts is how many there are. On CUDA it starts from pinned
memory and nobody waits for it; torch keeps such memory, and gives it out again once the copy is done.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import accumulate
from operator import mul
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_ALIGNMENT = 16  # bytes, at which every tensor begins: enough for any element, and for loads of several


class Packing:
    """Arrays of the host that cross to a device as one buffer: those of one type end to end, the largest elements first.

    Args:
        arrays: contiguous.
        fills: of each array, the numbers that follow it in the buffer, of its type and one-dimensional; None: none.

    Attributes:
        num_bytes: size of the buffer.
    """

    def __init__(self, arrays: Sequence[NDArray[Any]], fills: Sequence[NDArray[Any]] | None = None) -> None:
        self._groups: list[_Group] = []
        self._places: list[tuple[int, _Place]] = [(0, _NOWHERE)] * len(arrays)
        members: dict[np.dtype[Any], list[int]] = {}
        for i, array in enumerate(arrays):
            members.setdefault(array.dtype, []).append(i)
        begin = 0
        for number, dtype in enumerate(sorted(members, key=_negative_size)):
            step = _ALIGNMENT // dtype.itemsize
            parts: list[NDArray[Any]] = []
            end = 0
            for i in members[dtype]:
                array = arrays[i]
                self._places[i] = number, (array.shape, _strides(array), end)
                parts.append(array.reshape(-1))
                end += array.size
                if fills is not None and len(fills[i]):
                    parts.append(fills[i])
                    end += len(fills[i])
                if missing := -end % step:
                    parts.append(_zeros(dtype, missing))
                    end += missing
            size = end * dtype.itemsize
            self._groups.append(_Group(dtype, parts, begin, begin + size))
            begin += size
        self.num_bytes = begin

    def to_device(self, device: torch.device, into: Tensor | None = None) -> Tensor:
        """Copy the arrays to a device in one go, without waiting for it.

        Args:
            device: where to.
            into: uint8 on the device, at least as long as the buffer; None: new memory.

        Returns:
            (num_bytes,) uint8 on the device: the buffer.
        """
        host = _staging(self.num_bytes, device)
        flat = host.numpy()
        for group in self._groups:
            _concatenate(group.parts, flat[group.begin : group.end].view(group.dtype))
        memory = torch.empty(self.num_bytes, dtype=torch.uint8, device=device) if into is None else into
        memory = memory if len(memory) == self.num_bytes else memory[: self.num_bytes]
        _enqueue(memory, host)
        return memory

    def views(self, memory: Tensor) -> list[Tensor]:
        """Of each array, without its fill, a tensor that shares the buffer's memory."""
        groups = []
        for dtype, _, begin, end in self._groups:
            numbers = memory[begin:end].view(_tensor_type(dtype))
            groups.append((numbers, numbers.storage_offset()))
        # slicing and shaping would be two operations for each array, and these are most of the host's work for an observation
        found = []
        for number, (shape, strides, begin) in self._places:
            numbers, first = groups[number]
            found.append(numbers.as_strided(shape, strides, first + begin))
        return found


#: Shape, strides and first element of an array among those of its type.
_Place = tuple[tuple[int, ...], tuple[int, ...], int]
_NOWHERE: _Place = ((), (), 0)


class _Group(NamedTuple):
    """The arrays of one type in a `Packing`."""

    dtype: np.dtype[Any]
    parts: list[NDArray[Any]]  # what lies end to end
    begin: int  # bytes, in the buffer
    end: int


def to_device(tensors: Sequence[Tensor], device: torch.device, into: Tensor | None = None) -> list[Tensor]:
    """Copy tensors of the host to a device in one go, without waiting for it.

    Args:
        tensors: on the CPU, contiguous.
        device: where to.
        into: uint8 on the device, where they are to stand; it may be longer. None: new memory.

    Returns:
        Of each, a tensor of the same type and shape that shares the memory of all.
    """
    packing = Packing([tensor.numpy() for tensor in tensors])
    return packing.views(packing.to_device(device, into))


def is_host(device: torch.device) -> bool:
    """True if arrays of the host can share the memory of tensors on this device."""
    return device.type == "cpu"


def is_on(here: torch.device, wanted: torch.device) -> bool:
    """True if tensors on the device `here` need not move to `wanted`. `cuda` is any GPU, `cuda:1` that one alone."""
    return here.type == wanted.type and (None in (here.index, wanted.index) or here.index == wanted.index)


def moved(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host on a device, without waiting for it; on the CPU itself."""
    return tensor if device.type == "cpu" else to_device([tensor], device)[0]


def num_bytes(tensors: Sequence[Tensor]) -> int:
    """What `to_device` needs for them."""
    return Packing([tensor.numpy() for tensor in tensors]).num_bytes


def views(memory: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """The tensors of `to_device` in the uint8 `memory`, of the types and shapes of others on the CPU."""
    return Packing([tensor.numpy() for tensor in like]).views(memory)


def to_host(tensors: Sequence[Tensor]) -> list[NDArray[Any]]:
    """The numbers of tensors of one device, copied in one go. Synchronises with the device, if that is another.

    On the CPU arrays share the tensors' memory.
    """
    if all(is_host(tensor.device) for tensor in tensors):
        return [tensor.numpy() for tensor in tensors]
    return in_one_copy(tensors)


def in_one_copy(tensors: Sequence[Tensor]) -> list[NDArray[Any]]:
    """The numbers of tensors of one device, at least one, in new memory of the host."""
    # the largest elements first: then all are aligned
    order = sorted(range(len(tensors)), key=lambda i: -tensors[i].element_size())
    flat = torch.cat([tensors[i].reshape(-1).view(torch.uint8) for i in order])
    host = _staging(len(flat), flat.device)
    _fetch(host, flat)
    memory = host.numpy()
    arrays: list[NDArray[Any]] = [memory] * len(tensors)
    begin = 0
    for i in order:
        tensor = tensors[i]
        end = begin + tensor.nbytes
        arrays[i] = memory[begin:end].view(_array_type(tensor.dtype)).reshape(tensor.shape)
        begin = end
    return arrays


# --- The four steps that touch memory of two places, which `scripts/bench_host.py` counts


def _staging(size: int, device: torch.device) -> Tensor:
    """(size,) uint8 of the host that copies to or from the device start or end in."""
    return torch.empty(size, dtype=torch.uint8, pin_memory=device.type == "cuda")


def _concatenate(parts: Sequence[NDArray[Any]], out: NDArray[Any]) -> None:
    np.concatenate(parts, out=out)


def _enqueue(there: Tensor, host: Tensor) -> None:
    there.copy_(host, non_blocking=True)


def _fetch(host: Tensor, there: Tensor) -> None:
    """Copy from the device, and wait for it."""
    host.copy_(there, non_blocking=True)
    if there.is_cuda:
        torch.cuda.current_stream(there.device).synchronize()


def _strides(array: NDArray[Any]) -> tuple[int, ...]:
    """Of a contiguous array, in elements."""
    shape = array.shape
    if len(shape) == 1:
        return (1,)
    if len(shape) == 2:
        return (shape[1], 1)
    return tuple(accumulate(reversed(shape[1:]), mul, initial=1))[::-1] if shape else ()


def _negative_size(dtype: np.dtype[Any]) -> int:
    return -dtype.itemsize


@cache
def _zeros(dtype: np.dtype[Any], count: int) -> NDArray[Any]:
    return np.zeros(count, dtype)


@cache
def _tensor_type(dtype: np.dtype[Any]) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype)).dtype


@cache
def _array_type(dtype: torch.dtype) -> np.dtype[Any]:
    return torch.empty(0, dtype=dtype, device="cpu").numpy().dtype
