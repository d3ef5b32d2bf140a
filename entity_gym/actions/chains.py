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
            raise ValueError(f"the actions {', '.join(map(repr, waiting))} wait for each other: after makes a circle")
        order.append(ready[0])
    for name in action_space:
        _check_tables(name, action_space)
    return order


def _check_tables(name: str, action_space: Mapping[str, ActionSpace]) -> None:
    """Check the tables of `allowed` against the earlier actions."""
    space = action_space[name]
    for earlier, given in space.allowed.items():
        first, where = action_space[earlier], f"action {name!r}: allowed[{earlier!r}]"
        if len(given) != first.num_choices:
            choices = f"{first.num_choices} choices" if first.num_choices else "no fixed choices"
            raise ValueError(f"{where} has {len(given)} rows; that {first.kind} action has {choices}")
        if space.is_global and not first.is_global:
            raise ValueError(f"{where}: every actor chooses there, and {name!r} is of the whole frame")


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
        values, frames, actees = offered.mask_after.values, offered.actors.sequences, masks[selection].actees
        assert actees is not None
        rows = _rows_of(offered, masks[selection], action_space[selection])
        places = _places(actees, frames, np.append(chosen[selection].values[:, 0], -1)[rows])
        closes = (places >= 0) & (offered.mask_after.size1()[frames] > 0)
        ranks = np.arange(len(frames)) - offered.actors.offsets[frames]
        rows = offered.mask_after.offsets[frames] + ranks * actees.size1()[frames] + places - actees.offsets[frames]
        everything = np.ones((1, values.shape[1]), np.bool_)
        yield selection, np.concatenate([values, everything])[np.where(closes, rows, len(values))]


def check_open_after(
    masks: Mapping[str, VecActionMask], action_space: Mapping[str, ActionSpace], where: Callable[[int], str]
) -> None:
    """Check that each actor of N frames has an open choice, whatever it chooses before.

    Args:
        masks: the offers of N frames.
        action_space: all actions by name.
        where: names the environment of a frame in messages.

    Raises:
        ValueError: naming the environment, the actor and the actions.
    """
    for name, offered in masks.items():
        tables = action_space[name].allowed
        if offered.mask_after is None and len(tables) < 2 and (offered.mask is None or not tables):
            continue  # one table alone leaves something open
        options = {earlier: len(table) for earlier, table in tables.items()}
        selection = None if offered.mask_after is None else selection_before(name, action_space)
        if selection is not None and (actees := masks[selection].actees) is not None:
            options[selection] = int(actees.size1().max(initial=0)) + 1  # the last is nobody
        for numbers in product(*map(range, options.values())):
            chosen = {earlier: _choice(k, masks[earlier]) for earlier, k in zip(options, numbers, strict=True)}
            left = narrowed(name, action_space, masks, chosen).mask
            assert left is not None
            closed = ~left.values.any(axis=1)
            for earlier, each in chosen.items():
                can = np.append(action_space[earlier].is_allowed(each.values, masks[earlier]), True)
                closed &= can[_rows_of(offered, masks[earlier], action_space[earlier])]
            if closed.any():
                item = int(closed.argmax())
                raise ValueError(
                    f"{where(int(offered.actors.sequences[item]))}: action {name!r}: every choice of entity "
                    f"{offered.actors.values[item, 0]} is closed after choices that are open in action "
                    f"{' and '.join(map(repr, options))}; leave one open"
                )


def _choice(number: int, offered: VecActionMask) -> VecAction:
    """Return an action in which every actor takes the choice, or the entity, with this number; nobody if there are fewer."""
    values = np.full(offered.actors.items(), number)
    if offered.actees is not None:
        frames, entities = offered.actors.sequences, np.append(offered.actees.values[:, 0], -1)
        counts, starts = offered.actees.size1()[frames], offered.actees.offsets[frames]
        values = entities[np.where(number < counts, starts + number, -1)]
    return RaggedBuffer.unchecked(values[:, None], offered.actors.offsets)


def _rows_of(offered: VecActionMask, before: VecActionMask, earlier: ActionSpace) -> NDArray[np.int64]:
    """Return (A,) for each actor that is offered an action its row in an earlier one, or that of the frame; -1 for none."""
    frames = offered.actors.sequences
    if earlier.is_global:
        return np.where(before.actors.size1() > 0, before.actors.offsets[:-1], -1)[frames]
    return _places(before.actors, frames, offered.actors.values[:, 0])


def _places(listed: RaggedBuffer[np.int64], frames: NDArray[np.int64], index: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return (n,) where entity `index[k]` of frame `frames[k]` stands in `listed.values`; -1 for an entity not listed."""
    own, width = listed.values[:, 0], 1 + max(listed.values.max(initial=0), index.max(initial=0))
    places = np.full(len(listed) * width, -1)
    places[listed.sequences * width + own] = np.arange(len(own))
    return np.where(index < 0, -1, places[frames * width + index])
