"""Batched actions travel back: indices become the environments' own ids."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from entity_gym.action import (
    Action,
    CategoricalAction,
    ContinuousAction,
    GlobalCategoricalAction,
    SelectEntityAction,
)
from entity_gym.batch.frame import Frame, FrameReader
from entity_gym.batch.ragged import RaggedBufferF32, RaggedBufferI64
from entity_gym.batch.vec_obs import (
    VecAction,
    VecActionMask,
    VecCategoricalActionMask,
    VecContinuousActionMask,
    VecSelectEntityActionMask,
)
from entity_gym.errors import nearest
from entity_gym.spaces import (
    ActionSpace,
    CategoricalActionSpace,
    ContinuousActionSpace,
    GlobalCategoricalActionSpace,
    SelectEntityActionSpace,
)


def check_actions(
    actions: Mapping[str, VecAction],
    masks: Mapping[str, VecActionMask],
    reader: FrameReader,
    env_id: NDArray[np.int64] | None = None,
) -> None:
    """Check that `actions` are ones that the last observations offered.

    Args:
        actions: one sequence for each environment.
        masks: what these environments offered.
        reader: of their observations.
        env_id: (N,) which environments they are, for messages. None: 0, 1, ...

    Raises:
        ValueError: naming the action, the environment, what was given and what was offered.
    """
    for name in actions:
        if name not in masks:
            raise ValueError(f"unknown action {name!r}; {nearest(name, masks)}")
    for name, mask in masks.items():
        if name not in actions:
            raise ValueError(
                f"action {name!r} is missing; give one sequence for each environment, empty where nobody acts"
            )
        given = actions[name]
        space = reader.action_space[name]
        if isinstance(mask, VecContinuousActionMask):
            assert isinstance(space, ContinuousActionSpace)
            _check_continuous(name, given, mask, space, reader, env_id)
            continue
        if not isinstance(given, RaggedBufferI64) or given.size2() != 1:
            raise ValueError(f"action {name!r} is {given!r:.200}; expected a RaggedBufferI64 with one feature")
        if not np.array_equal(given.offsets, mask.actors.offsets):
            _raise_wrong_lengths(name, given, mask, reader, env_id)
        values = given.values[:, 0]
        if isinstance(mask, VecCategoricalActionMask):
            assert isinstance(space, CategoricalActionSpace | GlobalCategoricalActionSpace)
            allowed = _choice_allowed(values, mask, len(space.choices))
            offered = f"a choice below {len(space.choices)} that is not masked"
        else:
            assert isinstance(space, SelectEntityActionSpace)
            allowed = _selection_allowed(values, mask)
            offered = "the index of an entity that the actor may select, or -1 where it may select none"
            if space.nobody:
                allowed |= values == -1
                offered = "the index of an entity that the actor may select, or -1 for nobody"
        if not allowed.all():
            item = int((~allowed).argmax())
            env = int(np.searchsorted(given.offsets, item, side="right")) - 1
            actor = int(mask.actors.values[item, 0])
            raise ValueError(
                f"{_where(reader, env_id, env)}: action {name!r} of entity {actor} is {int(values[item])}; expected {offered}"
            )


def frame_actions(
    actions: Mapping[str, VecAction], frame: Frame, i: int, action_space: Mapping[str, ActionSpace]
) -> dict[str, Action]:
    """The actions of environment `i` in its own ids: those that its `frame` offered."""
    return ActionsOfEach(actions, i, i + 1, action_space).of(i, frame)


class ActionsOfEach:
    """Hands out `actions` to the environments at positions `lo` ... `hi` - 1, one after the other."""

    def __init__(
        self, actions: Mapping[str, VecAction], lo: int, hi: int, action_space: Mapping[str, ActionSpace]
    ) -> None:
        self._lo = lo
        self._space = action_space
        # Plain numbers: for every environment, slicing an array with NumPy's own costs more than all the rest here.
        self._parts: dict[str, tuple[NDArray[Any], list[int]]] = {}
        for name, buffer in actions.items():
            values = buffer.values if isinstance(action_space[name], ContinuousActionSpace) else buffer.values[:, 0]
            self._parts[name] = values, buffer.offsets[lo : hi + 1].tolist()

    def of(self, position: int, frame: Frame) -> dict[str, Action]:
        """The actions at `position` in the environment's own ids: those that its `frame` offered."""
        result: dict[str, Action] = {}
        k = position - self._lo
        ids = frame.ids
        for name, offered in frame.actions.items():
            values, offsets = self._parts[name]
            mine = values[offsets[k] : offsets[k + 1]]
            space = self._space[name]
            if isinstance(space, GlobalCategoricalActionSpace):
                choice = int(mine[0])
                result[name] = GlobalCategoricalAction(choice, space.choices[choice])
            elif isinstance(space, CategoricalActionSpace):
                result[name] = CategoricalAction([ids[actor] for actor in offered.actors.tolist()], mine)
            elif isinstance(space, ContinuousActionSpace):
                result[name] = ContinuousAction([ids[actor] for actor in offered.actors.tolist()], mine)
            else:
                pairs = zip(offered.actors.tolist(), mine.tolist(), strict=True)
                chosen = [(actor, actee) for actor, actee in pairs if actee >= 0]
                result[name] = SelectEntityAction([ids[a] for a, _ in chosen], [ids[e] for _, e in chosen])
        return result


