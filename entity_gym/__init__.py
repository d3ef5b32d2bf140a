"""Worlds with a variable number of things: spaces, observations, actions, ragged batches and environments."""

from entity_gym.action import (
    Action,
    CategoricalAction,
    ContinuousAction,
    GlobalCategoricalAction,
    SelectEntityAction,
)
from entity_gym.environment import Environment
from entity_gym.observation import (
    ActionMask,
    CategoricalActionMask,
    ContinuousActionMask,
    EntityID,
    GlobalCategoricalActionMask,
    Observation,
    SelectEntityActionMask,
)
from entity_gym.spaces import (
    GLOBAL_ENTITY,
    ActionSpace,
    Angle,
    CategoricalActionSpace,
    Category,
    ContinuousActionSpace,
    Entity,
    Flag,
    GlobalCategoricalActionSpace,
    ObsSpace,
    SelectEntityActionSpace,
)

__all__ = [
    "GLOBAL_ENTITY",
    "Action",
    "ActionMask",
    "ActionSpace",
    "Angle",
    "CategoricalAction",
    "CategoricalActionMask",
    "CategoricalActionSpace",
    "Category",
    "ContinuousAction",
    "ContinuousActionMask",
    "ContinuousActionSpace",
    "Entity",
    "EntityID",
    "Environment",
    "Flag",
    "GlobalCategoricalAction",
    "GlobalCategoricalActionMask",
    "GlobalCategoricalActionSpace",
    "ObsSpace",
    "Observation",
    "SelectEntityAction",
    "SelectEntityActionMask",
    "SelectEntityActionSpace",
]
