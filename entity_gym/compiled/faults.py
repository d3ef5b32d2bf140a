"""Faults that a compiled call has found, as errors in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from entity_gym.compiled.actions import ActionPlan
from entity_gym.compiled.declare import Kind, Slot
from entity_gym.compiled.layout import Layout
from entity_gym.compiled.runtime import BAD_COUNT, BAD_INDEX, BAD_REWARD, FAULT, SLOT, VALUE, WHAT
from entity_gym.spaces import refusal, wrong_values

Slots = Mapping[str, NDArray[Any]]


def fault_error(report: list[int], layout: Layout, slots: Slots, where: str) -> ValueError:
    """The error for a fault of `reset`, `step` or `observe` in the environment called `where`."""
    fault, i, what, value = (report[place] for place in (FAULT, SLOT, WHAT, VALUE))
    if fault == BAD_COUNT:
        return ValueError(f"{where}: {_bad_count(layout, (layout.counts.names or ())[what], value)}")
    if fault == BAD_REWARD:
        return ValueError(f"{where}: step() returned the reward {slots['reward'][i]}; it must be a finite number")
    assert fault == BAD_INDEX, f"unknown fault {fault}"
    total = sum(int(slots["counts"][i][name]) for name in layout.entities)
    return ValueError(
        f"{where}: action {layout.actions[what].name!r} names entity {value} as an actor or actee; the frame has "
        f"{total} entities"
    )


def row_error(
    slot: Slot, layout: Layout, slots: Slots, ids: NDArray[np.int64], where: Callable[[int], str]
) -> ValueError:
    """The error for the first of the slots `ids` with a bad feature, or an actor without a choice, in the array `slot`."""
    for i in ids.tolist():
        rows = slots[slot.name][i]
        counts = slots["counts"][i]
        if slot.kind is Kind.GLOBAL_FEATURES:
            message = _bad_feature("global feature", "", layout.global_features, layout.global_kinds, rows[None])
        elif slot.kind is Kind.FEATURES:
            entity, shown = layout.entities[slot.owner], rows[: int(counts[slot.owner])]
            of = " of entity {} of type " + repr(layout.entity_names[slot.owner])
            message = _bad_feature("feature", of, entity.features, entity.kinds, shown)
        else:
            action = next(action for action in layout.actions if action.attribute == slot.owner)
            message = _closed_actor(action, rows, counts)
        if message:
            return ValueError(f"{where(i)}: {message}")
    raise AssertionError(f"nothing is wrong with {slot.name}")


def _bad_count(layout: Layout, name: str, value: int) -> str:
    if name in layout.entities:
        most = layout.entities[name].max
        return f"observe() shows {value} entities of type {layout.entity_names[name]!r}; allowed: 0 to max={most}"
    for action in layout.actions:
        for listed in action.lists:
            if listed.count == name:
                return listed.refusal(action.name, value)
    raise AssertionError(f"there is no count {name!r}")


def _closed_actor(action: ActionPlan, mask: NDArray[np.bool_], counts: Any) -> str:
    columns = action.num_columns(int(counts[action.actees.count]) if action.actees is not None else 0)
    closed = ~mask[: int(counts[action.actors.count]), :columns].any(axis=1)
    if not columns or not closed.any():
        return ""
    return (
        f"every one of the {columns} choices of actor {int(closed.argmax())} of action {action.name!r} is masked; "
        "leave one open, or leave the actor out"
    )


def _bad_feature(what: str, of: str, names: Any, kinds: Any, shown: NDArray[np.float32]) -> str:
    wrong = wrong_values(shown, names, kinds)
    if not wrong.any():
        return ""
    row, column = (int(place) for place in np.argwhere(wrong)[0])
    name = names[column]
    return f"{what} {name!r}{of.format(row)} is {refusal(shown[row, column], kinds.get(name))}"
