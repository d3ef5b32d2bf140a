"""What the forward pass of a block leaves to its backward pass, and what a thread needs for the chunk at hand."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rogue_net.kernels.cpu.compiling import address
from rogue_net.kernels.cpu.memory import Pool


class Kept(NamedTuple):
    """What the forward pass of a block leaves to the backward pass, by token."""

    normalized: Tensor  # (E, D)
    inverse_std: Tensor  # (E, 1)
    qkv: Tensor  # (E, 3 D)
    gate: Tensor  # (E, K), or (E, 0) without relative positions
    gate_slope: Tensor  # likewise
    softmax: Tensor  # (E, 2 H)
    attended: Tensor  # (E, D)
    normalized2: Tensor  # (E, D)
    inverse_std2: Tensor  # (E, 1)
    slope: Tensor  # (E, 4 D), gelu'
    activated: Tensor  # (E, 4 D)

    @staticmethod
    def empty(tokens: int, width: int, num_heads: int, gate: int) -> Kept:
        """Memory for so many tokens; `gate` is K, or 0."""
        columns = (width, 1, 3 * width, gate, gate, 2 * num_heads, width, width, 1, 4 * width, 4 * width)
        return Kept(*(torch.empty(tokens, count) for count in columns))

    @staticmethod
    def nothing(tokens: int, width: int, num_heads: int, gate: int) -> Kept:
        """Memory for a forward pass without a backward pass: what is read no more is written over."""
        normalized, wide = torch.empty(tokens, width), torch.empty(tokens * 4 * width)
        qkv, hidden = wide[: tokens * 3 * width].view(tokens, 3 * width), wide.view(tokens, 4 * width)
        small, gates, slopes = (torch.empty(tokens, count) for count in (2 * num_heads, gate, gate))
        return Kept(normalized, small, qkv, gates, slopes, small, normalized, normalized, small, hidden, hidden)

    def rows(self, start: int, end: int) -> Rows:
        """Those of the tokens `start:end`."""
        return Rows(
            self.normalized[start:end],
            address(self.inverse_std) + 4 * start,
            self.qkv[start:end],
            self.gate[start:end],
            address(self.gate_slope) + 4 * start * self.gate_slope.shape[1],
            address(self.softmax) + 4 * start * self.softmax.shape[1],
            self.attended[start:end],
            self.normalized2[start:end],
            address(self.inverse_std2) + 4 * start,
            self.slope[start:end],
            self.activated[start:end],
        )


class Rows(NamedTuple):
    """The same of a chunk: matrices that are multiplied, and the addresses of what only kernels see."""

    normalized: Tensor
    inverse_std: int
    qkv: Tensor
    gate: Tensor
    gate_slope: int
    softmax: int
    attended: Tensor
    normalized2: Tensor
    inverse_std2: int
    slope: Tensor
    activated: Tensor


class Work(NamedTuple):
    """Memory of one thread for the gradients of the chunk at hand."""

    dtoken: Tensor  # (n, D)
    dqkv: Tensor  # (n, 3 D)
    dgate: Tensor  # (n, K) or (n, 0)
    dhidden: Tensor  # (n, 4 D)

    @staticmethod
    def empty(tokens: int, width: int, gate: int) -> Work:
        """Memory for a chunk of so many tokens."""
        return Work(*(torch.empty(tokens, columns) for columns in (width, 3 * width, gate, 4 * width)))

    def rows(self, count: int) -> Work:
        """Those of the first `count` tokens."""
        return Work(*(each[:count] for each in self))


kept_pool = Pool(
    lambda tokens, width, num_heads, gate, blocks: [Kept.empty(tokens, width, num_heads, gate) for _ in range(blocks)]
)
nothing_kept_pool = Pool(Kept.nothing)
work_pool = Pool(Work.empty)
