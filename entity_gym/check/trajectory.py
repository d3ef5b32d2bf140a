"""Record random play of a pool, and find the first difference when another pool plays it again.

Shapes: T steps of N environments.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions.choices import random_actions
from entity_gym.batch.ragged import RaggedBuffer
from entity_gym.batch.vec_obs import Metric, VecAction, VecObs
from entity_gym.pools.vec_env import VecEnv
from entity_gym.spaces import ObsSpace


@dataclass
class Trajectory:
    """The observations and actions of a pool of N environments.

    Attributes:
        seed: seed of the environments and of the random actions.
        observations: T + 1 batches; the first comes from `reset`.
        actions: T batches.
        rare: rare actions of the step that was recorded last, or failed, in words.
    """

    seed: int
    observations: list[VecObs] = field(default_factory=list)
    actions: list[Mapping[str, VecAction]] = field(default_factory=list)
    rare: str = ""

    def __len__(self) -> int:
        return len(self.actions)

    def only(self, i: int) -> Trajectory:
        """Extract the trajectory of environment `i`, without metrics, which are of all environments."""
        row = np.array([i], dtype=np.int64)
        actions: list[Mapping[str, VecAction]] = [{name: each[name][row] for name in each} for each in self.actions]
        return Trajectory(self.seed, [obs.gather(row) for obs in self.observations], actions)

    def record(self, env: VecEnv, steps: int, seconds: float = math.inf) -> None:
        """Reset `env` with the seed and play at random; `seconds` may end it before `steps`.

        Every eighth step takes allowed actions that are rare at random, such as nobody as the selected entity. After an error the
        trajectory holds the steps before.
        """
        rng, spaces = np.random.default_rng(self.seed), env.action_space()
        self.observations.append(env.reset(self.seed))
        started = time.monotonic()
        while len(self) < steps and time.monotonic() - started <= seconds:
            obs = self.observations[-1]
            actions, self.rare = random_actions(obs, rng, spaces), ""
            for name, mask in obs.action_masks.items() if len(self) % 8 == 7 else ():
                rare = list(spaces[name].rare_choices(mask))
                if rare:
                    what, values = rare[len(self) // 8 % len(rare)]
                    actions[name] = RaggedBuffer(values, actions[name].offsets)
                    self.rare += f"{', ' * bool(self.rare)}{what} in action {name!r}"
            self.observations.append(env.act(actions))
            self.actions.append(actions)


def repeat(
    trajectory: Trajectory,
    env: VecEnv,
    *,
    seed: int | None = None,
    start: int = 0,
    stop: int | None = None,
    obs: VecObs | None = None,
    before_step: Callable[[VecEnv], object] = lambda env: None,
) -> str | None:
    """Play the actions of `trajectory` again in `env`, up to the first difference. Return a description; None if all is equal.

    Args:
        trajectory: recorded with as many environments.
        env: reset here, unless `obs` is given.
        seed: None: that of the trajectory.
        start: step of the trajectory to begin with.
        stop: last step. None: that of the trajectory.
        obs: observation of `env` at step `start`, after `load_state`.
        before_step: called with `env` before each step.
    """
    if obs is None:
        obs = env.reset(trajectory.seed if seed is None else seed)
    else:
        obs = replace(obs, final=trajectory.observations[start].final)  # a saved state has no last observations
    last = len(trajectory) if stop is None else min(stop, len(trajectory))
    for step in range(start, last + 1):
        found = difference(trajectory.observations[step], obs, env.obs_space())
        if found is not None:
            when = f"step {step}" if step else "the first observation"
            return f"{when} of environment {obs.env_id[found[0]]}: {found[1]}"
        if step < last:
            before_step(env)
            obs = env.act(trajectory.actions[step])
    return None


def difference(expected: VecObs, found: VecObs, obs_space: ObsSpace) -> tuple[int, str] | None:
    """Return the row and the description of the first difference of two batches of N frames; None if they are equal."""
    num_frames = len(found)
    both = VecObs.cat([expected, found])  # spells masks out that only one batch has
    columns = {name: column for name, column in both.columns().items() if name != "env_id"}
    for path, column in _leaves(columns):
        for row in range(num_frames):
            was, now = (
                each.values if isinstance(each, RaggedBuffer) else each
                for each in (column[row], column[num_frames + row])
            )
            if not np.array_equal(was, now, equal_nan=column.dtype.kind == "f"):
                return row, _describe(path, was, now, obs_space)
    for row, (i, j) in enumerate(zip(expected.env_id.tolist(), found.env_id.tolist(), strict=True)):
        infos = expected.end_of_episode_info.get(i) or {}, found.end_of_episode_info.get(j) or {}
        if not equal(*infos):
            return row, f"end_of_episode_info is {infos[1]!r:.200} and was {infos[0]!r:.200}"
    if len(expected) > 1 and not equal(expected.metrics, found.metrics):
        return 0, f"metrics are {found.metrics!r:.200} and were {expected.metrics!r:.200}"
    if expected.final is None or found.final is None:
        return None if expected.final is found.final else (0, "one of them keeps no last observation of the episode")
    last = difference(expected.final, found.final, obs_space)
    if last is None:
        return None
    row = int(np.flatnonzero(found.env_id == found.final.env_id[last[0]])[0])
    return row, f"in the last observation of the episode, {last[1]}"


def _leaves(tree: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the columns of a tree with their names; rewards and ends come before features."""
    if not isinstance(tree, Mapping):
        yield path, tree
        return
    for name in sorted(tree, key=lambda name: isinstance(tree[name], Mapping)):
        yield from _leaves(tree[name], (*path, name))


def _describe(path: tuple[str, ...], was: NDArray[Any], now: NDArray[Any], obs_space: ObsSpace) -> str:
    """Describe the difference of one frame's part of a column."""
    branch, name = path[0], path[-1]
    if branch == "features" and len(was) != len(now):
        return f"{len(now)} entities of type {name!r} are shown, and {len(was)} were"
    if branch == "features":
        entity = obs_space.entities.get(name)
        features = obs_space.global_features if entity is None else entity.features
        k, column = (int(place) for place in np.argwhere(was != now)[0])
        owner = "global feature" if entity is None else f"entity {k} of type {name!r}: feature"
        return f"{owner} {features[column]!r} is {now[k, column]} and was {was[k, column]}"
    label = f"action {path[1]!r}: {name}" if branch == "action_masks" else " ".join(path)
    return f"{label} is {np.squeeze(now).tolist()!r:.200} and was {np.squeeze(was).tolist()!r:.200}"


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
