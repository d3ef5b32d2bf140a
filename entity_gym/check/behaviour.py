"""Whether an environment leaves alone what it has shown, can be saved, draws itself, and is closed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions.choices import random_actions
from entity_gym.check.report import Outcome, failed, ok, skipped, warning
from entity_gym.check.subject import SEED, Subject
from entity_gym.check.trajectory import difference, follow
from entity_gym.environment import Environment, Observation

LOOKED_AT = 200  # steps after which arrays are compared
DRAWN = 50  # steps
AFTER_LOADING = 100  # steps that are compared


def check_own_arrays(subject: Subject) -> Outcome:
    """A later step does not write into the arrays of an earlier observation."""
    pool = subject.pool(1)
    env, last = pool.envs[0], [Observation()]
    reset, act = env.reset, env.act

    def keep(obs: Observation) -> Observation:
        last[0] = obs
        return obs

    env.reset = lambda: keep(reset())  # type: ignore[method-assign]
    env.act = lambda actions: keep(act(actions))  # type: ignore[method-assign]
    rng = np.random.default_rng(SEED)
    with subject.watch.call():
        obs = pool.reset(SEED)
    for step in range(1, min(len(subject.trajectory), LOOKED_AT) + 1):
        before = [(what, array, array.tobytes()) for what, array in _arrays(last[0])]
        with subject.watch.call():
            obs = pool.act(random_actions(obs, rng, pool.action_space()))
        for what, array, content in before:
            if array.tobytes() != content:
                return failed(f"step {step} overwrites {what} of the observation before it: show copies of arrays")
    return ok()


def _arrays(obs: Observation) -> Iterator[tuple[str, NDArray[Any]]]:
    given: list[tuple[str, object]] = [("global_features", obs.global_features)]
    given += [(f"features[{name!r}]", rows) for name, rows in obs.features.items()]
    given += [(f"visible[{name!r}]", flags) for name, flags in obs.visible.items()]
    given += [(f"actions[{name!r}].mask", getattr(mask, "mask", None)) for name, mask in obs.actions.items()]
    for what, value in given:
        if isinstance(value, np.ndarray):
            yield what, value


def check_saving(subject: Subject) -> Outcome:
    """An environment whose state is loaded goes on exactly as it would have."""
    kind = type(subject.make())
    own = [name for name in ("state", "load_state") if getattr(kind, name) is not getattr(Environment, name)]
    if not own:
        return skipped("state() and load_state() are not there: a resumed run begins new episodes")
    if len(own) == 1:
        return failed(f"{own[0]}() is there alone: saving takes both state() and load_state()")
    played = subject.trajectory
    # At the start, in the middle, and where the end of an episode was just shown.
    ends = [step for step, obs in enumerate(played.shown) if obs.done.any()]
    for step in sorted({0, len(played) // 2, len(played) // 3, *ends[:1]}):
        problem = _save_at(subject, step)
        if problem:
            return failed(problem)
    return ok("exact")


def _save_at(subject: Subject, step: int) -> str | None:
    watch, played = subject.watch, subject.trajectory
    pool, other = subject.pool(), subject.pool()
    follow(played, pool, watch, stop=step)
    with watch.call():
        state = pool.state()
    for env_state in state["environments"]:
        odd = _not_plain(env_state, "state()")
        if odd:
            return f"{odd}; values are arrays, numbers, texts, None, and lists, tuples and dictionaries of these"
    stop = step + AFTER_LOADING
    for name, target in (("a new environment", other), ("the environment itself", pool)):
        with watch.call():
            obs = target.load_state(state)
        different = follow(played, target, watch, start=step, obs=obs, stop=stop)
        if different is not None:
            return f"saved after {step} steps and loaded into {name}: {different.when}: {different.what}"
    return None


def _not_plain(value: Any, where: str) -> str | None:
    """Name the first thing that a checkpoint cannot hold."""
    if isinstance(value, Mapping):
        found = (_not_plain(item, f"{where}[{key!r}]") for key, item in value.items())
    elif isinstance(value, list | tuple):
        found = (_not_plain(item, f"{where}[{i}]") for i, item in enumerate(value))
    elif value is None or isinstance(value, str | bytes | bool | int | float | np.generic):
        return None
    elif isinstance(value, np.ndarray) and value.dtype.kind in "biufSU":
        return None
    else:
        return f"{where} is {value!r:.100} of type {type(value).__name__}"
    return next((problem for problem in found if problem), None)


def check_rendering(subject: Subject) -> Outcome:
    """An image is (height, width, 3) uint8, and drawing it changes nothing."""
    if subject.draws_nothing():
        return skipped("render() is not there: no videos")
    pool, played, watch = subject.pool(), subject.trajectory, subject.watch
    sizes = []
    with watch.call():
        obs = pool.reset(played.seed)
    for step in range(min(len(played), DRAWN) + 1):
        different = difference(played.shown[step], obs, played.spaces)
        if different is not None:
            return failed(f"render() changes the episode: step {step}: {different.what}")
        with watch.call():
            (image,) = pool.render([0])
        if not isinstance(image, np.ndarray) or image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
            given = (
                f"{image.dtype} array of shape {image.shape}" if isinstance(image, np.ndarray) else repr(image)[:100]
            )
            return failed(f"render() returned {given}; it must be a (height, width, 3) array of uint8")
        sizes.append(image.shape[:2])
        if step < len(played):
            with watch.call():
                obs = pool.act(played.actions[step])
    if len(set(sizes)) > 1:
        return warning(
            f"images differ in size, {sizes[0]} and {next(s for s in sizes if s != sizes[0])}: a video cannot"
        )
    return ok(f"{sizes[0][0]} x {sizes[0][1]} pixels")


def check_closing(subject: Subject) -> Outcome:
    """An environment can be closed twice, before and after it was played."""
    for played in (False, True):
        env = subject.make()
        if played:
            env.rng = np.random.default_rng(SEED)
            with subject.watch.call():
                env.reset()
        for _ in range(2):
            with subject.watch.call():
                env.close()
    return ok()
