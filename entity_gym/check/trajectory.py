"""Record random play of a pool, and find the first difference when another pool repeats it.

Shapes: T steps of N environments.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions.choices import random_actions
from entity_gym.batch.ragged import RaggedBuffer
from entity_gym.batch.vec_obs import Metric, VecAction, VecObs
from entity_gym.pools.vec_env import VecEnv
from entity_gym.spaces import GLOBAL_ENTITY, ObsSpace


@dataclass
class Trajectory:
    """The observations and actions of a pool of N environments.

    Attributes:
        seed: seed of the environments and of the random actions.
        observations: T + 1 batches; the first comes from `reset`.
        actions: T batches.
    """

    seed: int
    observations: list[VecObs] = field(default_factory=list)
    actions: list[Mapping[str, VecAction]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.actions)

    @property
    def num_envs(self) -> int:
        """N."""
        return len(self.observations[0])

    def only(self, i: int) -> Trajectory:
        """Extract the trajectory of environment `i`."""
        row = np.array([i], dtype=np.int64)
        observations = [obs.gather(row) for obs in self.observations]
        actions: list[Mapping[str, VecAction]] = [{name: each[name][row] for name in each} for each in self.actions]
        return Trajectory(self.seed, observations, actions)

    def record(self, env: VecEnv, steps: int, seconds: float | None = None) -> None:
        """Reset `env` with the seed and play at random; `seconds` may end it before `steps`.

        After an error the trajectory holds the steps before.
        """
        rng = np.random.default_rng(self.seed)
        self.observations.append(env.reset(self.seed))
        started = time.monotonic()
        while len(self) < steps and (seconds is None or time.monotonic() - started <= seconds):
            actions = random_actions(self.observations[-1], rng, env.action_space())
            self.observations.append(env.act(actions))
            self.actions.append(actions)


class Difference(NamedTuple):
    """The first difference of two trajectories: after `step` steps, in environment `env_id` of the pool."""

    step: int
    env_id: int
    text: str  # for example "the reward is 1.0 and was 0.0"

    @property
    def when(self) -> str:
        """The step, in words."""
        return "the first observation" if self.step == 0 else f"step {self.step}"

    def __str__(self) -> str:
        return f"{self.when} of environment {self.env_id}: {self.text}"


def repeat(
    trajectory: Trajectory,
    env: VecEnv,
    *,
    seed: int | None = None,
    start: int = 0,
    stop: int | None = None,
    obs: VecObs | None = None,
    metrics: bool = True,
) -> Difference | None:
    """Repeat the actions of `trajectory` in `env`, up to the first difference. Return None if there is none.

    Args:
        trajectory: recorded with as many environments.
        env: reset here, unless `obs` is given.
        seed: None: that of the trajectory.
        start: step of the trajectory to begin with.
        stop: last step. None: that of the trajectory.
        obs: observation of `env` at step `start`, after `load_state`.
        metrics: compare metrics too, which summarize all environments of a pool.
    """
    restored = obs is not None
    if obs is None:
        obs = env.reset(trajectory.seed if seed is None else seed)
    last = len(trajectory) if stop is None else min(stop, len(trajectory))
    for step in range(start, last + 1):
        expected = trajectory.observations[step]
        found = difference(expected, obs, env.obs_space(), metrics=metrics)
        if found is None and not (restored and step == start):  # a saved state has no final observations
            found = _final_difference(expected, obs, env.obs_space())
        if found is not None:
            row, text = found
            return Difference(step, int(obs.env_id[row]), text)
        if step < last:
            obs = env.act(trajectory.actions[step])
    return None


def difference(expected: VecObs, found: VecObs, obs_space: ObsSpace, *, metrics: bool = True) -> tuple[int, str] | None:
    """Return the row and the description of the first difference of two batches; None if they are equal.

    Final observations are not compared.
    """
    for path, was, now in _pairs(expected, found):
        for row in range(len(found)):
            before, after = _rows(was, row), _rows(now, row)
            if not np.array_equal(before, after, equal_nan=after.dtype.kind == "f"):
                return row, _describe(path, before, after, obs_space)
    for row, (i, j) in enumerate(zip(expected.env_id.tolist(), found.env_id.tolist(), strict=True)):
        info, other = expected.end_of_episode_info.get(i), found.end_of_episode_info.get(j)
        if not equal(info, other):
            return row, f"end_of_episode_info is {other!r:.200} and was {info!r:.200}"
    if metrics and not equal(expected.metrics, found.metrics):
        return 0, f"metrics are {found.metrics!r:.200} and were {expected.metrics!r:.200}"
    return None


def _pairs(expected: VecObs, found: VecObs) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    """Yield the names of each column to compare, and the column of both batches."""
    for name in ("done", "truncated", "reward"):
        yield (name,), getattr(expected, name), getattr(found, name)
    for name, buffer in expected.features.items():
        yield ("features", name), buffer, found.features[name]
    for name, mask in expected.action_masks.items():
        other = found.action_masks[name]
        yield ("action", name, "actors"), mask.actors, other.actors
        if mask.actees is not None:
            yield ("action", name, "actees"), mask.actees, other.actees
        given = mask.mask if mask.mask is not None else other.mask
        if given is not None:
            width = given.size2()
            yield ("action", name, "mask"), mask.spelled_out(width), other.spelled_out(width)
    for name in expected.visible.keys() | found.visible.keys():
        yield ("visible", name), _visible(expected, name), _visible(found, name)
    for name, array in expected.arrays.items():
        yield ("arrays", name), array, found.arrays[name]


def _describe(path: tuple[str, ...], was: NDArray[Any], now: NDArray[Any], obs_space: ObsSpace) -> str:
    """Describe the difference of one frame's part of a column."""
    branch, name = path[0], path[-1]
    if branch == "arrays":
        return f"the array {name!r} differs"
    if was.ndim == 0:
        return f"{name} is {now} and was {was}"
    if branch != "features":
        label = f"action {path[1]!r}: {name}" if branch == "action" else f"visible[{name!r}]"
        before, after = (
            np.array2string(rows[:, 0] if rows.shape[1] == 1 else rows, threshold=20) for rows in (was, now)
        )
        return f"{label}: {after} where {before} was".replace("\n", "")
    if len(was) != len(now):
        return f"{len(now)} entities of type {name!r} are shown, and {len(was)} were"
    entity = obs_space.entities.get(name)
    features = obs_space.global_features if entity is None else entity.features
    k, column = (int(place) for place in np.argwhere(was != now)[0])
    owner = "global feature" if name == GLOBAL_ENTITY else f"entity {k} of type {name!r}: feature"
    return f"{owner} {features[column]!r} is {now[k, column]} and was {was[k, column]}"


