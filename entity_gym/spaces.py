"""What an environment declares once: its entity types and its actions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

#: The pseudo-entity that carries global features and takes global actions. It stands last in every frame.
GLOBAL_ENTITY = "__global__"


@dataclass(frozen=True)
class Entity:
    """A type of entity.

    Attributes:
        features: names of its features, in the order of the columns. May be empty: such an entity says only that it is there.
    """

    features: Sequence[str] = ()

    def __post_init__(self) -> None:
        _check_names(self.features, "Entity.features")
        object.__setattr__(self, "features", tuple(self.features))


@dataclass(frozen=True)
class ObsSpace:
    """What an environment may show.

    Attributes:
        entities: entity type -> `Entity`. **The order defines the entity index inside a frame**: all entities of the first
            type, then all of the second, and so on; types without ids advance the index too.
        global_features: names of the features that belong to the whole frame.
    """

    entities: Mapping[str, Entity] = field(default_factory=dict)
    global_features: Sequence[str] = ()

    def __post_init__(self) -> None:
        for name, entity in self.entities.items():
            if name == GLOBAL_ENTITY:
                raise ValueError(
                    f"ObsSpace.entities: the name {GLOBAL_ENTITY!r} is reserved for global features and actions"
                )
            if not isinstance(entity, Entity):
                raise ValueError(f"ObsSpace.entities[{name!r}] is {entity!r}; it must be an Entity([...feature names])")
        _check_names(self.global_features, "ObsSpace.global_features")
        object.__setattr__(self, "entities", dict(self.entities))
        object.__setattr__(self, "global_features", tuple(self.global_features))


@dataclass(frozen=True)
class CategoricalActionSpace:
    """Every actor picks one of `choices`."""

    choices: Sequence[str]

    def __post_init__(self) -> None:
        _check_choices(self.choices, type(self).__name__)
        object.__setattr__(self, "choices", tuple(self.choices))


@dataclass(frozen=True)
class GlobalCategoricalActionSpace:
    """The environment as a whole picks one of `choices`: one decision per frame."""

    choices: Sequence[str]

    def __post_init__(self) -> None:
        _check_choices(self.choices, type(self).__name__)
        object.__setattr__(self, "choices", tuple(self.choices))


@dataclass(frozen=True)
class SelectEntityActionSpace:
    """Every actor picks one of the entities that its observation offers."""


ActionSpace = CategoricalActionSpace | GlobalCategoricalActionSpace | SelectEntityActionSpace


def has_global_entity(obs_space: ObsSpace, action_space: Mapping[str, ActionSpace]) -> bool:
    """Whether every frame ends with the `__global__` entity: there are global features or a global action."""
    return bool(obs_space.global_features) or any(
        isinstance(space, GlobalCategoricalActionSpace) for space in action_space.values()
    )


def _check_names(names: Sequence[str], where: str) -> None:
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{where} is {names!r}; it must be a list of feature names")
    repeated = {name for name in names if list(names).count(name) > 1}
    if repeated:
        raise ValueError(f"{where} names {sorted(repeated)} more than once")


def _check_choices(choices: Sequence[str], where: str) -> None:
    _check_names(choices, f"{where}.choices")
    if len(choices) == 0:
        raise ValueError(f"{where}.choices is empty; an action needs at least one choice")
