"""The weights of a block as its modules hold them, as the matrix products want them, and the way back for gradients.

The scale g and shift s of a LayerNorm are folded into the linear layers that follow: W (g n + s) + b = W' n + b' with

    W' = W diag(g),   b' = b + W s;        dW = dW' diag(g) + db' sᵀ,   db = db',   dg = diag(Wᵀ dW'),   ds = Wᵀ db'
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Parameters(NamedTuple):
    """Of one block: (out, in) matrices. Also used for their gradients."""

    scale: Tensor  # of the LayerNorm before attention
    shift: Tensor
    qkv: Tensor
    qkv_bias: Tensor
    gate: Tensor | None  # of relative values; None: there are none, or they are not gated
    gate_bias: Tensor | None
    project: Tensor
    project_bias: Tensor
    scale2: Tensor  # of the LayerNorm before the MLP
    shift2: Tensor
    up: Tensor
    up_bias: Tensor
    down: Tensor
    down_bias: Tensor


class Linear(NamedTuple):
    """(in, out) matrix and bias, the LayerNorm before folded in. Also used for their gradients."""

    weight: Tensor
    bias: Tensor


class Weights(NamedTuple):
    """Of one block. Also used for their gradients."""

    qkv: Linear
    gate: Linear | None
    project: Linear
    up: Linear
    down: Linear

    def zeros(self) -> Weights:
        """Gradients of nothing."""
        return Weights(*(None if each is None else _zeros(each) for each in self))  # type: ignore[arg-type]

    def add(self, other: Weights) -> None:
        """Add other gradients."""
        for mine, others in zip(self, other, strict=True):
            if mine is not None and others is not None:
                mine.weight.add_(others.weight)
                mine.bias.add_(others.bias)


def fold(block: Parameters) -> Weights:
    """LayerNorms into the linear layers."""
    gate = None
    if block.gate is not None and block.gate_bias is not None:
        gate = _fold(block.scale, block.shift, block.gate, block.gate_bias)
    return Weights(
        _fold(block.scale, block.shift, block.qkv, block.qkv_bias),
        gate,
        Linear(block.project.t(), block.project_bias),
        _fold(block.scale2, block.shift2, block.up, block.up_bias),
        Linear(block.down.t(), block.down_bias),
    )


def unfold(block: Parameters, gradient: Weights) -> Parameters:
    """The gradient of `fold`."""
    qkv, gate, project, up, down = gradient
    dscale, dshift, dqkv = _unfold(block.scale, block.shift, block.qkv, qkv)
    dscale2, dshift2, dup = _unfold(block.scale2, block.shift2, block.up, up)
    dgate = None
    if gate is not None and block.gate is not None:
        scale_by_gate, shift_by_gate, dgate = _unfold(block.scale, block.shift, block.gate, gate)
        dscale, dshift = dscale + scale_by_gate, dshift + shift_by_gate
    return Parameters(
        dscale, dshift, dqkv, qkv.bias, dgate, None if gate is None else gate.bias,
        project.weight.t().contiguous(), project.bias, dscale2, dshift2, dup, up.bias,
        down.weight.t().contiguous(), down.bias,
    )  # fmt: skip


def _zeros(linear: Linear) -> Linear:
    rows, columns = linear.weight.shape
    # few long rows in memory: products of tall matrices are faster that way
    weight = torch.zeros(rows, columns) if rows <= columns else torch.zeros(columns, rows).t()
    return Linear(weight, torch.zeros(linear.bias.shape))


def _fold(scale: Tensor, shift: Tensor, weight: Tensor, bias: Tensor) -> Linear:
    return Linear((weight * scale).t(), torch.addmv(bias, weight, shift))


def _unfold(scale: Tensor, shift: Tensor, weight: Tensor, dfolded: Linear) -> tuple[Tensor, Tensor, Tensor]:
    gradient = dfolded.weight.t()
    dweight = torch.addcmul(torch.outer(dfolded.bias, shift), gradient, scale)
    return (weight * gradient).sum(0), dfolded.bias @ weight, dweight
