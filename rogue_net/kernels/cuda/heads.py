"""The arguments that the Triton attentions with and without relative positions share."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rogue_net.batch.frames import Bounds
from rogue_net.kernels.cuda.launching import columns_of


class Heads(NamedTuple):
    """Queries, keys and values: (E, H, K) each, the K numbers of a head side by side."""

    q: Tensor
    k: Tensor
    v: Tensor

    @property
    def numbers(self) -> tuple[Any, ...]:
        """E, H, the strides of tokens and heads, and the scale, as the kernels want them."""
        num_tokens, num_heads, width = self.q.shape
        strides = [stride for x in self for stride in x.stride()[:2]]
        return num_tokens, num_heads, *strides, 1 / math.sqrt(width)


def flags_of(visible: Tensor | None, bounds: Bounds) -> Tensor | None:
    """(E,) uint8, 0 for hidden tokens; None where all are visible. Those behind the last frame are, which nobody sees."""
    if visible is None:
        return None
    missing = len(bounds.first) - len(visible)
    if missing > 0:
        visible = torch.cat([visible, visible.new_ones(missing)])
    return visible.contiguous().view(torch.uint8)


def constants_of(q: Tensor, visible: Tensor | None, product: str) -> dict[str, Any]:
    """Compile-time constants of the kernels."""
    width = q.shape[2]
    return {"HIDES": visible is not None, "WIDTH": width, "COLUMNS": columns_of(width), "PRECISION": product}
