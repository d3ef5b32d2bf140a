"""Playing pools of environments at random, and finding where two of them first differ.

Shapes: T steps of N environments.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions import ActionSpace
from entity_gym.actions.choices import random_actions
from entity_gym.batch.ragged import RaggedArray, RaggedBuffer, RaggedBufferBool, RaggedBufferF32
from entity_gym.batch.vec_obs import Metric, VecAction, VecActionMask, VecObs
from entity_gym.check.watch import Watch
from entity_gym.pools.vec_env import VecEnv
from entity_gym.spaces import GLOBAL_ENTITY, ObsSpace


class Spaces(NamedTuple):
    """What observations hold, to call things by their names."""

    obs: ObsSpace
    action: Mapping[str, ActionSpace]


@dataclass
class Trajectory:
    """What a pool of N environments showed: the first observations, then one `VecObs` for each of T `actions`."""

    spaces: Spaces
    seed: int
    is_part: bool = False  # of a larger pool's: metrics, which are of all environments, then say nothing
    shown: list[VecObs] = field(default_factory=list)
    actions: list[Mapping[str, VecAction]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.actions)

    @property
    def num_envs(self) -> int:
        """N."""
        return len(self.shown[0])

    def only(self, i: int) -> Trajectory:
        """The part of environment `i`."""
        row = np.array([i], dtype=np.int64)
        part = Trajectory(self.spaces, self.seed, is_part=True)
        part.shown = [obs.gather(row) for obs in self.shown]
        part.actions = [{name: buffer[row] for name, buffer in each.items()} for each in self.actions]
        return part


class Difference(NamedTuple):
    """Where two trajectories part: after `step` steps, in environment `env_id` of the pool."""

    step: int
    env_id: int
    what: str  # for example "the reward is 1.0 and was 0.0"

    @property
    def when(self) -> str:
        """In words."""
        return "the first observation" if self.step == 0 else f"step {self.step}"

    def __str__(self) -> str:
        return f"{self.when} of environment {self.env_id}: {self.what}"


def record(
    env: VecEnv,
    watch: Watch,
    *,
    seed: int,
    steps: int,
    seconds: float | None = None,
    trajectory: Trajectory | None = None,
) -> Trajectory:
    """Play at random from the seed.

    Args:
        env: reset with `seed` here.
        watch: over every call.
        seed: of the environments and of the actions.
        steps: T, or fewer where they do not fit into `seconds`.
        seconds: None for as many as it takes.
        trajectory: what to record in; it then holds whatever was shown before an error.
    """
    played = Trajectory(Spaces(env.obs_space(), env.action_space()), seed) if trajectory is None else trajectory
    rng = np.random.default_rng(seed)
    with watch.call():
        played.shown.append(env.reset(seed))
    started = time.monotonic()
    for _ in range(steps):
        if seconds is not None and time.monotonic() - started > seconds:
            break
        actions = random_actions(played.shown[-1], rng, played.spaces.action)
        with watch.call():
            obs = env.act(actions)
        played.actions.append(actions)
        played.shown.append(obs)
    return played


def follow(
    trajectory: Trajectory,
    env: VecEnv,
    watch: Watch,
    *,
    seed: int | None = None,
    start: int = 0,
    stop: int | None = None,
    obs: VecObs | None = None,
) -> Difference | None:
    """Do in `env` what was done in `trajectory`, up to the first difference.

    Args:
        trajectory: of as many environments.
        env: reset here, unless `obs` is given.
        watch: over every call.
        seed: another one than the trajectory's.
        start: the step of the trajectory to go on from.
        stop: the last step to take. None: that of the trajectory.
        obs: what `env` shows at that step, after `load_state`.
    """
    restored = obs is not None
    if obs is None:
        with watch.call():
            obs = env.reset(trajectory.seed if seed is None else seed)
    last = len(trajectory) if stop is None else min(stop, len(trajectory))
    for step in range(start, last + 1):
        expected = trajectory.shown[step]
        different = difference(expected, obs, trajectory.spaces, metrics=not trajectory.is_part)
        if different is None and not (restored and step == start):  # a saved state has no last observations
            different = _final(expected, obs, trajectory.spaces)
        if different is not None:
            return Difference(step, int(obs.env_id[different.row]), different.what)
        if step < last:
            with watch.call():
                obs = env.act(trajectory.actions[step])
    return None


class RowDifference(NamedTuple):
    """How two batches differ first: in which frame, and what."""

    row: int
    what: str


def difference(expected: VecObs, found: VecObs, spaces: Spaces, *, metrics: bool = True) -> RowDifference | None:
    """Say what differs first between N frames and N other ones; None if nothing does. Last observations are not compared.

    Args:
        expected: what was there before.
        found: what is there now, of the same environments.
        spaces: of both.
        metrics: compare these, too.
    """
    for name in ("done", "truncated", "reward"):
        was, now = getattr(expected, name), getattr(found, name)
        differing = np.flatnonzero(was != now)
        if len(differing):
            return RowDifference(int(differing[0]), f"{name} is {now[differing[0]]} and was {was[differing[0]]}")
    for type_name, buffer in expected.features.items():
        different = _features(type_name, buffer, found.features[type_name], spaces)
        if different is not None:
            return different
    for action, mask in expected.action_masks.items():
        different = _masks(action, mask, found.action_masks[action])
        if different is not None:
            return different
    for type_name in expected.visible.keys() | found.visible.keys():
        different = _ragged(
            f"visible[{type_name!r}]", _flags(expected, type_name), _flags(found, type_name), _show_values
        )
        if different is not None:
            return different
    return _reports(expected, found, metrics) or _arrays(expected, found)


def _final(expected: VecObs, found: VecObs, spaces: Spaces) -> RowDifference | None:
    """Whether last observations differ; the row is that of the batch, not of `final`."""
    was, now = expected.final, found.final
    if was is None or now is None:
        assert was is now, "episodes ended alike, so last observations should be there alike"
        return None
    different = difference(was, now, spaces, metrics=False)
    if different is None:
        return None
    row = int(np.flatnonzero(found.env_id == now.env_id[different.row])[0])
    return RowDifference(row, f"in the last observation of the episode, {different.what}")


def _features(name: str, was: RaggedBufferF32, now: RaggedBufferF32, spaces: Spaces) -> RowDifference | None:
    entity = spaces.obs.entities.get(name)
    features = spaces.obs.global_features if entity is None else entity.features

    def show(before: NDArray[Any], after: NDArray[Any]) -> str:
        if len(before) != len(after):
            return f"{len(after)} entities of type {name!r} are shown, and {len(before)} were"
        k, column = (int(place) for place in np.argwhere(before != after)[0])
        whose = "global feature" if name == GLOBAL_ENTITY else f"entity {k} of type {name!r}: feature"
        return f"{whose} {features[column]!r} is {after[k, column]} and was {before[k, column]}"

    return _ragged(name, was, now, lambda _, before, after: show(before, after))


def _masks(name: str, was: VecActionMask, now: VecActionMask) -> RowDifference | None:
    label = f"action {name!r}: "
    different = _ragged(label + "actors", was.actors, now.actors, _show_values)
    if different is None and was.actees is not None:
        assert now.actees is not None
        different = _ragged(label + "actees", was.actees, now.actees, _show_values)
    if different is not None:
        return different
    masked = was.mask if was.mask is not None else now.mask
    if masked is not None:
        width = masked.size2()
        different = _ragged(label + "mask", was.spelled_out(width), now.spelled_out(width), _show_values)
    return different


def _flags(obs: VecObs, name: str) -> RaggedBufferBool:
    features = obs.features[name]
    everything = np.ones((len(features.values), 1), np.bool_)
    return obs.visible.get(name, RaggedBufferBool.from_offsets(everything, features.offsets))


def _ragged(
    label: str,
    was: RaggedBuffer[Any],
    now: RaggedBuffer[Any],
    show: Callable[[str, NDArray[Any], NDArray[Any]], str],
) -> RowDifference | None:
    if np.array_equal(was.offsets, now.offsets) and np.array_equal(was.values, now.values):
        return None
    for i in range(len(was.offsets) - 1):
        before = was.values[was.offsets[i] : was.offsets[i + 1]]
        after = now.values[now.offsets[i] : now.offsets[i + 1]]
        if not np.array_equal(before, after):
            return RowDifference(i, show(label, before, after))
    raise AssertionError(f"{label} differ, though each of their frames is the same")


def _show_values(label: str, before: NDArray[Any], after: NDArray[Any]) -> str:
    was, now = (np.array2string(rows[:, 0] if rows.shape[1] == 1 else rows, threshold=20) for rows in (before, after))
    return f"{label}: {now} where {was} was".replace("\n", "")


def _reports(expected: VecObs, found: VecObs, metrics: bool) -> RowDifference | None:
    """What environments said beside what they showed."""
    for row, (i, j) in enumerate(zip(expected.env_id.tolist(), found.env_id.tolist(), strict=True)):
        was, now = expected.end_of_episode_info.get(i), found.end_of_episode_info.get(j)
        if not same(was, now):
            return RowDifference(row, f"end_of_episode_info is {now!r:.200} and was {was!r:.200}")
    if metrics and not same(expected.metrics, found.metrics):
        return RowDifference(0, f"metrics are {found.metrics!r:.200} and were {expected.metrics!r:.200}")
    return None


def _arrays(expected: VecObs, found: VecObs) -> RowDifference | None:
    """Fixed arrays, where both have them: those of a plain environment are not shown."""
    for name in expected.arrays.keys() & found.arrays.keys():
        was, now = expected.arrays[name], found.arrays[name]
        for row in range(len(found)):
            before, after = (
                array.values[array.offsets[row] : array.offsets[row + 1]]
                if isinstance(array, RaggedArray)
                else array[row]
                for array in (was, now)
            )
            if not np.array_equal(before, after, equal_nan=after.dtype.kind == "f"):
                return RowDifference(row, f"the array {name!r} differs")
    return None


def same(a: Any, b: Any) -> bool:
    """Whether two values are equal, also where they hold arrays or NaN."""
    if isinstance(a, Metric) and isinstance(b, Metric):
        return same(vars(a), vars(b))
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        first, second = np.asarray(a), np.asarray(b)
        return first.shape == second.shape and all(map(same, first.ravel().tolist(), second.ravel().tolist()))
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b) or (a != a and b != b)
