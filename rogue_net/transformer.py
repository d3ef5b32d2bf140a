"""Transformer blocks over the tokens of a ragged batch. Only attention mixes tokens.

Shapes: E tokens, D width, H heads.
"""

from __future__ import annotations

from torch import Tensor, nn

from rogue_net.attention import BACKENDS, PackedRows
from rogue_net.config import RogueNetConfig
from rogue_net.obs_batch import ObsBatch


class Block(nn.Module):
    """A pre-LayerNorm block: x + attention(norm(x)), then x + MLP(norm(x)) with 4 D hidden units and GELU."""

    def __init__(self, config: RogueNetConfig) -> None:
        super().__init__()
        d_model = config.d_model
        self.num_heads = config.n_head
        self.attend = BACKENDS[config.backend]
        self.attention_norm = nn.LayerNorm(d_model)
        self.query_key_value = nn.Linear(d_model, 3 * d_model)
        self.project = nn.Linear(d_model, d_model)
        self.mlp = nn.Sequential(
            nn.LayerNorm(d_model), nn.Linear(d_model, 4 * d_model), nn.GELU(), nn.Linear(4 * d_model, d_model)
        )

    def forward(self, tokens: Tensor, rows: PackedRows) -> Tensor:
        """(E, D) to (E, D)."""
        qkv = self.query_key_value(self.attention_norm(tokens))
        q, k, v = qkv.view(len(tokens), 3, self.num_heads, -1).unbind(1)
        tokens = tokens + self.project(self.attend(q, k, v, rows).flatten(1))
        mixed: Tensor = tokens + self.mlp(tokens)
        return mixed


class Transformer(nn.Module):
    """`n_layer` blocks. Linear weights start as N(0, 0.02) with zero bias."""

    def __init__(self, config: RogueNetConfig) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)

    def forward(self, tokens: Tensor, batch: ObsBatch) -> Tensor:
        """(E, D) to (E, D)."""
        if len(self.blocks) == 0 or len(tokens) == 0:
            return tokens
        rows = PackedRows(batch)
        for block in self.blocks:
            tokens = block(tokens, rows)
        return tokens
