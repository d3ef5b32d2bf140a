"""Tensors between the host and a device: those of one type as one copy.

A copy of a few kilobytes takes as long as one of a hundred: what counts is how many there are. On CUDA it starts from pinned
memory and nobody waits for it; torch keeps such memory, and gives it out again once the copy is done.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor


def to_device(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Copy tensors of the host to a device, without waiting for it; on the CPU the tensors themselves."""
    if device.type == "cpu":
        return list(tensors)
    return _joined_by_type(tensors, device, pinned=device.type == "cuda")


def moved(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor of the host to a device, without waiting for it; on the CPU itself."""
    return to_device([tensor], device)[0]


def to_host(tensors: Sequence[Tensor]) -> list[NDArray[Any]]:
    """The numbers of tensors of one device, at least one. Synchronises once, if that is not the CPU.

    On the CPU arrays share the tensors' memory.
    """
    device = tensors[0].device
    if device.type == "cpu":
        return [tensor.numpy() for tensor in tensors]
    found = _joined_by_type(tensors, torch.device("cpu"), pinned=False)
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
    return [tensor.numpy() for tensor in found]


def is_on(here: torch.device, wanted: torch.device) -> bool:
    """True if tensors on the device `here` need not move to `wanted`. `cuda` is any GPU, `cuda:1` that one alone."""
    return here.type == wanted.type and (None in (here.index, wanted.index) or here.index == wanted.index)


def _joined_by_type(tensors: Sequence[Tensor], device: torch.device, *, pinned: bool) -> list[Tensor]:
    """Copies of tensors on another device, one for each type of numbers; `pinned`: from pinned memory of the host."""
    found: dict[int, Tensor] = {}
    for dtype in {tensor.dtype for tensor in tensors}:
        own = {i: tensor for i, tensor in enumerate(tensors) if tensor.dtype == dtype}
        sizes = [tensor.numel() for tensor in own.values()]
        joined = torch.empty(sum(sizes), dtype=dtype, device=tensors[0].device, pin_memory=pinned)
        torch.cat([tensor.reshape(-1) for tensor in own.values()], out=joined)
        parts = torch.split(joined.to(device, non_blocking=True), sizes)
        found |= {i: part.view(tensor.shape) for (i, tensor), part in zip(own.items(), parts, strict=True)}
    return [found[i] for i in range(len(tensors))]
