"""Matrix products: torch's."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class Product(Protocol):
    """A way to multiply matrices."""

    def __call__(self, x: Tensor, weight: Tensor, out: Tensor, *, add: bool = False) -> None:
        """Compute x weight into `out`, or add it to `out`."""


def multiply(x: Tensor, weight: Tensor, out: Tensor, *, add: bool = False) -> None:
    """Compute x weight into `out`, or add it to `out`."""
    if add:
        out.addmm_(x, weight)
    else:
        torch.mm(x, weight, out=out)


def multiply_bf16(x: Tensor, weight: Tensor, out: Tensor, *, add: bool = False) -> None:
    """Compute x weight into `out`, or add it to `out`, from numbers rounded to bfloat16.

    `out` is float32. torch's product on CPUs rounds its result to bfloat16, too (its sums are in float32), and so what each
    call adds: the gradient of a weight is the float32 sum of one rounded product for each chunk of frames.
    """
    product = torch.mm(x.bfloat16(), weight.bfloat16())
    if add:
        out.add_(product)
    else:
        out.copy_(product)
