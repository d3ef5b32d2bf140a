"""The attention of a ragged batch by kernels, as one autograd function of queries, keys and values."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rogue_net.frames import Frames
from rogue_net.kernels.cpu import attention
from rogue_net.kernels.cpu.compiling import address
from rogue_net.kernels.cpu.parts import Chunk, hidden_from, split
from rogue_net.kernels.cpu.threads import run_parts
from rogue_net.relative_positions import Relative


def fused_attention(q: Tensor, k: Tensor, v: Tensor, frames: Frames, relative: Relative | None) -> Tensor:
    """`rogue_net.attention.ragged_attention` for float32 on the CPU, without dropout; K is a multiple of 8."""
    if relative is not None:
        from rogue_net.kernels.cpu.relative_ragged import fused_relative_attention

        related: Tensor = fused_relative_attention(q, k, v, frames, relative)
        return related
    out: Tensor = _Attention.apply(torch.stack([q, k, v], dim=1), frames)
    return out


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv: Tensor, frames: Frames) -> Tensor:
        """(E, 3, H, K) to (E, H, K)."""
        num_tokens, _, num_heads, width = qkv.shape
        ctx.frames, ctx.parts = frames, split(frames, max(1, num_tokens))
        y, softmax = torch.empty(num_tokens, num_heads, width), torch.empty(num_tokens, num_heads, 2)
        no_bias = torch.zeros(3 * num_heads * width)
        attend = attention.Kernels.of(width).attend

        def work_on(chunks: list[Chunk]) -> None:
            scratch = attention.OwnScratch(width, frames.max_length)
            for low, high, start, _ in chunks:
                rows = [address(each[start:]) for each in (qkv, y, softmax)]
                attend(
                    num_heads, rows[0], address(no_bias), *hidden_from(frames), low, high, *rows[1:], scratch.addresses,
                )  # fmt: skip

        run_parts(work_on, ctx.parts)
        ctx.save_for_backward(qkv, y, softmax)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        qkv, y, softmax = ctx.saved_tensors
        _, _, num_heads, width = qkv.shape
        frames, dy, dqkv = ctx.frames, dy.contiguous(), torch.empty_like(qkv)
        attend_backward = attention.Kernels.of(width).attend_backward

        def work_on(chunks: list[Chunk]) -> None:
            scratch, unused = attention.OwnScratch(width, frames.max_length), torch.zeros(3 * num_heads * width)
            for low, high, start, _ in chunks:
                rows = [address(each[start:]) for each in (qkv, y, softmax, dy, dqkv)]
                attend_backward(
                    num_heads, rows[0], *hidden_from(frames), low, high, *rows[1:], address(unused), scratch.addresses,
                )  # fmt: skip

        run_parts(work_on, ctx.parts)
        return dqkv, None
