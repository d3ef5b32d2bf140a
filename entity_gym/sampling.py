"""Random actions for any batch: for timing, for checks, and as the agent that every other has to beat."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from entity_gym.ragged import RaggedBufferI64
from entity_gym.vec_obs import VecCategoricalActionMask, VecObs, VecSelectEntityActionMask


def random_actions(obs: VecObs, rng: np.random.Generator) -> dict[str, RaggedBufferI64]:
    """Actions for all frames of `obs`, every actor's drawn uniformly from what it may do.

    Args:
        obs: N frames.
        rng: the source of random numbers; the same one gives the same actions for the same batch.

    Returns:
        What `VecEnv.act` takes: action -> N sequences of (A, 1). -1 where an actor may select no entity.

    Raises:
        ValueError: if nothing is open to an actor of a categorical action, or the number of choices is not known.
    """
    actions = {}
    for name, mask in obs.action_masks.items():
        if isinstance(mask, VecCategoricalActionMask):
            values = _choices(name, mask, rng)
        else:
            values = _selections(mask, rng)
        actions[name] = RaggedBufferI64._of(values[:, None], mask.actors.offsets)
    return actions


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


def _selections(mask: VecSelectEntityActionMask, rng: np.random.Generator) -> NDArray[np.int64]:
    """(A,) one entity index for each actor of all frames, -1 where none is offered."""
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
    position = rng.integers(counts[able])
    if mask.mask is not None:
        pairs = np.flatnonzero(mask.mask.values[:, 0])[before[able] + position]
        position = pairs - (ends - num_actees)[able]
    chosen[able] = mask.actees.values[first_actee[able] + position, 0]
    return chosen
