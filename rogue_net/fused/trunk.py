"""The whole transformer as one autograd function: forward and backward in chunks of frames, over memory that is reused.

A chunk of some thousand tokens goes through all blocks before the next one starts, so that most of what a step reads is still
in the cache. The steps are those of `rogue_net.transformer.Block`:

    n = normalize(x);  qkv = n Wqkv';  y = attention(qkv);  x += y Wo
    n = normalize(x);  g = gelu(n W1');  x += g W2

where W' and its bias hold the scale and shift of the LayerNorm before: autograd folds them in, and takes their gradients out
again. Matrix products are torch's; everything between them is a kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable

from rogue_net.frames import Frames
from rogue_net.fused import attention, elementwise
from rogue_net.fused.memory import Lease, Pool
from rogue_net.fused.parts import Chunk, hidden_from, split
from rogue_net.fused.simd import address, bind
from rogue_net.fused.threads import run_parts

F32 = NDArray[np.float32]

CHUNK = 2048  # tokens that go through all blocks together; more leave the cache, fewer pay for more calls


class Weights(NamedTuple):
    """Of one block: (in, out) matrices and their biases, LayerNorms folded in. Also used for their gradients."""

    qkv: Tensor
    qkv_bias: Tensor
    project: Tensor
    project_bias: Tensor
    up: Tensor
    up_bias: Tensor
    down: Tensor
    down_bias: Tensor


class Kept(NamedTuple):
    """What the forward pass of a block leaves to the backward pass, by token."""

    normalized: Tensor  # (E, D)
    inverse_std: Tensor  # (E, 1)
    qkv: Tensor  # (E, 3 D)
    softmax: Tensor  # (E, 2 H)
    attended: Tensor  # (E, D)
    normalized2: Tensor  # (E, D)
    inverse_std2: Tensor  # (E, 1)
    slope: Tensor  # (E, 4 D), gelu'
    activated: Tensor  # (E, 4 D)

    @staticmethod
    def empty(tokens: int, width: int, num_heads: int) -> Kept:
        """Memory for so many tokens."""
        columns = (width, 1, 3 * width, 2 * num_heads, width, width, 1, 4 * width, 4 * width)
        return Kept(*(torch.empty(tokens, count) for count in columns))

    def addresses(self) -> Any:
        """Where each begins, by the same names."""
        return Kept(*map(address, self))  # type: ignore[arg-type]

    def rows(self, start: int, count: int) -> Kept:
        """Those of `count` tokens."""
        return Kept(*(each.narrow(0, start, count) for each in self))


class Work(NamedTuple):
    """Memory of one thread for the chunk at hand."""

    kept: Kept
    dtoken: Tensor  # (n, D)
    dqkv: Tensor  # (n, 3 D)
    dhidden: Tensor  # (n, 4 D)

    @staticmethod
    def empty(tokens: int, width: int, num_heads: int) -> Work:
        """Memory for a chunk of so many tokens."""
        gradients = (torch.empty(tokens, columns) for columns in (width, 3 * width, 4 * width))
        return Work(Kept.empty(tokens, width, num_heads), *gradients)


class Kernels(NamedTuple):
    """All kernels for one shape of the network."""

    normalize: Callable[..., None]
    normalize_backward: Callable[..., None]
    attend: Callable[..., None]
    attend_backward: Callable[..., None]
    gelu: Callable[..., None]
    gelu_backward: Callable[..., None]

    @staticmethod
    @cache
    def of(width: int, num_heads: int) -> Kernels:
        """For tokens of D features and H heads."""
        head, token = attention.Shape.of(width // num_heads), elementwise.Shape.of(width)
        hidden = elementwise.Shape.of(4 * width)
        return Kernels(
            bind(elementwise.normalize, *token),
            bind(elementwise.normalize_backward, *token),
            bind(attention.forward, *head),
            bind(attention.backward, *head),
            bind(elementwise.gelu, *hidden),
            bind(elementwise.gelu_backward, *hidden),
        )


class Trunk:
    """All blocks on one batch.

    Args:
        frames: the batch.
        num_heads: H.
        weights: of every block.
        bf16: whether matrix products take numbers rounded to bfloat16.
    """

    def __init__(self, frames: Frames, num_heads: int, weights: Sequence[Weights], bf16: bool) -> None:
        self.frames = frames
        self.num_heads = num_heads
        self.weights = weights
        self.width = width = weights[0].project.shape[0]
        self.kernels = Kernels.of(width, num_heads)
        self.room = attention.rounded(frames.max_length)
        self.multiply = multiply_bf16 if bf16 else multiply
        self.hidden = hidden_from(frames)

    def scratch(self) -> F32:
        """Memory for the attention kernels."""
        return attention.make_scratch(self.width // self.num_heads, self.frames.max_length)

    def work(self, chunks: Sequence[Chunk]) -> Lease[Work]:
        """Memory for each of the chunks, one after the other."""
        return _work.take((self.width, self.num_heads), max(chunk.end - chunk.start for chunk in chunks))

    def forward(self, x: Tensor, chunk: Chunk, kept: Sequence[Kept], scratch: F32, *, learning: bool) -> None:
        """Send a chunk through all blocks.

        Args:
            x: (n, D) its tokens; changed in place.
            chunk: which frames these are.
            kept: of every block, (n, ...).
            scratch: see `scratch`.
            learning: whether `kept` is to be kept.
        """
        rows, stream, memory = len(x), address(x), address(scratch)
        kernels, multiply = self.kernels, self.multiply
        bias = 0  # of the product that was added to x last
        for weights, each in zip(self.weights, kept, strict=True):
            at = each.addresses()
            kernels.normalize(stream, bias != 0, bias, rows, at.normalized, at.inverse_std)
            multiply(each.normalized, weights.qkv, each.qkv)
            kernels.attend(
                self.num_heads, at.qkv, address(weights.qkv_bias), *self.hidden, chunk.low, chunk.high, at.attended,
                at.softmax, memory, self.room,
            )  # fmt: skip
            multiply(each.attended, weights.project, x, add=True)
            bias = address(weights.project_bias)
            kernels.normalize(stream, True, bias, rows, at.normalized2, at.inverse_std2)
            multiply(each.normalized2, weights.up, each.slope)
            kernels.gelu(at.slope, address(weights.up_bias), rows, at.activated, learning)
            multiply(each.activated, weights.down, x, add=True)
            bias = address(weights.down_bias)
        x += self.weights[-1].down_bias

    def backward(
        self, dx: Tensor, chunk: Chunk, kept: Sequence[Kept], grads: Sequence[Weights], work: Work, scratch: F32
    ) -> None:
        """Send the gradient of a chunk back through all blocks.

        Args:
            dx: (n, D) gradient of the chunk's tokens; changed in place.
            chunk: which frames these are.
            kept: as `forward` left it.
            grads: to which the gradients of all weights are added.
            work: memory for what does not outlast the call.
            scratch: see `scratch`.
        """
        rows, stream, memory = len(dx), address(dx), address(scratch)
        dtoken, dqkv, dhidden = (each[:rows] for each in (work.dtoken, work.dqkv, work.dhidden))
        at_dtoken, at_dqkv, at_dhidden = address(dtoken), address(dqkv), address(dhidden)
        kernels, multiply = self.kernels, self.multiply
        grads[-1].down_bias.add_(dx.sum(0))
        unused = torch.empty(self.width)
        for block in reversed(range(len(self.weights))):
            weights, each, grad = self.weights[block], kept[block], grads[block]
            at = each.addresses()
            multiply(each.activated.t(), dx, grad.down, add=True)
            multiply(dx, weights.down.t(), dhidden)
            kernels.gelu_backward(at_dhidden, at.slope, rows, address(grad.up_bias))
            multiply(each.normalized2.t(), dhidden, grad.up, add=True)
            multiply(dhidden, weights.up.t(), dtoken)
            kernels.normalize_backward(
                at_dtoken, at.normalized2, at.inverse_std2, rows, stream, address(grad.project_bias)
            )
            multiply(each.attended.t(), dx, grad.project, add=True)
            multiply(dx, weights.project.t(), dtoken)
            kernels.attend_backward(
                self.num_heads, at.qkv, *self.hidden, chunk.low, chunk.high, at.attended, at.softmax, at_dtoken,
                at_dqkv, address(grad.qkv_bias), memory, self.room,
            )  # fmt: skip
            multiply(each.normalized.t(), dqkv, grad.qkv, add=True)
            multiply(dqkv, weights.qkv.t(), dtoken)
            before = grads[block - 1].down_bias if block else unused  # the bias that this normalization added
            kernels.normalize_backward(at_dtoken, at.normalized, at.inverse_std, rows, stream, address(before))


def multiply(x: Tensor, weight: Tensor, out: Tensor, *, add: bool = False) -> None:
    """Compute x weight, or add it to `out`."""
    if add:
        out.addmm_(x, weight)
    else:
        torch.mm(x, weight, out=out)


def multiply_bf16(x: Tensor, weight: Tensor, out: Tensor, *, add: bool = False) -> None:
    """The same from numbers rounded to bfloat16; `out` stays in float32."""
    product = torch.mm(x.bfloat16(), weight.bfloat16())
    if add:
        out.add_(product)
    else:
        out.copy_(product)


# --- The autograd function

_kept = Pool(lambda tokens, width, num_heads, blocks: [Kept.empty(tokens, width, num_heads) for _ in range(blocks)])
_work = Pool(Work.empty)


def transform(tokens: Tensor, frames: Frames, num_heads: int, weights: Sequence[Weights], *, bf16: bool) -> Tensor:
    """Send tokens through all blocks.

    Args:
        tokens: (E, D) float32 on the CPU.
        frames: which of them belong together.
        num_heads: H; D / H is a multiple of 8.
        weights: of at least one block.
        bf16: whether matrix products take numbers rounded to bfloat16.
    """
    parameters = [parameter for block in weights for parameter in block]
    if torch.is_grad_enabled() and any(each.requires_grad for each in (tokens, *parameters)):
        out: Tensor = _Transform.apply(tokens, frames, num_heads, bf16, *parameters)
        return out
    trunk = Trunk(frames, num_heads, [Weights(*(each.detach() for each in block)) for block in weights], bf16)
    out = tokens.detach().clone(memory_format=torch.contiguous_format)

    def work_on(chunks: Sequence[Chunk]) -> None:
        lease, scratch = trunk.work(chunks), trunk.scratch()
        for chunk in chunks:
            kept = lease.memory.kept.rows(0, chunk.end - chunk.start)
            trunk.forward(out[chunk.start : chunk.end], chunk, [kept] * len(weights), scratch, learning=False)

    run_parts(work_on, split(frames, CHUNK))
    return out


class _Transform(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tokens: Tensor, frames: Frames, num_heads: int, bf16: bool, *parameters: Tensor
    ) -> Tensor:
        count = len(Weights._fields)
        detached = [parameter.detach() for parameter in parameters]
        weights = [Weights(*detached[at : at + count]) for at in range(0, len(detached), count)]
        ctx.trunk = trunk = Trunk(frames, num_heads, weights, bf16)
        ctx.parts = split(frames, CHUNK)
        ctx.kept = kept = _kept.take((trunk.width, num_heads, len(weights)), len(tokens))
        ctx.save_for_backward(*parameters)  # so that autograd notices if they are changed in between
        out = tokens.detach().clone(memory_format=torch.contiguous_format)

        def work_on(chunks: Sequence[Chunk]) -> None:
            scratch = trunk.scratch()
            for chunk in chunks:
                rows = [block.rows(chunk.start, chunk.end - chunk.start) for block in kept.memory]
                trunk.forward(out[chunk.start : chunk.end], chunk, rows, scratch, learning=True)

        run_parts(work_on, ctx.parts)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        ctx.saved_tensors  # noqa: B018 - raises if a weight was changed since
        trunk: Trunk = ctx.trunk
        dtokens = dout.clone(memory_format=torch.contiguous_format)
        sums = [[_zeros(block) for block in trunk.weights] for _ in ctx.parts]

        def work_on(part: int) -> None:
            lease, scratch = trunk.work(ctx.parts[part]), trunk.scratch()
            for chunk in ctx.parts[part]:
                rows = [block.rows(chunk.start, chunk.end - chunk.start) for block in ctx.kept.memory]
                trunk.backward(dtokens[chunk.start : chunk.end], chunk, rows, sums[part], lease.memory, scratch)

        run_parts(work_on, range(len(ctx.parts)))
        gradients = [gradient for block in sums[0] for gradient in block]
        for other in sums[1:]:  # in the order of the parts, so that the same number of threads gives the same bits
            for gradient, more in zip(gradients, (each for block in other for each in block), strict=True):
                gradient += more
        return dtokens, None, None, None, *gradients


def _zeros(weights: Weights) -> Weights:
    return Weights(*(torch.zeros(each.shape) for each in weights))
