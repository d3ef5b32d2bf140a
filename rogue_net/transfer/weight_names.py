"""Purposes of the weights of a network, by the names of its spaces: the same names in two networks mean the same.

In a state dict types and actions are numbered, and features and choices are rows and columns.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Literal, NamedTuple

from entity_gym.actions.kind import has_global_entity
from entity_gym.spaces import GLOBAL_ENTITY, Feature, with_kinds
from rogue_net.inputs.features import FeatureColumns
from rogue_net.rogue_net import RogueNet

#: What stands at each place along an axis; numbers where places have no names.
Axis = tuple[Hashable, ...]
#: What is new within a tensor of something known starts as: what a new network has (`fresh`), zeros, or the mean of the rows
#: that are known.
NewPlaces = Literal["fresh", "zero", "mean"]
Owner = Literal["entity type", "action", "network"]


class Weight(NamedTuple):
    """A tensor of a state dict. The first three fields say what it is for."""

    owner: Owner
    name: str  # of the entity type or action
    part: str  # of its weights
    axes: tuple[Axis, ...]
    new: NewPlaces = "fresh"

    @property
    def key(self) -> tuple[str, str, str]:
        """A key that is equal for tensors of the same purpose in different networks."""
        return self.owner, self.name, self.part


def weight_names(net: RogueNet) -> dict[str, Weight]:
    """Tensor name in the state dict -> its purpose."""
    inputs, actions = _inputs_of_types(net), list(net.action_space)
    weights = {}
    for name, tensor in net.state_dict().items():
        unnamed: tuple[Axis, ...] = tuple(tuple(range(size)) for size in tensor.shape)
        match name.split("."):
            case ["embedding", "entities", number, *rest]:
                entity = net.embedding.types[int(number)]
                weights[name] = _of_entity(entity, ".".join(rest), inputs[entity], unnamed)
            case ["heads", number, *rest]:
                weights[name] = _of_action(net, actions[int(number)], ".".join(rest), unnamed)
            case ["transformer", "relative_positions", *rest]:
                weights[name] = _of_relative_positions(net, name, rest, unnamed)
            case _:
                weights[name] = Weight("network", "", name, unnamed)
    return weights


class _Inputs(NamedTuple):
    """Inputs of the embedding of a type."""

    columns: FeatureColumns
    labels: Sequence[Hashable]  # of the columns: the names of features, apart from each other where one is global


def _inputs_of_types(net: RogueNet) -> Mapping[str, _Inputs]:
    space = net.translation.obs_space
    everywhere = with_kinds(space.global_features, space.global_kinds)
    own: dict[str, tuple[Feature, ...]] = {
        name: with_kinds(entity.features, entity.kinds) for name, entity in space.entities.items()
    }
    if has_global_entity(space, net.action_space):
        own[GLOBAL_ENTITY] = ()
    labels = [("global", name) for name in space.global_features]
    return {
        name: _Inputs(FeatureColumns.of((*features, *everywhere)), [*map(_name_of, features), *labels])
        for name, features in own.items()
    }


def _of_entity(entity: str, part: str, inputs: _Inputs, unnamed: tuple[Axis, ...]) -> Weight:
    columns, labels = inputs
    if part in ("norm.mean", "norm.squares"):
        return Weight("entity type", entity, part, (tuple(labels[column] for column in columns.plain),), "zero")
    if part == "project.0.weight":
        plain, angles, flags = (
            [labels[column] for column in kind] for kind in (columns.plain, columns.angles, columns.flags)
        )
        cosines, sines = [(angle, "cosine") for angle in angles], [(angle, "sine") for angle in angles]
        return Weight("entity type", entity, part, (unnamed[0], (*plain, *cosines, *sines, *flags)), "zero")
    if part == "project.0.bias":
        return Weight("entity type", entity, part, unnamed, "zero")
    if part.startswith("tables."):
        column = columns.categories[int(part.removeprefix("tables."))].column
        return Weight("entity type", entity, f"table of {labels[column]}", unnamed, "mean")
    return Weight("entity type", entity, part, unnamed)


def _of_action(net: RogueNet, action: str, part: str, unnamed: tuple[Axis, ...]) -> Weight:
    space = net.action_space[action]
    if space.selects:
        return Weight("action", action, part, unnamed, "zero")  # nobody is new: nobody's key
    labels = (space.labels, *unnamed[1:])
    if space.num_choices is None:
        return Weight("action", action, part, labels)
    return Weight("action", action, part, labels, "mean")


def _of_relative_positions(net: RogueNet, name: str, rest: Sequence[str], unnamed: tuple[Axis, ...]) -> Weight:
    """Types may have tables and projections of their own."""
    positions = net.transformer.relative_positions
    assert positions is not None
    types = list(positions.columns)
    match rest:
        case ["values"] if positions.config.per_entity_values:
            rows = tuple((entity, bucket) for entity in types for bucket in range(positions.num_buckets))
            return Weight("network", "", name, (rows, unnamed[1]))
        case ["key_projections" | "value_projections" as kind, number, part] if positions.config.per_entity_projections:
            return Weight("entity type", types[int(number)], f"{kind}.{part}", unnamed)
        case _:
            return Weight("network", "", name, unnamed)


def _name_of(feature: Feature) -> str:
    return feature if isinstance(feature, str) else feature.name
