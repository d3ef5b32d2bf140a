"""Find the entities that an observation names, in one frame of a Python world or in many of a world written over arrays."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from entity_gym.batch.ragged import RaggedBufferBool, RaggedBufferI64, offsets_of
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
    return VecActionMask(actors, actees, RaggedBufferBool.from_offsets(np.concatenate(rows), offsets_of(lengths)))


def _actees(offer: Offer) -> Indices:
    return NO_INDICES if offer.actees is None else offer.actees


def _indices(arrays: Sequence[Indices]) -> RaggedBufferI64:
    values = np.concatenate(arrays) if arrays else NO_INDICES
    lengths = np.array([len(array) for array in arrays], np.int64)
    return RaggedBufferI64.from_offsets(values[:, None], offsets_of(lengths))


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
        found: list[int] = []
        for name in self.ranges if types is None else types:
            if name not in self.ranges:
                raise ValueError(
                    f"{where}: {role}_types names the unknown entity type {name!r}; {nearest(name, self.ranges)}"
                )
            start, count = self.ranges[name]
            if count and None in self.ids[start : start + count]:
                raise ValueError(
                    f"{where}: entities of type {name!r} are {role}s but have no ids; give Observation.ids[{name!r}]"
                )
            found.extend(range(start, start + count))
        if types is not None and len(types) > 1 and len(set(types)) != len(types):
            raise ValueError(f"{where}: {role}_types {list(types)!r} lists a type twice")
        return np.array(found, dtype=np.int64)

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


class Rows(NamedTuple):
    """Rows of n environments one after another: `counts[k]` of them belong to the k-th.

    Where every environment has equally many, one (n, rows, ...) array says the same and may be given instead.
    """

    values: NDArray[Any]  # (I, ...)
    counts: NDArray[Any]  # (n,) integers that add up to I


AnyRows = Rows | NDArray[Any]


@dataclass(kw_only=True)
class BatchActors:
    """The actors of an action in n environments, and the choices open to them.

    Attributes:
        actors: entity types whose every entity acts, or rows of (I,) entity indices inside the frame (all of the first type
            of the space, then all of the second, ...). Not for a global action, whose only actor is the frame.
        actees: for select-entity, the entities that may be selected, in the same two forms.
        mask: rows of (I, C) bool, one for each actor, true where the choice is open; (n, C) for a global action. For
            select-entity rows of (I,), one for each pair, actor by actor. None: everything is open. Not for continuous actions.
        offered: (n,) bool, whether the environment offers the action at all. None: all do.
    """

    actors: str | Sequence[str] | Rows | None = None
    actees: str | Sequence[str] | Rows | None = None
    mask: AnyRows | None = None
    offered: NDArray[np.bool_] | None = None


class BatchEntities:
    """The entities of n frames of a world that is written over arrays, found by index or by type.

    Args:
        name: the world's class, for messages.
        where: names the environment of a frame in messages, given the frame's number.
        counts: entity type -> (n,) how many each frame has, in the order of the space.
        acting: (n,) false in last observations of episodes, where nobody acts.
    """

    def __init__(
        self,
        name: str,
        where: Callable[[int], str],
        counts: Mapping[str, NDArray[np.int64]],
        acting: NDArray[np.bool_],
    ) -> None:
        self.name, self.where, self.counts, self.acting = name, where, counts, acting
        self.starts: dict[str, NDArray[np.int64]] = {}  # (n,) index of the first entity of a type in each frame
        self.total: NDArray[np.int64] = np.zeros(len(acting), np.int64)  # (n,) entities of all types
        for entity_type, count in counts.items():
            self.starts[entity_type] = self.total
            self.total = self.total + count

    def rows(self, given: AnyRows | None, shape: tuple[int, ...], dtype: type, what: str) -> Rows:
        """Return `given` as (I, *shape) rows of `dtype`, in a new array.

        Raises:
            ValueError: it has another shape or type.
        """
        n = len(self.acting)
        if given is None:
            return Rows(np.zeros((0, *shape), dtype), np.zeros(n, np.int64))
        if isinstance(given, Rows):
            values, counts = np.asarray(given.values), np.asarray(given.counts)
        else:
            values = np.asarray(given)
            if values.ndim != 2 + len(shape) or len(values) != n:
                expected = ", ".join(map(str, (n, "rows", *shape)))
                raise ValueError(
                    f"{self.name}: {what} have shape {values.shape}; expected ({expected}), or Rows with counts"
                )
            counts = np.full(n, values.shape[1])
            values = values.reshape(values.shape[0] * values.shape[1], *values.shape[2:])
        if counts.shape != (n,) or counts.dtype.kind not in "iu" or (n and counts.min() < 0):
            raise ValueError(
                f"{self.name}: counts of {what} are {counts!r:.200}; expected {n} whole numbers, 0 or more"
            )
        if values.shape != (counts.sum(), *shape):
            raise ValueError(
                f"{self.name}: {what} have shape {values.shape}; expected {(int(counts.sum()), *shape)}, as counts add up"
            )
        if dtype is np.bool_ and values.dtype != np.bool_:
            raise ValueError(f"{self.name}: {what} are of type {values.dtype}; expected bool")
        if dtype is np.float32 and values.dtype.kind not in "biuf":
            raise ValueError(f"{self.name}: {what} are of type {values.dtype.name}; expected numbers")
        return Rows(np.array(values, dtype=dtype, order="C"), counts.astype(np.int64))

    def find(self, given: str | Sequence[str] | Rows | None, role: str, action: str) -> Rows:
        """Return rows of entity indices, from entity types or rows of indices.

        Raises:
            ValueError: a type or an index does not exist.
        """
        what = f"action {action!r}: {role}s"
        if isinstance(given, Rows):
            rows = self.rows(given, (), np.int64, what)
            limit = np.repeat(self.total, rows.counts)
            wrong = (rows.values < 0) | (rows.values >= limit)
            if wrong.any():
                k = int(wrong.argmax())
                i = int(np.searchsorted(np.cumsum(rows.counts), k, side="right"))
                raise ValueError(f"{self.where(i)}: {what} name entity {rows.values[k]}; there are {limit[k]}")
            return rows
        if given is None:
            raise ValueError(f"{self.name}: {what} are None; give entity types, or Rows of entity indices")
        names = [given] if isinstance(given, str) else list(given)
        frames, indices = [NO_INDICES], [NO_INDICES]
        for name in names:
            if name not in self.counts:
                raise ValueError(f"{self.name}: {what}: unknown entity type {name!r}; {nearest(name, self.counts)}")
            counts = self.counts[name]
            frames.append(np.repeat(np.arange(len(counts)), counts))
            first = offsets_of(counts)[:-1] - self.starts[name]
            indices.append(np.arange(counts.sum()) - np.repeat(first, counts))
        order = np.argsort(np.concatenate(frames), kind="stable")
        total: NDArray[np.int64] = sum((self.counts[name] for name in names), np.zeros(len(self.acting), np.int64))
        return Rows(np.concatenate(indices)[order], total)

    def offered(self, given: BatchActors, action: str) -> NDArray[np.bool_]:
        """Return (n,) whether each frame offers the action: nobody acts in a last observation.

        Raises:
            ValueError: `given.offered` is not one bool for each frame.
        """
        if given.offered is None:
            return self.acting
        flags = np.asarray(given.offered)
        if flags.shape != self.acting.shape or flags.dtype != np.bool_:
            raise ValueError(
                f"{self.name}: action {action!r}: offered is {flags!r:.200}; expected {len(self.acting)} bools"
            )
        return self.acting & flags

    def mask(
        self, given: AnyRows | None, shape: tuple[int, ...], counts: NDArray[np.int64], action: str
    ) -> Rows | None:
        """Return the mask as rows of (I, *shape) bool, `counts` of them in each frame; None: everything is open.

        Raises:
            ValueError: the mask has another shape, type or number of rows.
        """
        if given is None:
            return None
        rows = self.rows(given, shape, np.bool_, f"action {action!r}: rows of the mask")
        if not np.array_equal(rows.counts, counts):
            raise ValueError(f"{self.name}: action {action!r}: the mask has {rows.counts} rows; expected {counts}")
        return rows

    def require_open(self, is_open: NDArray[np.bool_], actors: Rows, offered: NDArray[np.bool_], action: str) -> None:
        """Raise a ValueError if everything is closed to one of the actors that act; `is_open` is (A,)."""
        closed = ~is_open & np.repeat(offered, actors.counts)
        if closed.any():
            item = int(closed.argmax())
            i = int(np.searchsorted(np.cumsum(actors.counts), item, side="right"))
            raise ValueError(
                f"{self.where(i)}: action {action!r}: everything is masked for actor "
                f"{item - int(actors.counts[:i].sum())}; leave something open, or leave the actor out"
            )


def keep_frames(rows: Rows, frames: NDArray[np.bool_]) -> Rows:
    """Remove the rows of the frames where `frames` (n,) is false."""
    if frames.all():
        return rows
    return Rows(rows.values[np.repeat(frames, rows.counts)], np.where(frames, rows.counts, 0))


def as_indices(rows: Rows) -> RaggedBufferI64:
    """Turn rows of entity indices into n sequences of (I, 1)."""
    return RaggedBufferI64.from_offsets(np.array(rows.values, np.int64)[:, None], offsets_of(rows.counts))


def as_mask(rows: Rows | None) -> RaggedBufferBool | None:
    """Turn rows of a mask into n sequences of (I, C), or of (I, 1) where a row is one bool."""
    if rows is None:
        return None
    values = rows.values if rows.values.ndim > 1 else rows.values[:, None]
    return RaggedBufferBool.from_offsets(np.ascontiguousarray(values), offsets_of(rows.counts))
