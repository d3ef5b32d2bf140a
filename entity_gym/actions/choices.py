"""The choices of a policy on their way to the environments: drawn at random, checked, and turned into the worlds' own ids."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions import Action, ActionSpace
from entity_gym.actions.reading import EntityID, Offer
from entity_gym.batch.ragged import RaggedBuffer
from entity_gym.batch.vec_obs import VecAction, VecActionMask, VecObs
from entity_gym.errors import nearest


def random_actions(
    obs: VecObs, rng: np.random.Generator, action_space: Mapping[str, ActionSpace]
) -> dict[str, VecAction]:
    """Draw actions for all frames of `obs`, each actor's uniformly from what it may do.

    Args:
        obs: N frames.
        rng: the same one gives the same actions for the same batch.
        action_space: the environments' actions by name.

    Returns:
        The argument of `VecEnv.act`: action -> N sequences of (A, 1), or (A, n) for continuous ones. -1 for nobody.

    Raises:
        ValueError: nothing is open to an actor that must choose something.
    """
    actions: dict[str, VecAction] = {}
    for name, offered in obs.action_masks.items():
        values = action_space[name].sample(name, offered, rng)
        actions[name] = RaggedBuffer(values, offered.actors.offsets)
    return actions


def check_actions(
    actions: Mapping[str, VecAction],
    masks: Mapping[str, VecActionMask],
    action_space: Mapping[str, ActionSpace],
    where: Callable[[int], str],
) -> None:
    """Check that `actions` are ones that the last observations offered.

    Args:
        actions: one sequence for each environment.
        masks: the offers of these environments.
        action_space: their actions by name.
        where: names an environment in messages, given its position in `actions`.

    Raises:
        ValueError: naming the action, the environment, what was given and what was offered.
    """
    check_names(actions, masks)
    for name, offered in masks.items():
        given, space = actions[name], action_space[name]
        if (
            not isinstance(given, RaggedBuffer)
            or given.values.dtype != space.dtype
            or given.values.shape[1:] != (space.width,)
        ):
            raise ValueError(
                f"action {name!r} is {given!r:.200}; expected a RaggedBuffer of {np.dtype(space.dtype)} with {space.width} "
                "to an actor"
            )
        check_lengths(name, given, offered.actors, where)
        allowed = space.allowed(given.values, offered)
        if not allowed.all():
            item = int((~allowed).argmax())
            position = int(np.searchsorted(given.offsets, item, side="right")) - 1
            actor = int(offered.actors.values[item, 0])
            raise ValueError(f"{where(position)}: action {name!r} of entity {actor}{space.refusal(given.values[item])}")


def check_names(actions: Mapping[str, VecAction], offered: Mapping[str, Any]) -> None:
    """Raise a ValueError for an action that is not offered, or one that is missing."""
    for name in actions:
        if name not in offered:
            raise ValueError(f"unknown action {name!r}; {nearest(name, offered)}")
    for name in offered:
        if name not in actions:
            raise ValueError(
                f"action {name!r} is missing; give one sequence for each environment, empty where nobody acts"
            )


def check_lengths(name: str, given: VecAction, actors: RaggedBuffer[np.int64], where: Callable[[int], str]) -> None:
    """Raise a ValueError unless an action has a value for each actor; see `check_actions` for `where`."""
    if np.array_equal(given.offsets, actors.offsets):
        return
    if len(given) != len(actors):
        raise ValueError(f"action {name!r} has {len(given)} sequences for {len(actors)} environments")
    got, wanted = given.size1(), actors.size1()
    position = int((got != wanted).argmax())
    raise ValueError(f"{where(position)}: action {name!r} has {got[position]} values for {wanted[position]} actors")


class ActionsOfEach:
    """Hands out `actions` to the environments at positions `lo` ... `hi` - 1, one after the other."""

    def __init__(
        self, actions: Mapping[str, VecAction], lo: int, hi: int, action_space: Mapping[str, ActionSpace]
    ) -> None:
        self._lo = lo
        self._space = action_space
        # Plain numbers: for every environment, slicing an array with NumPy's own costs more than all the rest here.
        self._parts: dict[str, tuple[NDArray[Any], list[int]]] = {
            name: (buffer.values, buffer.offsets[lo : hi + 1].tolist()) for name, buffer in actions.items()
        }

    def of(self, position: int, offers: Mapping[str, Offer], ids: Sequence[EntityID | None]) -> dict[str, Action]:
        """Return the actions of the environment at `position` in its own ids.

        Args:
            position: of the environment, from `lo` to `hi` - 1.
            offers: the actions that its frame offered.
            ids: of its entities, by entity index.
        """
        k = position - self._lo
        result: dict[str, Action] = {}
        for name, offer in offers.items():
            values, offsets = self._parts[name]
            result[name] = self._space[name].for_world(values[offsets[k] : offsets[k + 1]], offer, ids)
        return result


def frame_actions(
    actions: Mapping[str, VecAction],
    position: int,
    offers: Mapping[str, Offer],
    ids: Sequence[EntityID | None],
    action_space: Mapping[str, ActionSpace],
) -> dict[str, Action]:
    """Return the actions of the environment at `position` in its own ids; arguments as in `ActionsOfEach`."""
    return ActionsOfEach(actions, position, position + 1, action_space).of(position, offers, ids)
