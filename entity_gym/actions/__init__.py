"""Kinds of actions; `entity_gym.actions.kind` says what a kind is made of."""

from entity_gym.actions.categorical import (
    CategoricalAction,
    CategoricalActionMask,
    CategoricalActionSpace,
    GlobalCategoricalAction,
    GlobalCategoricalActionMask,
    GlobalCategoricalActionSpace,
)
from entity_gym.actions.continuous import ContinuousAction, ContinuousActionMask, ContinuousActionSpace
from entity_gym.actions.kind import ACTORS as ACTORS
from entity_gym.actions.kind import ActionSpace
from entity_gym.actions.select_entities import SelectEntitiesAction, SelectEntitiesActionMask, SelectEntitiesActionSpace
from entity_gym.actions.select_entity import SelectEntityAction, SelectEntityActionMask, SelectEntityActionSpace

#: These are names of `entity_gym`, too.
__all__ = [
    "Action",
    "ActionMask",
    "ActionSpace",
    "CategoricalAction",
    "CategoricalActionMask",
    "CategoricalActionSpace",
    "ContinuousAction",
    "ContinuousActionMask",
    "ContinuousActionSpace",
    "GlobalCategoricalAction",
    "GlobalCategoricalActionMask",
    "GlobalCategoricalActionSpace",
    "SelectEntitiesAction",
    "SelectEntitiesActionMask",
    "SelectEntitiesActionSpace",
    "SelectEntityAction",
    "SelectEntityActionMask",
    "SelectEntityActionSpace",
]

#: Name of the space's class -> the class, for every kind. A new kind is one more line here.
KINDS: dict[str, type[ActionSpace]] = {
    kind.__name__: kind
    for kind in (
        CategoricalActionSpace,
        GlobalCategoricalActionSpace,
        SelectEntityActionSpace,
        SelectEntitiesActionSpace,
        ContinuousActionSpace,
    )
}

Action = CategoricalAction | SelectEntityAction | SelectEntitiesAction | GlobalCategoricalAction | ContinuousAction
#: The masks of sets are select-entity ones.
ActionMask = CategoricalActionMask | GlobalCategoricalActionMask | SelectEntityActionMask | ContinuousActionMask
