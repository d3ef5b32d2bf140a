"""Tensors between the host and a device: many of them as one copy.

A copy of a few kilobytes takes as long as one of a hundred: what counts is how many there are. On CUDA it starts from pinned
memory and nobody waits for it; torch keeps such memory, and gives it out again once the copy is done.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cache
from itertools import accumulate
from operator import mul
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_ALIGNMENT = 16  # bytes, at which every tensor begins: enough for any element, and for loads of several


class Cut(NamedTuple):
    """Place of a tensor in a buffer."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in elements
    first: int  # its first element, counted in elements from the beginning of the buffer

    def begin(self, rows: int) -> Cut:
        """The first rows of it."""
        return Cut(self.dtype, (rows, *self.shape[1:]), self.strides, self.first)


def cut(memory: Tensor, cuts: Collection[Cut]) -> list[Tensor]:
    """The tensors that lie in a uint8 buffer, whose memory they share."""
    typed: dict[torch.dtype, Tensor] = {}
    for dtype in {each.dtype for each in cuts}:
        rest = len(memory) % dtype.itemsize  # in which no element of this type lies
        typed[dtype] = (memory[:-rest] if rest else memory).view(dtype)
    begins = {dtype: each.storage_offset() for dtype, each in typed.items()}
    # slicing and shaping would be two operations for each tensor, and these are most of the host's work for an observation
    return [typed[dtype].as_strided(shape, strides, begins[dtype] + first) for dtype, shape, strides, first in cuts]


class Packing:
    """Arrays of the host that cross to a device as one buffer.

    Args:
        arrays: contiguous.

    Attributes:
        cuts: where each array lies in the buffer.
        num_bytes: size of the buffer.
    """

    def __init__(self, arrays: Sequence[NDArray[Any]]) -> None:
        self._arrays = arrays
        self.cuts: list[Cut] = []
        begin = 0
        for array in arrays:
            dtype, shape = array.dtype, array.shape
            self.cuts.append(Cut(_tensor_type(dtype), shape, _strides(shape), begin // dtype.itemsize))
            begin += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
        self.num_bytes = begin

    def write(self, host: Tensor) -> None:
        """Copy the arrays to the buffer `host`, uint8 of the host."""
        memory = host.numpy()
        for array, (_, shape, _, first) in zip(self._arrays, self.cuts, strict=True):
            dtype = array.dtype
            copy_array(np.ndarray(shape, dtype, memory, first * dtype.itemsize), array)

    def to_device(self, device: torch.device, into: Tensor | None = None) -> Tensor:
        """Copy the arrays to a device in one go, without waiting for it.

        Args:
            device: where to.
            into: uint8 on the device, at least as long as the buffer; None: new memory.

        Returns:
            (num_bytes,) uint8 on the device: the buffer.
        """
        host = _staging(self.num_bytes, device)
        self.write(host)
        memory = torch.empty(self.num_bytes, dtype=torch.uint8, device=device) if into is None else into
        memory = memory if len(memory) == self.num_bytes else memory[: self.num_bytes]
        _enqueue(memory, host)
        return memory

    def views(self, memory: Tensor) -> list[Tensor]:
        """One tensor for each array, which shares the buffer's memory."""
        return cut(memory if len(memory) == self.num_bytes else memory[: self.num_bytes], self.cuts)


class HostBuffer:
    """(size,) uint8 of the host that is copied to a device again and again; pinned, if that is a GPU.

    Attributes:
        memory: to write to after `wait`.
    """

    def __init__(self, size: int, device: torch.device) -> None:
        self.memory = _staging(size, device)
        self._device = device
        self._copied = torch.cuda.Event() if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        """Wait until the last copy has been made."""
        if self._copied is not None:
            self._copied.synchronize()

    def to_device(self) -> Tensor:
        """Copy it to new memory of the device, without waiting for it."""
        there = torch.empty(len(self.memory), dtype=torch.uint8, device=self._device)
        _enqueue(there, self.memory)
        if self._copied is not None:
            self._copied.record(torch.cuda.current_stream(self._device))
        return there


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


def views(memory: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """The tensors of `to_device` in the uint8 `memory`, of the types and shapes of others on the CPU."""
    return Packing([tensor.numpy() for tensor in like]).views(memory)


class Joined(NamedTuple):
    """Tensors of one device in one buffer."""

    memory: Tensor  # uint8
    cuts: list[Cut]  # where each tensor lies in it


def join(tensors: Sequence[Tensor]) -> Joined:
    """Copy tensors of one device, at least one, into one buffer."""
    sizes = [tensor.element_size() for tensor in tensors]
    cuts: dict[int, Cut] = {}
    parts: list[Tensor] = []
    begin = 0
    for i in sorted(range(len(tensors)), key=sizes.__getitem__, reverse=True):  # then all are aligned
        tensor = tensors[i]
        shape = tuple(tensor.shape)
        cuts[i] = Cut(tensor.dtype, shape, _strides(shape), begin // sizes[i])
        parts.append((tensor if len(shape) == 1 else tensor.reshape(-1)).view(torch.uint8))
        begin += tensor.nbytes
    return Joined(torch.cat(parts), [cuts[i] for i in range(len(tensors))])


def to_host(tensors: Sequence[Tensor], joined: Joined | None = None) -> list[NDArray[Any]]:
    """The numbers of tensors of one device, copied in one go. Synchronises with the device, if that is another.

    On the CPU arrays share the tensors' memory.

    Args:
        tensors: at least one.
        joined: the same tensors, where they lie in one buffer already.
    """
    if is_host(tensors[0].device):
        return [tensor.numpy() for tensor in tensors]
    return in_one_copy(join(tensors) if joined is None else joined)


def in_one_copy(joined: Joined) -> list[NDArray[Any]]:
    """The numbers of joined tensors, in new memory of the host."""
    host = _staging(len(joined.memory), joined.memory.device)
    _fetch(host, joined.memory)
    memory, arrays = host.numpy(), []
    for dtype, shape, _, first in joined.cuts:
        array_type = _array_type(dtype)
        arrays.append(np.ndarray(shape, array_type, memory, first * array_type.itemsize))
    return arrays


# --- The steps that touch memory of two places


def _staging(size: int, device: torch.device) -> Tensor:
    """(size,) uint8 of the host that copies to or from the device start or end in."""
    return torch.empty(size, dtype=torch.uint8, pin_memory=device.type == "cuda")


def copy_array(out: NDArray[Any], array: NDArray[Any]) -> None:
    """Copy an array of the host."""
    np.copyto(out, array)


def copy_there(into: Tensor, source: Tensor) -> None:
    """Enqueue a copy on the device."""
    into.copy_(source)


def _enqueue(there: Tensor, host: Tensor) -> None:
    there.copy_(host, non_blocking=True)


def _fetch(host: Tensor, there: Tensor) -> None:
    """Copy from the device, and wait for it."""
    host.copy_(there, non_blocking=True)
    if there.is_cuda:
        torch.cuda.current_stream(there.device).synchronize()


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a contiguous array, in elements."""
    if len(shape) == 1:
        return (1,)
    if len(shape) == 2:
        return (shape[1], 1)
    return tuple(accumulate(reversed(shape[1:]), mul, initial=1))[::-1] if shape else ()


@cache
def _tensor_type(dtype: np.dtype[Any]) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype)).dtype


@cache
def _array_type(dtype: torch.dtype) -> np.dtype[Any]:
    return torch.empty(0, dtype=dtype, device="cpu").numpy().dtype
