"""What the network's arithmetic and its traffic amount to at the least: pure formulas.

Shapes: E tokens (entities) in frames of n_1, ..., n_B, width D, L layers, P parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

#: Of forward alone, and of forward and backward: a product's gradients are two more of its size, of inputs and of weights.
PASSES = {"act": 1, "update": 3}


def trunk_flops(tokens: int, width: int, layers: int) -> int:
    """Operations of the transformer's products forward, attention aside: 24 D² a token and layer.

    A token is multiplied by 3 D² weights for queries, keys and values, by D² behind attention and 8 D² in the MLP; a
    multiplication and an addition each.
    """
    return 2 * 12 * width**2 * tokens * layers


def attention_flops(lengths: Sequence[int], width: int, layers: int) -> int:
    """Operations of attention forward: q k' and p v, 2 D each for every pair, so 4 D n² a frame and layer."""
    return 4 * width * sum(int(length) ** 2 for length in lengths) * layers


def trunk_bytes(tokens: int, width: int, layers: int, *, size: int = 4) -> int:
    """Bytes that cross memory forward if every product reads its input and writes its output once, and nothing else does.

    (D + 3 D) + (D + D) + (D + 4 D) + (4 D + D) = 16 D numbers a token and layer.
    """
    return 16 * width * tokens * layers * size


def optimizer_bytes(parameters: int) -> int:
    """Bytes of a step of AdamW with clipping: weights, gradient and both moments read, all but the gradient written, 7 P numbers;
    and 3 P for the gradient's norm (read) and its scaling (read and written)."""
    return (7 + 3) * 4 * parameters


class Work(NamedTuple):
    """Operations, and bytes."""

    flops: float
    bytes: float

    def __add__(self, other: object) -> Work:  # type: ignore[override]
        assert isinstance(other, Work)
        return Work(self.flops + other.flops, self.bytes + other.bytes)

    def times(self, factor: float) -> Work:
        return Work(self.flops * factor, self.bytes * factor)


class Floor(NamedTuple):
    """Seconds that work takes at the least, and what they are needed for."""

    flops_seconds: float
    bytes_seconds: float

    @property
    def seconds(self) -> float:
        return max(self.flops_seconds, self.bytes_seconds)

    @property
    def larger(self) -> str:
        return "operations" if self.flops_seconds > self.bytes_seconds else "bytes"


def network_work(lengths: Sequence[int], width: int, layers: int, features: float, kind: str, *, size: int = 4) -> Work:
    """Of one `act` or one `update` on frames of so many tokens each, the optimizer aside.

    Args:
        lengths: tokens of each frame.
        width: D.
        layers: L.
        features: bytes of observations a token, read once.
        kind: `act` or `update`.
        size: bytes of a number in the trunk.
    """
    tokens = sum(int(length) for length in lengths)
    flops = trunk_flops(tokens, width, layers) + attention_flops(lengths, width, layers)
    return Work(flops * PASSES[kind], trunk_bytes(tokens, width, layers, size=size) * PASSES[kind] + features * tokens)


def floor(work: Work, tflops: float, gigabytes: float) -> Floor:
    """Seconds at the measured peaks: `tflops` in 10^12 operations, `gigabytes` in 10^9 bytes per second."""
    return Floor(work.flops / tflops / 1e12, work.bytes / gigabytes / 1e9)
