"""The whole transformer as one autograd function: forward and backward in chunks of frames, over memory that is reused.

A chunk of some thousand tokens goes through all blocks before the next one starts, so that most of what a step reads is still
in the cache. The steps are those of `rogue_net.transformer.Block`:

    n = normalize(x);  qkv = n Wqkv';  y = attention(qkv);  x += y Wo
    n = normalize(x);  g = gelu(n W1');  x += g W2

where W' and its bias hold the scale and shift of the LayerNorm before (`rogue_net.kernels.cpu.weights`). Matrix products are
torch's; everything between them is a kernel. Biases are added by the kernel that comes next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rogue_net.kernels.cpu import elementwise
from rogue_net.kernels.cpu.activations import Rows, Work
from rogue_net.kernels.cpu.compiling import address, bind
from rogue_net.kernels.cpu.mixing import Mixing, Tables
from rogue_net.kernels.cpu.parts import Chunk
from rogue_net.kernels.cpu.products import Product
from rogue_net.kernels.cpu.weights import Weights


class Kernels(NamedTuple):
    """What is done to tokens by themselves, for one width of the network."""

    normalize: Callable[..., None]
    normalize_backward: Callable[..., None]
    gelu: Callable[..., None]
    gelu_backward: Callable[..., None]

    @staticmethod
    @cache
    def of(width: int) -> Kernels:
        """For tokens of D features."""
        token, hidden = elementwise.Shape.of(width), elementwise.Shape.of(4 * width)
        return Kernels(
            bind(elementwise.normalize, *token),
            bind(elementwise.normalize_backward, *token),
            bind(elementwise.gelu, *hidden),
            bind(elementwise.gelu_backward, *hidden),
        )


class Trunk:
    """All blocks on one batch.

    Args:
        weights: of every block.
        mixing: attention.
        multiply: matrix products.
    """

    def __init__(self, weights: Sequence[Weights], mixing: Mixing, multiply: Product) -> None:
        self.weights, self.mixing, self.multiply = weights, mixing, multiply
        self.width = weights[0].project.weight.shape[0]
        self.kernels = Kernels.of(self.width)

    def forward(self, x: Tensor, chunk: Chunk, kept: Sequence[Rows], scratch: Any, *, learning: bool) -> None:
        """Send a chunk through all blocks.

        Args:
            x: (n, D) its tokens; changed in place.
            chunk: which frames these are.
            kept: of every block, (n, ...).
            scratch: of the mixing.
            learning: whether what is kept is needed by `backward`.
        """
        rows, stream, kernels, multiply = len(x), address(x), self.kernels, self.multiply
        bias = 0  # of the product that was added to x last
        for weights, each in zip(self.weights, kept, strict=True):
            kernels.normalize(stream, bias != 0, bias, rows, address(each.normalized), each.inverse_std)
            multiply(each.normalized, weights.qkv.weight, each.qkv)
            self.mixing.forward(weights, each, chunk, scratch)
            multiply(each.attended, weights.project.weight, x, add=True)
            bias = address(weights.project.bias)
            kernels.normalize(stream, True, bias, rows, address(each.normalized2), each.inverse_std2)
            multiply(each.normalized2, weights.up.weight, each.slope)
            kernels.gelu(address(each.slope), address(weights.up.bias), rows, address(each.activated), learning)
            multiply(each.activated, weights.down.weight, x, add=True)
            bias = address(weights.down.bias)
        x += self.weights[-1].down.bias

    def backward(
        self,
        dx: Tensor,
        chunk: Chunk,
        kept: Sequence[Rows],
        scratch: Any,
        work: Work,
        grads: Sequence[Weights],
        tables: Tables | None,
    ) -> None:
        """Send the gradient of a chunk back through all blocks.

        Args:
            dx: (n, D) gradient of the chunk's tokens; changed in place.
            chunk: which frames these are.
            kept: as `forward` left it.
            scratch: of the mixing.
            work: memory for n tokens.
            grads: to which the gradients of all weights are added.
            tables: likewise, of relative positions.
        """
        rows, stream, kernels, multiply = len(dx), address(dx), self.kernels, self.multiply
        dtoken, dhidden = work.dtoken, work.dhidden
        grads[-1].down.bias.add_(dx.sum(0))
        unused = torch.empty(self.width)
        for block in reversed(range(len(self.weights))):
            weights, each, grad = self.weights[block], kept[block], grads[block]
            multiply(each.activated.t(), dx, grad.down.weight, add=True)
            multiply(dx, weights.down.weight.t(), dhidden)
            kernels.gelu_backward(address(dhidden), address(each.slope), rows, address(grad.up.bias))
            multiply(each.normalized2.t(), dhidden, grad.up.weight, add=True)
            multiply(dhidden, weights.up.weight.t(), dtoken)
            kernels.normalize_backward(
                address(dtoken), address(each.normalized2), each.inverse_std2, rows, stream,
                address(grad.project.bias),
            )  # fmt: skip
            multiply(each.attended.t(), dx, grad.project.weight, add=True)
            multiply(dx, weights.project.weight.t(), dtoken)
            self.mixing.backward(weights, each, chunk, scratch, work, grad, tables)
            multiply(each.normalized.t(), work.dqkv, grad.qkv.weight, add=True)
            before = grads[block - 1].down.bias if block else unused  # the bias that this normalization added
            kernels.normalize_backward(
                address(dtoken), address(each.normalized), each.inverse_std, rows, stream, address(before)
            )
