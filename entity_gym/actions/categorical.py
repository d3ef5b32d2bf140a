"""Categorical actions: every actor takes one of the same choices, or the environment as a whole takes one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions.kind import ActionSpace, ActorMask, CompiledCheck
from entity_gym.actions.reading import EntityID, Flags, FrameEntities, Offer
from entity_gym.batch.vec_obs import VecActionMask
from entity_gym.spaces import check_names


@dataclass(kw_only=True)
class CategoricalActionMask(ActorMask):
    """The actors of a categorical action, as in `ActorMask`, and the choices open to them.

    Attributes:
        mask: (A, C) bool, true where the actor may take the choice. None: everything is open.
        mask_after: of an action after a select-entity one, (A, number of that action's actees, C) bool, true where the actor may
            take the choice once it has selected the actee. Who selects nobody has the choices of `mask`. None: closes nothing.
    """

    mask: Flags | None = None
    mask_after: Flags | None = None


@dataclass
class CategoricalAction:
    """The choices of several actors.

    Attributes:
        actors: ids of the actors.
        actions: (A,) int64, the choice of each actor, an index into the space's `choices`.
        choices: those of the space; in actions that a pool makes.
    """

    actors: Sequence[EntityID]
    actions: NDArray[np.int64]
    choices: Sequence[str] = ()

    @property
    def labels(self) -> list[str]:
        """The name of each actor's choice."""
        return [self.choices[action] for action in self.actions.tolist()]

    def to_json(self) -> dict[str, Any]:
        return {"actors": list(self.actors), "choices": np.asarray(self.actions).tolist()}


@dataclass(frozen=True)
class ChoiceActionSpace(ActionSpace):
    """Base of categorical and global categorical actions: one of `choices`."""

    choices: Sequence[str]

    page_options = ("choices",)

    def __post_init__(self) -> None:
        where = f"{type(self).__name__}.choices"
        check_names(self.choices, where)
        if len(self.choices) == 0:
            raise ValueError(f"{where} is empty; an action needs at least one choice")
        object.__setattr__(self, "choices", tuple(self.choices))
        super().__post_init__()

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(self.choices)

    def offer(self, name: str, actors: NDArray[np.int64], mask: Flags | None, entities: FrameEntities) -> Offer:
        """Return an offer to `actors`, (A,) entity indices, after checking the mask that the world gave."""
        is_open = entities.mask(mask, actors, len(self.choices), name)
        entities.require_open(is_open, actors, "choices", name)
        return Offer(actors, mask=is_open)

    def is_allowed(self, values: NDArray[np.int64], offered: VecActionMask) -> NDArray[np.bool_]:
        choices = values[:, 0]
        inside: NDArray[np.bool_] = (choices >= 0) & (choices < len(self.choices))
        if offered.mask is None:
            return inside
        return inside & offered.mask.values[np.arange(len(choices)), np.where(inside, choices, 0)]

    def compiled_check(self) -> CompiledCheck:
        num_choices = len(self.choices)

        def check(values: Any, first: int, count: int, mask: Any, i: int, actees: Any, num_actees: int) -> bool:
            for k in range(count):
                value = values[first + k]
                if value < 0 or value >= num_choices or (mask is not None and not mask[i, k, value]):
                    return False
            return True

        return check

    def refusal(self, value: NDArray[np.int64]) -> str:
        return f" is {value[0]}; expected a choice below {len(self.choices)} that is not masked"

    def sample(self, offered: VecActionMask, rng: np.random.Generator) -> NDArray[np.int64]:
        if offered.mask is None:
            return rng.integers(len(self.choices), size=offered.actors.items())[:, None]
        ranks = offered.mask.values.cumsum(axis=1)  # of each open choice among those of its actor, from 1
        counts = ranks[:, -1]
        chosen: NDArray[np.int64] = (ranks > rng.integers(counts)[:, None]).argmax(axis=1)
        return chosen[:, None]


@dataclass(frozen=True)
class CategoricalActionSpace(ChoiceActionSpace):
    """Every actor takes one of `choices`."""

    kind = "categorical"
    mask_type = CategoricalActionMask
    action_type = CategoricalAction
    choices_field = "actions"

    def read(self, name: str, mask: CategoricalActionMask, entities: FrameEntities) -> Offer:
        return self.offer(name, entities.find(mask.actor_ids, mask.actor_types, "actor", name), mask.mask, entities)

    def for_world(self, values: NDArray[np.int64], offer: Offer, ids: Sequence[EntityID | None]) -> CategoricalAction:
        return CategoricalAction([ids[actor] for actor in offer.actors.tolist()], values[:, 0], self.choices)


# ---- the same for the environment as a whole


@dataclass(kw_only=True)
class GlobalCategoricalActionMask:
    """The choices open to a global action.

    Attributes:
        mask: (C,) bool, or (1, C); true where the choice is open. None: everything is open.
    """

    mask: Flags | None = None


@dataclass
class GlobalCategoricalAction:
    """The choice of the environment as a whole.

    Attributes:
        action: index into the space's `choices`.
        label: that choice's name.
    """

    action: int
    label: str

    def to_json(self) -> dict[str, Any]:
        return {"choice": int(self.action), "label": self.label}


@dataclass(frozen=True)
class GlobalCategoricalActionSpace(ChoiceActionSpace):
    """The environment as a whole takes one of `choices`: one decision per frame."""

    kind = "global categorical"
    mask_type = GlobalCategoricalActionMask
    action_type = GlobalCategoricalAction
    choices_field = "action"
    is_global = True

    def read(self, name: str, mask: GlobalCategoricalActionMask, entities: FrameEntities) -> Offer:
        return self.offer(name, np.array([len(entities.ids)]), mask.mask, entities)  # `__global__` stands last

    def for_world(
        self, values: NDArray[np.int64], offer: Offer, ids: Sequence[EntityID | None]
    ) -> GlobalCategoricalAction:
        choice = int(values[0, 0])
        return GlobalCategoricalAction(choice, self.choices[choice])
