"""Select-entity actions: every actor selects one entity of its frame, or nobody.

Nobody is -1 in a batch, and None in the action that a Python world receives.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions.kind import ActionSpace, ActorMask, CompiledCheck
from entity_gym.actions.reading import EntityID, Flags, FrameEntities, Offer
from entity_gym.batch.ragged import rows_of
from entity_gym.batch.vec_obs import VecActionMask

NOBODY = -1


@dataclass(kw_only=True)
class SelectEntityActionMask(ActorMask):
    """The actors that select an entity, and the entities that they may select.

    Both are given as in `ActorMask`. With no actors there are no actees. An actor to whom no entity is offered at all selects
    nobody. Options of the space close the pairs of an actor with itself, and let actors select nobody.

    Attributes:
        actee_ids: ids of the entities that may be selected.
        actee_types: entity types whose every entity may be selected.
        mask: (A, number of actees) bool, true where the actor may select the actee. None: every pair is open. Every actor
            needs an open one, unless the space has `exclude_self` or `nobody`.
    """

    actee_ids: Sequence[EntityID] | None = None
    actee_types: Sequence[str] | None = None
    mask: Flags | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_one("actee", self.actee_ids, self.actee_types)


@dataclass
class SelectEntityAction:
    """The selections of several actors.

    Attributes:
        actors: ids of the actors, of all that the observation offered the action.
        actees: the id that each of them selected; None for nobody, whether the actor chose so or had to.
    """

    actors: Sequence[EntityID]
    actees: Sequence[EntityID | None]

    def to_json(self) -> dict[str, Any]:  # actors that select nobody are not listed
        told = {actor: actee for actor, actee in zip(self.actors, self.actees, strict=True) if actee is not None}
        return {"actors": list(told), "actees": list(told.values())}


@dataclass(frozen=True)
class EntitiesActionSpace(ActionSpace):
    """Base of actions whose actors select entities.

    Attributes:
        exclude_self: an actor may not select itself, whatever its observation offers.
        can_close: whether all entities offered to an actor may be closed to it: it then selects none.
    """

    exclude_self: bool = False

    selects = True
    can_close: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(each.default, bool) and not isinstance(value, bool):
                raise ValueError(f"{type(self).__name__}.{each.name} is {value!r}; it must be True or False")
        super().__post_init__()

    def changes_since(self, before: Self, name: str) -> Iterator[str]:
        yield from super().changes_since(before, name)
        if before.exclude_self != self.exclude_self:
            yield f"action {name!r} may {'no longer' if self.exclude_self else 'now'} select the actor itself"


@dataclass(frozen=True)
class SelectEntityActionSpace(EntitiesActionSpace):
    """Every actor selects one of the entities that its observation offers; one to whom none is open selects nobody.

    Attributes:
        nobody: every actor may select nobody at all times.
    """

    nobody: bool = False

    kind = "select entity"
    mask_type = SelectEntityActionMask
    action_type = SelectEntityAction
    choices_field = "actees"
    page_options = ("nobody",)

    @property
    def can_close(self) -> bool:  # type: ignore[override]
        return self.exclude_self or self.nobody

    def changes_since(self, before: Self, name: str) -> Iterator[str]:
        yield from super().changes_since(before, name)
        if before.nobody and not self.nobody:
            raise ValueError(f"the choice of nobody of the action {name!r} is gone")
        if self.nobody and not before.nobody:
            yield f"action {name!r} may now select nobody: untrained"

    def read(self, name: str, mask: SelectEntityActionMask, entities: FrameEntities) -> Offer:
        offer = read_pairs(name, mask, entities, exclude_self=self.exclude_self)
        if not self.can_close:
            entities.require_open(offer.mask, offer.actors, "actees", name)
        return offer

    def is_allowed(self, values: NDArray[np.int64], offered: VecActionMask) -> NDArray[np.bool_]:
        """Return (A,) true where the entity is offered and open, or nobody is allowed."""
        if not len(values):
            return np.ones(0, np.bool_)
        chosen, (actor, actee) = values[:, 0], open_pairs(offered)
        able, found = np.zeros((2, len(chosen)), np.bool_)
        able[actor] = True
        found[actor[chosen[actor] == actee]] = True
        return np.asarray(found | ((chosen == NOBODY) & (self.nobody | ~able)))

    def compiled_check(self) -> CompiledCheck:
        nobody, can_close = self.nobody, self.can_close

        def check(values: Any, first: int, count: int, mask: Any, i: int, actees: Any, num_actees: int) -> bool:
            fine = True
            for k in range(count):
                value = values[first + k]
                found, any_open = nobody and value == NOBODY, False
                for e in range(num_actees):
                    is_open = mask is None or mask[i, k, e]
                    found |= is_open & (actees[i, e] == value)
                    any_open |= is_open
                fine &= found or (value == NOBODY and not any_open and (can_close or num_actees == 0))
            return fine

        return check

    def refusal(self, value: NDArray[np.int64]) -> str:
        nobody = "for nobody" if self.nobody else "where it may select none"
        return f" is {value[0]}; expected the index of an entity that the actor may select, or {NOBODY} {nobody}"

    def for_world(self, values: NDArray[np.int64], offer: Offer, ids: Sequence[EntityID | None]) -> SelectEntityAction:
        actees = [None if actee == NOBODY else ids[actee] for actee in values[:, 0].tolist()]
        return SelectEntityAction([ids[actor] for actor in offer.actors.tolist()], actees)

    def columns(self, offer: Offer) -> tuple[list[int], NDArray[np.bool_]]:
        columns, is_open = super().columns(offer)
        if not self.nobody:
            return columns, is_open
        return [*columns, NOBODY], np.pad(is_open, ((0, 0), (0, 1)), constant_values=True)

    def for_page(self, values: NDArray[np.int64], offer: Offer) -> list[int]:
        column_of = {value: column for column, value in enumerate(self.columns(offer)[0])}
        return [column_of.get(value, NOBODY) for value in values[:, 0].tolist()]

    def padded_bounds(self, num_rows: int | None) -> tuple[int, int | None]:
        return 0, None if num_rows is None else num_rows - 1 + self.nobody

    def sample(self, offered: VecActionMask, rng: np.random.Generator) -> NDArray[np.int64]:
        """Draw (A, 1) entity indices; -1 where none is open, and with `nobody` as one choice more."""
        actor, actee = open_pairs(offered)  # those of one actor follow those of another
        counts = np.bincount(actor, minlength=offered.actors.items())
        before = np.cumsum(counts) - counts
        chosen = np.full(len(counts), NOBODY, dtype=np.int64)
        able = np.flatnonzero(counts)
        position = rng.integers(counts[able] + self.nobody)
        some = position < counts[able]
        able, position = able[some], position[some]
        chosen[able] = actee[before[able] + position]
        return chosen[:, None]

    def rare_choices(self, offered: VecActionMask) -> Iterator[tuple[str, NDArray[np.int64]]]:
        if self.nobody:
            yield "nobody is selected", np.full((offered.actors.items(), 1), NOBODY, np.int64)


def read_pairs(name: str, mask: SelectEntityActionMask, entities: FrameEntities, *, exclude_self: bool) -> Offer:
    """Return the offer of actors and actees of one frame; arguments and errors as in `ActionSpace.read`."""
    actors = entities.find(mask.actor_ids, mask.actor_types, "actor", name)
    if len(actors) == 0:
        return Offer(actors)
    actees = entities.find(mask.actee_ids, mask.actee_types, "actee", name)
    pairs = entities.mask(mask.mask, actors, len(actees), name)
    if exclude_self:
        others: NDArray[np.bool_] = actors[:, None] != actees
        if not others.all():
            pairs = others if pairs is None else pairs & others
    return Offer(actors, actees, pairs)


def open_pairs(
    offered: VecActionMask, actees: NDArray[np.int64] | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the open pairs, actor by actor: (P,) place of the actor among all, and (P,) the actee.

    Args:
        offered: the actors, actees and open pairs of N frames.
        actees: what stands for each of `offered.actees`; None: their entity indices.
    """
    assert offered.actees is not None
    actees = offered.actees.values[:, 0] if actees is None else actees
    num_actors = offered.actors.size1()
    if len(num_actors) == 1:  # a third of the time
        actor, actee = np.arange(offered.actors.items()).repeat(len(actees)), np.tile(actees, offered.actors.items())
    else:
        counts = np.repeat(offered.actees.size1(), num_actors)  # (A,) pairs of each actor
        actor = np.repeat(np.arange(len(counts)), counts)
        actee = actees[rows_of(np.repeat(offered.actees.offsets[:-1], num_actors), counts)]
    if offered.mask is None:
        return actor, actee
    is_open = offered.mask.values[:, 0]
    return actor[is_open], actee[is_open]
