"""Relative positions: attention learns from where the entities of a frame stand to each other.

Whatever the kind, the relative key and value of a query i and a key j are weighted sums of rows of two learned tables, and
they join the keys and values of attention as in Shaw et al. 2018 (arXiv 1803.02155, equations 3 and 4):

    relkey_ij = sum_m c_ijm keys[r_ijm],    relvalue_ij = gate_j * sum_m c_ijm values[r_ijm]
    s_ij += q_i · relkey_ij / sqrt(K),      y_i += sum_j p_ij relvalue_ij

Rows r and coefficients c depend on positions alone, and so have no gradient. They come from the difference p_i - p_j, turned
back by the orientation of i where there is one, and its length:

- Buckets: a position on each of one or more axes, in buckets, chooses rows. A `grid` has an axis per coordinate, from -e to e;
  `radial` one axis, the angle, 0 for things in one place; `distance` one, whose last bucket is open; `polar` the last two.
  Without interpolation c is 1 for the nearest bucket of a grid, and for the one that an angle or a distance falls in. With
  it, two neighbours on each axis share linearly: 2^axes rows.
- Projections, linear maps of the normalized difference and its length: a row per component, whose c is that component, and a
  row whose c is 1, the bias.

Tables are shared by all heads and layers; the gate is act(Linear(token j)). Pairs with an excluded entity add nothing.

Shapes: E tokens, n position features, K width of a head, R rows of L packed tokens, M terms of a sum, P buckets.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from entity_gym.actions import ActionSpace
from entity_gym.spaces import ObsSpace
from rogue_net.batch.obs_batch import ObsBatch
from rogue_net.config import RelposConfig, rotates
from rogue_net.inputs.normalization import RunningNorm
from rogue_net.relative.geometry import (
    Geometry,
    PositionColumns,
    angles_of,
    components_of,
    pick,
    position_columns,
    seen_from,
)

# What lies this close before the start of a bucket, in buckets, is in it: on a grid many things stand exactly on a border,
# and rounding must not decide for each backend anew.
SLACK = 1e-4

# Pairs looked at together by `update_normalization`.
PAIRS_AT_ONCE = 2**18

GATES = {
    "linear": lambda x: x,
    "relu": functional.relu,
    "gelu": functional.gelu,
    "sigmoid": torch.sigmoid,
}


#: (...) int64 rows of the tables and (...) coefficients of pairs, for each of the M terms.
Terms: TypeAlias = "list[tuple[Tensor, Tensor]]"


class Relative(NamedTuple):
    """The relative keys and values of a batch on packed rows, and the gate of a layer."""

    keys: Tensor  # (R, L, L, K) of packed rows, query by key
    values: Tensor  # the same, not gated
    gate: Tensor | None = None  # (E, K), of the layer; None: the values are not gated


class RelativePositions(nn.Module):
    """The tables, projections and gate of relative positions.

    Tables start as N(0, 0.05) for keys and N(0, 0.2) for values; linear layers as those of the transformer around them.

    Args:
        config: not of kind `none`.
        obs_space: with features as the transformer's embedding sees them.
        action_space: says, with `obs_space`, whether there is a `__global__` entity.
        d_model: width of a token, in features.
        n_head: heads of a block.

    Raises:
        ValueError: for features or types that do not exist, and types that lack the position features.
    """

    norm: RunningNorm
    gate_projection: nn.Linear

    def __init__(
        self,
        config: RelposConfig,
        obs_space: ObsSpace,
        action_space: Mapping[str, ActionSpace],
        d_model: int,
        n_head: int,
    ) -> None:
        super().__init__()
        assert config.kind != "none"
        self.config = config
        self.columns = position_columns(config, obs_space, action_space)
        #: Buckets of each axis of the tables, the first of which runs fastest.
        self.sizes = [2 * extent + 1 for extent in config.extent] if config.kind == "grid" else list(config.extent)
        self.num_buckets = math.prod(self.sizes)
        self.num_bucket_terms = 2 ** len(self.sizes) if config.interpolate else 1  # rows of buckets in a relative key
        self.num_components = len(config.position_features) + 1
        self.projects = config.key_projection or config.value_projection
        # added to a position on an axis before it is rounded down: to the nearest of a grid, halves up
        self.rounding = (0.5 if config.kind == "grid" else 0.0) + SLACK

        width = d_model // n_head
        types = len(self.columns)
        self.keys = nn.Parameter(torch.randn(self.num_buckets, width) * 0.05)
        self.values = nn.Parameter(
            torch.randn(self.num_buckets * (types if config.per_entity_values else 1), width) * 0.2
        )

        self.key_projection = nn.Linear(self.num_components, width) if config.key_projection else None
        self.value_projection = nn.Linear(self.num_components, width) if config.value_projection else None
        if self.projects:
            self.norm = RunningNorm(self.num_components)
        if config.value_gate != "none":
            self.gate_projection = nn.Linear(d_model, width)

    def forward(self, batch: ObsBatch, index: Tensor) -> Relative:
        """The relative positions of a batch without the gate, which every layer adds: `relative._replace(gate=self.gate(x))`.

        Args:
            batch: as the transformer's embedding sees it.
            index: (R, L) int64, the token at each place of the packed rows.
        """
        geometry, dtype = self.geometry(batch), self.keys.dtype
        positions = geometry.positions[index].to(dtype)
        facing = None if geometry.facing is None else geometry.facing[index].to(dtype).unsqueeze(2)
        types = geometry.types[index]
        counts = (types >= 0).to(dtype)
        difference = seen_from(positions.unsqueeze(2) - positions.unsqueeze(1), facing)
        terms = self._terms(difference, counts.unsqueeze(2) * counts.unsqueeze(1))
        of_keys = types.clamp(min=0).unsqueeze(1)  # (R, 1, L)
        return Relative(
            self._sum(self.keys, self.key_projection, terms, of_keys),
            self._sum(self.values, self.value_projection, terms, of_keys),
        )

    def gate(self, x: Tensor) -> Tensor | None:
        """(E, K) gate of the relative values of a block's (E, D) normalized tokens; None: they are not gated."""
        if self.config.value_gate == "none":
            return None
        gate: Tensor = GATES[self.config.value_gate](self.gate_projection(x))
        return gate

    def _sum(self, buckets: Tensor, projection: nn.Linear | None, terms: Terms, types: Tensor) -> Tensor:
        """(R, L, L, K) sums of rows of a table, with those of its projection, if there is one.

        A table has a block for each type of entity, or one for all: the buckets, then the projection's weights, then its bias.

        Args:
            buckets: (blocks * P, K).
            projection: of the components.
            terms: rows and coefficients.
            types: (R, 1, L) types of the keys.
        """
        blocks = len(buckets) // self.num_buckets
        parts = [buckets.view(blocks, self.num_buckets, buckets.shape[1])]
        if projection is None:
            terms = terms[: self.num_bucket_terms]
        else:
            parts.append(torch.cat([projection.weight.t(), projection.bias.unsqueeze(0)]).expand(blocks, -1, -1))
        table = torch.cat(parts, dim=1)
        block = table.shape[1] if blocks > 1 else 0
        total = torch.zeros((), dtype=table.dtype, device=table.device)
        for rows, coefficients in terms:
            of_terms = functional.embedding(rows + types * block, table.flatten(0, 1))
            total = total + coefficients.unsqueeze(-1) * of_terms
        return total

    @torch.no_grad()
    def geometry(self, batch: ObsBatch) -> Geometry:
        """Positions, orientations and types of all tokens; the batch is as the transformer's embedding sees it."""
        positions, facing, types = [], [], []
        for name, ragged in batch.features.items():
            features, own = ragged.values, self.columns.get(name)
            number = -1 if own is None else list(self.columns).index(name)
            types.append(torch.full((len(features),), number, device=batch.device))
            if own is None:
                own = PositionColumns([], None, None)
                positions.append(features.new_zeros(len(features), len(self.config.position_features)))
            else:
                positions.append(pick(features, own.position))
            if rotates(self.config):
                facing.append(own.facing(features))
        inverse = batch.frames.inverse
        directions = torch.cat(facing)[inverse] if facing else None
        return Geometry(torch.cat(positions)[inverse], directions, torch.cat(types)[inverse])

    @torch.no_grad()
    def update_normalization(self, batch: ObsBatch) -> None:
        """Take the pairs of `batch` into the running statistics of the projections.

        These are the pairs that add something: both entities are of one frame and not excluded, and the first may attend to
        the second, so that what is hidden from the policy does not reach it this way.
        """
        if not self.projects:
            return
        geometry, frames = self.geometry(batch), batch.frames
        total = int(np.square(np.diff(frames.host_offsets)).sum())  # synchronises, on the side of training
        for start in range(0, total, PAIRS_AT_ONCE):
            i, j = frames.pairs(start, min(start + PAIRS_AT_ONCE, total))
            used = (geometry.types[i] >= 0) & (geometry.types[j] >= 0)
            if frames.visible is not None:
                used &= frames.visible[j] | ~frames.visible[i]
            i, j = i[used], j[used]
            facing = None if geometry.facing is None else geometry.facing[i]
            difference = seen_from(geometry.positions[i] - geometry.positions[j], facing)
            self.norm.update(components_of(difference))

    def _terms(self, difference: Tensor, weight: Tensor) -> Terms:
        """The M terms of the sums of pairs: first the buckets', then the projections'.

        Where NaN is in the difference, the pair counts for nothing: tokens that have such features are NaN anyway, and rows are
        in the table whatever the positions are.

        Args:
            difference: (..., n), turned.
            weight: (...), 1 for pairs that count, 0 for others.
        """
        components = components_of(difference)
        unknown = components[..., -1].isnan()
        components = components.masked_fill(unknown.unsqueeze(-1), 0)
        weight = weight.masked_fill(unknown, 0)
        rows, coefficients, stride = [torch.zeros_like(weight)], [weight], 1
        for axis, position in enumerate(self._positions_on_axes(components)):
            if self.config.interpolate:
                below = position.floor()
                share = position - below
                low, high = (self._within(axis, bucket) * stride for bucket in (below, below + 1))
                rows = [row + low for row in rows] + [row + high for row in rows]
                coefficients = [c * (1 - share) for c in coefficients] + [c * share for c in coefficients]
            else:
                bucket = self._within(axis, (position + self.rounding).floor())
                rows = [row + bucket * stride for row in rows]
            stride *= self.sizes[axis]
        if self.projects:
            numbers = range(self.num_buckets, self.num_buckets + self.num_components + 1)
            rows += [torch.full_like(weight, number) for number in numbers]
            coefficients += [weight * component for component in self.norm(components).unbind(-1)] + [weight]
        return [(row.long(), coefficient) for row, coefficient in zip(rows, coefficients, strict=True)]

    def _within(self, axis: int, bucket: Tensor) -> Tensor:
        """Buckets of an axis: behind the last angle comes the first, and behind all else the last."""
        is_circular = axis == 0 and self.config.kind in ("radial", "polar")
        return bucket % self.sizes[axis] if is_circular else bucket.clamp(max=self.sizes[axis] - 1)

    def _positions_on_axes(self, components: Tensor) -> list[Tensor]:
        """Positions of pairs on each axis, (...), in buckets from the start of the first (of a grid: from its middle)."""
        config = self.config
        distance = components[..., -1]
        if config.kind == "grid":
            return [
                (components[..., d] / config.scale).clamp(-extent, extent) + extent
                for d, extent in enumerate(config.extent)
            ]
        positions = []
        if config.kind in ("radial", "polar"):
            positions.append(angles_of(components).masked_fill(distance == 0, 0) * config.extent[0])
        if config.kind in ("distance", "polar"):
            positions.append((distance / config.scale).clamp(max=config.extent[-1] - 1))
        return positions
