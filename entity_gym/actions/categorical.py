"""Categorical actions: every actor takes one of the same choices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions.kind import ActionSpace, ActorMask, with_value
from entity_gym.actions.reading import EntityID, Flags, FrameEntities, Offer
from entity_gym.batch.vec_obs import VecActionMask
from entity_gym.errors import nearest
from entity_gym.spaces import check_names


@dataclass(kw_only=True)
class CategoricalActionMask(ActorMask):
    """The actors of a categorical action, as in `ActorMask`, and the choices open to them.

    Attributes:
        mask: (A, C) bool, true where the actor may take the choice. None: everything is open.
    """

    mask: Flags | None = None


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


@dataclass(frozen=True)
class ChoiceActionSpace(ActionSpace):
    """Base of categorical and global categorical actions: one of `choices`."""

    choices: Sequence[str]

    def __post_init__(self) -> None:
        where = f"{type(self).__name__}.choices"
        check_names(self.choices, where)
        if len(self.choices) == 0:
            raise ValueError(f"{where} is empty; an action needs at least one choice")
        object.__setattr__(self, "choices", tuple(self.choices))

    @property
    def num_choices(self) -> int:
        return len(self.choices)

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(self.choices)

    def changes_since(self, before: Self, name: str) -> Iterator[str]:
        for choice in before.choices:
            if choice not in self.choices:
                raise ValueError(
                    f"the choice {choice!r} of the action {name!r} is gone; {nearest(choice, self.choices)}"
                )
        for choice in self.choices:
            if choice not in before.choices:
                yield f"choice {choice!r} of action {name!r} is new: at first as likely as the others are on average"

    def offer(self, name: str, actors: NDArray[np.int64], mask: Flags | None, entities: FrameEntities) -> Offer:
        """Return an offer to `actors`, (A,) entity indices, after checking the mask that the world gave."""
        is_open = entities.mask(mask, actors, len(self.choices), "choices", name)
        entities.require_open(is_open, actors, "choices", name)
        return Offer(actors, mask=is_open)

    def allowed(self, values: NDArray[np.int64], offered: VecActionMask) -> NDArray[np.bool_]:
        choices = values[:, 0]
        inside: NDArray[np.bool_] = (choices >= 0) & (choices < len(self.choices))
        if offered.mask is None:
            return inside
        return inside & offered.mask.values[np.arange(len(choices)), np.where(inside, choices, 0)]

    def refusal(self, value: NDArray[np.int64]) -> str:
        return f" is {value[0]}; expected a choice below {len(self.choices)} that is not masked"

    def sample(self, name: str, offered: VecActionMask, rng: np.random.Generator) -> NDArray[np.int64]:
        if offered.mask is None:
            return rng.integers(len(self.choices), size=offered.actors.items())[:, None]
        ranks = offered.mask.values.cumsum(axis=1)  # of each open choice among those of its actor, from 1
        counts = ranks[:, -1]
        if len(counts) and not counts.all():
            actor = int(counts.argmin())
            raise ValueError(f"every choice of action {name!r} is masked for actor {actor} of the batch")
        chosen: NDArray[np.int64] = (ranks > rng.integers(counts)[:, None]).argmax(axis=1)
        return chosen[:, None]

    def mistakes(self, values: NDArray[Any], offered: VecActionMask) -> Iterator[tuple[str, NDArray[Any]]]:
        for value in (len(self.choices), -1):
            yield "a choice out of range", with_value(values, 0, value)
        if offered.mask is not None and not offered.mask.values.all():
            row, choice = np.argwhere(~offered.mask.values)[0]
            yield "a masked choice", with_value(values, int(row), int(choice))


@dataclass(frozen=True)
class CategoricalActionSpace(ChoiceActionSpace):
    """Every actor takes one of `choices`."""

    kind = "categorical"
    mask_type = CategoricalActionMask

    def read(self, name: str, mask: CategoricalActionMask, entities: FrameEntities) -> Offer:
        return self.offer(name, entities.find(mask.actor_ids, mask.actor_types, "actor", name), mask.mask, entities)

    def for_world(self, values: NDArray[np.int64], offer: Offer, ids: Sequence[EntityID | None]) -> CategoricalAction:
        return CategoricalAction([ids[actor] for actor in offer.actors.tolist()], values[:, 0], self.choices)

    def action_to_json(self, action: CategoricalAction) -> dict[str, Any]:
        return {"actors": list(action.actors), "choices": np.asarray(action.actions).tolist()}
