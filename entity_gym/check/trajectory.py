"""Record random play of a pool, and find the first difference when another pool repeats it.

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
from entity_gym.batch.ragged import RaggedBuffer, RaggedBufferBool
from entity_gym.batch.vec_obs import Metric, VecAction, VecObs
from entity_gym.pools.vec_env import VecEnv
from entity_gym.spaces import GLOBAL_ENTITY, ObsSpace


@dataclass
class Trajectory:
    """The observations and actions of a pool of N environments.

    Attributes:
        obs_space, action_space: spaces of the environments.
        seed: seed of the environments and of the random actions.
        observations: T + 1 batches; the first comes from `reset`.
        actions: T batches.
        is_part: recorded in a larger pool, so that metrics, which summarize all environments, are not compared.
    """

    obs_space: ObsSpace
    action_space: Mapping[str, ActionSpace]
    seed: int
    observations: list[VecObs] = field(default_factory=list)
    actions: list[Mapping[str, VecAction]] = field(default_factory=list)
    is_part: bool = False

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
        actions: list[Mapping[str, VecAction]] = [
            {name: buffer[row] for name, buffer in each.items()} for each in self.actions
        ]
        return Trajectory(self.obs_space, self.action_space, self.seed, observations, actions, is_part=True)

    def record(self, env: VecEnv, steps: int, seconds: float | None = None) -> Trajectory:
        """Reset `env` with the seed, play at random, and return this trajectory. After an error it holds the steps before.

        Args:
            env: a pool of such environments.
            steps: T.
            seconds: time limit, for fewer steps than `steps`. None: no limit.
        """
        rng = np.random.default_rng(self.seed)
        self.observations.append(env.reset(self.seed))
        started = time.monotonic()
        while len(self) < steps and (seconds is None or time.monotonic() - started <= seconds):
            actions = random_actions(self.observations[-1], rng, self.action_space)
            obs = env.act(actions)
            self.actions.append(actions)
            self.observations.append(obs)
        return self


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
) -> Difference | None:
    """Repeat the actions of `trajectory` in `env`, up to the first difference. Return None if there is none.

    Args:
        trajectory: recorded with as many environments.
        env: reset here, unless `obs` is given.
        seed: None: that of the trajectory.
        start: step of the trajectory to begin with.
        stop: last step. None: that of the trajectory.
        obs: observation of `env` at step `start`, after `load_state`.
    """
    restored = obs is not None
    if obs is None:
        obs = env.reset(trajectory.seed if seed is None else seed)
    last = len(trajectory) if stop is None else min(stop, len(trajectory))
    for step in range(start, last + 1):
        expected = trajectory.observations[step]
        found = difference(expected, obs, trajectory.obs_space, metrics=not trajectory.is_part)
        if found is None and not (restored and step == start):  # a saved state has no final observations
            found = _final_difference(expected, obs, trajectory.obs_space)
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
    for name in ("done", "truncated", "reward"):
        was, now = getattr(expected, name), getattr(found, name)
        for row in np.flatnonzero(was != now).tolist():
            return row, f"{name} is {now[row]} and was {was[row]}"
    ragged: list[tuple[RaggedBuffer[Any], RaggedBuffer[Any], _Describe]] = [
        (buffer, found.features[name], _describe_features(name, obs_space))
        for name, buffer in expected.features.items()
    ]
    for name, mask in expected.action_masks.items():
        other = found.action_masks[name]
        ragged.append((mask.actors, other.actors, _describe(f"action {name!r}: actors")))
        if mask.actees is not None and other.actees is not None:
            ragged.append((mask.actees, other.actees, _describe(f"action {name!r}: actees")))
        given = mask.mask if mask.mask is not None else other.mask
        if given is not None:
            width = given.size2()
            ragged.append((mask.spelled_out(width), other.spelled_out(width), _describe(f"action {name!r}: mask")))
    for name in expected.visible.keys() | found.visible.keys():
        ragged.append((_visible(expected, name), _visible(found, name), _describe(f"visible[{name!r}]")))
    for before, after, describe in ragged:
        if np.array_equal(before.offsets, after.offsets) and np.array_equal(before.values, after.values):
            continue
        for row in range(len(before)):
            rows, other_rows = _rows(before, row), _rows(after, row)
            if not np.array_equal(rows, other_rows):
                return row, describe(rows, other_rows)
    return _info_difference(expected, found, metrics) or _array_difference(expected, found)


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


#: Describes how the rows of one frame were, and are.
_Describe = Callable[[NDArray[Any], NDArray[Any]], str]


def _describe_features(name: str, obs_space: ObsSpace) -> _Describe:
    entity = obs_space.entities.get(name)
    features = obs_space.global_features if entity is None else entity.features

    def describe(was: NDArray[Any], now: NDArray[Any]) -> str:
        if len(was) != len(now):
            return f"{len(now)} entities of type {name!r} are shown, and {len(was)} were"
        k, column = (int(place) for place in np.argwhere(was != now)[0])
        owner = "global feature" if name == GLOBAL_ENTITY else f"entity {k} of type {name!r}: feature"
        return f"{owner} {features[column]!r} is {now[k, column]} and was {was[k, column]}"

    return describe


def _describe(label: str) -> _Describe:
    def describe(was: NDArray[Any], now: NDArray[Any]) -> str:
        before, after = (
            np.array2string(rows[:, 0] if rows.shape[1] == 1 else rows, threshold=20) for rows in (was, now)
        )
        return f"{label}: {after} where {before} was".replace("\n", "")

    return describe


def _visible(obs: VecObs, name: str) -> RaggedBufferBool:
    features = obs.features[name]
    everything = np.ones((len(features.values), 1), np.bool_)
    return obs.visible.get(name, RaggedBufferBool.from_offsets(everything, features.offsets))


def _rows(column: Any, row: int) -> NDArray[Any]:
    """The part of one frame in a column of a batch."""
    rows: NDArray[Any] = (
        column.values[column.offsets[row] : column.offsets[row + 1]] if hasattr(column, "offsets") else column[row]
    )
    return rows


def _info_difference(expected: VecObs, found: VecObs, metrics: bool) -> tuple[int, str] | None:
    for row, (i, j) in enumerate(zip(expected.env_id.tolist(), found.env_id.tolist(), strict=True)):
        was, now = expected.end_of_episode_info.get(i), found.end_of_episode_info.get(j)
        if not equal(was, now):
            return row, f"end_of_episode_info is {now!r:.200} and was {was!r:.200}"
    if metrics and not equal(expected.metrics, found.metrics):
        return 0, f"metrics are {found.metrics!r:.200} and were {expected.metrics!r:.200}"
    return None


def _array_difference(expected: VecObs, found: VecObs) -> tuple[int, str] | None:
    """Compare the arrays that both have: a compiled environment that runs as ordinary Python shows none."""
    for name in expected.arrays.keys() & found.arrays.keys():
        for row in range(len(found)):
            was, now = _rows(expected.arrays[name], row), _rows(found.arrays[name], row)
            if not np.array_equal(was, now, equal_nan=now.dtype.kind == "f"):
                return row, f"the array {name!r} differs"
    return None


def equal(a: Any, b: Any) -> bool:
    """Return whether two values are equal, with arrays compared by value and NaN equal to itself."""
    if isinstance(a, Metric) and isinstance(b, Metric):
        return equal(vars(a), vars(b))
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        first, second = np.asarray(a), np.asarray(b)
        return first.shape == second.shape and all(map(equal, first.ravel().tolist(), second.ravel().tolist()))
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(equal, a, b))
    return bool(a == b) or (a != a and b != b)
