"""Find the entities that an observation names, in one frame of a Python world."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

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
    actees: Indices = NO_INDICES  # (number of actees,) entity indices; nothing unless the action selects entities
    mask: NDArray[np.bool_] | None = None  # (A, C), or (A, number of actees); None: everything is open
    mask_after: NDArray[np.bool_] | None = None  # (A, number of actees of an earlier action, C); None: closes nothing


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
        if ids is not None:
            return self._find_ids(ids, role, action)
        found: list[Indices] = []
        for name in self.ranges if types is None else types:
            if name not in self.ranges:
                raise ValueError(
                    f"{self._at(action)}: {role}_types names the unknown entity type {name!r}; {nearest(name, self.ranges)}"
                )
            start, count = self.ranges[name]
            if len(self.index_of) < len(self.ids) and None in self.ids[start : start + count]:
                raise ValueError(
                    f"{self._at(action)}: entities of type {name!r} are {role}s but have no ids; give Observation.ids[{name!r}]"
                )
            found.append(np.arange(start, start + count))
        if types is not None and len(set(types)) != len(types):
            raise ValueError(f"{self._at(action)}: {role}_types {list(types)!r} lists a type twice")
        if len(found) == 1:
            return found[0]
        return np.concatenate(found) if found else NO_INDICES

    def _find_ids(self, ids: Sequence[EntityID], role: str, action: str) -> Indices:
        try:
            found = [self.index_of[id_] for id_ in ids]
        except (KeyError, TypeError):  # one that no entity has, or that is not hashable
            known = list(self.index_of)
            wrong = next(id_ for id_ in ids if id_ not in known)  # compared, and not looked up
            near = nearest(wrong, list(map(str, known[:20])))
            raise ValueError(f"{self._at(action)}: {role}_ids names {wrong!r}, which no entity has; {near}") from None
        if len(set(found)) != len(found):
            raise ValueError(f"{self._at(action)}: {role}_ids {list(ids)!r} lists an entity twice")
        return np.array(found, dtype=np.int64)

    def _at(self, action: str) -> str:
        return f"{self.where}: action {action!r}"

    def mask(self, given: Any, actors: Indices, num_columns: int, action: str) -> NDArray[np.bool_] | None:
        """Return the mask of one action as an (A, num_columns) array.

        Args:
            given: the world's mask; None: everything is open.
            actors: (A,) entity indices. The mask of one actor, such as `__global__`, may be one row.
            num_columns: C, or the number of actees.
            action: its name, for messages.

        Raises:
            ValueError: the mask has another shape, or is not bool.
        """
        if given is None:
            return None
        return read_flags(given, (len(actors), num_columns), f"{self.where}: action {action!r}: mask")

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


def read_flags(given: Any, shape: tuple[int, ...], what: str) -> NDArray[np.bool_]:
    """Return an array of bools; nothing may be written in any way. Raises a ValueError that begins with `what`."""
    try:
        flags = np.asarray(given, order="C")
    except ValueError as error:
        raise ValueError(f"{what} is {given!r:.200}; expected bools of shape {shape}") from error
    if flags.size == 0 and 0 in shape:
        return np.zeros(shape, np.bool_)
    if shape[0] == 1 and flags.shape == shape[1:] != ():
        flags = flags.reshape(shape)
    if flags.shape != shape or flags.dtype != np.bool_:
        raise ValueError(f"{what} has shape {flags.shape} and type {flags.dtype}; expected bools of shape {shape}")
    return flags
