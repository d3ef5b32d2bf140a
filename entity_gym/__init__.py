"""Worlds with a variable number of things: spaces, observations, actions, ragged batches and environments."""

from entity_gym.action import Action, CategoricalAction, GlobalCategoricalAction, SelectEntityAction
from entity_gym.environment import Environment
from entity_gym.observation import (
    ActionMask,
    CategoricalActionMask,
    EntityID,
    GlobalCategoricalActionMask,
    Observation,
    SelectEntityActionMask,
)
from entity_gym.spaces import (
    GLOBAL_ENTITY,
    ActionSpace,
    CategoricalActionSpace,
    Entity,
    GlobalCategoricalActionSpace,
    ObsSpace,
    SelectEntityActionSpace,
)

__all__ = [
    "GLOBAL_ENTITY",
    "Action",
    "ActionMask",
    "ActionSpace",
    "CategoricalAction",
    "CategoricalActionMask",
    "CategoricalActionSpace",
    "Entity",
    "EntityID",
    "Environment",
    "GlobalCategoricalAction",
    "GlobalCategoricalActionMask",
    "GlobalCategoricalActionSpace",
    "ObsSpace",
    "Observation",
    "SelectEntityAction",
    "SelectEntityActionMask",
    "SelectEntityActionSpace",
]
