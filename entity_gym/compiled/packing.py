"""Rows of slots become a `VecObs`: one pass plans where they go, one copies them there."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from entity_gym.compiled.build import Table
from entity_gym.compiled.codegen import Fault, Mode, pair_actions
from entity_gym.compiled.declare import safe_name
from entity_gym.compiled.faults import raise_fault
from entity_gym.compiled.layout import ActionPlan, Layout
from entity_gym.compiled.memory import Block, Recycler, array_in
from entity_gym.ragged import RaggedBufferBool, RaggedBufferF32, RaggedBufferI64
from entity_gym.slots import EnvIds, Run
from entity_gym.spaces import GLOBAL_ENTITY
from entity_gym.vec_obs import (
    Metric,
    RaggedArray,
    VecActionMask,
    VecCategoricalActionMask,
    VecObs,
    VecSelectEntityActionMask,
)

Arrays = Mapping[str, NDArray[Any]]
_ALIGNMENT = 64  # bytes, a cache line


class _Place(NamedTuple):
    """Where the rows of a stream are found."""

    slot: str
    out: str
    column: int  # of the offsets; -1: one row a slot
    dtype: np.dtype[Any]
    row: tuple[int, ...]
    row_bytes: int


class Packer:
    """Packs the slots of one table.

    Args:
        layout: of the environment.
        table: whose slots are packed.
        slots: what is shown.
        outcomes: where info and metrics are.
        where: names a slot in messages.
    """

    def __init__(
        self, layout: Layout, table: Table, slots: Arrays, outcomes: Arrays, where: Callable[[int], str]
    ) -> None:
        self._layout, self._table, self._where = layout, table, where
        self._outcomes = outcomes
        self._is_final = slots is not outcomes
        self._hideable = any(entity.hideable for entity in layout.entities.values())
        self._counts = [*(layout.counts.names or ()), *(f"{a.attribute}_pairs" for a in pair_actions(layout))]
        self._places = []
        for stream in layout.streams:
            row_bytes = stream.dtype.itemsize * math.prod(stream.row)
            column = self._counts.index(stream.rows) if stream.rows else -1
            self._places.append(_Place(stream.slot, f"out_{stream.slot}", column, stream.dtype, stream.row, row_bytes))
        self._plans, self._rows = Recycler(), Recycler()

    def pack(self, ids: EnvIds, run: Run) -> VecObs:
        """The slots `ids`, in that order, in arrays that nothing writes to later; `run` may split the copying.

        Raises:
            ValueError: for a number that is not finite, or an actor whose every choice is closed.
        """
        num_ids, table = len(ids), self._table
        plan = self._plans.take(8 * (len(self._counts) + 2) * (num_ids + 1))
        table.bind("ids", ids)
        off, env_id, steps = self._bind_plan(plan, num_ids)
        table.run(Mode.PLAN, 0, num_ids)
        rows = self._bind_rows([*off[:, -1].tolist(), num_ids])
        err = table.arrays["err"]
        err[0] = Fault.NONE
        table.run(Mode.COPY, 0, num_ids)
        if err[0] != Fault.NONE:
            raise_fault(err, self._layout, table.arrays, self._where(int(err[1])))

        layout, outcomes = self._layout, self._outcomes
        offsets = dict(zip(self._counts, off, strict=True))
        done = rows["done"]
        has_info = bool(layout.info) and np.count_nonzero(done) > 0
        return VecObs(
            features=_features(layout, rows, offsets, num_ids),
            action_masks={action.name: _mask(action, rows, offsets) for action in layout.actions},
            reward=rows["reward"],
            done=done,
            truncated=rows["truncated"],
            env_id=env_id,
            elapsed_step=steps,
            visible=dict(_visible(layout, rows, offsets)) if self._hideable else {},
            end_of_episode_info=_EpisodeInfo(layout, outcomes, ids[done]) if has_info else {},
            metrics=_metrics(layout, outcomes, ids) if layout.metrics and not self._is_final else {},
            arrays=_arrays(layout, rows, offsets) if layout.array_slots else {},
        )

    def _bind_plan(self, block: Block, num_ids: int) -> _Plan:
        """The arrays whose size is known beforehand."""
        int64, columns = np.dtype(np.int64), len(self._counts)
        off = array_in(block, 0, (columns, num_ids + 1), int64)
        start = off.nbytes
        env_id = array_in(block, start, (num_ids,), int64)
        steps = array_in(block, start + 8 * num_ids, (num_ids,), int64)
        self._table.bind_at("off", off, block.address)
        self._table.bind_at("out_ids", env_id, block.address + start)
        self._table.bind_at("out_steps", steps, block.address + start + 8 * num_ids)
        return _Plan(off, env_id, steps)

    def _bind_rows(self, totals: list[int]) -> dict[str, NDArray[Any]]:
        """Room for the rows of each stream, all in one block. `totals` are by column; the last is the number of slots."""
        starts = []
        size = 0
        for place in self._places:
            starts.append(size)
            size += -(-totals[place.column] * place.row_bytes // _ALIGNMENT) * _ALIGNMENT
        block = self._rows.take(size)
        rows = {}
        for place, start in zip(self._places, starts, strict=True):
            array = array_in(block, start, (totals[place.column], *place.row), place.dtype)
            rows[place.slot] = array
            self._table.bind_at(place.out, array, block.address + start)
        return rows


class _Plan(NamedTuple):
    off: NDArray[np.int64]  # (counts, n + 1)
    env_id: NDArray[np.int64]  # (n,)
    steps: NDArray[np.int64]  # (n,)


def _features(layout: Layout, rows: Arrays, offsets: Arrays, num_ids: int) -> dict[str, RaggedBufferF32]:
    features = {}
    for attribute, name in layout.entity_names.items():
        values = rows.get(f"f_{attribute}")
        if values is None:  # featureless
            values = np.empty((int(offsets[attribute][-1]), 0), dtype=np.float32)
        features[name] = RaggedBufferF32._of(values, offsets[attribute])
    if layout.has_global:
        values = rows["g"] if layout.global_features else np.empty((num_ids, 0), dtype=np.float32)
        features[GLOBAL_ENTITY] = RaggedBufferF32._of(values, np.arange(num_ids + 1, dtype=np.int64))
    return features


def _mask(action: ActionPlan, rows: Arrays, offsets: Arrays) -> VecActionMask:
    name = action.attribute
    actors = RaggedBufferI64._of(rows[f"w_{name}"], offsets[name])
    values = rows.get(f"m_{name}")
    if action.num_choices:
        mask = None if values is None else RaggedBufferBool._of(values, offsets[name])
        return VecCategoricalActionMask(actors, mask, action.num_choices)
    actees = RaggedBufferI64._of(rows[f"t_{name}"], offsets[f"{name}_actees"])
    pairs = None if values is None else RaggedBufferBool._of(values, offsets[f"{name}_pairs"])
    return VecSelectEntityActionMask(actors, actees, pairs)


def _visible(layout: Layout, rows: Arrays, offsets: Arrays) -> Iterator[tuple[str, RaggedBufferBool]]:
    for attribute, entity in layout.entities.items():
        if entity.hideable and not rows[f"v_{attribute}"].all():
            yield layout.entity_names[attribute], RaggedBufferBool._of(rows[f"v_{attribute}"], offsets[attribute])


def _metrics(layout: Layout, outcomes: Arrays, ids: EnvIds) -> dict[str, Metric]:
    metrics = {}
    for name in layout.metrics:
        values = outcomes[f"q_{safe_name(name)}"][ids]
        values = values[~np.isnan(values)]  # NaN: nothing to report
        if len(values):
            metrics[name] = Metric(len(values), float(values.sum()), float(values.min()), float(values.max()))
    return metrics


def _arrays(layout: Layout, rows: Arrays, offsets: Arrays) -> dict[str, NDArray[Any] | RaggedArray]:
    per_player = {stream.slot for stream in layout.streams if stream.rows == "players"}
    return {
        name: RaggedArray(rows[slot], offsets["players"]) if slot in per_player else rows[slot]
        for name, slot in layout.array_slots.items()
    }


class _EpisodeInfo(Mapping[int, Mapping[str, Any]]):
    """What finished episodes report; made into dictionaries only when somebody asks."""

    def __init__(self, layout: Layout, outcomes: Arrays, ids: EnvIds) -> None:
        self._rows = {int(i): row for row, i in enumerate(ids)}
        self._columns = {name: outcomes[f"i_{safe_name(name)}"][ids] for name in layout.info}

    def __getitem__(self, env_id: int) -> Mapping[str, Any]:
        row = self._rows[env_id]
        info = {name: column[row].item() for name, column in self._columns.items()}
        return {name: value for name, value in info.items() if value == value}  # NaN: nothing to report

    def __iter__(self) -> Iterator[int]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        return repr({env_id: self[env_id] for env_id in self})
