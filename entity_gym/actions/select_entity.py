"""Select-entity actions: every actor selects one entity of its frame, or nobody.

Nobody is -1 in a batch, and None in the action that a Python world receives.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions.kind import ActionSpace, ActorMask, Choice, with_value
from entity_gym.actions.reading import NO_INDICES, EntityID, Flags, FrameEntities, Offer
from entity_gym.batch.ragged import rows_of
from entity_gym.batch.vec_obs import VecActionMask

NOBODY = -1
_NO_ENTITY = 1 << 40  # larger than any entity index


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

    def allowed(self, values: NDArray[np.int64], offered: VecActionMask) -> NDArray[np.bool_]:
        """Return (A,) true where the entity is offered and open, or nobody is allowed."""
        if not len(values):
            return np.ones(0, np.bool_)
        chosen, (actor, actee) = values[:, 0], _pairs(offered)
        able, found = np.zeros((2, len(chosen)), np.bool_)
        able[actor] = True
        found[actor[chosen[actor] == actee]] = True
        return np.asarray(found | ((chosen == NOBODY) & (self.nobody | ~able)))

    def refusal(self, value: NDArray[np.int64]) -> str:
        nobody = "for nobody" if self.nobody else "where it may select none"
        return f" is {value[0]}; expected the index of an entity that the actor may select, or {NOBODY} {nobody}"

    def for_world(self, values: NDArray[np.int64], offer: Offer, ids: Sequence[EntityID | None]) -> SelectEntityAction:
        actees = [None if actee == NOBODY else ids[actee] for actee in values[:, 0].tolist()]
        return SelectEntityAction([ids[actor] for actor in offer.actors.tolist()], actees)

    def padded_choices(self, num_rows: int) -> int:
        return num_rows + self.nobody  # the number of rows is nobody

    def padded_mask(self, offered: VecActionMask, num_choices: int, rows: NDArray[np.int64] | None) -> NDArray[np.int8]:
        assert rows is not None
        is_open = np.zeros((offered.actors.items(), num_choices), np.int8)
        actor, row = _pairs(offered, rows)
        is_open[actor, row] = 1
        if self.nobody:
            is_open[:, -1] = 1
        return is_open

    def sample(self, name: str, offered: VecActionMask, rng: np.random.Generator) -> NDArray[np.int64]:
        """Draw (A, 1) entity indices; -1 where none is open, and with `nobody` as one choice more."""
        actor, actee = _pairs(offered)  # those of one actor follow those of another
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

    def mistakes(self, values: NDArray[Any], offered: VecActionMask) -> Iterator[tuple[str, NDArray[Any]]]:
        for value in (_NO_ENTITY, -2):
            yield "an entity out of range", with_value(values, 0, value)
        if offered.mask is not None and not offered.mask.values.all():
            actor, actee = _pairs(replace(offered, mask=None))
            closed = int(offered.mask.values[:, 0].argmin())
            yield "a masked entity", with_value(values, int(actor[closed]), int(actee[closed]))

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


def _pairs(
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
