"""The attention of a ragged batch by Triton kernels, as one autograd function of queries, keys and values."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rogue_net.batch.frames import Bounds, Frames
from rogue_net.kernels.cuda import launching
from rogue_net.kernels.cuda.heads import Heads, constants_of, flags_of
from rogue_net.kernels.cuda.launching import BACKWARD, FORWARD, Precision, check_launchable, product_of
from rogue_net.kernels.cuda.relative_attention import triton_relative_attention
from rogue_net.relative.relative_positions import Relative


def triton_attention(
    qkv: Tensor, frames: Frames, relative: Relative | None = None, *, precision: Precision = "fp32"
) -> Tensor:
    """`rogue_net.attention.ragged_attention` by Triton kernels, without dropout.

    Nothing is read back from the device, and what is launched and allocated depends on shapes alone: it can be part of a CUDA
    graph. Tokens behind the last frame attend to nothing, get 0 and have no gradient.

    Args:
        qkv: (E, 3, H, K) float32 or bfloat16 queries, keys and values, K from 1 to 128; not copied if the last stride is 1.
        frames: which tokens are a frame, and which are hidden; E may be more than they have.
        relative: relative positions, if any. See `relative_attention` for what they cost, and when the order of sums
            changes.
        precision: how float32 numbers are multiplied: as they are, or rounded to tf32 or bf16. bfloat16 ones stay what they
            are. Sums and the softmax are in fp32.

    Returns:
        (E, H, K), of the type of qkv.

    Raises:
        ValueError: no Triton, a device or a type without kernels, or heads too wide.
    """
    qkv = qkv if qkv.stride(-1) == 1 else qkv.contiguous()
    check_launchable(qkv)
    product, bounds = product_of(qkv, precision), frames.bounds(len(qkv))
    if relative is not None:
        return triton_relative_attention(qkv, frames, relative, product)
    out: Tensor = _Attention.apply(qkv, bounds, flags_of(frames.visible, bounds), product)  # type: ignore[no-untyped-call]
    return out


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        qkv: Tensor,
        bounds: Bounds,
        visible: Tensor | None,
        product: str,
    ) -> Tensor:
        """(E, 3, H, K) to (E, H, K)."""
        from rogue_net.kernels.cuda.attention_kernels import attend

        heads = Heads(*qkv.unbind(1))
        num_tokens, num_heads, width = heads.q.shape
        out = torch.empty(num_tokens, num_heads, width, dtype=qkv.dtype, device=qkv.device)
        norms = torch.empty(num_heads, num_tokens, dtype=torch.float32, device=qkv.device)
        ctx.bounds, ctx.visible, ctx.product = bounds, visible, product
        ctx.save_for_backward(qkv, out, norms)
        if num_tokens > 0:
            constants = constants_of(heads.q, visible, product)
            arguments = (*heads, *bounds, bounds.first if visible is None else visible, out, norms, *heads.numbers)
            launching.launch(attend, FORWARD[constants["COLUMNS"]], num_tokens, num_heads, arguments, **constants)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        from rogue_net.kernels.cuda.attention_kernels import attend_backward

        qkv, out, norms = ctx.saved_tensors
        heads = Heads(*qkv.unbind(1))
        num_tokens, num_heads, width = heads.q.shape
        dqkv = torch.empty(num_tokens, 3, num_heads, width, dtype=qkv.dtype, device=qkv.device)
        if num_tokens > 0:
            constants = constants_of(heads.q, ctx.visible, ctx.product)
            visible = ctx.bounds.first if ctx.visible is None else ctx.visible
            arguments = (*heads, *ctx.bounds, visible, out, norms, dout.contiguous(), dqkv, *heads.numbers)
            launching.launch(
                attend_backward, BACKWARD[constants["COLUMNS"]], num_tokens, num_heads, arguments, **constants
            )
        return dqkv, None, None, None
