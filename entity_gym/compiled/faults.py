"""Faults that a compiled call has found, as errors in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from entity_gym.batch.batching import check_features
from entity_gym.batch.frame import FrameReader
from entity_gym.batch.ragged import RaggedBuffer
from entity_gym.compiled.declare import Kind, Slot
from entity_gym.compiled.layout import Layout
from entity_gym.compiled.runtime import BAD_COUNT, BAD_INDEX, BAD_REWARD, FAULT, SLOT, VALUE, WHAT
from entity_gym.spaces import GLOBAL_ENTITY

Slots = Mapping[str, NDArray[Any]]


def fault_error(report: list[int], layout: Layout, slots: Slots, where: str) -> ValueError:
    """The error for a fault of `reset`, `step` or `observe` in the environment called `where`."""
    fault, i, what, value = (report[place] for place in (FAULT, SLOT, WHAT, VALUE))
    if fault == BAD_COUNT:
        count = (layout.counts.names or ())[what]
        if count in layout.entities:
            name, most = layout.entity_names[count], layout.entities[count].max
            return ValueError(f"{where}: observe() shows {value} entities of type {name!r}; allowed: 0 to max={most}")
        [(action, listed)] = [(each, of) for each in layout.actions for of in each.lists if of.count == count]
        allowed = f"allowed: 0 to max_{listed.role}={listed.max}"
        if listed.ranges is not None:
            allowed = f"the {listed.role} of {action.name!r} are declared, so it can only be set to 0"
        return ValueError(f"{where}: obs.n.{count} is {value}; {allowed}")
    if fault == BAD_REWARD:
        return ValueError(f"{where}: step() returned the reward {slots['reward'][i]}; it must be a finite number")
    assert fault == BAD_INDEX, f"unknown fault {fault}"
    total = sum(int(slots["counts"][i][name]) for name in layout.entities)
    return ValueError(
        f"{where}: action {layout.actions[what].name!r} names entity {value} as an actor or actee; the frame has "
        f"{total} entities"
    )


def refuse_rows(slot: Slot, layout: Layout, slots: Slots, ids: NDArray[np.int64], reader: FrameReader) -> NoReturn:
    """Raise the ValueError for the first of `ids` with a bad feature, or an actor without a choice, in the array `slot`."""
    for i in ids.tolist():
        rows, counts = slots[slot.name][i], slots["counts"][i]
        if slot.kind is not Kind.MASK:
            is_global = slot.kind is Kind.GLOBAL_FEATURES
            name = GLOBAL_ENTITY if is_global else layout.entity_names[slot.owner]
            check_features(name, RaggedBuffer.from_array(rows[None, : counts[slot.rows]]), np.array([i]), reader)
            continue
        [action] = [each for each in layout.actions if each.attribute == slot.owner]
        columns = counts[action.lists[1].count] if action.space.selects else rows.shape[1]
        closed = ~rows[: counts[action.attribute], :columns].any(axis=1)
        if columns and closed.any():
            raise ValueError(
                f"{reader.where(i)}: every one of the {columns} choices of actor {closed.argmax()} of action {action.name!r} "
                "is masked; leave one open, or leave the actor out"
            )
    raise AssertionError(f"nothing is wrong with {slot.name}")