def _check_continuous(
    name: str,
    given: VecAction,
    mask: VecContinuousActionMask,
    space: ContinuousActionSpace,
    reader: FrameReader,
    env_id: NDArray[np.int64] | None,
) -> None:
    if not isinstance(given, RaggedBufferF32) or given.size2() != space.size:
        raise ValueError(f"action {name!r} is {given!r:.200}; expected a RaggedBufferF32 with {space.size} feature(s)")
    if not np.array_equal(given.offsets, mask.actors.offsets):
        _raise_wrong_lengths(name, given, mask, reader, env_id)
    values = given.values
    low, high = space.bounds()
    # An infinite value is within infinite bounds, and NaN within none.
    allowed = (values >= low) & (values <= high) & np.isfinite(values)
    if not allowed.all():
        item, k = (int(place) for place in np.argwhere(~allowed)[0])
        env = int(np.searchsorted(given.offsets, item, side="right")) - 1
        raise ValueError(
            f"{_where(reader, env_id, env)}: action {name!r} of entity {int(mask.actors.values[item, 0])}: {space.label(k)} is "
            f"{values[item, k]}; it must be a finite number from {low[k]} to {high[k]}"
        )


def _choice_allowed(values: NDArray[np.int64], mask: VecCategoricalActionMask, num_choices: int) -> NDArray[np.bool_]:
    inside: NDArray[np.bool_] = (values >= 0) & (values < num_choices)
    if mask.mask is None:
        return inside
    return inside & mask.mask.values[np.arange(len(values)), np.where(inside, values, 0)]


def _selection_allowed(values: NDArray[np.int64], mask: VecSelectEntityActionMask) -> NDArray[np.bool_]:
    """(A,) bool; a pool's actors in all, so the loop is over frames with actors only."""
    allowed = np.zeros(len(values), dtype=np.bool_)
    actor_offsets, actee_offsets = mask.actors.offsets, mask.actees.offsets
    for i in np.flatnonzero(np.diff(actor_offsets)):
        actors = slice(actor_offsets[i], actor_offsets[i + 1])
        actees = mask.actees.values[actee_offsets[i] : actee_offsets[i + 1], 0]
        matches = values[actors, None] == actees[None, :]
        pairs = None
        if mask.mask is not None:
            rows = slice(mask.mask.offsets[i], mask.mask.offsets[i + 1])
            pairs = mask.mask.values[rows, 0].reshape(matches.shape)
            matches &= pairs
        if not len(actees):
            allowed[actors] = values[actors] == -1
            continue
        allowed[actors] = matches.any(axis=1)
        if pairs is not None:
            allowed[actors] |= (values[actors] == -1) & ~pairs.any(axis=1)
    return allowed


def _where(reader: FrameReader, env_id: NDArray[np.int64] | None, position: int) -> str:
    return reader.where(position if env_id is None else int(env_id[position]))


def _raise_wrong_lengths(
    name: str, given: VecAction, mask: VecActionMask, reader: FrameReader, env_id: NDArray[np.int64] | None
) -> None:
    if len(given.offsets) != len(mask.actors.offsets):
        raise ValueError(
            f"action {name!r} has {len(given.offsets) - 1} sequences for {len(mask.actors.offsets) - 1} environments"
        )
    got, wanted = np.diff(given.offsets), np.diff(mask.actors.offsets)
    env = int((got != wanted).argmax())
    raise ValueError(f"{_where(reader, env_id, env)}: action {name!r} has {got[env]} values for {wanted[env]} actors")
