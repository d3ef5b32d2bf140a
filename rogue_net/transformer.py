"""Transformer blocks over the tokens of a ragged batch. Only attention, or pooling in its place, mixes tokens.

These modules hold the weights for every backend, and are the reference for all. Shapes: E tokens, B frames, D width, H heads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.nn import functional

from entity_gym.actions import ActionSpace
from entity_gym.spaces import ObsSpace
from rogue_net.attention import ragged_attention
from rogue_net.batch.frames import Frames
from rogue_net.batch.obs_batch import ObsBatch
from rogue_net.batch.ragged import State, segment_sum
from rogue_net.config import Pooling, RogueNetConfig
from rogue_net.inputs.embedding import entity_types
from rogue_net.kernels.select import why_not_precision
from rogue_net.memory import Memory
from rogue_net.relative.relative_positions import Relative, RelativePositions


class Block(nn.Module):
    """A pre-LayerNorm block: x + mix(norm(x)), then x + MLP(norm(x)) with 4 D hidden units and GELU.

    `mix` is attention with a linear map before and behind it, or pooling.
    """

    def __init__(self, config: RogueNetConfig) -> None:
        super().__init__()
        d_model = config.d_model
        self.num_heads = config.n_head
        self.dropout = config.dropout
        self.attention_norm = nn.LayerNorm(d_model)
        self.pool = Pool(config.pooling, d_model) if config.pooling != "none" else None
        if self.pool is None:
            self.query_key_value = nn.Linear(d_model, 3 * d_model)
            self.project = nn.Linear(d_model, d_model)
        self.mlp = nn.Sequential(
            nn.LayerNorm(d_model), nn.Linear(d_model, 4 * d_model), nn.GELU(), nn.Linear(4 * d_model, d_model)
        )

    def forward(
        self,
        tokens: Tensor,
        frames: Frames,
        relative: Relative | None = None,
        positions: RelativePositions | None = None,
        *,
        drop: bool = False,
    ) -> Tensor:
        """Send (E, D) tokens through the block.

        Args:
            tokens: (E, D).
            frames: which of them belong together.
            relative: relative positions of the batch, if there are any; `positions` makes their gate.
            positions: see `relative`.
            drop: whether dropout is active.
        """
        x = self.attention_norm(tokens)
        if self.pool is not None:
            mixed = self.pool(x, frames)
        else:
            qkv, relative = self.attention_inputs(x, relative, positions)
            attended = ragged_attention(qkv, frames, relative, dropout=self.dropout if drop else 0.0)
            mixed = self.project(attended.flatten(1))
        tokens = tokens + functional.dropout(mixed, self.dropout, drop)
        return tokens + functional.dropout(self.mlp(tokens), self.dropout, drop)

    def attention_inputs(
        self, x: Tensor, relative: Relative | None, positions: RelativePositions | None
    ) -> tuple[Tensor, Relative | None]:
        """(E, 3, H, K) queries, keys and values of (E, D) normalized tokens, and the relative positions with their gate."""
        if relative is not None and positions is not None:
            relative = relative._replace(gate=positions.gate(x))
        return self.query_key_value(x).view(len(x), 3, self.num_heads, x.shape[1] // self.num_heads), relative


class Pool(nn.Module):
    """Pooling over a frame, for each of its entities: linear, mean and/or max over the frame, linear.

    A visible entity pools over the visible ones, a hidden one over all. Costs as much as the entities, not as their pairs.
    Source: permutation invariant pooling, Zaheer et al. 2017 (arXiv 1703.06114), equation 4.
    """

    def __init__(self, pooling: Pooling, d_model: int) -> None:
        super().__init__()
        self.pooling = pooling
        self.prepare = nn.Linear(d_model, d_model)
        self.project = nn.Linear(2 * d_model if pooling == "meanmax" else d_model, d_model)

    def forward(self, tokens: Tensor, frames: Frames) -> Tensor:
        """Pool the (E, D) tokens of each frame, as (E, D) for each of its tokens."""
        prepared = self.prepare(tokens).to(tokens.dtype)  # sums of bf16 would lose what is added to hundreds
        pooled: Tensor = self.project(self._reduce(prepared, frames, None)).index_select(0, frames.of_token)
        if frames.visible is None:
            return pooled
        visible = frames.visible.unsqueeze(1)
        of_visible = self.project(self._reduce(prepared, frames, visible)).index_select(0, frames.of_token)
        return torch.where(visible, of_visible, pooled)

    def _reduce(self, values: Tensor, frames: Frames, counted: Tensor | None) -> Tensor:
        """Pool (E, D) values as (B, D) or (B, 2 D); 0 for a frame in which no token is `counted`, (E, 1) bool; None: all are."""
        numbers, num_frames = frames.of_token, len(frames.offsets) - 1
        pooled = []
        if "mean" in self.pooling:
            added = values if counted is None else torch.where(counted, values, 0)  # NaN * 0 is NaN
            counts = (
                frames.offsets.diff() if counted is None else segment_sum(counted[:, 0].long(), numbers, num_frames)
            )
            sums = added.new_zeros(num_frames, added.shape[1]).index_add_(0, numbers, added)
            pooled.append(sums / counts.clamp(min=1).unsqueeze(1))
        if "max" in self.pooling:
            compared = values if counted is None else values.masked_fill(~counted, -torch.inf)
            places = numbers.unsqueeze(1).expand_as(values)
            zeros = values.new_zeros(num_frames, values.shape[1])
            largest = zeros.scatter_reduce(0, places, compared, "amax", include_self=False)
            pooled.append(largest if counted is None else largest.masked_fill(largest == -torch.inf, 0.0))
        return torch.cat(pooled, dim=1)


class Transformer(nn.Module):
    """`n_layer` blocks, and memory behind the first. Linear weights of blocks start as N(0, 0.02) with zero bias.

    Args:
        config: shape, options and backend.
        obs_space: with features as the embedding sees them; only relative positions need it.
        action_space: likewise.

    Raises:
        ValueError: relative positions that do not fit the spaces.
    """

    def __init__(self, config: RogueNetConfig, obs_space: ObsSpace, action_space: Mapping[str, ActionSpace]) -> None:
        super().__init__()
        self.config = config
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.relative_positions: RelativePositions | None = None
        if config.relpos.kind != "none":
            self.relative_positions = RelativePositions(
                config.relpos, obs_space, action_space, config.d_model, config.n_head
            )
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)
        self.memory: Memory | None = None
        if config.memory != "none":
            types = entity_types(obs_space, action_space)
            self.memory = Memory(config.memory, config.d_model, types, config.memory_types)

    def forward(
        self,
        tokens: Tensor,
        batch: ObsBatch,
        state: State | None = None,
        follows: Tensor | None = None,
        *,
        drop: bool = False,
        watch: Callable[[Block, Tensor, Relative | None], None] | None = None,
    ) -> tuple[Tensor, State | None]:
        """Send (E, D) tokens through all blocks.

        Args:
            tokens: (E, D).
            batch: whose tokens they are.
            state: what was remembered before the frames; see `RogueNet.evaluate`.
            follows: (B,) bool; see `RogueNet.evaluate`.
            drop: whether dropout is active.
            watch: called with each block, the tokens that enter it, and the relative positions.

        Returns:
            (E, D) tokens, and what is remembered after each frame; None: nothing is.

        Raises:
            ValueError: the device does not support the precision, or see `Memory.forward`.
        """
        if drop:
            tokens = functional.dropout(tokens, self.config.dropout)
        if len(self.blocks) == 0:
            return (tokens, None) if self.memory is None else self.memory(tokens, batch, state, follows)
        after, frames = None, batch.frames
        if (problem := why_not_precision(self.config, tokens.device.type)) is not None:
            raise ValueError(problem)
        positions = self.relative_positions
        relative = None if positions is None else positions(batch, frames.rows.index)
        # tf32 is a setting of torch that holds everywhere
        in_bf16 = self.config.precision == "bf16"
        with torch.autocast(tokens.device.type, torch.bfloat16) if in_bf16 else nullcontext():
            for number, block in enumerate(self.blocks):
                assert isinstance(block, Block)
                if watch is not None:
                    watch(block, tokens, relative)
                tokens = block(tokens, frames, relative, positions, drop=drop)
                if number == 0 and self.memory is not None:
                    tokens, after = self.memory(tokens, batch, state, follows)
        return tokens, after
