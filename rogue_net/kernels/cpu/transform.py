"""The transformer's modules, computed by kernels: from their weights to an autograd function, and its threads and memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rogue_net.frames import Frames
from rogue_net.kernels.cpu.activations import kept_pool, nothing_kept_pool, work_pool
from rogue_net.kernels.cpu.mixing import Mixing, PlainMixing, RelatedMixing, Tables
from rogue_net.kernels.cpu.parts import Chunk, longest, split
from rogue_net.kernels.cpu.products import multiply, multiply_bf16
from rogue_net.kernels.cpu.relative_terms import Pairs
from rogue_net.kernels.cpu.threads import run_parts
from rogue_net.kernels.cpu.trunk import Trunk
from rogue_net.kernels.cpu.weights import Parameters, fold, unfold
from rogue_net.relative_positions import Relative

if TYPE_CHECKING:
    from rogue_net.transformer import Block, Transformer

CHUNK = 4096  # tokens that go through all blocks together; more leave the cache, fewer pay for more calls


class _Batch:
    """What the function needs to know beside numbers that have gradients."""

    def __init__(self, transformer: Transformer, frames: Frames, relative: Relative | None) -> None:
        self.frames = frames
        self.config = transformer.config
        self.pairs = None if relative is None else Pairs(relative)
        self.multiply = multiply_bf16 if self.config.precision == "bf16" else multiply

    def trunk(self, tables: Tables | None, blocks: Sequence[Parameters]) -> Trunk:
        """All blocks on the batch."""
        shape = (self.frames, self.config.n_head, self.config.d_model, self.multiply)
        mixing: Mixing = PlainMixing(*shape)
        if self.pairs is not None and tables is not None:
            mixing = RelatedMixing(*shape, self.pairs, tables, self.config.relpos.value_gate)
        return Trunk([fold(block) for block in blocks], mixing, self.multiply)


def transform(tokens: Tensor, frames: Frames, transformer: Transformer, relative: Relative | None) -> Tensor:
    """Send tokens through all blocks.

    Args:
        tokens: (E, D) float32 on the CPU.
        frames: which of them belong together.
        transformer: with at least one block, and heads whose width is a multiple of 8.
        relative: relative positions, if there are any.
    """
    batch = _Batch(transformer, frames, relative)
    tables = None if relative is None else Tables(relative.keys.rows, relative.values.rows)
    blocks = [_parameters(block, transformer) for block in transformer.blocks]  # type: ignore[arg-type]
    inputs = [tokens, *(tables or (None, None)), *(parameter for block in blocks for parameter in block)]
    if torch.is_grad_enabled() and any(each is not None and each.requires_grad for each in inputs):
        out: Tensor = _Transform.apply(batch, *inputs)
        return out
    with torch.no_grad():
        return _forward_only(tokens, frames, batch.trunk(tables, blocks))


def _parameters(block: Block, transformer: Transformer) -> Parameters:
    norm, qkv, project, (norm2, up, _, down) = block.attention_norm, block.query_key_value, block.project, block.mlp
    positions = transformer.relative_positions
    gate = None if positions is None or positions.config.value_gate == "none" else positions.gate_projection
    parameters: list[Any] = [
        None if layer is None else parameter
        for layer in (norm, qkv, gate, project, norm2, up, down)
        for parameter in ((None, None) if layer is None else (layer.weight, layer.bias))
    ]
    return Parameters(*parameters)


def _forward_only(tokens: Tensor, frames: Frames, trunk: Trunk) -> Tensor:
    out = tokens.clone(memory_format=torch.contiguous_format)
    key = (trunk.width, trunk.mixing.num_heads, trunk.mixing.gate)

    def work_on(chunks: list[Chunk]) -> None:
        lease, scratch = nothing_kept_pool.take(key, longest(chunks)), trunk.mixing.scratch()
        for chunk in chunks:
            kept = [lease.memory.rows(0, chunk.end - chunk.start)] * len(trunk.weights)
            trunk.forward(out[chunk.start : chunk.end], chunk, kept, scratch, learning=False)

    run_parts(work_on, split(frames, CHUNK))
    return out


class _Transform(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, batch: _Batch, tokens: Tensor, keys: Tensor | None, values: Tensor | None, *parameters: Tensor | None
    ) -> Tensor:
        ctx.save_for_backward(*parameters)
        tables = None if keys is None or values is None else Tables(keys, values)
        ctx.trunk = trunk = batch.trunk(tables, _by_block(parameters))
        ctx.tables = tables
        ctx.parts = split(batch.frames, CHUNK)
        key = (trunk.width, trunk.mixing.num_heads, trunk.mixing.gate, len(trunk.weights))
        ctx.rows = {}
        ctx.kept = kept = kept_pool.take(key, len(tokens))
        out = tokens.clone(memory_format=torch.contiguous_format)

        def work_on(chunks: list[Chunk]) -> None:
            scratch = trunk.mixing.scratch()
            for chunk in chunks:
                ctx.rows[chunk] = rows = [block.rows(chunk.start, chunk.end) for block in kept.memory]
                trunk.forward(out[chunk.start : chunk.end], chunk, rows, scratch, learning=True)

        run_parts(work_on, ctx.parts)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        blocks = _by_block(ctx.saved_tensors)  # raises if a weight was changed since
        trunk: Trunk = ctx.trunk
        dtokens = dout.clone(memory_format=torch.contiguous_format)
        # of every part its own, added up in their order: the same number of threads gives the same bits
        grads = [[weights.zeros() for weights in trunk.weights] for _ in ctx.parts]
        dtables = [None if ctx.tables is None else Tables(*map(torch.zeros_like, ctx.tables)) for _ in ctx.parts]

        def work_on(part: int) -> None:
            chunks, scratch = ctx.parts[part], trunk.mixing.scratch()
            lease = work_pool.take((trunk.width, trunk.mixing.gate), longest(chunks))
            for chunk in reversed(chunks):  # what the last one left is still in the cache
                gradient, work = dtokens[chunk.start : chunk.end], lease.memory.rows(chunk.end - chunk.start)
                trunk.backward(gradient, chunk, ctx.rows[chunk], scratch, work, grads[part], dtables[part])

        run_parts(work_on, range(len(ctx.parts)))
        for part in range(1, len(ctx.parts)):
            for block, more in zip(grads[0], grads[part], strict=True):
                block.add(more)
            for table, more_rows in zip(dtables[0] or (), dtables[part] or (), strict=True):
                table.add_(more_rows)
        gradients = [unfold(block, total) for block, total in zip(blocks, grads[0], strict=True)]
        return None, dtokens, *(dtables[0] or (None, None)), *(each for block in gradients for each in block)


def _by_block(parameters: Sequence[Any]) -> list[Parameters]:
    count = len(Parameters._fields)
    return [Parameters(*parameters[at : at + count]) for at in range(0, len(parameters), count)]
