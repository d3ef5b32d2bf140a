"""The attention of a ragged batch by Triton kernels, as one autograd function of queries, keys and values."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rogue_net.cuda import launching
from rogue_net.cuda.launching import BACKWARD, FORWARD, Precision, check_launchable, columns_of, product_of
from rogue_net.frames import Bounds, Frames
from rogue_net.relative_positions import Relative


def triton_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    frames: Frames,
    relative: Relative | None = None,
    *,
    precision: Precision = "fp32",
) -> Tensor:
    """`rogue_net.attention.ragged_attention` by Triton kernels, without dropout.

    Nothing is read back from the device, and what is launched and allocated depends on shapes alone: it can be part of a CUDA
    graph. Tokens behind the last frame attend to nothing, get 0 and have no gradient.

    Args:
        q: (E, H, K) float32 or bfloat16, K from 1 to 128. These three may be parts of one tensor; they are not copied.
        k: (E, H, K).
        v: (E, H, K).
        frames: which tokens are a frame, and which are hidden; E may be more than they have.
        relative: relative positions, if any. See `rogue_net.cuda.relative_attention` for what they cost, and when the order
            of sums changes.
        precision: how float32 numbers are multiplied: as they are, or rounded to tf32 or bf16. bfloat16 ones stay what they
            are. Sums and the softmax are in fp32.

    Returns:
        (E, H, K), of the type of q.

    Raises:
        ValueError: no Triton, a device or a type without kernels, or heads too wide.
    """
    check_launchable(q)
    product, bounds = product_of(q, precision), frames.bounds(len(q))
    if relative is not None:
        from rogue_net.cuda.relative_attention import triton_relative_attention

        return triton_relative_attention(q, k, v, frames, relative, product)
    q, k, v = (with_contiguous_heads(x) for x in (q, k, v))
    out: Tensor = _Attention.apply(  # type: ignore[no-untyped-call]
        q, k, v, bounds, flags_of(frames.visible, bounds), product
    )
    return out


def with_contiguous_heads(x: Tensor) -> Tensor:
    """As it is, if the K numbers of a head are neighbours, else a copy."""
    return x if x.stride(-1) == 1 else x.contiguous()


def flags_of(visible: Tensor | None, bounds: Bounds) -> Tensor | None:
    """(E,) uint8, 0 for hidden tokens; None where all are visible. Those behind the last frame are, which nobody sees."""
    if visible is None:
        return None
    missing = len(bounds.first) - len(visible)
    if missing > 0:
        visible = torch.cat([visible, visible.new_ones(missing)])
    return visible.contiguous().view(torch.uint8)


def constants_of(q: Tensor, visible: Tensor | None, product: str) -> dict[str, Any]:
    """What the kernels are compiled for."""
    width = q.shape[2]
    return {"HIDES": visible is not None, "WIDTH": width, "COLUMNS": columns_of(width), "PRECISION": product}


def numbers_of(q: Tensor, k: Tensor, v: Tensor) -> tuple[Any, ...]:
    """E, H, the strides of tokens and heads, and the scale, as the kernels want them."""
    num_tokens, num_heads, width = q.shape
    strides = [stride for x in (q, k, v) for stride in x.stride()[:2]]
    return num_tokens, num_heads, *strides, 1 / math.sqrt(width)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, bounds: Bounds, visible: Tensor | None, product: str
    ) -> Tensor:
        """(E, H, K) each, to the same."""
        from rogue_net.cuda.attention_kernels import attend

        num_tokens, num_heads, _ = q.shape
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        norms = torch.empty(num_heads, num_tokens, dtype=torch.float32, device=q.device)
        ctx.bounds, ctx.visible, ctx.product = bounds, visible, product
        ctx.save_for_backward(q, k, v, out, norms)
        if num_tokens > 0:
            constants = constants_of(q, visible, product)
            arguments = (
                q,
                k,
                v,
                *bounds,
                bounds.first if visible is None else visible,
                out,
                norms,
                *numbers_of(q, k, v),
            )
            launching.launch(attend, FORWARD[constants["COLUMNS"]], num_tokens, num_heads, arguments, **constants)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        from rogue_net.cuda.attention_kernels import attend_backward

        q, k, v, out, norms = ctx.saved_tensors
        num_tokens, num_heads, width = q.shape
        dqkv = torch.empty(num_tokens, 3, num_heads, width, dtype=q.dtype, device=q.device)
        if num_tokens > 0:
            constants = constants_of(q, ctx.visible, ctx.product)
            visible = ctx.bounds.first if ctx.visible is None else ctx.visible
            arguments = (
                q, k, v, *ctx.bounds, visible, out, norms, dout.contiguous(), dqkv, *numbers_of(q, k, v)
            )  # fmt: skip
            launching.launch(
                attend_backward, BACKWARD[constants["COLUMNS"]], num_tokens, num_heads, arguments, **constants
            )
        return *dqkv.unbind(1), None, None, None
