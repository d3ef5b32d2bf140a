"""How kernels in Triton are launched, by what numbers they compute, and how large their tiles are."""

from __future__ import annotations

import os
from contextlib import nullcontext
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

Precision = Literal["fp32", "tf32", "bf16"]

# The narrowest columns and tiles that Triton multiplies as matrices.
LEAST = 16
MOST_COLUMNS = 128


class Tiles(NamedTuple):
    """How the pairs of a frame are cut into pieces, and by how many threads and with how much read ahead each is computed."""

    queries: int  # tokens of a program, a power of 2 from 16
    keys: int  # tokens that it looks at together, likewise
    warps: int
    stages: int


# Not tuned on a GPU yet. The keys of a tile of short frames are some more than its queries: many narrow tiles waste less of them.
FORWARD = {
    16: Tiles(queries=64, keys=32, warps=4, stages=2),
    32: Tiles(queries=64, keys=32, warps=4, stages=2),
    64: Tiles(queries=64, keys=32, warps=4, stages=2),
    128: Tiles(queries=64, keys=32, warps=8, stages=1),
}
BACKWARD = {
    16: Tiles(queries=64, keys=32, warps=4, stages=1),
    32: Tiles(queries=64, keys=32, warps=4, stages=1),
    64: Tiles(queries=32, keys=32, warps=4, stages=1),
    128: Tiles(queries=32, keys=16, warps=8, stages=1),
}
# With relative positions a tile has `columns` numbers for every pair.
RELATIVE = {
    16: Tiles(queries=16, keys=16, warps=8, stages=1),
    32: Tiles(queries=16, keys=16, warps=8, stages=1),
    64: Tiles(queries=16, keys=16, warps=8, stages=1),
    128: Tiles(queries=16, keys=16, warps=16, stages=1),
}


def columns_of(width: int) -> int:
    """K padded to a power of 2 that has tiles.

    Raises:
        ValueError: heads are too wide.
    """
    if not 1 <= width <= MOST_COLUMNS:
        raise ValueError(
            f"the width of a head, net.d_model / net.n_head, is {width}; the Triton kernels have 1 to {MOST_COLUMNS}"
        )
    return max(LEAST, 1 << (width - 1).bit_length())


def product_of(q: Tensor, precision: Precision) -> str:
    """What the kernels call the way in which they multiply; bf16 numbers are never widened for it.

    Raises:
        ValueError: the numbers are neither float32 nor bfloat16.
    """
    if q.dtype not in (torch.float32, torch.bfloat16):
        raise ValueError(f"the Triton kernels have float32 and bfloat16, and queries are {q.dtype}")
    if q.dtype == torch.bfloat16 or precision == "bf16":
        return "bf16" if q.device.type == "cuda" else "rounded"
    return {"fp32": "ieee", "tf32": "tf32"}[precision]


def check_launchable(tensor: Tensor) -> None:
    """Check that kernels can compute on the device of `tensor`: CUDA, or the CPU in Triton's interpreter.

    Raises:
        ValueError: there is no Triton, or it cannot compute there.
    """
    try:
        import triton  # noqa: F401  # needed by those who use it
    except ImportError as error:
        raise ValueError(
            "the Triton kernels need the package triton: CUDA builds of torch bring it, else `pip install triton`"
        ) from error
    if tensor.device.type != "cuda" and not (tensor.device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1"):
        raise ValueError(
            f"the Triton kernels compute on CUDA, and the tensors are on {tensor.device}; "
            "on the CPU only Triton's interpreter runs them, for tests: TRITON_INTERPRET=1"
        )


def launch(
    kernel: Any, tiles: Tiles, num_tokens: int, num_heads: int, arguments: tuple[Any, ...], **constants: Any
) -> None:
    """Launch a program per tile of tokens and head. The numbers of tokens and heads alone decide how many there are.

    Args:
        kernel: see `rogue_net/kernels/cuda/attention_kernels.py`.
        tiles: of the kernel.
        num_tokens: E, at least 1.
        num_heads: H.
        arguments: of the kernel; the first is a tensor on the device to compute on.
        constants: what it is compiled for.
    """
    device = arguments[0].device
    grid = ((num_tokens + tiles.queries - 1) // tiles.queries, num_heads)
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        kernel[grid](
            *arguments,
            **constants,
            QUERIES=tiles.queries,
            KEYS=tiles.keys,
            num_warps=tiles.warps,
            num_stages=tiles.stages,
        )
