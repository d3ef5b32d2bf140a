"""What an environment shows at one step, and who may act how."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: The environment's own name for one of its entities; unique in an observation, across all types.
EntityID = Hashable

Rows = Sequence[Sequence[float]] | NDArray[Any]
Flags = Sequence[Any] | NDArray[np.bool_]


@dataclass(kw_only=True)
class CategoricalActionMask:
    """Who takes a categorical action, and which choices are open to them.

    Actors are given by `actor_ids` or by `actor_types`, not both; neither means every entity, an empty list nobody.

    Attributes:
        actor_ids: ids of the actors.
        actor_types: entity types whose every entity acts.
        mask: (A, C) bool, true where the actor may take the choice. None: everything is open.
    """

    actor_ids: Sequence[EntityID] | None = None
    actor_types: Sequence[str] | None = None
    mask: Flags | None = None

    def __post_init__(self) -> None:
        _one_of(self, "actor_ids", "actor_types")


@dataclass(kw_only=True)
class GlobalCategoricalActionMask:
    """The choices open to a global action.

    Attributes:
        mask: (C,) bool, or (1, C); true where the choice is open. None: everything is open.
    """

    mask: Flags | None = None


@dataclass(kw_only=True)
class SelectEntityActionMask:
    """Who selects an entity, and which entities they may select.

    Actors and actees are each given by ids or by types, not both; neither means every entity, an empty list nobody.
    With no actors there are no actees. An actor to whom no entity is offered at all selects nobody. Options of the space
    (`SelectEntityActionSpace`) close the pairs of an actor with itself, and let actors select nobody.

    Attributes:
        actor_ids: ids of the actors.
        actor_types: entity types whose every entity acts.
        actee_ids: ids of the entities that may be selected.
        actee_types: entity types whose every entity may be selected.
        mask: (A, number of actees) bool, true where the actor may select the actee. None: every pair is open. Every actor
            needs an open one, unless the space has `exclude_self` or `nobody`.
    """

    actor_ids: Sequence[EntityID] | None = None
    actor_types: Sequence[str] | None = None
    actee_ids: Sequence[EntityID] | None = None
    actee_types: Sequence[str] | None = None
    mask: Flags | None = None

    def __post_init__(self) -> None:
        _one_of(self, "actor_ids", "actor_types")
        _one_of(self, "actee_ids", "actee_types")


@dataclass(kw_only=True)
class ContinuousActionMask:
    """Who picks numbers. The bounds are those of the space.

    Actors are given by `actor_ids` or by `actor_types`, not both; neither means every entity, an empty list nobody.

    Attributes:
        actor_ids: ids of the actors.
        actor_types: entity types whose every entity acts.
    """

    actor_ids: Sequence[EntityID] | None = None
    actor_types: Sequence[str] | None = None

    def __post_init__(self) -> None:
        _one_of(self, "actor_ids", "actor_types")


ActionMask = CategoricalActionMask | GlobalCategoricalActionMask | SelectEntityActionMask | ContinuousActionMask


@dataclass(kw_only=True)
class Observation:
    """One environment at one step. The last observation of an episode has `done` set and need not offer actions.

    Attributes:
        features: entity type -> (number of entities, F) numbers. A type may be left out: there is none of it now.
        ids: entity type -> one id per entity. Needed only for entities that act or may be selected.
        actions: action -> who may do what. An action may be left out: nobody takes it now.
        reward: received for the actions that led here.
        done: the episode ends here.
        truncated: the episode was cut here (a time limit) and did not end by its own rules; implies `done`.
        global_features: one number per name in the space's `global_features`.
        visible: entity type -> one bool per entity. A hidden entity is seen by the value function and not by the policy.
            Types left out are visible. An entity that acts or may be selected shows itself in that action, hidden or not.
        end_of_episode_info: anything worth knowing about the finished episode; only read together with `done`.
        metrics: numbers of every step, aggregated over a rollout as count, sum, min and max.
        player_rewards: in worlds with several players (`entity_gym.pools.players`), what each of them received for the actions
            that led here. Empty: all share `reward`.
    """

    features: Mapping[str, Rows] = field(default_factory=dict)
    ids: Mapping[str, Sequence[EntityID]] = field(default_factory=dict)
    actions: Mapping[str, ActionMask] = field(default_factory=dict)
    reward: float = 0.0
    done: bool = False
    truncated: bool = False
    global_features: Sequence[float] | NDArray[Any] = ()
    visible: Mapping[str, Flags] = field(default_factory=dict)
    end_of_episode_info: Mapping[str, Any] | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    player_rewards: Sequence[float] = ()

    def __post_init__(self) -> None:
        if self.truncated and not self.done:
            raise ValueError(
                "Observation(truncated=True, done=False): a truncated episode has ended, so done must be True"
            )


def _one_of(mask: object, ids: str, types: str) -> None:
    if getattr(mask, ids) is not None and getattr(mask, types) is not None:
        raise ValueError(
            f"{type(mask).__name__} was given both {ids}={getattr(mask, ids)!r} and {types}={getattr(mask, types)!r}; give one"
        )
