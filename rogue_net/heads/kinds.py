"""The head of each kind of action. A new kind is one more line here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from entity_gym.actions import (
    ActionSpace,
    CategoricalActionSpace,
    ContinuousActionSpace,
    GlobalCategoricalActionSpace,
    SelectEntitiesActionSpace,
    SelectEntityActionSpace,
)
from rogue_net.config import RogueNetConfig
from rogue_net.heads.heads import ActionHead, CategoricalHead, ContinuousHead, SelectEntityHead
from rogue_net.heads.sets import IndependentSetHead, OrderedSetHead

HEADS: dict[type[ActionSpace], Callable[[Any, RogueNetConfig], ActionHead]] = {
    CategoricalActionSpace: lambda space, config: CategoricalHead(config.d_model, len(space.choices)),
    GlobalCategoricalActionSpace: lambda space, config: CategoricalHead(config.d_model, len(space.choices)),
    SelectEntityActionSpace: lambda space, config: SelectEntityHead(config.d_model, config.d_qk, space.nobody),
    SelectEntitiesActionSpace: lambda space, config: (OrderedSetHead if space.ordered else IndependentSetHead)(
        config.d_model, config.d_qk, space
    ),
    ContinuousActionSpace: lambda space, config: ContinuousHead(config.d_model, space),
}
