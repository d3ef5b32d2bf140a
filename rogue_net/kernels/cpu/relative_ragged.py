"""The attention of a ragged batch with relative positions by kernels, as one autograd function."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rogue_net.frames import Frames
from rogue_net.kernels.cpu.compiling import address
from rogue_net.kernels.cpu.memory import Pool
from rogue_net.kernels.cpu.parts import Chunk, hidden_from, split
from rogue_net.kernels.cpu.relative_attention import Gradients, Kernels, OwnScratch
from rogue_net.kernels.cpu.relative_terms import Pairs
from rogue_net.kernels.cpu.threads import run_parts
from rogue_net.relative_positions import Relative


def fused_relative_attention(q: Tensor, k: Tensor, v: Tensor, frames: Frames, relative: Relative) -> Tensor:
    """`rogue_net.attention.ragged_attention` for float32 on the CPU, without dropout; K is a multiple of 8."""
    gate = q.new_ones(len(q), q.shape[2]) if relative.gate is None else relative.gate
    out: Tensor = _RelativeAttention.apply(
        q, k, v, relative.keys.rows, relative.values.rows, gate, frames, Pairs(relative)
    )
    return out


_pool = Pool(lambda tokens, num_heads, width: torch.empty(tokens, 3, num_heads, width))


class _RelativeAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        keys: Tensor,
        values: Tensor,
        gate: Tensor,
        frames: Frames,
        pairs: Pairs,
    ) -> Tensor:
        """(E, H, K) each, to the same."""
        num_tokens, num_heads, width = q.shape
        ctx.lease = lease = _pool.take((num_heads, width), num_tokens)
        qkv = torch.stack([q, k, v], dim=1, out=lease.memory[:num_tokens])
        keys, values, gate = keys.contiguous(), values.contiguous(), gate.contiguous()
        ctx.frames, ctx.pairs, ctx.parts = frames, pairs, split(frames, max(1, num_tokens))
        y, softmax = torch.empty(num_tokens, num_heads, width), torch.empty(num_tokens, num_heads, 2)
        no_bias = torch.zeros(3 * num_heads * width)
        attend = Kernels.of(width).attend

        def work_on(chunks: list[Chunk]) -> None:
            scratch = OwnScratch(width, pairs, frames.max_length)
            for low, high, start, _ in chunks:
                attend(
                    num_heads, address(qkv[start:]), address(no_bias), pairs.scheme, pairs.places, address(keys),
                    address(values), address(gate[start:]), *hidden_from(frames), low, high, address(y[start:]),
                    address(softmax[start:]), scratch.addresses,
                )  # fmt: skip

        run_parts(work_on, ctx.parts)
        ctx.save_for_backward(keys, values, gate, y, softmax)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        keys, values, gate, y, softmax = ctx.saved_tensors
        qkv = ctx.lease.memory[: len(y)]
        _, _, num_heads, width = qkv.shape
        frames, pairs, parts = ctx.frames, ctx.pairs, ctx.parts
        dy, dqkv, dgate = dy.contiguous(), torch.empty_like(qkv), torch.empty_like(gate)
        dkeys = torch.zeros(max(1, len(parts)), *keys.shape)  # one for each part
        dvalues = torch.zeros(max(1, len(parts)), *values.shape)
        attend_backward = Kernels.of(width).attend_backward

        def work_on(part: int) -> None:
            scratch, unused = OwnScratch(width, pairs, frames.max_length), torch.zeros(3 * num_heads * width)
            for low, high, start, _ in parts[part]:
                results = (dqkv[start:], unused, dkeys[part], dvalues[part], dgate[start:])
                gradients: list[Any] = [address(each) for each in results]
                attend_backward(
                    num_heads, address(qkv[start:]), pairs.scheme, pairs.places, address(keys), address(values),
                    address(gate[start:]), *hidden_from(frames), low, high, address(y[start:]), address(softmax[start:]),
                    address(dy[start:]), Gradients(*gradients), scratch.addresses,
                )  # fmt: skip

        run_parts(work_on, range(len(parts)))
        return *dqkv.unbind(1), dkeys.sum(0), dvalues.sum(0), dgate, None, None
