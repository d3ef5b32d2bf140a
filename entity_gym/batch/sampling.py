"""Random actions for any batch: for timing, for checks, and as the agent that every other has to beat."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from entity_gym.batch.ragged import RaggedBufferF32, RaggedBufferI64
from entity_gym.batch.vec_obs import VecAction, VecCategoricalActionMask, VecObs, VecSelectEntityActionMask
from entity_gym.spaces import ActionSpace, ContinuousActionSpace, SelectEntityActionSpace


def random_actions(
    obs: VecObs, rng: np.random.Generator, action_space: Mapping[str, ActionSpace] | None = None
) -> dict[str, VecAction]:
    """Actions for all frames of `obs`, every actor's drawn uniformly from what it may do.

    A number without bounds is drawn from a standard normal distribution, one with a bound on one side is as far from it as
    such a number is from 0.

    Args:
        obs: N frames.
        rng: the source of random numbers; the same one gives the same actions for the same batch.
        action_space: the environments' actions by name. None: there are no continuous ones, and nobody is selected only
            where no entity is open.

    Returns:
        What `VecEnv.act` takes: action -> N sequences of (A, 1), or (A, n) for continuous ones. -1 for nobody.

    Raises:
        ValueError: if nothing is open to an actor of a categorical action, or the number of choices is not known; for a
            continuous action without `action_space`.
    """
    actions: dict[str, VecAction] = {}
    for name, mask in obs.action_masks.items():
        space = None if action_space is None else action_space[name]
        offsets = mask.actors.offsets
        if isinstance(mask, VecCategoricalActionMask):
            actions[name] = RaggedBufferI64._of(_choices(name, mask, rng)[:, None], offsets)
        elif isinstance(mask, VecSelectEntityActionMask):
            nobody = isinstance(space, SelectEntityActionSpace) and space.nobody
            actions[name] = RaggedBufferI64._of(_selections(mask, nobody, rng)[:, None], offsets)
        elif isinstance(space, ContinuousActionSpace):
            actions[name] = RaggedBufferF32._of(_numbers(space, mask.actors.items(), rng), offsets)
        else:
            raise ValueError(
                f"action {name!r} is continuous, and its bounds are in the action space: give action_space"
            )
    return actions


def _numbers(space: ContinuousActionSpace, num_actors: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """(A, n) numbers within the bounds."""
    low, high = space.bounds()
    below, above = np.isfinite(low), np.isfinite(high)
    values = rng.standard_normal((num_actors, space.size))
    values = np.where(below, low + np.abs(values), np.where(above, high - np.abs(values), values))
    both = below & above
    values[:, both] = rng.uniform(low[both], high[both], (num_actors, int(both.sum())))
    return values.astype(np.float32)


def _choices(name: str, mask: VecCategoricalActionMask, rng: np.random.Generator) -> NDArray[np.int64]:
    """(A,) one choice for each actor of all frames."""
    if mask.mask is None:
        if mask.num_choices is None:
            raise ValueError(f"action {name!r} has no mask, and its num_choices is not set: set one of them")
        return rng.integers(mask.num_choices, size=mask.actors.items())
    open_ = mask.mask.values
    ranks = open_.cumsum(axis=1)  # of each open choice among those of its actor, from 1
    counts = ranks[:, -1]
    if len(counts) and not counts.all():
        raise ValueError(f"every choice of action {name!r} is masked for actor {int(counts.argmin())} of the batch")
    chosen: NDArray[np.int64] = (ranks > rng.integers(counts)[:, None]).argmax(axis=1)
    return chosen


def _selections(mask: VecSelectEntityActionMask, nobody: bool, rng: np.random.Generator) -> NDArray[np.int64]:
    """(A,) one entity index for each actor of all frames, -1 where none is open; with `nobody` -1 is one choice more."""
    num_actors = mask.actors.size1()
    num_actees = np.repeat(mask.actees.size1(), num_actors)  # (A,) those offered to each actor
    first_actee = np.repeat(mask.actees.offsets[:-1], num_actors)  # (A,) rows of mask.actees
    if mask.mask is None:
        counts = num_actees
    else:
        # The pairs of one actor after another's; open ones are numbered through, so that an actor's are a range.
        ends = np.cumsum(num_actees)
        opened = np.concatenate([[0], np.cumsum(mask.mask.values[:, 0])])
        before = opened[ends - num_actees]
        counts = opened[ends] - before
    chosen = np.full(len(counts), -1, dtype=np.int64)
    able = np.flatnonzero(counts)
    position = rng.integers(counts[able] + nobody)
    if nobody:
        some = position < counts[able]
        able, position = able[some], position[some]
    if mask.mask is not None:
        pairs = np.flatnonzero(mask.mask.values[:, 0])[before[able] + position]
        position = pairs - (ends - num_actees)[able]
    chosen[able] = mask.actees.values[first_actee[able] + position, 0]
    return chosen
