"""The part of a block in which tokens see each other, on a chunk of frames: attention without and with relative positions."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from torch import Tensor

from rogue_net.frames import Frames
from rogue_net.kernels.cpu import attention, relative_attention
from rogue_net.kernels.cpu.activations import Rows, Work
from rogue_net.kernels.cpu.compiling import address
from rogue_net.kernels.cpu.gates import KINDS
from rogue_net.kernels.cpu.parts import Chunk, hidden_from
from rogue_net.kernels.cpu.products import Product
from rogue_net.kernels.cpu.relative_terms import Pairs
from rogue_net.kernels.cpu.weights import Weights


class Tables(NamedTuple):
    """The rows of relative keys and values, which all blocks share; also used for their gradients."""

    keys: Tensor
    values: Tensor


class Mixing(Protocol):
    """Attention on a batch."""

    num_heads: int
    gate: int  # columns of the gate: K, or 0

    def scratch(self) -> Any:
        """Memory for the kernels, one for each thread."""

    def forward(self, weights: Weights, kept: Rows, chunk: Chunk, scratch: Any) -> None:
        """From `kept.qkv` without its bias to `kept.attended`."""

    def backward(
        self, weights: Weights, kept: Rows, chunk: Chunk, scratch: Any, work: Work, grad: Weights, tables: Tables | None
    ) -> None:
        """From the gradient of `kept.attended` in `work.dtoken` to that of the qkv and of `kept.normalized`.

        The first goes to `work.dqkv`, the second, all of it, to `work.dtoken`; those of weights and tables are added.
        """


class PlainMixing:
    """Attention without relative positions."""

    def __init__(self, frames: Frames, num_heads: int, width: int, multiply: Product) -> None:
        self.frames, self.num_heads, self.head_width, self.multiply = frames, num_heads, width // num_heads, multiply
        self.gate = 0
        self.kernels = attention.Kernels.of(self.head_width)
        self.hidden = hidden_from(frames)

    def scratch(self) -> Any:  # noqa: D102 - see Mixing
        return attention.OwnScratch(self.head_width, self.frames.max_length)

    def forward(self, weights: Weights, kept: Rows, chunk: Chunk, scratch: Any) -> None:  # noqa: D102
        self.kernels.attend(
            self.num_heads, address(kept.qkv), address(weights.qkv.bias), *self.hidden, chunk.low, chunk.high,
            address(kept.attended), kept.softmax, scratch.addresses,
        )  # fmt: skip

    def backward(  # noqa: D102
        self, weights: Weights, kept: Rows, chunk: Chunk, scratch: Any, work: Work, grad: Weights, tables: Tables | None
    ) -> None:
        self.kernels.attend_backward(
            self.num_heads, address(kept.qkv), *self.hidden, chunk.low, chunk.high, address(kept.attended),
            kept.softmax, address(work.dtoken), address(work.dqkv), address(grad.qkv.bias),
            scratch.addresses,
        )  # fmt: skip
        self.multiply(work.dqkv, weights.qkv.weight.t(), work.dtoken)


class RelatedMixing:
    """Attention with relative positions, whose values may be gated."""

    def __init__(
        self, frames: Frames, num_heads: int, width: int, multiply: Product, pairs: Pairs, tables: Tables, gate: str
    ) -> None:
        self.frames, self.num_heads, self.multiply, self.pairs = frames, num_heads, multiply, pairs
        self.gate = self.head_width = width // num_heads
        self.gate_kind = gate
        self.kernels = relative_attention.Kernels.of(self.head_width)
        self.tables = Tables(*(each.contiguous() for each in tables))
        self.hidden = hidden_from(frames)

    def scratch(self) -> Any:  # noqa: D102 - see Mixing
        return relative_attention.OwnScratch(self.head_width, self.pairs, self.frames.max_length)

    def forward(self, weights: Weights, kept: Rows, chunk: Chunk, scratch: Any) -> None:  # noqa: D102
        if weights.gate is None:
            kept.gate.fill_(1)
        else:
            self.multiply(kept.normalized, weights.gate.weight, kept.gate)
            self.kernels.open_gates(
                KINDS[self.gate_kind], address(kept.gate), address(weights.gate.bias), len(kept.gate),
                kept.gate_slope,
            )  # fmt: skip
        self.kernels.attend(
            self.num_heads, address(kept.qkv), address(weights.qkv.bias), self.pairs.scheme, self.pairs.places,
            address(self.tables.keys), address(self.tables.values), address(kept.gate), *self.hidden, chunk.low,
            chunk.high, address(kept.attended), kept.softmax, scratch.addresses,
        )  # fmt: skip

    def backward(  # noqa: D102
        self, weights: Weights, kept: Rows, chunk: Chunk, scratch: Any, work: Work, grad: Weights, tables: Tables | None
    ) -> None:
        assert tables is not None
        results = (work.dqkv, grad.qkv.bias, tables.keys, tables.values, work.dgate)
        addresses: list[Any] = [address(each) for each in results]
        self.kernels.attend_backward(
            self.num_heads, address(kept.qkv), self.pairs.scheme, self.pairs.places, address(self.tables.keys),
            address(self.tables.values), address(kept.gate), *self.hidden, chunk.low, chunk.high,
            address(kept.attended), kept.softmax, address(work.dtoken),
            relative_attention.Gradients(*addresses), scratch.addresses,
        )  # fmt: skip
        self.multiply(work.dqkv, weights.qkv.weight.t(), work.dtoken)
        if weights.gate is not None and grad.gate is not None:
            self.kernels.close_gates(address(work.dgate), kept.gate_slope, len(work.dgate), address(grad.gate.bias))
            self.multiply(kept.normalized.t(), work.dgate, grad.gate.weight, add=True)
            self.multiply(work.dgate, weights.gate.weight.t(), work.dtoken, add=True)
