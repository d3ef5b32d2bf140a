"""Lower bounds of the network's arithmetic operations and memory traffic, as pure formulas.

Shapes: E tokens (entities) in frames of n_1, ..., n_B, width D, L layers, P parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

#: Matrix products of forward alone, and of forward and backward: gradients of inputs and weights are two more of the same size.
PASSES = {"act": 1, "update": 3}


def trunk_flops(tokens: int, width: int, layers: int) -> int:
    """Operations of the transformer's matrix products in the forward pass, without attention: 24 D² per token and layer.

    A token is multiplied by 3 D² weights for queries, keys and values, D² after attention and 8 D² in the MLP; each is a
    multiplication and an addition.
    """
    return 2 * 12 * width**2 * tokens * layers


def attention_flops(lengths: Sequence[int], width: int, layers: int) -> int:
    """Operations of attention in the forward pass: q k' and p v, 2 D each for every pair, so 4 D n² per frame and layer."""
    return 4 * width * sum(int(length) ** 2 for length in lengths) * layers


def trunk_bytes(tokens: int, width: int, layers: int, *, size: int = 4) -> int:
    """Memory traffic of the forward pass in bytes, if every matrix product reads its input and writes its output once.

    (D + 3 D) + (D + D) + (D + 4 D) + (4 D + D) = 16 D numbers per token and layer.
    """
    return 16 * width * tokens * layers * size


def optimizer_bytes(parameters: int) -> int:
    """Memory traffic of a step of AdamW with clipping in bytes: 7 P numbers to read weights, gradient and both moments and to
    write all but the gradient; 3 P for the gradient's norm (read) and its scaling (read and write)."""
    return (7 + 3) * 4 * parameters


class Work(NamedTuple):
    """Arithmetic operations, and memory traffic in bytes."""

    flops: float
    bytes: float

    def __add__(self, other: object) -> Work:  # type: ignore[override]
        assert isinstance(other, Work)
        return Work(self.flops + other.flops, self.bytes + other.bytes)

    def times(self, factor: float) -> Work:
        return Work(self.flops * factor, self.bytes * factor)


class Floor(NamedTuple):
    """Least seconds that work can take, and the limiting resource."""

    flops_seconds: float
    bytes_seconds: float

    @property
    def seconds(self) -> float:
        return max(self.flops_seconds, self.bytes_seconds)

    @property
    def larger(self) -> str:
        return "operations" if self.flops_seconds > self.bytes_seconds else "bytes"


def network_work(lengths: Sequence[int], width: int, layers: int, features: float, kind: str, *, size: int = 4) -> Work:
    """Work of one `act` or one `update`, without the optimizer.

    Args:
        lengths: tokens of each frame.
        width: D.
        layers: L.
        features: bytes of observations per token, read once.
        kind: `act` or `update`.
        size: bytes of a number in the trunk.
    """
    tokens = sum(int(length) for length in lengths)
    flops = trunk_flops(tokens, width, layers) + attention_flops(lengths, width, layers)
    return Work(flops * PASSES[kind], trunk_bytes(tokens, width, layers, size=size) * PASSES[kind] + features * tokens)


def floor(work: Work, tflops: float, gigabytes: float) -> Floor:
    """Least time at the measured peaks: `tflops` in 10^12 operations per second, `gigabytes` in 10^9 bytes per second."""
    return Floor(work.flops / tflops / 1e12, work.bytes / gigabytes / 1e9)
