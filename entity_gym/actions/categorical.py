"""Categorical actions: every actor takes one of the same choices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions.kind import ActionSpace, one_of, with_value
from entity_gym.actions.reading import EntityID, Flags, FrameEntities, Offer
from entity_gym.batch.vec_obs import VecActionMask
from entity_gym.errors import nearest
from entity_gym.spaces import check_names


@dataclass(kw_only=True)
class CategoricalActionMask:
    """The actors of a categorical action, and the choices open to them.

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
        one_of(self, "actor_ids", "actor_types")


@dataclass
class CategoricalAction:
    """The choices of several actors.

    Attributes:
        actors: ids of the actors.
        actions: (A,) int64, the choice of each actor, an index into the space's `choices`.
    """

    actors: Sequence[EntityID]
    actions: NDArray[np.int64]


@dataclass(frozen=True)
class CategoricalActionSpace(ActionSpace):
    """Every actor takes one of `choices`."""

    choices: Sequence[str]

    kind = "categorical"
    mask_type = CategoricalActionMask

    def __post_init__(self) -> None:
        check_choices(self)

    @property
    def num_choices(self) -> int:
        return len(self.choices)

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(self.choices)

    def changes_since(self, before: Self, name: str) -> Iterator[str]:
        yield from new_choices(before.choices, self.choices, name)

    def read(self, name: str, mask: CategoricalActionMask, entities: FrameEntities) -> Offer:
        actors = entities.find(mask.actor_ids, mask.actor_types, "actor", name)
        is_open = entities.mask(mask.mask, actors, len(self.choices), "choices", name)
        entities.require_open(is_open, actors, "choices", name)
        return Offer(actors, mask=is_open)

    def allowed(self, values: NDArray[np.int64], offered: VecActionMask) -> NDArray[np.bool_]:
        return choice_allowed(values[:, 0], offered, len(self.choices))

    def refusal(self, value: NDArray[np.int64]) -> str:
        return f" is {value[0]}; expected a choice below {len(self.choices)} that is not masked"

    def for_world(self, values: NDArray[np.int64], offer: Offer, ids: Sequence[EntityID | None]) -> CategoricalAction:
        return CategoricalAction([ids[actor] for actor in offer.actors.tolist()], values[:, 0])

    def sample(self, name: str, offered: VecActionMask, rng: np.random.Generator) -> NDArray[np.int64]:
        return sample_choices(name, offered, len(self.choices), rng)

    def mistakes(self, values: NDArray[Any], offered: VecActionMask) -> Iterator[tuple[str, NDArray[Any]]]:
        return choice_mistakes(values, offered, len(self.choices))

    def action_to_json(self, action: CategoricalAction) -> dict[str, Any]:
        return {"actors": list(action.actors), "choices": np.asarray(action.actions).tolist()}


def check_choices(space: Any) -> None:
    """Turn the choices of a space into a tuple.

    Raises:
        ValueError: they are not a list of different names, or there are none.
    """
    where = f"{type(space).__name__}.choices"
    check_names(space.choices, where)
    if len(space.choices) == 0:
        raise ValueError(f"{where} is empty; an action needs at least one choice")
    object.__setattr__(space, "choices", tuple(space.choices))


def new_choices(before: Sequence[str], now: Sequence[str], name: str) -> Iterator[str]:
    """Describe the choices that are new; raise a ValueError if one is gone."""
    for choice in before:
        if choice not in now:
            raise ValueError(f"the choice {choice!r} of the action {name!r} is gone; {nearest(choice, now)}")
    for choice in now:
        if choice not in before:
            yield f"choice {choice!r} of action {name!r} is new: at first as likely as the others are on average"


def choice_allowed(choices: NDArray[np.int64], offered: VecActionMask, num_choices: int) -> NDArray[np.bool_]:
    """Return (A,) true where the choice exists and is open."""
    inside: NDArray[np.bool_] = (choices >= 0) & (choices < num_choices)
    if offered.mask is None:
        return inside
    return inside & offered.mask.values[np.arange(len(choices)), np.where(inside, choices, 0)]


def sample_choices(name: str, offered: VecActionMask, num_choices: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw (A, 1) choices, each uniformly from the open ones of its actor."""
    if offered.mask is None:
        return rng.integers(num_choices, size=offered.actors.items())[:, None]
    ranks = offered.mask.values.cumsum(axis=1)  # of each open choice among those of its actor, from 1
    counts = ranks[:, -1]
    if len(counts) and not counts.all():
        raise ValueError(f"every choice of action {name!r} is masked for actor {int(counts.argmin())} of the batch")
    chosen: NDArray[np.int64] = (ranks > rng.integers(counts)[:, None]).argmax(axis=1)
    return chosen[:, None]


def choice_mistakes(
    values: NDArray[Any], offered: VecActionMask, num_choices: int
) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield choices that do not exist, and one that is masked, if there is one."""
    for value in (num_choices, -1):
        yield "a choice out of range", with_value(values, 0, value)
    if offered.mask is not None and not offered.mask.values.all():
        row, choice = np.argwhere(~offered.mask.values)[0]
        yield "a masked choice", with_value(values, int(row), int(choice))
