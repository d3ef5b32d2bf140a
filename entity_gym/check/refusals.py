"""Whether actions that were not offered are refused, and leave the environments as they were."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from entity_gym.actions import ActionSpace, ContinuousActionSpace
from entity_gym.batch.vec_obs import VecAction, VecObs
from entity_gym.check.report import Outcome, failed, ok
from entity_gym.check.subject import Subject
from entity_gym.check.trajectory import Trajectory, difference
from entity_gym.check.watch import Watch
from entity_gym.pools.vec_env import VecEnv

TRIED = 20  # steps
FAR = 1 << 40  # no choice and no entity has this number


class Wrong(NamedTuple):
    """Actions with one thing wrong."""

    what: str
    actions: Mapping[str, VecAction]


class Refusals(NamedTuple):
    """What a pool refused; `problem` says what it did not, or what changed all the same."""

    kinds: set[str]
    problem: str | None = None


def check_refusals(subject: Subject) -> Outcome:
    """Actions that were not offered raise a ValueError, and nothing is stepped."""
    found = refusals(subject.pool(), subject.trajectory, subject.watch)
    return failed(found.problem) if found.problem else ok(f"refused: {', '.join(sorted(found.kinds))}")


def refusals(pool: VecEnv, trajectory: Trajectory, watch: Watch) -> Refusals:
    """Try everything that is wrong in each of some steps of `trajectory`; `pool` is reset here."""
    kinds: set[str] = set()
    with watch.call():
        obs = pool.reset(trajectory.seed)
    for step in range(min(len(trajectory), TRIED)):
        for wrong in wrong_actions(obs, trajectory.actions[step], trajectory.spaces.action):
            kinds.add(wrong.what)
            try:
                with watch.call():
                    pool.act(wrong.actions)
            except ValueError:
                continue
            return Refusals(kinds, f"step {step + 1}: {wrong.what} was taken; it must be refused")
        with watch.call():
            obs = pool.act(trajectory.actions[step])
        different = difference(trajectory.shown[step + 1], obs, trajectory.spaces)
        if different is not None:
            return Refusals(kinds, f"step {step + 1}: actions that were refused changed something: {different.what}")
    return Refusals(kinds)


def wrong_actions(
    obs: VecObs, good: Mapping[str, VecAction], action_space: Mapping[str, ActionSpace]
) -> Iterator[Wrong]:
    """Every way to spoil `good`, which is allowed after `obs`."""
    some = next(iter(good))
    yield Wrong("an unknown action", {**good, "no such action": good[some]})
    yield Wrong("a missing action", {name: buffer for name, buffer in good.items() if name != some})
    for name, buffer in good.items():
        longer = np.concatenate([buffer.values, np.zeros((1, buffer.size2()), buffer.dtype)])
        offsets = buffer.offsets.copy()
        offsets[-1] += 1
        yield Wrong("a value too many", {**good, name: type(buffer).from_offsets(longer, offsets)})
        if not len(buffer.values):
            continue
        mask, space = obs.action_masks[name], action_space[name]
        if isinstance(space, ContinuousActionSpace):
            for what, column, number in _outside(space):
                yield Wrong(what, {**good, name: _with(buffer, 0, number, column)})
            continue
        is_choice = mask.actees is None
        for value in (FAR, -2):
            what = "a choice out of range" if is_choice else "an entity out of range"
            yield Wrong(what, {**good, name: _with(buffer, 0, value)})
        closed = _closed(obs, name)
        if closed is not None:
            what = "a masked choice" if is_choice else "a masked entity"
            yield Wrong(what, {**good, name: _with(buffer, *closed)})


def _with(buffer: VecAction, item: int, value: float, column: int = 0) -> VecAction:
    values = buffer.values.copy()
    values[item, column] = value
    return type(buffer).from_offsets(values, buffer.offsets)


def _outside(space: ContinuousActionSpace) -> Iterator[tuple[str, int, float]]:
    """Numbers that are not allowed, and what is wrong with them; the second is which of the n they would be."""
    low, high = space.bounds()
    for k in range(space.size):
        for bound, beyond in ((low[k], -np.float32(np.inf)), (high[k], np.float32(np.inf))):
            if np.isfinite(bound):
                yield "a number out of bounds", k, float(np.nextafter(bound, beyond))
            yield "a number that is not finite", k, float(beyond)
        yield "a number that is not finite", k, float("nan")


def _closed(obs: VecObs, name: str) -> tuple[int, int] | None:
    """An actor of an action, as a row of its buffer, and a value that is masked for it. None: nothing is."""
    mask = obs.action_masks[name]
    if mask.mask is None or mask.mask.values.all():
        return None
    if mask.actees is None:
        item, choice = np.argwhere(~mask.mask.values)[0]
        return int(item), int(choice)
    for i in range(len(obs)):
        actees = mask.actees[i].values[:, 0]
        pairs = mask.mask[i].values.reshape(-1, len(actees)) if len(actees) else np.ones((0, 0), np.bool_)
        if not pairs.all():
            actor, column = np.argwhere(~pairs)[0]
            return int(mask.actors.offsets[i] + actor), int(actees[column])
    return None
