"""The attention of a ragged batch by Triton kernels, as one autograd function of queries, keys and values."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rogue_net.frames import Bounds, Frames
from rogue_net.kernels.cuda import launching
from rogue_net.kernels.cuda.heads import Heads, constants_of, flags_of, gradients_of
from rogue_net.kernels.cuda.launching import BACKWARD, FORWARD, Precision, check_launchable, product_of
from rogue_net.kernels.cuda.relative_attention import triton_relative_attention
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
        relative: relative positions, if any. See `relative_attention` for what they cost, and when the order of sums
            changes.
        precision: how float32 numbers are multiplied: as they are, or rounded to tf32 or bf16. bfloat16 ones stay what they
            are. Sums and the softmax are in fp32.

    Returns:
        (E, H, K), of the type of q.

    Raises:
        ValueError: no Triton, a device or a type without kernels, or heads too wide.
    """
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    return _attend(q, k, v, frames, relative, precision)


def triton_attention_of_joined(
    qkv: Tensor, frames: Frames, relative: Relative | None = None, *, precision: Precision = "fp32"
) -> Tensor:
    """`triton_attention` of (E, 3, H, K) contiguous queries, keys and values. Their gradient is not copied together."""
    return _attend(qkv, None, None, frames, relative, precision)


def _attend(
    q: Tensor, k: Tensor | None, v: Tensor | None, frames: Frames, relative: Relative | None, precision: Precision
) -> Tensor:
    check_launchable(q)
    product, bounds = product_of(q, precision), frames.bounds(len(q))
    if relative is not None:
        return triton_relative_attention(q, k, v, frames, relative, product)
    out: Tensor = _Attention.apply(  # type: ignore[no-untyped-call]
        q, k, v, bounds, flags_of(frames.visible, bounds), product
    )
    return out


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor | None,
        v: Tensor | None,
        bounds: Bounds,
        visible: Tensor | None,
        product: str,
    ) -> Tensor:
        """See `Heads.of`; to (E, H, K)."""
        from rogue_net.kernels.cuda.attention_kernels import attend

        heads = Heads.of(q, k, v)
        num_tokens, num_heads, width = heads.q.shape
        out = torch.empty(num_tokens, num_heads, width, dtype=q.dtype, device=q.device)
        norms = torch.empty(num_heads, num_tokens, dtype=torch.float32, device=q.device)
        ctx.bounds, ctx.visible, ctx.product = bounds, visible, product
        ctx.save_for_backward(q, k, v, out, norms)
        if num_tokens > 0:
            constants = constants_of(heads.q, visible, product)
            arguments = (*heads, *bounds, bounds.first if visible is None else visible, out, norms, *heads.numbers)
            launching.launch(attend, FORWARD[constants["COLUMNS"]], num_tokens, num_heads, arguments, **constants)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        from rogue_net.kernels.cuda.attention_kernels import attend_backward

        q, k, v, out, norms = ctx.saved_tensors
        heads = Heads.of(q, k, v)
        num_tokens, num_heads, width = heads.q.shape
        dqkv = torch.empty(num_tokens, 3, num_heads, width, dtype=q.dtype, device=q.device)
        if num_tokens > 0:
            constants = constants_of(heads.q, ctx.visible, ctx.product)
            visible = ctx.bounds.first if ctx.visible is None else ctx.visible
            arguments = (*heads, *ctx.bounds, visible, out, norms, dout.contiguous(), dqkv, *heads.numbers)
            launching.launch(
                attend_backward, BACKWARD[constants["COLUMNS"]], num_tokens, num_heads, arguments, **constants
            )
        return *gradients_of(dqkv, joined=k is None), None, None, None
