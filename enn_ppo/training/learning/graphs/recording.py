"""CUDA graphs of functions whose tensors have fixed addresses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Generic, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


class Recording(Generic[T]):
    """A function of tensors at fixed addresses, recorded as a CUDA graph.

    The first call runs the function eagerly, so that libraries choose their algorithms and the optimizer creates its state. The
    second call records a graph, and later calls replay it with one launch. The returned tensors are overwritten by the next call.
    On devices without graphs every call is eager.

    Args:
        function: takes no arguments, never synchronises with the device, and launches the same kernels in every call.
        device: of its tensors.
    """

    def __init__(self, function: Callable[[], T], device: torch.device) -> None:
        self._function, self._device = function, device
        self._graph: torch.cuda.CUDAGraph | None = None
        self._has_run = False
        self._result: T | None = None

    def __call__(self) -> T:
        if self._device.type != "cuda":
            return self._function()
        if not self._has_run:
            self._has_run = True
            return self._run_eagerly()
        if self._graph is None:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=_stream(self._device)):  # records without executing
                self._result = self._function()
            self._graph = graph
        self._graph.replay()
        assert self._result is not None
        return self._result

    def _run_eagerly(self) -> T:
        """Run once on the recording's stream, since torch keeps workspaces and gradient accumulators per stream."""
        stream, current = _stream(self._device), torch.cuda.current_stream(self._device)
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            result = self._function()
        current.wait_stream(stream)
        return result


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """The stream that all graphs are recorded on: every further stream would allocate its own workspaces."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def copy_all(into: Sequence[Tensor], tensors: Sequence[Tensor]) -> None:
    """Copy `tensors` into tensors of the same shapes, with one launch per dtype."""
    by_type: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
    for place, tensor in zip(into, tensors, strict=True):
        places, sources = by_type.setdefault(tensor.dtype, ([], []))
        places.append(place)
        sources.append(tensor)
    for places, sources in by_type.values():
        torch._foreach_copy_(places, sources)
