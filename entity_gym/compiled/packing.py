"""Rows of slots become a `VecObs`: one pass plans where they go, one copies them there."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from entity_gym.batch.ragged import RaggedBuffer, RaggedBufferBool, RaggedBufferF32, RaggedBufferI64
from entity_gym.batch.vec_obs import PLAYER_REWARD, Metric, VecActionMask, VecObs
from entity_gym.compiled.build import Table
from entity_gym.compiled.codegen import Fault, Mode, pair_actions
from entity_gym.compiled.declare import safe_name
from entity_gym.compiled.faults import raise_packing_fault
from entity_gym.compiled.layout import ActionPlan, Layout
from entity_gym.compiled.memory import Recycler
from entity_gym.pools.slots import EnvIds, Run
from entity_gym.spaces import GLOBAL_ENTITY

Arrays = Mapping[str, NDArray[Any]]
_ALIGNMENT = 64  # bytes, a cache line
_WORTH_SPLITTING = 4096  # slots; copying fewer takes less time than waking a thread


class _Place(NamedTuple):
    """Where the rows of a stream are found."""

    slot: str
    column: int  # of the offsets; -1: one row a slot
    dtype: np.dtype[Any]
    row: tuple[int, ...]
    row_bytes: int
    none: NDArray[Any]  # no rows at all: many streams are empty in many worlds


class Packer:
    """Packs the slots of one table.

    What there is a varying number of is packed by compiled code, the rest by NumPy.

    Args:
        layout: of the environment.
        table: whose slots are packed.
        slots: what is shown.
        outcomes: where reward, done, info and metrics are.
        where: names a slot in messages.
        num_workers: how many may copy at the same time.
    """

    def __init__(
        self,
        layout: Layout,
        table: Table,
        slots: Arrays,
        outcomes: Arrays,
        where: Callable[[int], str],
        num_workers: int = 1,
    ) -> None:
        self._num_workers = num_workers
        self._layout, self._table, self._where = layout, table, where
        self._outcomes = outcomes
        self._info = {name: outcomes[f"i_{safe_name(name)}"] for name in layout.info}
        self._metrics = {name: outcomes[f"q_{safe_name(name)}"] for name in layout.metrics}
        self._has_global = layout.has_global
        self._hideable = any(entity.hideable for entity in layout.entities.values())
        self._counts = [*(layout.counts.names or ()), *(f"{a.attribute}_pairs" for a in pair_actions(layout))]
        self._places = []
        for stream in layout.streams:
            row_bytes = stream.dtype.itemsize * math.prod(stream.row)
            column = self._counts.index(stream.rows) if stream.rows else -1
            none = np.empty((0, *stream.row), stream.dtype)
            self._places.append(_Place(stream.slot, column, stream.dtype, stream.row, row_bytes, none))
        packed = {place.slot for place in self._places}
        self._fixed = {name: slots[slot] for name, slot in layout.array_slots.items() if slot not in packed}
        self._elapsed = slots["elapsed"]
        self._everyone: EnvIds | None = None  # the last `ids` that were all slots in order
        self._offsets, self._rows = Recycler(), Recycler()

    def pack(self, ids: EnvIds, run: Run) -> VecObs:
        """The slots `ids`, in that order, in arrays that nothing writes to later; `run` may split the copying.

        Raises:
            ValueError: for a feature that may not be what it is, or an actor whose every choice is closed.
        """
        num_ids, table = len(ids), self._table
        if ids is not self._everyone and num_ids == len(self._elapsed) and (np.diff(ids) == 1).all():
            self._everyone = ids
        table.bind("ids", ids)
        off = self._bind_offsets(num_ids)
        table.run(Mode.PLAN, 0, num_ids)
        rows = self._bind_rows([*off[:, -1].tolist(), num_ids])
        err = table.arrays["err"]
        err[0] = Fault.NONE
        parts = self._num_workers if num_ids >= _WORTH_SPLITTING else 1
        if parts > 1:
            run(lambda part: table.run(Mode.COPY, num_ids * part // parts, num_ids * (part + 1) // parts), parts)
        if parts == 1 or err[0] != Fault.NONE:  # several parts may have written to `err` at once: look again
            table.run(Mode.COPY, 0, num_ids)
        if err[0] != Fault.NONE:
            raise_packing_fault(self._layout.streams[int(err[2])], self._layout, table.arrays, ids, self._where)

        layout, outcomes = self._layout, self._outcomes
        offsets = dict(zip(self._counts, off, strict=True))
        done = self._taken(outcomes["done"], ids)
        has_info = bool(self._info) and np.count_nonzero(done) > 0
        return VecObs(
            features=self._features(rows, offsets, num_ids),
            action_masks={action.name: _mask(action, rows, offsets) for action in layout.actions},
            reward=self._taken(outcomes["reward"], ids),
            done=done,
            truncated=self._taken(outcomes["truncated"], ids),
            env_id=ids.copy(),
            elapsed_step=self._taken(self._elapsed, ids),
            visible=dict(_visible(layout, rows, offsets)) if self._hideable else {},
            end_of_episode_info=_EpisodeInfo(self._info, ids[done]) if has_info else {},
            metrics=_metrics(self._metrics, ids) if self._metrics else {},
            arrays=self._arrays(rows, offsets, ids) if layout.array_slots or layout.player_rewards else {},
        )

    def _taken(self, array: NDArray[Any], ids: EnvIds) -> NDArray[Any]:
        """A copy of the rows `ids`."""
        return array.copy() if ids is self._everyone else array.take(ids, 0)

    def _bind_offsets(self, num_ids: int) -> NDArray[np.int64]:
        """(counts, num_ids + 1), to be filled in."""
        shape = (len(self._counts), num_ids + 1)
        block = self._offsets.take(8 * shape[0] * shape[1])
        off: NDArray[np.int64] = np.ndarray(shape, np.int64, block.memory)
        self._table.bind_at("off", off, block.address)
        return off

    def _bind_rows(self, totals: list[int]) -> dict[str, NDArray[Any]]:
        """Room for the rows of each stream, all in one block. `totals` are by column; the last is the number of slots."""
        starts = []
        size = 0
        for place in self._places:
            starts.append(size)
            size += -(-totals[place.column] * place.row_bytes // _ALIGNMENT) * _ALIGNMENT
        memory, address = self._rows.take(size)
        rows: dict[str, NDArray[Any]] = {}
        for (slot, column, dtype, row, _, none), start in zip(self._places, starts, strict=True):
            total = totals[column]
            rows[slot] = np.ndarray((total, *row), dtype, memory, start) if total else none
        self._table.bind_rows(rows, [address + start for start in starts])
        return rows

    def _features(self, rows: Arrays, offsets: Arrays, num_ids: int) -> dict[str, RaggedBufferF32]:
        features = {}
        for attribute, name in self._layout.entity_names.items():
            values = rows.get(f"f_{attribute}")
            if values is None:  # featureless
                values = np.empty((int(offsets[attribute][-1]), 0), dtype=np.float32)
            features[name] = RaggedBufferF32.unchecked(values, offsets[attribute])
        if self._has_global:
            values = rows["g"] if self._layout.global_features else np.empty((num_ids, 0), dtype=np.float32)
            features[GLOBAL_ENTITY] = RaggedBufferF32.unchecked(values, np.arange(num_ids + 1, dtype=np.int64))
        return features

    def _arrays(self, rows: Arrays, offsets: Arrays, ids: EnvIds) -> dict[str, NDArray[Any] | RaggedBuffer[Any]]:
        arrays: dict[str, NDArray[Any] | RaggedBuffer[Any]] = {}
        for name, slot in self._layout.array_slots.items():
            arrays[name] = (
                RaggedBuffer.from_offsets(rows[slot], offsets["players"])
                if slot in rows
                else self._taken(self._fixed[name], ids)
            )
        if self._layout.player_rewards:
            earned = self._taken(self._outcomes["pr"], ids)
            arrays[PLAYER_REWARD] = RaggedBuffer.from_offsets(earned.ravel(), np.arange(len(ids) + 1) * earned.shape[1])
        return arrays


def _mask(action: ActionPlan, rows: Arrays, offsets: Arrays) -> VecActionMask:
    name = action.attribute
    actors = RaggedBufferI64.unchecked(rows[f"w_{name}"], offsets[name])
    if action.bounds:
        return VecActionMask(actors)
    values = rows.get(f"m_{name}")
    if values is not None and not len(values):
        values = None  # as where no environment gives a mask
    if action.num_choices:
        mask = None if values is None else RaggedBufferBool.unchecked(values, offsets[name])
        return VecActionMask(actors, mask=mask)
    actees = RaggedBufferI64.unchecked(rows[f"t_{name}"], offsets[f"{name}_actees"])
    pairs = None if values is None else RaggedBufferBool.unchecked(values, offsets[f"{name}_pairs"])
    return VecActionMask(actors, actees, pairs)


def _visible(layout: Layout, rows: Arrays, offsets: Arrays) -> Iterator[tuple[str, RaggedBufferBool]]:
    for attribute, entity in layout.entities.items():
        if entity.hideable and not rows[f"v_{attribute}"].all():
            yield layout.entity_names[attribute], RaggedBufferBool.unchecked(rows[f"v_{attribute}"], offsets[attribute])


def _metrics(columns: Arrays, ids: EnvIds) -> dict[str, Metric]:
    metrics = {}
    for name, column in columns.items():
        values = column[ids]
        values = values[~np.isnan(values)]  # NaN: nothing to report
        if len(values):
            metrics[name] = Metric(len(values), float(values.sum()), float(values.min()), float(values.max()))
    return metrics


class _EpisodeInfo(Mapping[int, Mapping[str, Any]]):
    """What finished episodes report; made into dictionaries only when somebody asks."""

    def __init__(self, columns: Arrays, ids: EnvIds) -> None:
        self._ids = ids
        self._columns = {name: column[ids] for name, column in columns.items()}

    @functools.cached_property
    def _rows(self) -> dict[int, int]:
        return {env_id: row for row, env_id in enumerate(self._ids.tolist())}

    def __getitem__(self, env_id: int) -> Mapping[str, Any]:
        row = self._rows[env_id]
        info = {name: column[row].item() for name, column in self._columns.items()}
        return {name: value for name, value in info.items() if value == value}  # NaN: nothing to report

    def __iter__(self) -> Iterator[int]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._ids)

    def __repr__(self) -> str:
        return repr({env_id: self[env_id] for env_id in self})
