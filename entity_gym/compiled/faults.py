"""What a compiled call found wrong, in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from entity_gym.compiled.codegen import Fault
from entity_gym.compiled.layout import Layout, Stream
from entity_gym.spaces import refusal, wrong_values


def raise_fault(err: NDArray[np.int64], layout: Layout, arrays: Mapping[str, NDArray[Any]], where: str) -> NoReturn:
    """Raise the ValueError that belongs to `err`.

    Args:
        err: (4,) the fault, the slot, and two numbers that say more.
        layout: of the environment.
        arrays: its slots, to name values.
        where: the environment.
    """
    fault, i, what, value = (int(number) for number in err)
    if fault == Fault.COUNT:
        raise ValueError(f"{where}: {_count(layout, (layout.counts.names or ())[what], value)}")
    if fault == Fault.REWARD:
        raise ValueError(f"{where}: step() returned the reward {arrays['reward'][i]}; it must be a finite number")
    assert fault == Fault.INDEX, f"unknown fault {fault}"
    raise ValueError(
        f"{where}: action {layout.actions[what].name!r} names entity {value} as an actor or actee; the frame has "
        f"{sum(int(arrays['N'][i][name]) for name in layout.entities)} entities"
    )


def raise_packing_fault(
    stream: Stream,
    layout: Layout,
    arrays: Mapping[str, NDArray[Any]],
    ids: NDArray[np.int64],
    where: Callable[[int], str],
) -> NoReturn:
    """Raise the ValueError for the first of the slots `ids` with a feature that may not be so, or an actor without a choice."""
    for i in ids.tolist():
        if stream.slot == "g":
            _check_features(None, layout, arrays["g"][i : i + 1], where(i))
        elif stream.slot.startswith("f_"):
            shown = arrays[stream.slot][i][: int(arrays["N"][i][stream.rows])]
            _check_features(stream.rows, layout, shown, where(i))
        else:
            _check_mask(stream.slot[2:], layout, arrays, i, where(i))
    raise AssertionError(f"nothing is wrong with {stream}")


def _check_mask(attribute: str, layout: Layout, arrays: Mapping[str, NDArray[Any]], i: int, where: str) -> None:
    action = next(action for action in layout.actions if action.attribute == attribute)
    counts = arrays["N"][i]
    columns = action.num_choices or int(counts[f"{attribute}_actees"])
    shown = arrays[f"m_{attribute}"][i][: int(counts[attribute]), :columns]
    closed = ~shown.any(axis=1)
    if columns and closed.any():
        raise ValueError(
            f"{where}: every one of the {columns} choices of actor {int(closed.argmax())} of action {action.name!r} is masked; "
            "leave one open, or leave the actor out"
        )


def _count(layout: Layout, name: str, value: int) -> str:
    if name in layout.entities:
        most = layout.entities[name].max
        return f"observe() shows {value} entities of type {layout.entity_names[name]!r}; allowed: 0 to max={most}"
    for action in layout.actions:
        if name in (action.attribute, f"{action.attribute}_actees"):
            role, types, most = (
                ("actors", action.actor_types, action.max_actors)
                if name == action.attribute
                else ("actees", action.actee_types, action.max_actees)
            )
            if action.is_global or types is not None:
                return (
                    f"obs.n.{name} is {value}; the {role} of {action.name!r} are declared, so it can only be set to 0"
                )
            return f"obs.n.{name} is {value}; allowed: 0 to max_{role}={most}"
    return f"obs.n.{name} is {value}; allowed: 0 to max_num_players={layout.max_num_players}"


def _check_features(attribute: str | None, layout: Layout, shown: NDArray[np.float32], where: str) -> None:
    """Look through the rows `shown` of an entity type; None: through the one of global features."""
    names = layout.global_features if attribute is None else layout.entities[attribute].features
    kinds = layout.global_kinds if attribute is None else layout.entities[attribute].kinds
    wrong = wrong_values(shown, names, kinds)
    if wrong.any():
        row, column = (int(place) for place in np.argwhere(wrong)[0])
        what = "global feature" if attribute is None else "feature"
        whose = "" if attribute is None else f" of entity {row} of type {layout.entity_names[attribute]!r}"
        name = names[column]
        raise ValueError(f"{where}: {what} {name!r}{whose} is {refusal(shown[row, column], kinds.get(name))}")
