"""Tensors between the host and a device: many of them as one copy.

A copy of a few kilobytes takes as long as one of a hundred: what counts is how many there are. On CUDA it starts from pinned
memory and nobody waits for it; torch keeps such memory, and gives it out again once the copy is done.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_ALIGNMENT = 16  # bytes, at which every tensor begins: enough for any element, and for loads of several


def to_device(tensors: Sequence[Tensor], device: torch.device, into: Tensor | None = None) -> list[Tensor]:
    """Copy tensors of the host to a device in one go, without waiting for it.

    Args:
        tensors: on the CPU, contiguous.
        device: where to.
        into: uint8 on the device, where they are to stand one behind the other; it may be longer. None: new memory.

    Returns:
        Of each, a tensor of the same type and shape that shares the memory of all.
    """
    begins, size = _places(tensors)
    host = torch.empty(size, dtype=torch.uint8, pin_memory=device.type == "cuda")
    flat = host.numpy()
    for tensor, begin in zip(tensors, begins, strict=True):
        flat[begin : begin + tensor.nbytes] = tensor.numpy().reshape(-1).view(np.uint8)
    there = torch.empty(size, dtype=torch.uint8, device=device) if into is None else into[:size]
    there.copy_(host, non_blocking=True)
    return views(there, tensors)


def is_on(here: torch.device, wanted: torch.device) -> bool:
    """True if tensors on the device `here` need not move to `wanted`. `cuda` is any GPU, `cuda:1` that one alone."""
    return here.type == wanted.type and (None in (here.index, wanted.index) or here.index == wanted.index)


def moved(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host on a device, without waiting for it; on the CPU itself."""
    return tensor if device.type == "cpu" else to_device([tensor], device)[0]


def num_bytes(tensors: Sequence[Tensor]) -> int:
    """What `to_device` needs for them."""
    return _places(tensors)[1]


def views(memory: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Tensors that stand one behind the other in uint8 `memory`, of the types and shapes of others."""
    begins, _ = _places(like)
    return [
        memory[begin : begin + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        for tensor, begin in zip(like, begins, strict=True)
    ]


def to_host(tensors: Sequence[Tensor]) -> list[NDArray[Any]]:
    """The numbers of tensors of one device, copied in one go. Synchronises with the device, if that is another.

    On the CPU arrays share the tensors' memory.
    """
    if all(tensor.device.type == "cpu" for tensor in tensors):
        return [tensor.numpy() for tensor in tensors]
    return in_one_copy(tensors)


def in_one_copy(tensors: Sequence[Tensor]) -> list[NDArray[Any]]:
    """The numbers of tensors of one device, at least one, in new memory of the host."""
    # the largest elements first: then all are aligned
    order = sorted(range(len(tensors)), key=lambda i: -tensors[i].element_size())
    flat = torch.cat([tensors[i].contiguous().view(-1).view(torch.uint8) for i in order])
    host = torch.empty(flat.shape, dtype=torch.uint8, pin_memory=flat.is_cuda)
    host.copy_(flat, non_blocking=True)
    if flat.is_cuda:
        torch.cuda.current_stream(flat.device).synchronize()
    arrays: dict[int, NDArray[Any]] = {}
    begin = 0
    for i in order:
        part = host[begin : begin + tensors[i].nbytes]
        arrays[i] = part.view(tensors[i].dtype).view(tensors[i].shape).numpy()
        begin += tensors[i].nbytes
    return [arrays[i] for i in range(len(tensors))]


def _places(tensors: Sequence[Tensor]) -> tuple[list[int], int]:
    """Where each begins, in bytes, and where all end."""
    begins, end = [], 0
    for tensor in tensors:
        begins.append(end)
        end += math.ceil(tensor.nbytes / _ALIGNMENT) * _ALIGNMENT
    return begins, end
