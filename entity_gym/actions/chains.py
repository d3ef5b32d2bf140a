"""Actions that depend on each other: the order of decisions, and choices that earlier choices close.

Shapes: N frames, A actors of an action in all frames, C choices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions.kind import ACTORS, ActionSpace
from entity_gym.batch.ragged import RaggedBuffer
from entity_gym.batch.vec_obs import VecAction, VecActionMask
from entity_gym.errors import nearest


def decision_order(action_space: Mapping[str, ActionSpace]) -> list[str]:
    """Return the names of all actions in the order of decisions: as declared, but each after the actions in its `after`.

    Raises:
        ValueError: `after` names an unknown action, the action itself or a circle; or `allowed` does not fit the actions.
    """
    for name, space in action_space.items():
        others = [other for other in action_space if other != name]
        for earlier in space.after:
            if earlier == ACTORS and ACTORS in action_space:
                raise ValueError(
                    f"action {name!r}: after names {ACTORS!r}, the actors before; rename the action {ACTORS!r}"
                )
            if earlier != ACTORS and earlier not in others:
                allowed = nearest(earlier, [*others, *([] if space.is_global else [ACTORS])])
                what = "itself" if earlier == name else f"the unknown action {earlier!r}"
                raise ValueError(f"action {name!r}: after names {what}; {allowed}")
    order: list[str] = []
    while len(order) < len(action_space):
        waiting = [name for name in action_space if name not in order]
        ready = [name for name in waiting if set(action_space[name].after) <= {ACTORS, *order}]
        if not ready:
            raise ValueError(
                f"the actions {_circle(waiting[0], action_space, order)} are decided after each other in a circle"
            )
        order.append(ready[0])
    for name in action_space:
        _check_tables(name, action_space)
    return order


def _circle(name: str, action_space: Mapping[str, ActionSpace], decided: list[str]) -> str:
    """Return the names of a circle that begins in or before `name`: every step goes to an earlier action that has to wait."""
    path: list[str] = []
    while name not in path:
        path.append(name)
        name = next(each for each in action_space[name].after if each != ACTORS and each not in decided)
    return ", ".join(map(repr, path[path.index(name) :]))


def _check_tables(name: str, action_space: Mapping[str, ActionSpace]) -> None:
    """Check the tables of `allowed` against the earlier actions: their choices, and that each combination leaves one open."""
    space = action_space[name]
    tables = []
    for earlier, given in space.allowed.items():
        first, where = action_space[earlier], f"action {name!r}: allowed[{earlier!r}]"
        if len(given) != first.num_choices:
            choices = f"{first.num_choices} choices" if first.num_choices else "no fixed choices"
            raise ValueError(f"{where} has {len(given)} rows; that {first.kind} action has {choices}")
        if space.is_global and not first.is_global:
            raise ValueError(f"{where}: every actor chooses there, and {name!r} is of the whole frame")
        tables.append(np.array(given))
    for rows in product(*map(enumerate, tables)) if len(tables) > 1 else ():
        if not np.logical_and.reduce([row for _, row in rows]).any():
            picked = {earlier: k for earlier, (k, _) in zip(space.allowed, rows, strict=True)}
            raise ValueError(f"action {name!r}: allowed closes every choice after the choices {picked}; leave one open")


def narrowed(
    name: str,
    action_space: Mapping[str, ActionSpace],
    masks: Mapping[str, VecActionMask],
    chosen: Mapping[str, VecAction],
) -> VecActionMask:
    """Return the offer of an action without the choices that earlier choices close.

    Args:
        name: of the action.
        action_space: all actions by name.
        masks: the offers of N frames.
        chosen: earlier action -> N sequences of choices that were on offer.
    """
    offered, is_open = masks[name], None
    for _, opened in opened_by(name, action_space, masks, chosen):
        is_open = opened if is_open is None else is_open & opened
    if is_open is None:
        return offered
    if offered.mask is not None:
        is_open = is_open & offered.mask.values
    return replace(offered, mask=RaggedBuffer.unchecked(is_open, offered.actors.offsets))


def opened_by(
    name: str,
    action_space: Mapping[str, ActionSpace],
    masks: Mapping[str, VecActionMask],
    chosen: Mapping[str, VecAction],
) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """Yield earlier actions, each with the (A, C) choices of action `name` that it leaves open; arguments as in `narrowed`."""
    space, offered = action_space[name], masks[name]
    for earlier, table in space.allowed.items():
        rows = _rows_of(offered, masks[earlier], action_space[earlier])
        choices = np.append(chosen[earlier].values[:, 0], len(table))  # the last: who did not choose
        yield earlier, np.array([*table, [True] * len(space.labels)])[choices[rows]]


def _rows_of(offered: VecActionMask, before: VecActionMask, earlier: ActionSpace) -> NDArray[np.int64]:
    """Return (A,) for each actor that is offered an action its row in an earlier one, or that of the frame; -1 for none."""
    frames = np.repeat(np.arange(len(offered.actors)), offered.actors.size1())
    if earlier.is_global:
        return np.where(before.actors.size1() > 0, before.actors.offsets[:-1], -1)[frames]
    return _places(before.actors, frames, offered.actors.values[:, 0])


def _places(listed: RaggedBuffer[np.int64], frames: NDArray[np.int64], index: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return (n,) where entity `index[k]` of frame `frames[k]` stands in `listed.values`; -1 for an entity not listed."""
    own, width = listed.values[:, 0], 1 + max(listed.values.max(initial=0), index.max(initial=0))
    places = np.full(len(listed) * width, -1)
    places[np.repeat(np.arange(len(listed)), listed.size1()) * width + own] = np.arange(len(own))
    return np.where(index < 0, -1, places[frames * width + index])
