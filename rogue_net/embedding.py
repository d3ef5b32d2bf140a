"""Entities become tokens.

Shapes: B frames, E tokens, D width, n entities of a type, F features of the type, G global features, I inputs of its layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from entity_gym.spaces import GLOBAL_ENTITY, ActionSpace, Feature, ObsSpace, has_global_entity, with_kinds
from rogue_net.backend import fuses_embedding
from rogue_net.config import Backend
from rogue_net.features import CategoryColumn, FeatureColumns
from rogue_net.normalization import RunningNorm
from rogue_net.obs_batch import ObsBatch


class Hidden(NamedTuple):
    """Entities halfway: what the ReLU gets, and the LayerNorm that follows it."""

    z: Tensor  # (n, D)
    norm: nn.LayerNorm


class EntityEmbedding(nn.Module):
    """One type of entity.

        token = LayerNorm(ReLU(W x + b + Σ_c table_c[id_c]))

    x holds every feature as its kind wants it: a plain number normalized by running statistics, an angle as its cosine and
    sine, a flag as 0 or 1: normalized, the 1 of a flag that is rarely set would be an outlier, and clipped like one.

    The category c has a learned table of (num, D), N(0, 1) at first. The sum is what a linear layer would make of x and the
    categories' one-hot codes, whose columns of weights are the tables' rows; but looking up takes as long for thousands of
    ids as for two. A type of categories alone has no W and b. A type without features is one learned vector, N(0, 1) at first.

    Args:
        name: of the type, for messages.
        features: F + G features as they are declared, the global ones last.
        d_model: D.
    """

    selected: Tensor

    def __init__(self, name: str, features: Sequence[Feature], d_model: int) -> None:
        super().__init__()
        self.name = name
        self.num_features = len(features)
        self.columns = columns = FeatureColumns.of(features)
        if not features:
            self.vector = nn.Parameter(torch.randn(1, d_model))
            return
        if columns.plain:
            self.norm = RunningNorm(len(columns.plain))
        first = nn.Linear(columns.num_inputs, d_model) if columns.num_inputs else nn.Identity()
        self.project = nn.Sequential(first, nn.ReLU(), nn.LayerNorm(d_model))
        self.tables = nn.ParameterList(torch.randn(category.kind.num, d_model) for category in columns.categories)
        selected = torch.tensor(columns.plain + columns.angles + columns.flags, dtype=torch.int64)
        self.register_buffer("selected", selected, persistent=False)

    def forward(self, features: Tensor) -> Tensor:
        """(n, F + G) features to (n, D); for errors see `hidden`."""
        if self.num_features == 0:
            return self.vector.expand(len(features), -1)
        z, norm = self.hidden(features)
        return functional.layer_norm(z.relu_(), norm.normalized_shape, norm.weight, norm.bias)

    def hidden(self, features: Tensor) -> Hidden:
        """The first half of `forward` for (n, F + G) features, of which there are some.

        Raises:
            ValueError: an id is not in its table. It is not looked for on CUDA, as that would wait for the device.
        """
        linear, _, norm = self.project
        assert isinstance(norm, nn.LayerNorm)
        terms = []
        if isinstance(linear, nn.Linear):
            # With weights copied to rows, torch computes their gradient several times as fast as with a transposed view.
            terms.append(torch.addmm(linear.bias, self._inputs(features), linear.weight.t().contiguous()))
        for category, table in zip(self.columns.categories, self.tables, strict=True):
            terms.append(functional.embedding(self._ids(features, category), table))
        total = terms[0]
        for term in terms[1:]:
            total = total + term
        return Hidden(total, norm)

    def update_normalization(self, features: Tensor) -> None:
        """Take (n, F + G) features into the running statistics; they are of plain numbers alone."""
        if self.columns.plain:
            self.norm.update(features[:, list(self.columns.plain)])

    def _inputs(self, features: Tensor) -> Tensor:
        """(n, I): plain numbers, cosines, sines, flags."""
        columns = self.columns
        if len(columns.plain) == columns.num:
            normalized: Tensor = self.norm(features)
            return normalized
        sizes = [len(columns.plain), len(columns.angles), len(columns.flags)]
        plain, angles, flags = torch.split(features.index_select(1, self.selected), sizes, dim=1)
        inputs = [self.norm(plain)] if columns.plain else []
        if columns.angles:
            inputs += [angles.cos(), angles.sin()]
        return torch.cat([*inputs, flags], dim=1)

    def _ids(self, features: Tensor, category: CategoryColumn) -> Tensor:
        """(n,) int64 ids of the entities."""
        ids, num = features[:, category.column], category.kind.num
        if len(ids) and ids.device.type != "cuda":
            low, high = ids.aminmax()
            if not (low >= 0 and high < num):  # NaN is neither
                wrong = float(ids[~((ids >= 0) & (ids < num))][0])
                raise ValueError(
                    f"{self.name!r}: category {category.kind.name!r} is {wrong:g}; ids are whole numbers from 0 to {num - 1}"
                )
        return ids.long()


class Embedding(nn.Module):
    """All entities of a batch as tokens, ordered by frame and then by entity index. Global features join every entity."""

    def __init__(
        self,
        obs_space: ObsSpace,
        action_space: Mapping[str, ActionSpace],
        d_model: int,
        backend: Backend = "auto",
    ) -> None:
        super().__init__()
        global_features = with_kinds(obs_space.global_features, obs_space.global_kinds)
        self.num_globals = len(global_features)
        features = {
            name: (*with_kinds(entity.features, entity.kinds), *global_features)
            for name, entity in obs_space.entities.items()
        }
        if has_global_entity(obs_space, action_space):
            features[GLOBAL_ENTITY] = global_features
        # keyed by position: a type's name may hold what a module's name may not, such as a dot
        self.types = list(features)
        self.entities = nn.ModuleList(EntityEmbedding(name, given, d_model) for name, given in features.items())
        self.d_model = d_model
        self.backend = backend

    def forward(self, batch: ObsBatch) -> Tensor:
        """(E, D) tokens.

        Raises:
            ValueError: the batch has other types or features than the network, or see `EntityEmbedding.hidden`.
        """
        # Types without entities take part only where there are gradients: every parameter is to get one, if zero.
        parts = [part for part in self._parts(batch) if len(part.features) or torch.is_grad_enabled()]
        if not parts:
            return torch.zeros(0, self.d_model, device=batch.device)
        any_features = any(part.entity.num_features for part in parts)
        if any_features and fuses_embedding(self.backend, self.d_model, next(self.parameters())):
            return _fused(parts, batch.num_tokens)
        rows = torch.cat([part.entity(part.features) for part in parts])
        tokens: Tensor = _Permute.apply(  # type: ignore[no-untyped-call]
            rows, batch.layout.inverse, batch.layout.order
        )
        return tokens

    def update_normalization(self, batch: ObsBatch) -> None:
        """Take the features of `batch` into the running statistics."""
        for part in self._parts(batch):
            part.entity.update_normalization(part.features)

    def _parts(self, batch: ObsBatch) -> list[_Part]:
        """The entities of each type, in the batch's order of types."""
        if batch.features.keys() != set(self.types):
            raise ValueError(f"the batch has entities of {list(batch.features)}, the network knows {self.types}")
        layout = batch.layout
        entities = dict(zip(self.types, self.entities, strict=True))
        values = {name: ragged.values for name, ragged in batch.features.items()}
        joining: Sequence[Tensor] = ()
        if self.num_globals:
            # every frame has exactly one `__global__` row, so frame b's is row b
            everywhere = values[GLOBAL_ENTITY].index_select(0, layout.frames.index_select(0, layout.order))
            joining = torch.split(everywhere, [len(each) for each in values.values()])
        parts = []
        for position, (name, features) in enumerate(values.items()):
            entity = entities[name]
            assert isinstance(entity, EntityEmbedding)
            joins = self.num_globals > 0 and name != GLOBAL_ENTITY
            expected = entity.num_features - joins * self.num_globals
            if features.shape[1] != expected:
                raise ValueError(
                    f"{name!r} has {features.shape[1]} features in this batch; the network knows {expected}"
                )
            if joins:
                features = torch.cat([features, joining[position]], dim=1)
            parts.append(_Part(entity, features, layout.positions[name]))
        return parts


class _Part(NamedTuple):
    """The entities of one type."""

    entity: EntityEmbedding
    features: Tensor  # (n, F + G)
    places: Tensor  # (n,) int64, their tokens


def _fused(parts: Sequence[_Part], num_tokens: int) -> Tensor:
    """What `Embedding.forward` computes, by kernels."""
    from rogue_net.fused.embedding import finish  # the compiler is needed by those who use it

    with_features = [part for part in parts if part.entity.num_features]
    hidden = [part.entity.hidden(part.features) for part in with_features]
    tokens = finish(
        [each.z for each in hidden],
        [each.norm for each in hidden],
        [part.places for part in with_features],
        num_tokens,
    )
    for entity, features, places in parts:
        if entity.num_features == 0:
            tokens.index_copy_(0, places, entity(features))
    return tokens


class _Permute(torch.autograd.Function):
    """`rows[index]`, where `index` has every row once. The gradient needs no sums, as that of `rows[index]` would."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, index: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(inverse)
        return rows.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (inverse,) = ctx.saved_tensors
        return gradient.index_select(0, inverse), None, None
