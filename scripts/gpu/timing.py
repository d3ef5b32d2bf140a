"""Timing with device synchronisation, and peak speeds of the device."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

ROUNDS = 5
MOST_CALLS = 1000  # per round


def synchronize(device: torch.device) -> None:
    """Wait for the device, except while a CUDA graph is recorded, when waiting is not allowed."""
    if device.type == "cuda" and not torch.cuda.is_current_stream_capturing():
        torch.cuda.synchronize(device)


def seconds_per_call(function: Callable[[], object], device: torch.device, seconds: float) -> float:
    """The median time of a call over rounds without synchronisation between calls, after two calls of warm-up.

    Args:
        function: the measured function.
        device: synchronised at the end of every round.
        seconds: approximate duration; every round has at least one call.
    """
    function()
    once = _round(function, device, 1)
    calls = max(1, min(MOST_CALLS, int(seconds / ROUNDS / max(once, 1e-7))))
    rounds = ROUNDS if once * ROUNDS < 4 * seconds else 1
    return statistics.median(_round(function, device, calls) for _ in range(rounds))


def _round(function: Callable[[], object], device: torch.device, calls: int) -> float:
    synchronize(device)
    started = time.perf_counter()
    for _ in range(calls):
        function()
    synchronize(device)
    return (time.perf_counter() - started) / calls


@contextmanager
def matmul_precision(precision: str) -> Iterator[None]:
    """Set torch's precision of float32 matrix products to `fp32` or `tf32` within this context."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def gemm_tflops(precision: str, device: torch.device, *, tiny: bool) -> float:
    """The speed of `torch.mm` of large square matrices in `fp32`, `tf32` or `bf16`: 10^12 operations per second."""
    size = 64 if tiny else 8192
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    out = torch.empty(size, size, device=device, dtype=dtype)
    with matmul_precision(precision):
        seconds = seconds_per_call(lambda: torch.mm(a, b, out=out), device, 0.01 if tiny else 0.5)
    return 2 * size**3 / seconds / 1e12


def copy_gigabytes(device: torch.device, *, tiny: bool) -> float:
    """Memory bandwidth of a copy on the device in 10^9 bytes per second, reads plus writes."""
    numbers = 2**12 if tiny else 2**28  # 4 bytes each
    a = torch.empty(numbers, device=device).normal_()
    b = torch.empty_like(a)
    seconds = seconds_per_call(lambda: b.copy_(a), device, 0.01 if tiny else 0.3)
    return 2 * 4 * numbers / seconds / 1e9


PRECISIONS = ("fp32", "tf32", "bf16")


def peaks(device: torch.device, *, tiny: bool) -> dict[str, float]:
    """Peak speeds of the device: `fp32`, `tf32`, `bf16` matrix products in TFLOP/s, and `copy` in GB/s."""
    reached = {precision: gemm_tflops(precision, device, tiny=tiny) for precision in PRECISIONS}
    return reached | {"copy": copy_gigabytes(device, tiny=tiny)}
