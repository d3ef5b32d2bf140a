"""Find the entities that an observation names, in one frame of a Python world."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from entity_gym.batch.ragged import RaggedBuffer, offsets_of
from entity_gym.batch.vec_obs import VecActionMask
from entity_gym.errors import nearest
from entity_gym.spaces import GLOBAL_ENTITY

#: An environment's own name for one of its entities; unique in an observation, across all types.
EntityID = Hashable

Indices = NDArray[np.int64]
Flags = Sequence[Any] | NDArray[np.bool_]

NO_INDICES: Indices = np.zeros(0, dtype=np.int64)


class Offer(NamedTuple):
    """One action in one frame: who acts, and what is open to them."""

    actors: Indices  # (A,) entity indices
    actees: Indices | None = None  # (number of actees,) entity indices; None unless the action selects entities
    mask: NDArray[np.bool_] | None = None  # (A, C), or (A, number of actees); None: everything is open

    def is_open(self, row: int, column: int) -> bool:
        """Return whether the choice or actee in `column` is open to the actor in `row`."""
        return self.mask is None or bool(self.mask[row, column])


def pack_offers(offers: Sequence[Offer], num_columns: int, *, selects: bool) -> VecActionMask:
    """Pack one action of N frames.

    Args:
        offers: one for each frame.
        num_columns: C, of masks; not used where the action selects entities.
        selects: the action selects entities, and its masks are over pairs.
    """
    actors = _indices([offer.actors for offer in offers])
    actees = _indices([_actees(offer) for offer in offers]) if selects else None
    if all(offer.mask is None for offer in offers):
        return VecActionMask(actors, actees)
    rows = []
    for offer in offers:
        columns = len(_actees(offer)) if selects else num_columns
        mask = np.ones((len(offer.actors), columns), np.bool_) if offer.mask is None else offer.mask
        rows.append(mask.reshape(-1, 1) if selects else mask)
    lengths = np.array([len(each) for each in rows], np.int64)
    return VecActionMask(actors, actees, RaggedBuffer(np.concatenate(rows), offsets_of(lengths)))


def _actees(offer: Offer) -> Indices:
    return NO_INDICES if offer.actees is None else offer.actees


def _indices(arrays: Sequence[Indices]) -> RaggedBuffer[np.int64]:
    values = np.concatenate(arrays) if arrays else NO_INDICES
    lengths = np.array([len(array) for array in arrays], np.int64)
    return RaggedBuffer(values[:, None], offsets_of(lengths))


class FrameEntities(NamedTuple):
    """The entities of one frame, found by id or by type."""

    where: str  # names the environment in messages
    ids: list[EntityID | None]  # by entity index, without `__global__`
    index_of: dict[EntityID, int]
    ranges: dict[str, tuple[int, int]]  # entity type -> first entity index, number of entities

    def find(self, ids: Sequence[EntityID] | None, types: Sequence[str] | None, role: str, action: str) -> Indices:
        """Return the entity indices of ids, of all entities of some types, or with neither of all entities.

        Args:
            ids: ids of entities.
            types: entity types.
            role: "actor" or "actee", for messages.
            action: its name, for messages.

        Raises:
            ValueError: an id or a type is unknown or listed twice, or an entity that is meant has no id.
        """
        where = f"{self.where}: action {action!r}"
        if ids is not None:
            return self._find_ids(ids, role, where)
        found: list[Indices] = []
        for name in self.ranges if types is None else types:
            if name not in self.ranges:
                raise ValueError(
                    f"{where}: {role}_types names the unknown entity type {name!r}; {nearest(name, self.ranges)}"
                )
            start, count = self.ranges[name]
            if len(self.index_of) < len(self.ids) and None in self.ids[start : start + count]:
                raise ValueError(
                    f"{where}: entities of type {name!r} are {role}s but have no ids; give Observation.ids[{name!r}]"
                )
            found.append(np.arange(start, start + count))
        if types is not None and len(set(types)) != len(types):
            raise ValueError(f"{where}: {role}_types {list(types)!r} lists a type twice")
        if len(found) == 1:
            return found[0]
        return np.concatenate(found) if found else NO_INDICES

    def _find_ids(self, ids: Sequence[EntityID], role: str, where: str) -> Indices:
        found = []
        for id_ in ids:
            index = self.index_of.get(id_) if isinstance(id_, Hashable) else None
            if index is None:
                known = [str(known_id) for known_id in self.index_of]
                raise ValueError(f"{where}: {role}_ids names {id_!r}, which no entity has; {nearest(id_, known[:20])}")
            found.append(index)
        if len(set(found)) != len(found):
            raise ValueError(f"{where}: {role}_ids {list(ids)!r} lists an entity twice")
        return np.array(found, dtype=np.int64)

    def mask(
        self, given: Any, actors: Indices, num_columns: int, columns: str, action: str
    ) -> NDArray[np.bool_] | None:
        """Return the mask of one action as an (A, num_columns) array.

        Args:
            given: the world's mask; None: everything is open.
            actors: (A,) entity indices; a global action has one, `__global__`, and its mask may be one row.
            num_columns: C, or the number of actees.
            columns: the word for them in messages, "choices" or "actees".
            action: its name, for messages.

        Raises:
            ValueError: the mask has another shape, or is not bool.
        """
        if given is None:
            return None
        where, shape = f"{self.where}: action {action!r}", (len(actors), num_columns)
        try:
            mask = np.asarray(given, order="C")
        except ValueError as error:
            raise ValueError(
                f"{where}: the mask's rows differ in length; expected {shape}, one row an actor"
            ) from error
        if mask.size == 0 and shape[0] * shape[1] == 0:
            mask = np.zeros(shape, dtype=np.bool_)
        if mask.shape == shape[1:] and actors.tolist() == [len(self.ids)]:
            mask = mask.reshape(shape)
        if mask.shape != shape:
            raise ValueError(
                f"{where}: mask has shape {mask.shape}; expected {shape}, one row an actor and one column for each of the "
                f"{columns}"
            )
        if mask.dtype != np.bool_:
            raise ValueError(f"{where}: mask is of type {mask.dtype}; expected bool, true where allowed")
        return mask

    def require_open(self, mask: NDArray[np.bool_] | None, actors: Indices, columns: str, action: str) -> None:
        """Raise a ValueError if everything is closed to one of the actors, and there is something."""
        if mask is None or not mask.shape[1] or (is_open := mask.any(axis=1)).all():
            return
        index = int(actors[(~is_open).argmax()])
        actor = GLOBAL_ENTITY if index == len(self.ids) else self.ids[index]
        raise ValueError(
            f"{self.where}: action {action!r}: every one of the {mask.shape[1]} {columns} of actor {actor!r} is masked; "
            "leave one open, or leave the actor out"
        )
