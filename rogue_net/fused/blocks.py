"""From the modules of the transformer to its fused function."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from rogue_net.frames import Frames
from rogue_net.fused.trunk import Weights, transform
from rogue_net.relative_positions import Relative

if TYPE_CHECKING:
    from rogue_net.transformer import Block, Transformer


def transform_blocks(tokens: Tensor, frames: Frames, transformer: Transformer, relative: Relative | None) -> Tensor:
    """(E, D) tokens through all blocks of the transformer."""
    weights = [_weights(block) for block in transformer.blocks]  # type: ignore[arg-type]
    bf16 = transformer.config.precision == "bf16"
    return transform(tokens, frames, transformer.config.n_head, weights, bf16=bf16)


def _weights(block: Block) -> Weights:
    norm, up, _, down = block.mlp
    assert isinstance(norm, nn.LayerNorm)
    assert isinstance(up, nn.Linear)
    assert isinstance(down, nn.Linear)
    qkv, project = block.query_key_value, block.project
    return Weights(
        *_fold(block.attention_norm, qkv),
        project.weight.t(),
        project.bias,
        *_fold(norm, up),
        down.weight.t(),
        down.bias,
    )


def _fold(norm: nn.LayerNorm, linear: nn.Linear) -> tuple[Tensor, Tensor]:
    """The linear map of n * scale + shift as one of n: W' = W diag(scale), transposed, and b' = b + W shift."""
    return (linear.weight * norm.weight).t(), torch.addmv(linear.bias, linear.weight, norm.bias)
