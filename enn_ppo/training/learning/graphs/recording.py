"""Functions of tensors at fixed addresses, recorded as CUDA graphs and replayed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Generic, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


class Recording(Generic[T]):
    """A function without arguments that reads and writes tensors in fixed places, and returns tensors.

    The first call runs it as it is: libraries choose their algorithms then, and the optimizer makes its state. The second
    records it, and from then on the graph is replayed, which costs one launch whatever the function does. What it returns is in
    the same place every time: use it, or copy it, before the next call. Where there are no graphs it always runs as it is.

    Args:
        function: asks the device for nothing, and does the same every time.
        device: where its tensors are.
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
            return self._as_it_is()
        if self._graph is None:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=_stream(self._device)):  # records, and does nothing yet
                self._result = self._function()
            self._graph = graph
        self._graph.replay()
        assert self._result is not None
        return self._result

    def _as_it_is(self) -> T:
        """Run once on the stream of the recording: torch keeps workspaces and gradient accumulators by stream."""
        stream, current = _stream(self._device), torch.cuda.current_stream(self._device)
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            result = self._function()
        current.wait_stream(stream)
        return result


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """The one that everything is recorded on: each would keep workspaces of its own."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def copy_all(into: Sequence[Tensor], tensors: Sequence[Tensor]) -> None:
    """Copy tensors into others of the same shapes, with as few launches as there are types."""
    by_type: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
    for place, tensor in zip(into, tensors, strict=True):
        places, sources = by_type.setdefault(tensor.dtype, ([], []))
        places.append(place)
        sources.append(tensor)
    for places, sources in by_type.values():
        torch._foreach_copy_(places, sources)
