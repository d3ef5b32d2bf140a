"""What a compiled call found wrong, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from entity_gym.compiled.codegen import Fault
from entity_gym.compiled.layout import Layout


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
    if fault == Fault.FEATURE:
        raise ValueError(f"{where}: {_feature(layout, layout.streams[what].rows, arrays, i)}")
    if fault == Fault.GLOBAL:
        shown = arrays["g"][i]
        column = int((~np.isfinite(shown)).argmax())
        name = layout.global_features[column]
        raise ValueError(f"{where}: global feature {name!r} is {shown[column]}; features must be finite numbers")
    if fault == Fault.REWARD:
        raise ValueError(f"{where}: step() returned the reward {arrays['reward'][i]}; it must be a finite number")
    if fault == Fault.INDEX:
        raise ValueError(
            f"{where}: action {layout.actions[what].name!r} names entity {value} as an actor or actee; the frame has "
            f"{sum(int(arrays['N'][i][name]) for name in layout.entities)} entities"
        )
    assert fault == Fault.MASK, f"unknown fault {fault}"
    raise ValueError(
        f"{where}: every choice of actor {value} of action {layout.actions[what].name!r} is masked; leave one open, or leave "
        "the actor out"
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
    return f"obs.n.{name} is {value}; allowed: 0 to max_num_players"


def _feature(layout: Layout, name: str, arrays: Mapping[str, NDArray[Any]], i: int) -> str:
    shown = arrays[f"f_{name}"][i][: int(arrays["N"][i][name])]
    row, column = (int(place) for place in np.argwhere(~np.isfinite(shown))[0])
    feature = layout.entities[name].features[column]
    return (
        f"feature {feature!r} of entity {row} of type {layout.entity_names[name]!r} is {shown[row, column]}; "
        "features must be finite numbers"
    )
