"""Actions that depend on each other: the order of decisions, and choices that earlier choices close.

Shapes: N frames, A actors of an action in all frames, C choices, K actees of an earlier action.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions.kind import ACTORS, ActionSpace
from entity_gym.actions.reading import Offer, read_flags
from entity_gym.actions.select_entity import SelectEntityActionSpace
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


def selection_before(name: str, action_space: Mapping[str, ActionSpace]) -> str | None:
    """Return the only select-entity action in `after` of an action, to which its `mask_after` belongs; None: there is not one."""
    after = [each for each in action_space[name].after if isinstance(action_space.get(each), SelectEntityActionSpace)]
    return after[0] if len(after) == 1 else None


def read_mask_after(
    where: str, name: str, given: Any, offers: Mapping[str, Offer], action_space: Mapping[str, ActionSpace]
) -> Offer:
    """Return the offer of an action with `mask_after`, as a world gave it, after checking its shape.

    Args:
        where: names the environment in messages.
        name: of the action.
        given: (A, K, C) bools.
        offers: action -> its offer in the frame.
        action_space: all actions by name.

    Raises:
        ValueError: the shape is another one, or the action is not after one select-entity action.
    """
    earlier, offer = selection_before(name, action_space), offers[name]
    if earlier is None:
        raise ValueError(
            f"{where}: action {name!r}: mask_after belongs to one select-entity action in after, which is "
            f"{list(action_space[name].after)}"
        )
    actees = len(offers[earlier].actees) if earlier in offers else 0
    shape = len(offer.actors), actees, len(action_space[name].labels)
    what = f"{where}: action {name!r}: mask_after (actors, actees of {earlier!r}, choices)"
    return offer._replace(mask_after=read_flags(given, shape, what))


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
    selection = selection_before(name, action_space)
    if offered.mask_after is not None and selection is not None:
        before = masks[selection]
        assert before.actees is not None
        rows = _rows_of(offered, before, action_space[selection])
        selected = np.append(chosen[selection].values[:, 0], -1)[rows]
        yield selection, _after_actees(offered, before, _places(before.actees, _frames(offered), selected))


def _after_actees(offered: VecActionMask, before: VecActionMask, actees: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return the (A, C) choices that `mask_after` leaves open after (A,) rows of `before.actees`; -1 for nobody: everything."""
    assert offered.mask_after is not None and before.actees is not None
    values, offsets = offered.mask_after.values, offered.mask_after.offsets
    frames = _frames(offered)
    closes = (actees >= 0) & (offered.mask_after.size1()[frames] > 0)
    ranks = np.arange(len(frames)) - offered.actors.offsets[frames]
    rows = offsets[frames] + ranks * before.actees.size1()[frames] + actees - before.actees.offsets[frames]
    return np.concatenate([values, np.ones((1, values.shape[1]), np.bool_)])[np.where(closes, rows, len(values))]


def check_open_after(
    masks: Mapping[str, VecActionMask], action_space: Mapping[str, ActionSpace], where: Callable[[int], str]
) -> None:
    """Check that each actor has an open choice, whatever it chooses before.

    Args:
        masks: the offers of N frames.
        action_space: all actions by name.
        where: names the environment of a frame in messages.

    Raises:
        ValueError: naming the environment, the actor and the actions.
    """
    for name, offered in masks.items():
        space = action_space[name]
        if offered.mask_after is None and (offered.mask is None or not space.allowed):
            continue  # each table leaves something open
        ways = {earlier: _ways(name, earlier, action_space, masks) for earlier in space.after if earlier != ACTORS}
        ways = {earlier: found for earlier, found in ways.items() if found}
        is_open = np.True_ if offered.mask is None else offered.mask.values
        for way in product(*ways.values()) if ways else ():
            possible = np.logical_and.reduce([each for each, _ in way])
            closed = possible & ~(is_open & np.logical_and.reduce([each for _, each in way])).any(axis=1)
            if closed.any():
                item = int(closed.argmax())
                raise ValueError(
                    f"{where(int(_frames(offered)[item]))}: action {name!r}: every choice of entity "
                    f"{offered.actors.values[item, 0]} is closed after choices that are open in action "
                    f"{' and '.join(map(repr, ways))}; leave one open"
                )


def _ways(
    name: str, earlier: str, action_space: Mapping[str, ActionSpace], masks: Mapping[str, VecActionMask]
) -> list[tuple[NDArray[np.bool_], NDArray[np.bool_]]]:
    """Return for each earlier choice (A,) whether it is open to the actors of `name`, and the (A, C) choices that it leaves open.

    Empty where the earlier action closes nothing.
    """
    offered, before = masks[name], masks[earlier]
    rows = _rows_of(offered, before, action_space[earlier])
    ways = []
    if table := action_space[name].allowed.get(earlier):
        everything = np.ones((1, len(table)), np.bool_)
        can = np.concatenate([before.spelled_out(len(table)).values, ~everything])[rows]
        ways = [(can[:, k], np.tile(row, (len(rows), 1))) for k, row in enumerate(np.array(table))]
    elif offered.mask_after is not None and earlier == selection_before(name, action_space):
        assert before.actees is not None
        counts = before.actees.size1()[_frames(offered)]
        pairs = np.append(before.spelled_out(1).values[:, 0], False)
        starts = np.concatenate([[0], (before.actors.size1() * before.actees.size1()).cumsum()])[_frames(offered)]
        ranks = rows - before.actors.offsets[_frames(offered)]
        for k in range(counts.max(initial=0)):
            is_there = (rows >= 0) & (k < counts)
            is_open = pairs[np.where(is_there, starts + ranks * counts + k, -1)]
            actees = np.where(is_there, before.actees.offsets[_frames(offered)] + k, -1)
            ways.append((is_open, _after_actees(offered, before, actees)))
    return [*ways, (rows < 0, np.ones((len(rows), len(action_space[name].labels)), np.bool_))] if ways else []


def _frames(offered: VecActionMask) -> NDArray[np.int64]:
    """Return (A,) the frame of each actor."""
    return np.repeat(np.arange(len(offered.actors)), offered.actors.size1())


def _rows_of(offered: VecActionMask, before: VecActionMask, earlier: ActionSpace) -> NDArray[np.int64]:
    """Return (A,) for each actor that is offered an action its row in an earlier one, or that of the frame; -1 for none."""
    frames = _frames(offered)
    if earlier.is_global:
        return np.where(before.actors.size1() > 0, before.actors.offsets[:-1], -1)[frames]
    return _places(before.actors, frames, offered.actors.values[:, 0])


def _places(listed: RaggedBuffer[np.int64], frames: NDArray[np.int64], index: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return (n,) where entity `index[k]` of frame `frames[k]` stands in `listed.values`; -1 for an entity not listed."""
    own, width = listed.values[:, 0], 1 + max(listed.values.max(initial=0), index.max(initial=0))
    places = np.full(len(listed) * width, -1)
    places[np.repeat(np.arange(len(listed)), listed.size1()) * width + own] = np.arange(len(own))
    return np.where(index < 0, -1, places[frames * width + index])
