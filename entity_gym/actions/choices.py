"""The choices of a policy on their way to the environments: drawn at random, checked, and turned into the worlds' own ids."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions import Action, ActionSpace
from entity_gym.actions.chains import decision_order, narrowed, opened_by
from entity_gym.batch.frame import Frame
from entity_gym.batch.ragged import RaggedBuffer
from entity_gym.batch.vec_obs import VecAction, VecActionMask, VecObs
from entity_gym.errors import nearest


def random_actions(
    obs: VecObs, rng: np.random.Generator, action_space: Mapping[str, ActionSpace]
) -> dict[str, VecAction]:
    """Draw actions for all frames of `obs`, each actor's uniformly from what it may do after earlier choices.

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
    for name in _in_order(obs.action_masks, action_space):
        space, offered = action_space[name], narrowed(name, action_space, obs.action_masks, actions)
        actions[name] = RaggedBuffer(space.sample(offered, rng), space.value_offsets(offered))
    return actions


def _in_order(masks: Mapping[str, VecActionMask], action_space: Mapping[str, ActionSpace]) -> Iterable[str]:
    """Return the names of `masks`, each after those of the actions that are decided before it."""
    is_chained = any([space.after for space in action_space.values()])
    return [name for name in decision_order(action_space) if name in masks] if is_chained else masks


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
    check_counts(actions, {name: action_space[name].value_offsets(offered) for name, offered in masks.items()}, where)
    for name in _in_order(masks, action_space):
        given, space, offered = actions[name], action_space[name], masks[name]
        if given.values.dtype != space.dtype or given.values.shape[1:] != (space.width,):
            raise ValueError(
                f"action {name!r} is {given!r:.200}; expected a RaggedBuffer of {np.dtype(space.dtype)} with {space.width} "
                "to an actor"
            )
        allowed, earlier = space.is_allowed(given.values, offered), ""
        for by, is_open in opened_by(name, action_space, masks, actions) if allowed.all() else ():
            allowed, earlier = is_open[np.arange(len(is_open)), given.values[:, 0]], by
            if not allowed.all():
                break
        if not allowed.all():
            item = int((~allowed).argmax())
            position = int(np.searchsorted(offered.actors.offsets, item, side="right")) - 1
            actor = int(offered.actors.values[item, 0])
            value = given.values[offered.pair_actors == item, 0] if space.per_pair else given.values[item]
            refusal = space.refusal(value)
            if earlier:
                refusal = f" is {value[0]} ({space.labels[value[0]]!r}), which is closed after its choice in action {earlier!r}"
            raise ValueError(f"{where(position)}: action {name!r} of entity {actor}{refusal}")


def check_counts(
    actions: Mapping[str, VecAction], offsets: Mapping[str, NDArray[np.int64]], where: Callable[[int], str]
) -> None:
    """Raise a ValueError unless every action has as many values in each frame as its `offsets`; see `check_actions`."""
    for name in actions:
        if name not in offsets:
            raise ValueError(f"unknown action {name!r}; {nearest(name, offsets)}")
    for name, expected in offsets.items():
        given = actions.get(name)
        if given is None:
            raise ValueError(
                f"action {name!r} is missing; give one sequence for each environment, empty where nobody acts"
            )
        if not isinstance(given, RaggedBuffer):
            raise ValueError(f"action {name!r} is {given!r:.200}; expected a RaggedBuffer")
        if len(given) != len(expected) - 1:
            raise ValueError(f"action {name!r} has {len(given)} sequences for {len(expected) - 1} environments")
        if not np.array_equal(given.offsets, expected):
            got, wanted = given.size1(), np.diff(expected)
            position = int((got != wanted).argmax())
            raise ValueError(
                f"{where(position)}: action {name!r} has {got[position]} values, and {wanted[position]} are needed"
            )


def world_actions(
    actions: Mapping[str, VecAction], first: int, frames: Sequence[Frame], action_space: Mapping[str, ActionSpace]
) -> list[dict[str, Action]]:
    """Return the actions of environments in the worlds' own ids.

    Args:
        actions: a sequence for each of the environments `first`, `first` + 1, ... and for others.
        first: position of the first one in `actions`.
        frames: the frames that the actions answer.
        action_space: the environments' actions by name.
    """
    # Plain numbers: for every environment, slicing an array with NumPy's own costs more than all the rest here.
    parts = {
        name: (action_space[name], buffer.values, buffer.offsets[first : first + len(frames) + 1].tolist())
        for name, buffer in actions.items()
    }
    told = []
    for k, frame in enumerate(frames):
        own: dict[str, Action] = {}
        for name, offer in frame.actions.items():
            space, values, offsets = parts[name]
            own[name] = space.for_world(values[offsets[k] : offsets[k + 1]], offer, frame.ids)
        told.append(own)
    return told
