"""Parameters of what a batch does not have: entity types without entities, actions that nobody takes, any tokens.

Every parameter is to get a gradient, if zero, so that what an optimizer does to it does not depend on the batch.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor


def with_absent(tensor: Tensor, parameters: Iterable[Tensor]) -> Tensor:
    """`tensor`, whose gradient brings all `parameters` one of zero."""
    if not torch.is_grad_enabled():
        return tensor
    tied: Tensor = _Tie.apply(tensor, *parameters)  # type: ignore[no-untyped-call]
    return tied


class _Tie(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, *parameters: Tensor) -> Tensor:
        ctx.parameters = parameters
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:
        return gradient, *(torch.zeros_like(parameter) for parameter in ctx.parameters)
