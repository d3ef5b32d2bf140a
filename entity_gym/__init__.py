"""Worlds with a variable number of things: spaces, observations, actions, ragged batches and environments."""

from entity_gym.actions import (
    Action,
    ActionMask,
    ActionSpace,
    CategoricalAction,
    CategoricalActionMask,
    CategoricalActionSpace,
    ContinuousAction,
    ContinuousActionMask,
    ContinuousActionSpace,
    GlobalCategoricalAction,
    GlobalCategoricalActionMask,
    GlobalCategoricalActionSpace,
    SelectEntityAction,
    SelectEntityActionMask,
    SelectEntityActionSpace,
)
from entity_gym.actions.reading import EntityID
from entity_gym.environment import Environment, Observation
from entity_gym.spaces import GLOBAL_ENTITY, Angle, Category, Entity, Flag, ObsSpace

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
