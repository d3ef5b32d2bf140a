"""Entities become tokens.

Shapes: B frames, E tokens, D width, n entities of a type, F features of the type, G global features, I inputs of its layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from entity_gym.actions import ActionSpace
from entity_gym.actions.kind import has_global_entity
from entity_gym.spaces import GLOBAL_ENTITY, Angle, Category, Feature, Flag, ObsSpace, with_kinds
from rogue_net.batch.obs_batch import ObsBatch
from rogue_net.inputs.normalization import RunningNorm


@dataclass(frozen=True)
class FeatureColumns:
    """The columns of a type's features by their kind, each list in the order of the columns."""

    num: int  # of all of them
    plain: tuple[int, ...]
    angles: tuple[int, ...]
    flags: tuple[int, ...]
    categories: dict[int, Category]  # column -> the category whose ids it holds

    @staticmethod
    def of(features: Sequence[Feature]) -> FeatureColumns:
        """The columns of `features`, as they are declared."""
        columns = list(enumerate(features))
        return FeatureColumns(
            num=len(columns),
            plain=tuple(column for column, kind in columns if isinstance(kind, str)),
            angles=tuple(column for column, kind in columns if isinstance(kind, Angle)),
            flags=tuple(column for column, kind in columns if isinstance(kind, Flag)),
            categories={column: kind for column, kind in columns if isinstance(kind, Category)},
        )

    @property
    def num_inputs(self) -> int:
        """Number of inputs of an embedding's linear layer: an angle counts twice, for its cosine and its sine."""
        return len(self.plain) + 2 * len(self.angles) + len(self.flags)


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
        self.tables = nn.ParameterList(torch.randn(each.num, d_model) for each in columns.categories.values())
        selected = torch.tensor(columns.plain + columns.angles + columns.flags, dtype=torch.int64)
        self.register_buffer("selected", selected, persistent=False)

    def forward(self, features: Tensor) -> Tensor:
        """Embed (n, F + G) features as (n, D) tokens; for errors see `looked_up`."""
        if self.num_features == 0:
            return self.vector.expand(len(features), -1)
        linear, finish = self.layers
        hidden = self.looked_up(features)
        if linear is not None:
            # With weights copied to rows, torch computes their gradient several times as fast as with a transposed view.
            projected = torch.addmm(linear.bias, self._normalized(features), linear.weight.t().contiguous())
            hidden = projected if hidden is None else projected + hidden
        assert hidden is not None
        return functional.layer_norm(hidden.relu_(), finish.normalized_shape, finish.weight, finish.bias)

    @property
    def layers(self) -> tuple[nn.Linear | None, nn.LayerNorm]:
        """The linear layer, if there are inputs, and what ends the embedding."""
        linear, _, finish = self.project
        assert isinstance(finish, nn.LayerNorm)
        return linear if isinstance(linear, nn.Linear) else None, finish

    def inputs(self, features: Tensor) -> Tensor:
        """(n, I) inputs of (n, F + G) features: plain numbers, which are yet to be normalized, cosines, sines, flags."""
        columns = self.columns
        if len(columns.plain) == columns.num:
            return features
        sizes = [len(columns.plain), len(columns.angles), len(columns.flags)]
        plain, angles, flags = torch.split(features.index_select(1, self.selected), sizes, dim=1)
        return torch.cat([plain, angles.cos(), angles.sin(), flags], dim=1)

    def looked_up(self, features: Tensor) -> Tensor | None:
        """(n, D) sum of the categories' rows; None if there are no categories.

        Raises:
            ValueError: an id is not in its table. It is not looked for on CUDA, as that would wait for the device.
        """
        total = None
        for (column, category), table in zip(self.columns.categories.items(), self.tables, strict=True):
            ids, num = features[:, column], category.num
            if len(ids) and ids.device.type == "cpu":
                low, high = ids.aminmax()
                if not (low >= 0 and high < num):  # NaN is neither
                    wrong = float(ids[~((ids >= 0) & (ids < num))][0])
                    raise ValueError(
                        f"{self.name!r}: category {category.name!r} is {wrong:g}; "
                        f"ids are whole numbers from 0 to {num - 1}"
                    )
            rows = functional.embedding(ids.long(), table)
            total = rows if total is None else total + rows
        return total

    def update_normalization(self, features: Tensor) -> None:
        """Take (n, F + G) features into the running statistics; they are of plain numbers alone."""
        if self.columns.plain:
            plain = self.inputs(features)[:, : len(self.columns.plain)]
            self.norm.update(plain)

    def _normalized(self, features: Tensor) -> Tensor:
        """(n, I) inputs, in which plain numbers are normalized."""
        inputs, num_plain = self.inputs(features), len(self.columns.plain)
        if num_plain == 0:
            return inputs
        plain: Tensor = self.norm(inputs[:, :num_plain])
        return plain if num_plain == inputs.shape[1] else torch.cat([plain, inputs[:, num_plain:]], dim=1)