def _final_difference(expected: VecObs, found: VecObs, obs_space: ObsSpace) -> tuple[int, str] | None:
    """Compare final observations; the row is one of `found`, not of `found.final`."""
    was, now = expected.final, found.final
    if was is None or now is None:
        assert was is now, "episodes ended alike, so final observations should be there alike"
        return None
    different = difference(was, now, obs_space, metrics=False)
    if different is None:
        return None
    row, text = different
    env_id = now.env_id[row]
    return int(np.flatnonzero(found.env_id == env_id)[0]), f"in the last observation of the episode, {text}"


def _visible(obs: VecObs, name: str) -> RaggedBuffer[np.bool_]:
    features = obs.features[name]
    everything = np.ones((len(features.values), 1), np.bool_)
    return obs.visible.get(name, RaggedBuffer(everything, features.offsets))


def _rows(column: Any, row: int) -> NDArray[Any]:
    """The part of one frame in a column."""
    if hasattr(column, "offsets"):
        return np.asarray(column.values[column.offsets[row] : column.offsets[row + 1]])
    return np.asarray(column[row])


def equal(a: Any, b: Any) -> bool:
    """Return whether two values are equal, with arrays compared by value and NaN equal to itself.

    Sums of metrics may differ by rounding: workers add up their own environments first, and so in another order.
    """
    if isinstance(a, Metric) and isinstance(b, Metric):
        largest = max(abs(a.min), abs(a.max)) * a.count if a.count else 0.0
        same_sum = math.isclose(a.sum, b.sum, rel_tol=0.0, abs_tol=1e-12 * largest)
        return same_sum and (a.count, a.min, a.max) == (b.count, b.min, b.max)
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        first, second = np.asarray(a), np.asarray(b)
        return first.shape == second.shape and all(map(equal, first.ravel().tolist(), second.ravel().tolist()))
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(equal, a, b))
    return bool(a == b) or (a != a and b != b)
