"""Select-entity actions: every actor selects one entity of its frame, or nobody.

Nobody is -1 in a batch, and None in the action that a Python world receives.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions.kind import ActionSpace, Choice, one_of, with_value
from entity_gym.actions.reading import (
    NO_INDICES,
    BatchActors,
    BatchEntities,
    EntityID,
    Flags,
    FrameEntities,
    Offer,
    Rows,
    as_indices,
    as_mask,
    keep_frames,
)
from entity_gym.batch.ragged import offsets_of
from entity_gym.batch.vec_obs import VecActionMask

NOBODY = -1
_NO_ENTITY = 1 << 40  # larger than any entity index


@dataclass(kw_only=True)
class SelectEntityActionMask:
    """The actors that select an entity, and the entities that they may select.

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
        one_of(self, "actor_ids", "actor_types")
        one_of(self, "actee_ids", "actee_types")


@dataclass
class SelectEntityAction:
    """The selections of several actors.

    Attributes:
        actors: ids of the actors, of all that the observation offered the action.
        actees: the id that each of them selected; None for nobody, whether the actor chose so or had to.
    """

    actors: Sequence[EntityID]
    actees: Sequence[EntityID | None]


@dataclass(frozen=True)
class SelectEntityActionSpace(ActionSpace):
    """Every actor selects one of the entities that its observation offers; one to whom none is open selects nobody.

    Attributes:
        exclude_self: an actor may not select itself, whatever its observation offers.
        nobody: every actor may select nobody at all times.
    """

    exclude_self: bool = False
    nobody: bool = False

    kind = "select entity"
    mask_type = SelectEntityActionMask
    selects = True

    def __post_init__(self) -> None:
        for name, value in (("exclude_self", self.exclude_self), ("nobody", self.nobody)):
            if not isinstance(value, bool):
                raise ValueError(f"SelectEntityActionSpace.{name} is {value!r}; it must be True or False")

    @property
    def can_close(self) -> bool:
        """True if all entities offered to an actor may be closed to it: it then selects nobody."""
        return self.exclude_self or self.nobody

    def changes_since(self, before: Self, name: str) -> Iterator[str]:
        if before.nobody and not self.nobody:
            raise ValueError(f"the choice of nobody of the action {name!r} is gone")
        if self.nobody and not before.nobody:
            yield f"action {name!r} may now select nobody: untrained"
        if before.exclude_self != self.exclude_self:
            yield f"action {name!r} may {'no longer' if self.exclude_self else 'now'} select the actor itself"

    def read(self, name: str, mask: SelectEntityActionMask, entities: FrameEntities) -> Offer:
        actors = entities.find(mask.actor_ids, mask.actor_types, "actor", name)
        if len(actors) == 0:
            return Offer(actors, NO_INDICES)
        actees = entities.find(mask.actee_ids, mask.actee_types, "actee", name)
        pairs = entities.mask(mask.mask, actors, len(actees), "actees", name)
        if not self.can_close:
            entities.require_open(pairs, actors, "actees", name)
        if self.exclude_self:
            others: NDArray[np.bool_] = actors[:, None] != actees
            if not others.all():
                pairs = others if pairs is None else pairs & others
        return Offer(actors, actees, pairs)

    def read_batch(self, name: str, given: BatchActors, entities: BatchEntities) -> VecActionMask:
        actors, actees = entities.find(given.actors, "actor", name), entities.find(given.actees, "actee", name)
        offered = entities.offered(given, name)
        pairs = entities.mask(given.mask, (), actors.counts * actees.counts, name)
        if pairs is not None and not self.can_close:
            is_open = _any_of_each(pairs.values, np.repeat(actees.counts, actors.counts))
            entities.require_open(is_open, actors, offered, name)
        if self.exclude_self:
            pairs = _without_self(pairs, actors, actees)
        acting = keep_frames(actors, offered)
        return VecActionMask(
            as_indices(acting),
            as_indices(keep_frames(actees, offered & (acting.counts > 0))),
            as_mask(None if pairs is None else keep_frames(pairs, offered)),
        )

    def allowed(self, values: NDArray[np.int64], offered: VecActionMask) -> NDArray[np.bool_]:
        """Return (A,) true where the entity is offered and open, or nobody is allowed. Loops over frames with actors."""
        assert offered.actees is not None
        chosen = values[:, 0]
        allowed: NDArray[np.bool_] = (chosen == NOBODY) & self.nobody
        actor_offsets, actee_offsets = offered.actors.offsets, offered.actees.offsets
        for i in np.flatnonzero(np.diff(actor_offsets)):
            actors = slice(actor_offsets[i], actor_offsets[i + 1])
            actees = offered.actees.values[actee_offsets[i] : actee_offsets[i + 1], 0]
            is_open = np.ones((actors.stop - actors.start, len(actees)), np.bool_)
            if offered.mask is not None:
                rows = slice(offered.mask.offsets[i], offered.mask.offsets[i + 1])
                is_open = offered.mask.values[rows, 0].reshape(is_open.shape)
            found = ((chosen[actors, None] == actees) & is_open).any(axis=1)
            allowed[actors] |= found | ((chosen[actors] == NOBODY) & ~is_open.any(axis=1))
        return allowed

    def refusal(self, value: NDArray[np.int64]) -> str:
        nobody = "for nobody" if self.nobody else "where it may select none"
        return f" is {value[0]}; expected the index of an entity that the actor may select, or {NOBODY} {nobody}"

    def for_world(self, values: NDArray[np.int64], offer: Offer, ids: Sequence[EntityID | None]) -> SelectEntityAction:
        actees = [None if actee == NOBODY else ids[actee] for actee in values[:, 0].tolist()]
        return SelectEntityAction([ids[actor] for actor in offer.actors.tolist()], actees)

    def padded_choices(self, num_rows: int) -> int:
        return num_rows + self.nobody  # the number of rows is nobody

    def padded_mask(self, offered: VecActionMask, num_choices: int, rows: NDArray[np.int64] | None) -> NDArray[np.int8]:
        assert offered.actees is not None and rows is not None
        num_actors, num_actees = offered.actors.size1(), offered.actees.size1()
        per_actor = np.repeat(num_actees, num_actors)  # (A,) pairs of each actor
        actor = np.repeat(np.arange(len(per_actor)), per_actor)  # (pairs,)
        within = np.arange(len(actor)) - np.repeat(np.cumsum(per_actor) - per_actor, per_actor)
        first = np.repeat(offered.actees.offsets[:-1], num_actors)
        is_open = np.zeros((len(per_actor), num_choices), np.int8)
        is_open[actor, rows[first[actor] + within]] = 1 if offered.mask is None else offered.mask.values[:, 0]
        if self.nobody:
            is_open[:, -1] = 1
        return is_open

    def sample(self, name: str, offered: VecActionMask, rng: np.random.Generator) -> NDArray[np.int64]:
        """Draw (A, 1) entity indices; -1 where none is open, and with `nobody` as one choice more."""
        assert offered.actees is not None
        num_actors = offered.actors.size1()
        num_actees = np.repeat(offered.actees.size1(), num_actors)  # (A,) those offered to each actor
        first_actee = np.repeat(offered.actees.offsets[:-1], num_actors)  # (A,) rows of offered.actees
        if offered.mask is None:
            counts = num_actees
        else:
            # The pairs of one actor follow those of another; open ones are numbered through, so an actor's are a range.
            ends = np.cumsum(num_actees)
            opened = np.concatenate([[0], np.cumsum(offered.mask.values[:, 0])])
            before = opened[ends - num_actees]
            counts = opened[ends] - before
        chosen = np.full(len(counts), NOBODY, dtype=np.int64)
        able = np.flatnonzero(counts)
        position = rng.integers(counts[able] + self.nobody)
        if self.nobody:
            some = position < counts[able]
            able, position = able[some], position[some]
        if offered.mask is not None:
            pairs = np.flatnonzero(offered.mask.values[:, 0])[before[able] + position]
            position = pairs - (ends - num_actees)[able]
        chosen[able] = offered.actees.values[first_actee[able] + position, 0]
        return chosen[:, None]

    def rare_choices(self, offered: VecActionMask) -> Iterator[tuple[str, NDArray[np.int64]]]:
        if self.nobody:
            yield "nobody is selected", np.full((offered.actors.items(), 1), NOBODY, np.int64)

    def mistakes(self, values: NDArray[Any], offered: VecActionMask) -> Iterator[tuple[str, NDArray[Any]]]:
        assert offered.actees is not None
        for value in (_NO_ENTITY, -2):
            yield "an entity out of range", with_value(values, 0, value)
        for i in range(len(offered.actors) if offered.mask is not None else 0):
            assert offered.mask is not None
            actees = offered.actees[i].values[:, 0]
            closed = np.argwhere(~offered.mask[i].values.reshape(-1, max(len(actees), 1)))
            if len(closed):
                row, column = closed[0]
                yield "a masked entity", with_value(values, int(offered.actors.offsets[i] + row), int(actees[column]))
                return

    def list_choices(self, offer: Offer, row: int) -> list[Choice]:
        actees = [] if offer.actees is None else offer.actees.tolist()
        listed = [Choice(index, offer.is_open(row, k)) for k, index in enumerate(actees)]
        return [*listed, Choice(NOBODY, is_open=True)] if self.nobody else listed

    def action_to_json(self, action: SelectEntityAction) -> dict[str, Any]:
        """Return the selections as JSON. The protocol does not list actors that select nobody."""
        pairs = [(actor, actee) for actor, actee in zip(action.actors, action.actees, strict=True) if actee is not None]
        return {"actors": [actor for actor, _ in pairs], "actees": [actee for _, actee in pairs]}

    def probabilities_to_json(self, probabilities: NDArray[Any], offer: Offer, ids: Sequence[EntityID | None]) -> Any:
        """Return the offered entities, and for each actor the probability of each; with `nobody` that of nobody is last."""
        assert offer.actees is not None
        rows = probabilities.reshape(len(offer.actors), len(offer.actees) + self.nobody)
        return {"actees": [ids[actee] for actee in offer.actees.tolist()], "rows": rows.tolist()}

    def space_for_replay(self) -> dict[str, Any]:
        return {"kind": "select_entity", "nobody": self.nobody}

    def decisions_for_replay(
        self, offer: Offer, values: NDArray[Any], logits: NDArray[np.float32] | None
    ) -> dict[str, Any]:
        """Return the decisions, with a column for each actee and one for `nobody`; chosen is -1 where there is no column."""
        actees = NO_INDICES if offer.actees is None else offer.actees
        mask = offer.mask
        if mask is not None and self.nobody:
            mask = np.pad(mask, ((0, 0), (0, 1)), constant_values=True)
        shape = len(offer.actors), len(actees) + self.nobody
        columns = {int(actee): column for column, actee in enumerate(actees)}
        if self.nobody:
            columns[NOBODY] = len(actees)
        decisions = super().decisions_for_replay(
            Offer(offer.actors, actees, mask), values, None if logits is None else logits.reshape(shape)
        )
        chosen = [columns.get(value, NOBODY) for value in decisions["chosen"]]
        return {**decisions, "actees": actees.tolist(), "chosen": chosen}


def _without_self(pairs: Rows | None, actors: Rows, actees: Rows) -> Rows | None:
    """Close the pairs of an actor with itself; None if nothing is closed."""
    per_actor = np.repeat(actees.counts, actors.counts)  # (A,) pairs of each actor
    first = np.repeat(offsets_of(actees.counts)[:-1], actors.counts)  # (A,) its first actee
    within = np.arange(int(per_actor.sum())) - np.repeat(np.cumsum(per_actor) - per_actor, per_actor)
    others = np.repeat(actors.values, per_actor) != actees.values[np.repeat(first, per_actor) + within]
    if pairs is not None:
        return Rows(pairs.values & others, pairs.counts)
    return None if others.all() else Rows(others, actors.counts * actees.counts)


def _any_of_each(flags: NDArray[np.bool_], lengths: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return true for each run of flags of these lengths in which one is set, or that is empty."""
    ends = np.cumsum(lengths)
    opened = np.concatenate([[0], np.cumsum(flags)])
    result: NDArray[np.bool_] = (opened[ends] > opened[ends - lengths]) | (lengths == 0)
    return result