def entity_types(obs_space: ObsSpace, action_space: Mapping[str, ActionSpace]) -> list[str]:
    """All entity types in order; `__global__` last, if every frame has it."""
    return [*obs_space.entities, *[GLOBAL_ENTITY] * has_global_entity(obs_space, action_space)]


class Embedding(nn.Module):
    """All entities of a batch as tokens, ordered by frame and then by entity index. Global features join every entity."""

    def __init__(
        self,
        obs_space: ObsSpace,
        action_space: Mapping[str, ActionSpace],
        d_model: int,
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
        self.types = entity_types(obs_space, action_space)
        self.entities = nn.ModuleList(EntityEmbedding(name, given, d_model) for name, given in features.items())
        #: Features of each type in a batch, without the global ones that join them.
        self.num_features = {
            name: len(given) - (name != GLOBAL_ENTITY) * self.num_globals for name, given in features.items()
        }
        self.d_model = d_model

    def forward(self, batch: ObsBatch) -> Tensor:
        """(E, D) tokens.

        Raises:
            ValueError: the batch has other types or features than the network, or see `EntityEmbedding.looked_up`.
        """
        parts = self._parts(batch)
        if not parts:
            return torch.zeros(0, self.d_model, device=batch.device)
        return torch.cat([entity(features) for entity, features in parts]).index_select(0, batch.frames.inverse)

    def update_normalization(self, batch: ObsBatch) -> None:
        """Take the features of `batch` into the running statistics."""
        for entity, features in self._parts(batch):
            entity.update_normalization(features)

    def check(self, batch: ObsBatch) -> None:
        """Check that the batch has the network's types and features.

        Raises:
            ValueError: it has others.
        """
        if batch.features.keys() != self.num_features.keys():
            raise ValueError(f"the batch has entities of {list(batch.features)}, the network knows {self.types}")
        for name, expected in self.num_features.items():
            found = batch.features[name].values.shape[1]
            if found != expected:
                raise ValueError(f"{name!r} has {found} features in this batch; the network knows {expected}")

    def _parts(self, batch: ObsBatch) -> list[tuple[EntityEmbedding, Tensor]]:
        """The embedding and the (n, F + G) features of each type, in the batch's order of types."""
        self.check(batch)
        entities = dict(zip(self.types, self.entities, strict=True))
        values = {name: ragged.values for name, ragged in batch.features.items()}
        joining: Sequence[Tensor] = ()
        if self.num_globals:
            # every frame has exactly one `__global__` row, so frame b's is row b
            everywhere = values[GLOBAL_ENTITY].index_select(
                0, batch.frames.of_token.index_select(0, batch.frames.order)
            )
            joining = torch.split(everywhere, [len(each) for each in values.values()])
        parts = []
        for position, (name, features) in enumerate(values.items()):
            entity = entities[name]
            assert isinstance(entity, EntityEmbedding)
            if self.num_globals > 0 and name != GLOBAL_ENTITY:
                features = torch.cat([features, joining[position]], dim=1)
            parts.append((entity, features))
        return parts
