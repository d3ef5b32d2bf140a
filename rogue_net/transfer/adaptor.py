"""A network in an environment that shows more than the one it was trained in."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import torch

from entity_gym.actions import ActionSpace
from entity_gym.actions.kind import has_global_entity
from entity_gym.errors import nearest
from entity_gym.spaces import GLOBAL_ENTITY, FeatureKind, ObsSpace
from rogue_net.batch.obs_batch import ObsBatch
from rogue_net.batch.ragged import RaggedTensor

NO_ACTIONS: Mapping[str, ActionSpace] = MappingProxyType({})


class ObsAdaptor:
    """Shows a network what it was trained to see, picked by entity type and feature name out of what an environment offers.

    Features may stand in another order, and there may be more of them, which are ignored. An entity keeps its index inside
    the frame, so that actors, actees and actions mean the same to the network and to the environment. Types that the
    environment does not have are there without entities.

    Args:
        trained: what the network sees.
        offered: what the environment shows.
        action_space: the actions of both. Needed where one of them is global: the network then knows the `__global__` entity
            without having been trained with global features.
        untrained: entity types that are among what the network sees and that it never learned about. They are hidden from
            the others (see `RogueNet`), so that these act as if they were not there.

    Raises:
        ValueError: the environment lacks a feature, has it as another kind, or has entity types that the network never saw.
    """

    def __init__(
        self,
        trained: ObsSpace,
        offered: ObsSpace,
        action_space: Mapping[str, ActionSpace] = NO_ACTIONS,
        untrained: Collection[str] = (),
    ) -> None:
        for name in offered.entities:
            if name not in trained.entities:
                raise ValueError(
                    f"the environment has entities of type {name!r}, which the network never saw; "
                    f"{nearest(name, trained.entities)}"
                )
        self.columns: dict[str, list[int]] = {}  # of the network's features, where the environment has them
        self.ignored: dict[str, list[str]] = {}  # what it has besides
        for name, entity in offered.entities.items():
            known = trained.entities[name]
            self._match(name, known.features, known.kinds, entity.features, entity.kinds)
        self._match(
            GLOBAL_ENTITY, trained.global_features, trained.global_kinds, offered.global_features, offered.global_kinds
        )
        if offered.global_features and not has_global_entity(trained, action_space):
            del self.columns[GLOBAL_ENTITY]  # which stands last in every frame, and means nothing to the network
        self.absent = {
            name: len(entity.features) for name, entity in trained.entities.items() if name not in offered.entities
        }
        self.hidden = [name for name in self.columns if name in untrained]
        self.changes_nothing = (
            not self.ignored
            and not self.hidden
            and not self.absent
            and all(columns == sorted(columns) for columns in self.columns.values())
        )

    def __call__(self, batch: ObsBatch) -> ObsBatch:
        """The batch as the network knows it; `batch` itself stays as it is."""
        if self.changes_nothing:
            return batch
        features = {
            name: _select(ragged, self.columns[name]) for name, ragged in batch.features.items() if name in self.columns
        }
        nowhere = torch.zeros(len(batch) + 1, dtype=torch.int64, device=batch.device)
        for name, width in self.absent.items():
            features[name] = RaggedTensor(torch.zeros(0, width, device=batch.device), nowhere)
        visible = dict(batch.visible)
        for name in self.hidden:
            values, offsets = batch.features[name]
            visible[name] = RaggedTensor(torch.zeros(len(values), 1, dtype=torch.bool, device=batch.device), offsets)
        return replace(batch, features=features, visible=visible)

    def describe(self) -> str:
        """A line on what is ignored, hidden and missing; empty if nothing is."""
        ignored = [_title(name, *features) for name, features in self.ignored.items()]
        parts = [f"ignored: {', '.join(ignored)}"] if ignored else []
        if self.hidden:
            parts.append(f"hidden from all that the policy knows: {', '.join(map(repr, self.hidden))}")
        if self.absent:
            parts.append(f"never there: {', '.join(map(repr, self.absent))}")
        return "; ".join(parts)

    def _match(
        self,
        name: str,
        known: Sequence[str],
        known_kinds: Mapping[str, FeatureKind],
        given: Sequence[str],
        given_kinds: Mapping[str, FeatureKind],
    ) -> None:
        for feature in known:
            if feature not in given:
                raise ValueError(
                    f"the network needs the {_title(name, feature)}, which the environment does not have; "
                    f"{nearest(feature, given)}"
                )
            before, now = known_kinds.get(feature), given_kinds.get(feature)
            if before != now:
                raise ValueError(
                    f"the network knows the {_title(name, feature)} as {before or 'a plain number'}, "
                    f"and in the environment it is {now or 'a plain number'}"
                )
        self.columns[name] = [given.index(feature) for feature in known]
        if others := [feature for feature in given if feature not in known]:
            self.ignored[name] = others


def _select(ragged: RaggedTensor, columns: Sequence[int]) -> RaggedTensor:
    """The columns of a ragged tensor that are listed, in that order."""
    values, offsets = ragged
    picked = [values[:, column] for column in columns]
    return RaggedTensor(torch.stack(picked, dim=1) if picked else values[:, :0], offsets)


def _title(name: str, *features: str) -> str:
    """Such as "features 'hp', 'shield' of 'Ship'"."""
    what = "feature" if len(features) == 1 else "features"
    listing = f"{what} {', '.join(map(repr, features))}"
    return f"global {listing}" if name == GLOBAL_ENTITY else f"{listing} of {name!r}"
