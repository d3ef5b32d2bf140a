"""What a world that is written over arrays shows: rows of many environments, and who may act."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from entity_gym.batch.batching import check_features
from entity_gym.batch.frame import FrameReader
from entity_gym.batch.ragged import RaggedBufferBool, RaggedBufferF32, RaggedBufferI64
from entity_gym.batch.vec_obs import (
    VecActionMask,
    VecCategoricalActionMask,
    VecContinuousActionMask,
    VecObs,
    VecSelectEntityActionMask,
)
from entity_gym.errors import nearest
from entity_gym.spaces import (
    GLOBAL_ENTITY,
    ActionSpace,
    CategoricalActionSpace,
    ContinuousActionSpace,
    GlobalCategoricalActionSpace,
    SelectEntityActionSpace,
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
    """Who takes an action in n environments.

    Attributes:
        actors: entity types whose every entity acts, or rows of (I,) entity indices inside the frame (all of the first type
            of the space, then all of the second, ...). Not for a global action, whose only actor is the frame.
        actees: for select-entity, who may be selected, in the same two forms.
        mask: rows of (I, C) bool, one for each actor, true where the choice is open; (n, C) for a global action. For
            select-entity rows of (I,), one for each pair, actor by actor. None: everything is open. Not for continuous actions.
        offered: (n,) bool, whether the environment offers the action at all. None: all do.
    """

    actors: str | Sequence[str] | Rows | None = None
    actees: str | Sequence[str] | Rows | None = None
    mask: AnyRows | None = None
    offered: NDArray[np.bool_] | None = None


@dataclass(kw_only=True)
class BatchObservation:
    """n environments at one step; the fields of `Observation`, over all of them.

    Attributes:
        features: entity type -> rows of (I, F) numbers. A type may be left out: nobody has any.
        actions: action -> who takes it. An action may be left out: nobody does.
        global_features: (n, number of global features).
        visible: entity type -> rows of (I,) bool; types left out are visible.
    """

    features: Mapping[str, AnyRows] = field(default_factory=dict)
    actions: Mapping[str, BatchActors] = field(default_factory=dict)
    global_features: NDArray[Any] | None = None
    visible: Mapping[str, AnyRows] = field(default_factory=dict)


class Ending(NamedTuple):
    """How the steps ended that n environments took; each (n,)."""

    reward: NDArray[np.float32]
    done: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    elapsed_step: NDArray[np.int64]


def pack_batch(
    observed: BatchObservation,
    ids: NDArray[np.int64],
    ending: Ending,
    reader: FrameReader,
    without_actions: NDArray[np.bool_],
) -> VecObs:
    """One `VecObs` from what the environments `ids` show.

    Args:
        observed: n environments.
        ids: (n,) which.
        ending: what goes with it.
        reader: has their spaces and names.
        without_actions: (n,) where nobody acts, whatever `observed` says: last observations of episodes.

    Raises:
        ValueError: for anything that does not fit the spaces, naming the type or action.
    """
    return _Packing(reader, ids, ~without_actions).pack(observed, ending)


class _Packing:
    """`pack_batch`, with what its parts share."""

    def __init__(self, reader: FrameReader, ids: NDArray[np.int64], acting: NDArray[np.bool_]) -> None:
        self.reader = reader
        self.ids = ids
        self.acting = acting
        self.name = reader.environment
        self.starts: dict[str, NDArray[np.int64]] = {}  # type -> (n,) entity index of its first entity in each frame
        self.counts: dict[str, NDArray[np.int64]] = {}

    def pack(self, observed: BatchObservation, ending: Ending) -> VecObs:
        reader, known = self.reader, self.reader.widths
        for what, given in (("features", observed.features), ("visible", observed.visible)):
            for name in given:
                if name not in known:
                    raise ValueError(f"{self.name}: {what} of unknown entity type {name!r}; {nearest(name, known)}")
        for name in observed.actions:
            if name not in reader.action_space:
                raise ValueError(f"{self.name}: unknown action {name!r}; {nearest(name, reader.action_space)}")
        features, start = {}, np.zeros(len(self.ids), dtype=np.int64)
        for name, width in known.items():
            rows = self.rows(observed.features.get(name), (width,), np.float32, f"features of {name!r}")
            features[name] = RaggedBufferF32.from_offsets(rows.values, _offsets(rows.counts))
            self.starts[name], self.counts[name] = start, rows.counts
            start = start + rows.counts
        if reader.has_global:
            features[GLOBAL_ENTITY] = self.global_rows(observed.global_features)
            self.starts[GLOBAL_ENTITY] = start
        for name, buffer in features.items():
            check_features(name, buffer, self.ids, reader)
        return VecObs(
            features=features,
            action_masks={
                name: self.actors(name, space, observed.actions.get(name))
                for name, space in reader.action_space.items()
            },
            reward=ending.reward,
            done=ending.done,
            truncated=ending.truncated,
            env_id=self.ids.copy(),
            elapsed_step=ending.elapsed_step,
            visible=self.visible(observed.visible),
        )

    def rows(self, given: AnyRows | None, shape: tuple[int, ...], dtype: type, what: str) -> Rows:
        """`given` as (I, *shape) rows of `dtype`, as new arrays."""
        n = len(self.ids)
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
        return Rows(np.array(values, dtype=dtype, order="C"), counts.astype(np.int64))

    def global_rows(self, given: NDArray[Any] | None) -> RaggedBufferF32:
        n, names = len(self.ids), list(self.reader.obs_space.global_features)
        values = np.zeros((n, 0)) if given is None else np.asarray(given)
        if values.shape != (n, len(names)):
            raise ValueError(
                f"{self.name}: global_features have shape {values.shape}; expected {(n, len(names))}, for {names}"
            )
        return RaggedBufferF32.from_offsets(np.array(values, dtype=np.float32, order="C"), np.arange(n + 1))

    def visible(self, given: Mapping[str, AnyRows]) -> dict[str, RaggedBufferBool]:
        result = {}
        for name, flags in given.items():
            rows = self.rows(flags, (), np.bool_, f"visible of {name!r}")
            if not np.array_equal(rows.counts, self.counts[name]):
                raise ValueError(f"{self.name}: visible of {name!r} has other counts than its features")
            if not rows.values.all():
                result[name] = RaggedBufferBool.from_offsets(rows.values[:, None], _offsets(rows.counts))
        return result

    def actors(self, name: str, space: ActionSpace, given: BatchActors | None) -> VecActionMask:
        where = f"action {name!r}"
        offered = np.zeros(len(self.ids), np.bool_) if given is None else self.acting
        given = BatchActors(actors=(), actees=()) if given is None else given
        if given.offered is not None:
            flags = np.asarray(given.offered)
            if flags.shape != offered.shape or flags.dtype != np.bool_:
                raise ValueError(f"{self.name}: {where}: offered is {flags!r:.200}; expected {len(offered)} bools")
            offered = offered & flags
        if isinstance(space, GlobalCategoricalActionSpace):
            actors = Rows(self.starts[GLOBAL_ENTITY], np.ones(len(self.ids), np.int64))
        else:
            actors = self.entities(given.actors, f"{where}: actors")
        if isinstance(space, SelectEntityActionSpace):
            actees = self.entities(given.actees, f"{where}: actees")
            pairs = self.mask(given.mask, (), actors.counts * actees.counts, where)
            if pairs is not None and not space.can_close:
                self.check_open(
                    _any_of_each(pairs.values, np.repeat(actees.counts, actors.counts)), actors.counts, where
                )
            if space.exclude_self:
                pairs = _without_self(pairs, actors, actees)
            offered_rows = None if pairs is None else _keep(pairs, offered)
            chosen = _keep(actors, offered)
            actees = _keep(actees, offered & (chosen.counts > 0))
            mask = None if offered_rows is None else _bools(offered_rows)
            return VecSelectEntityActionMask(_indices(chosen), _indices(actees), mask)
        if isinstance(space, ContinuousActionSpace):
            if given.mask is not None:
                raise ValueError(f"{self.name}: {where} is continuous, and was given a mask; it has none")
            return VecContinuousActionMask(_indices(_keep(actors, offered)))
        assert isinstance(space, CategoricalActionSpace | GlobalCategoricalActionSpace)
        width = len(space.choices)
        rows = given.mask
        if isinstance(space, GlobalCategoricalActionSpace) and rows is not None and not isinstance(rows, Rows):
            rows = np.asarray(rows)[:, None]
        open_ = self.mask(rows, (width,), actors.counts, where)
        if open_ is not None:
            self.check_open(np.asarray(open_.values.any(axis=1)), actors.counts, where)
        mask = None if open_ is None else _bools(_keep(open_, offered))
        return VecCategoricalActionMask(_indices(_keep(actors, offered)), mask, width)

    def entities(self, given: str | Sequence[str] | Rows | None, what: str) -> Rows:
        """Rows of entity indices inside the frame."""
        if isinstance(given, Rows):
            rows = self.rows(given, (), np.int64, what)
            limit = np.repeat(sum(self.counts.values(), np.zeros(len(self.ids), np.int64)), rows.counts)
            wrong = (rows.values < 0) | (rows.values >= limit)
            if wrong.any():
                k = int(wrong.argmax())
                i = int(np.searchsorted(np.cumsum(rows.counts), k, side="right"))
                raise ValueError(
                    f"{self.reader.where(int(self.ids[i]))}: {what} name entity {rows.values[k]}; there are {limit[k]}"
                )
            return rows
        if given is None:
            raise ValueError(f"{self.name}: {what} are None; give entity types, or Rows of entity indices")
        names = [given] if isinstance(given, str) else list(given)
        frames, indices = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for name in names:
            if name not in self.counts:
                raise ValueError(f"{self.name}: {what}: unknown entity type {name!r}; {nearest(name, self.counts)}")
            counts = self.counts[name]
            frames.append(np.repeat(np.arange(len(counts)), counts))
            first = _offsets(counts)[:-1] - self.starts[name]
            indices.append(np.arange(counts.sum()) - np.repeat(first, counts))
        order = np.argsort(np.concatenate(frames), kind="stable")
        total: NDArray[np.int64] = sum((self.counts[name] for name in names), np.zeros(len(self.ids), np.int64))
        return Rows(np.concatenate(indices)[order], total)

    def mask(self, given: AnyRows | None, shape: tuple[int, ...], counts: NDArray[np.int64], where: str) -> Rows | None:
        if given is None:
            return None
        rows = self.rows(given, shape, np.bool_, f"{where}: rows of the mask")
        if not np.array_equal(rows.counts, counts):
            raise ValueError(f"{self.name}: {where}: the mask has {rows.counts} rows; expected {counts}")
        return rows

    def check_open(self, open_: NDArray[np.bool_], counts: NDArray[np.int64], where: str) -> None:
        """Refuse actors for whom everything is masked; `open_` (A,) says for each whether something is not."""
        if not open_.all():
            item = int((~open_).argmax())
            i = int(np.searchsorted(np.cumsum(counts), item, side="right"))
            raise ValueError(
                f"{self.reader.where(int(self.ids[i]))}: {where}: everything is masked for actor "
                f"{item - int(counts[:i].sum())}; leave something open, or leave the actor out"
            )


def _without_self(pairs: Rows | None, actors: Rows, actees: Rows) -> Rows | None:
    """The mask of pairs with those closed, too, in which an actor selects itself; None if nothing is closed."""
    per_actor = np.repeat(actees.counts, actors.counts)  # (A,) how many pairs each actor has
    first = np.repeat(_offsets(actees.counts)[:-1], actors.counts)  # (A,) its first actee
    within = np.arange(int(per_actor.sum())) - np.repeat(np.cumsum(per_actor) - per_actor, per_actor)
    others = np.repeat(actors.values, per_actor) != actees.values[np.repeat(first, per_actor) + within]
    if pairs is not None:
        return Rows(pairs.values & others, pairs.counts)
    return None if others.all() else Rows(others, actors.counts * actees.counts)


def _any_of_each(flags: NDArray[np.bool_], lengths: NDArray[np.int64]) -> NDArray[np.bool_]:
    """For each run of flags of these lengths, whether any is set or there are none."""
    ends = np.cumsum(lengths)
    opened = np.concatenate([[0], np.cumsum(flags)])
    result: NDArray[np.bool_] = (opened[ends] > opened[ends - lengths]) | (lengths == 0)
    return result


def _keep(rows: Rows, frames: NDArray[np.bool_]) -> Rows:
    """The same without the rows of some frames."""
    if frames.all():
        return rows
    return Rows(rows.values[np.repeat(frames, rows.counts)], np.where(frames, rows.counts, 0))


def _offsets(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])


def _indices(rows: Rows) -> RaggedBufferI64:
    return RaggedBufferI64.from_offsets(np.array(rows.values, np.int64)[:, None], _offsets(rows.counts))


def _bools(rows: Rows) -> RaggedBufferBool:
    values = rows.values if rows.values.ndim > 1 else rows.values[:, None]
    return RaggedBufferBool.from_offsets(np.ascontiguousarray(values), _offsets(rows.counts))
