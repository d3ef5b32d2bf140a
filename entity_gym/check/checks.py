"""The checks of an environment, in the order in which they run."""

from __future__ import annotations

import random
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions import KINDS, ActionSpace
from entity_gym.actions.choices import random_actions
from entity_gym.batch.ragged import RaggedBuffer
from entity_gym.batch.saving import spaces_difference, spaces_to_dict
from entity_gym.batch.vec_obs import VecAction, VecObs
from entity_gym.check.loading import describe_error, error_place, refuse_batches
from entity_gym.check.report import Finding, Report, Result, Status, fail, skip, warn
from entity_gym.check.subject import NUM_ENVS, SEED, Effort, HangError, Subject, Watch, global_random
from entity_gym.check.trajectory import Difference, Trajectory, difference, equal, repeat
from entity_gym.environment import Environment, Observation
from entity_gym.errors import NoPictureError
from entity_gym.pools.episodes import EpisodeTracker
from entity_gym.pools.pool import EnvSource, is_compiled
from entity_gym.pools.vec_env import VecEnv
from entity_gym.replay.hints import check_hints
from entity_gym.spaces import ObsSpace

Spaces = tuple[ObsSpace, Mapping[str, ActionSpace]]

# --- Constructor, spaces and observations


def check_constructor(subject: Subject) -> str:
    """An environment can be made."""
    subject.make()
    if subject.draws_too_early:
        warn("__init__ uses self.rng, which is seeded only afterwards; use it in reset() and act()")
    return "a compiled environment" if subject.is_compiled else "a Python environment"


def check_spaces(subject: Subject) -> str:
    """The spaces are valid, and always the same."""
    first, second = subject.make(), subject.make()
    spaces = _read_spaces(subject, first)
    for which, env in (("called again", first), ("of a second environment", second)):
        changed = _spaces_change(spaces, _read_spaces(subject, env))
        if changed:
            fail(f"the spaces change: {which}, {changed}")
    subject.obs_space, subject.action_space = spaces
    return f"entities {', '.join(spaces[0].entities) or 'none'}; actions {', '.join(spaces[1])}"


def _read_spaces(subject: Subject, env: Environment) -> Spaces:
    with subject.watch.call():
        obs_space: Any = env.obs_space()
        actions: Any = env.action_space()
    if not isinstance(obs_space, ObsSpace):
        fail(f"obs_space() returned {obs_space!r:.200}; it must be an ObsSpace")
    if not isinstance(actions, Mapping):
        fail(f"action_space() returned {actions!r:.200}; it must be a mapping from names to action spaces")
    if not actions:
        fail("action_space() is empty: a policy needs at least one action")
    for name, space in actions.items():
        if not isinstance(name, str) or type(space) not in KINDS.values():
            fail(f"action_space() has {name!r}: {space!r:.200}; names are texts, and spaces one of {', '.join(KINDS)}")
    return obs_space, actions


def _spaces_change(before: Spaces, after: Spaces) -> str | None:
    return spaces_difference(spaces_to_dict(*before), spaces_to_dict(*after))


def check_reset(subject: Subject) -> str:
    """The first observation is not done, and fits the spaces."""
    pool = subject.pool(1)
    with global_random(SEED):
        obs = pool.reset(SEED)
    acting = [name for name, mask in obs.action_masks.items() if mask.actors.items()]
    return f"{obs.num_entities} entities; {', '.join(acting) or 'nobody'} to act"


def check_observations(subject: Subject) -> str:
    """In random play every observation fits the spaces, final observations of episodes included."""
    effort, pool = subject.effort, subject.pool()
    played = Trajectory(SEED)
    try:
        with global_random(SEED):
            played.record(pool, effort.steps, effort.seconds)
    except Exception as error:
        fail(f"step {len(played) + 1} of random play with seed {SEED}: {describe_error(error)}")
    for env in pool.envs:
        changed = _spaces_change((subject.obs_space, subject.action_space), _read_spaces(subject, env))
        if changed:
            fail(f"the spaces change during play: {changed}")
    subject.trajectory = played
    if not any(mask.actors.items() for obs in played.observations for mask in obs.action_masks.values()):
        warn(f"nobody was offered an action in {len(played):,} steps")
    # (N,) entities of each observation
    counts = [np.sum([buffer.size1() for buffer in obs.features.values()], axis=0) for obs in played.observations]
    summary = f"{np.mean(counts):.1f} entities each, {np.max(counts):.0f} at most"
    return f"{len(played):,} random steps of {played.num_envs} environments, {summary}"


# --- End of episodes

_LIMIT_NAME = re.compile(r"max.*(step|turn|tick|length|time)|(step|turn|tick|length|time|episode).*limit|limit|horizon")
ENOUGH = 2  # episodes that end at the step that a parameter names as the limit
SUSPICIOUS = 5  # episodes that end after the same number of steps, none after more


def check_end(subject: Subject) -> str:
    """Episodes end, and those that a step limit ends are truncated."""
    tracker = EpisodeTracker(subject.trajectory.num_envs)
    episodes = [episode for obs in subject.trajectory.observations[1:] for episode in tracker.step(obs)]
    if not episodes:
        return _play_until_an_end(subject)
    lengths = [episode.length for episode in episodes]
    longest, num_truncated = max(lengths), sum(episode.truncated for episode in episodes)
    at_longest = [episode for episode in episodes if episode.length == longest]
    clock = _step_feature(subject.trajectory, subject.obs_space)
    if not any(episode.truncated for episode in at_longest) and len(at_longest) >= ENOUGH and clock is None:
        seen = (
            f"{len(at_longest)} of {len(episodes)} episodes ended after exactly {longest} steps, with truncated=False"
        )
        named = [name for name, value in _step_limits(subject).items() if value == longest]
        if named:
            fail(
                f"{seen}, and {named[0]} is {longest}: an episode that is cut by a step limit has truncated=True, unless "
                "a feature tells the step"
            )
        if len(at_longest) >= SUSPICIOUS and longest >= SUSPICIOUS:
            warn(f"{seen}, and none later: if that is a step limit, set truncated=True, or show the step in a feature")
    shape = f"{min(lengths)} to {longest} steps"
    if min(lengths) == longest:
        shape = f"{longest} step{'s' * (longest > 1)} each" + (f", which {clock} tells" if clock else "")
    return f"{len(episodes)} episodes, {shape}, {num_truncated} truncated"


def _step_feature(trajectory: Trajectory, obs_space: ObsSpace) -> str | None:
    """Find a feature that tells the step of the episode, so that the end after so many steps is part of the task."""
    steps = np.concatenate([obs.elapsed_step for obs in trajectory.observations])
    ranks = np.unique(steps, return_inverse=True)[1]
    num_steps = int(ranks.max()) + 1
    for name, first in trajectory.observations[0].features.items():
        if any((obs.features[name].size1() != 1).any() for obs in trajectory.observations):
            continue
        columns = np.concatenate([obs.features[name].values for obs in trajectory.observations]).T
        for column, values in enumerate(columns):
            of_step = np.zeros(num_steps, first.values.dtype)
            of_step[ranks] = values
            if num_steps > 1 and np.array_equal(of_step[ranks], values) and len(np.unique(of_step)) == num_steps:
                entity = obs_space.entities.get(name)
                features = obs_space.global_features if entity is None else entity.features
                return f"feature {features[column]!r} of {name}"
    return None


def _play_until_an_end(subject: Subject) -> str:
    started, steps = time.monotonic(), subject.effort.longest_episode
    for step, obs in enumerate(_random_play(subject, subject.pool(1), steps)):
        if obs.done[0]:
            return f"the first episode ended after {step:,} steps{', truncated' * bool(obs.truncated[0])}"
        if time.monotonic() - started > subject.effort.search_seconds and step < steps:
            skip(f"no episode ended in {step:,} steps, and more take too long")
    if subject.effort.is_quick:
        skip(f"no episode ended in {steps:,} steps; without --quick more are played")
    fail(f"no episode ended in {steps:,} steps: give it a step limit that truncates")


def _random_play(subject: Subject, pool: VecEnv, steps: int) -> Iterator[VecObs]:
    """Yield the `steps` + 1 batches of observations of random play."""
    obs, rng = pool.reset(SEED), np.random.default_rng(SEED)
    yield obs
    for _ in range(steps):
        obs = pool.act(random_actions(obs, rng, subject.action_space))
        yield obs


def _step_limits(subject: Subject) -> dict[str, int]:
    """Parameters and attributes of the environment that have the name of a step limit."""
    values: Mapping[str, Any] = subject.source.values if subject.is_compiled else vars(subject.make())
    return {
        name: int(value)
        for name, value in values.items()
        if isinstance(value, int | np.integer) and not isinstance(value, bool) and _LIMIT_NAME.search(name.lower())
    }


# --- Seeds and random numbers

PLAYED_BEFORE = 97  # steps: a prime, so that no episode length divides it


def check_same_seed(subject: Subject) -> str:
    """The same seed and the same actions give the same episodes."""
    with global_random(SEED):
        different = repeat(subject.trajectory, subject.pool())
    if different is None:
        return f"{len(subject.trajectory):,} steps twice"
    reason = (
        "__init__ uses self.rng, which is seeded only afterwards"
        if subject.draws_too_early
        else "Draw every random number from self.rng; a generator of its own, the clock or the order of a set can be the cause"
    )
    fail(f"not the same twice with seed {SEED}: {different}. {reason}")


def check_global_random(subject: Subject) -> str:
    """Python's and NumPy's global random numbers make no difference."""
    pool = subject.pool()
    with global_random(SEED + 1):
        python, numpy = random.getstate(), np.random.get_state()
        different = repeat(subject.trajectory, pool)
        used = ["random"] * (python != random.getstate()) + ["np.random"] * (not equal(numpy, np.random.get_state()))
    sources = " and ".join(used) or "a global source"
    if different is not None:
        fail(f"random numbers come from {sources}, which no seed reaches: draw from self.rng ({different})")
    if used:
        warn(f"random numbers are drawn from {sources}, though it made no difference here: draw from self.rng")
    return "not used"


def check_other_seed(subject: Subject) -> str:
    """Another seed gives other episodes, unless nothing is random."""
    different = repeat(subject.trajectory, subject.pool(), seed=SEED + 1)
    if different is None:
        warn(f"seeds {SEED} and {SEED + 1} give the same episodes: is nothing random in it?")
    return f"{different.when} differs"


def check_fresh_start(subject: Subject) -> str:
    """An environment that was played before and is seeded again does what a new one does."""
    pool, effort = subject.pool(), subject.effort
    steps = min(PLAYED_BEFORE, max(1, effort.steps - 3))
    with global_random(SEED):
        Trajectory(SEED + 1).record(pool, steps, effort.seconds)
    different = repeat(subject.trajectory, pool)
    if different is not None:
        warn(
            f"after some episodes, the same seed gives others than at first: {different}. Does reset() forget something?"
        )
    return ""


def check_independence(subject: Subject) -> str:
    """An environment alone does what it does beside others."""
    i = NUM_ENVS - 1
    different = repeat(subject.trajectory.only(i), subject.pool(1, first_env=i), metrics=False)
    if different is not None:
        fail(
            f"an environment alone is not what it is beside others: {different.when}: {different.text}. {_SHARED}, or a "
            "mutable default argument"
        )
    return ""


_SHARED = "Environments share something: a class attribute, a variable of the module"

# --- Arrays, state, images, close

COMPARED_STEPS = 200  # of own arrays
DRAWN_STEPS = 50
STEPS_AFTER_LOADING = 100


def check_own_arrays(subject: Subject) -> str:
    """A later step does not write into the arrays of an earlier observation."""
    pool = subject.pool(1)
    env, last = pool.envs[0], [Observation()]

    def keeping(function: Callable[..., Observation]) -> Callable[..., Observation]:
        def keep(*args: Any) -> Observation:
            last[0] = function(*args)
            return last[0]

        return keep

    env.reset, env.act = keeping(env.reset), keeping(env.act)  # type: ignore[method-assign]
    before: list[tuple[str, NDArray[Any], bytes]] = []
    for step, _ in enumerate(_random_play(subject, pool, min(len(subject.trajectory), COMPARED_STEPS))):
        for name, array, content in before:
            if array.tobytes() != content:
                fail(f"step {step} overwrites {name} of the observation before it: show copies of arrays")
        before = [(name, array, array.tobytes()) for name, array in _arrays(last[0])]
    return ""


def _arrays(obs: Observation) -> Iterator[tuple[str, NDArray[Any]]]:
    given: list[tuple[str, object]] = [(name, getattr(obs, name)) for name in ("global_features", "player_rewards")]
    given += [(f"features[{name!r}]", rows) for name, rows in obs.features.items()]
    given += [(f"visible[{name!r}]", flags) for name, flags in obs.visible.items()]
    given += [(f"targets[{name!r}]", numbers) for name, numbers in obs.targets.items()]
    given += [(f"actions[{name!r}].mask", getattr(mask, "mask", None)) for name, mask in obs.actions.items()]
    for name, value in given:
        if isinstance(value, np.ndarray):
            yield name, value


def check_saving(subject: Subject) -> str:
    """An environment continues exactly from a loaded state."""
    kind = type(subject.make())
    own = [name for name in ("state", "load_state") if getattr(kind, name) is not getattr(Environment, name)]
    if not own:
        skip("state() and load_state() are not there: a resumed run begins new episodes")
    if len(own) == 1:
        fail(f"{own[0]}() is there alone: saving takes both state() and load_state()")
    played = subject.trajectory
    # At the start, in the middle, and where an episode has just ended.
    ends = [step for step, obs in enumerate(played.observations) if obs.done.any()]
    for step in sorted({0, len(played) // 2, len(played) // 3, *ends[:1]}):
        pool, other = subject.pool(), subject.pool()
        repeat(played, pool, stop=step)
        state = pool.state()
        for env_state in state["environments"]:
            _require_plain(env_state, "state()")
        for name, target in (("a new environment", other), ("the environment itself", pool)):
            obs = target.load_state(state)
            different = repeat(played, target, start=step, obs=obs, stop=step + STEPS_AFTER_LOADING)
            if different is not None:
                fail(f"saved after {step} steps and loaded into {name}: {different.when}: {different.text}")
    return "exact"


def _require_plain(value: Any, where: str) -> None:
    """Fail if a checkpoint cannot hold `value`."""
    if isinstance(value, Mapping | list | tuple):
        for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
            _require_plain(item, f"{where}[{key!r}]")
    elif value is not None and not isinstance(value, str | bytes | bool | int | float | np.generic):
        if not isinstance(value, np.ndarray) or value.dtype.kind not in "biufSU":
            fail(
                f"{where} is {value!r:.100} of type {type(value).__name__}; values are arrays, numbers, texts, None, and "
                "lists, tuples and dictionaries of these"
            )


def check_drawing(subject: Subject) -> str:
    """Hints for replays have known keys and values, and asking for them changes nothing."""
    draws = subject.source.draw if subject.is_compiled else type(subject.make()).draw is not Environment.draw
    if not draws:
        skip("draw() is not there: replays choose shapes and colours")
    pool, played = subject.pool(), subject.trajectory
    checked = None
    obs = pool.reset(played.seed)
    for step in range(min(len(played), DRAWN_STEPS) + 1):
        different = difference(played.observations[step], obs, subject.obs_space)
        if different is not None:
            fail(f"draw() changes the episode: step {step}: {different[1]}")
        try:
            checked = check_hints(pool.draw([0])[0], subject.obs_space, "this environment")
        except ValueError as error:
            fail(str(error))
        if step < len(played):
            obs = pool.act(played.actions[step])
    return "none" if checked is None else f"of {len(checked.get('types', ()))} types"


def check_rendering(subject: Subject) -> str:
    """An image is (height, width, 3) uint8, and drawing it changes nothing."""
    draws = subject.source.render if subject.is_compiled else type(subject.make()).render is not Environment.render
    if not draws:
        skip("render() is not there: no videos")
    pool, played = subject.pool(), subject.trajectory
    sizes: list[tuple[int, ...]] = []
    obs = pool.reset(played.seed)
    for step in range(min(len(played), DRAWN_STEPS) + 1):
        different = difference(played.observations[step], obs, subject.obs_space)
        if different is not None:
            fail(f"render() changes the episode: step {step}: {different[1]}")
        try:
            (image,) = pool.render([0])
        except NoPictureError as error:
            skip(str(error))
        if not isinstance(image, np.ndarray) or image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
            given = (
                f"{image.dtype} array of shape {image.shape}" if isinstance(image, np.ndarray) else f"{image!r:.100}"
            )
            fail(f"render() returned {given}; it must be a (height, width, 3) array of uint8")
        sizes.append(image.shape[:2])
        if step < len(played):
            obs = pool.act(played.actions[step])
    if len(set(sizes)) > 1:
        other = next(size for size in sizes if size != sizes[0])
        warn(f"images differ in size, {sizes[0]} and {other}; the frames of a video must have the same size")
    return f"{sizes[0][0]} x {sizes[0][1]} pixels"


def check_closing(subject: Subject) -> str:
    """An environment can be closed twice, before and after it was played."""
    for is_played in (False, True):
        env = subject.make()
        if is_played:
            env.rng = np.random.default_rng(SEED)
        with subject.watch.call():
            if is_played:
                env.reset()
            env.close()
            env.close()
    return ""


# --- Actions that are not allowed

TRIED_STEPS = 20


def check_wrong_actions(subject: Subject) -> str:
    """Actions that were not offered raise a ValueError and step nothing."""
    return f"refused: {', '.join(sorted(_try_wrong_actions(subject.pool(), subject.trajectory)))}"


def _try_wrong_actions(pool: VecEnv, trajectory: Trajectory) -> set[str]:
    """Try everything that is wrong in some steps of `trajectory`, and return descriptions of it; `pool` is reset."""
    tried: set[str] = set()
    obs = pool.reset(trajectory.seed)
    for step in range(min(len(trajectory), TRIED_STEPS)):
        for what, actions in wrong_actions(obs, trajectory.actions[step], pool.action_space()):
            tried.add(what)
            try:
                pool.act(actions)
            except ValueError:
                continue
            fail(f"step {step + 1}: {what} was taken; it must be refused")
        obs = pool.act(trajectory.actions[step])
        different = difference(trajectory.observations[step + 1], obs, pool.obs_space())
        if different is not None:
            fail(f"step {step + 1}: actions that were refused changed something: {different[1]}")
    return tried


def wrong_actions(
    obs: VecObs, good: Mapping[str, VecAction], action_space: Mapping[str, ActionSpace]
) -> Iterator[tuple[str, dict[str, VecAction]]]:
    """Yield descriptions of mistakes, and `good` actions, which `obs` allows, with that mistake."""
    some = next(iter(good))
    yield "an unknown action", {**good, "no such action": good[some]}
    yield "a missing action", {name: buffer for name, buffer in good.items() if name != some}
    for name, buffer in good.items():
        longer = np.concatenate([buffer.values, np.zeros((1, buffer.size2()), buffer.dtype)])
        offsets = buffer.offsets.copy()
        offsets[-1] += 1
        yield "a value too many", {**good, name: RaggedBuffer(longer, offsets)}
        if not len(buffer.values):
            continue
        for mistake, values in action_space[name].mistakes(buffer.values, obs.action_masks[name]):
            yield mistake, {**good, name: RaggedBuffer(values, buffer.offsets)}


def check_rare_actions(subject: Subject) -> str:
    """The environment takes allowed actions that random play rarely takes, such as nobody as the selected entity."""
    first = subject.pool(1).reset(SEED)
    offers = subject.action_space.items()
    kinds = [(name, what) for name, space in offers for what, _ in space.rare_choices(first.action_masks[name])]
    for name, what in kinds:
        pool, rng = subject.pool(), np.random.default_rng(SEED)
        obs = pool.reset(SEED)
        for step in range(1, TRIED_STEPS + 1):
            actions = random_actions(obs, rng, subject.action_space)
            rare = dict(subject.action_space[name].rare_choices(obs.action_masks[name]))
            actions[name] = RaggedBuffer(rare[what], actions[name].offsets)
            try:
                obs = pool.act(actions)
            except Exception as error:
                fail(f"step {step}, action {name!r}: {what}, which is allowed: {describe_error(error)}")
    return f"taken: {', '.join(sorted({what for _, what in kinds}))}" if kinds else "no action has any"


# --- Compiled code, threads and processes

NUM_PROCESSES = 2
MANY = 1024  # compiled environments, to measure their speed


def check_observe(subject: Subject) -> str:
    """`observe(s, obs)` changes nothing in `s`, and draws no random numbers."""
    if not subject.is_compiled:
        skip("a Python environment")
    pool = subject.pool(1)
    view: Any = pool.envs[0]
    for step, _ in enumerate(_random_play(subject, pool, min(len(subject.trajectory), 100))):
        before = view.state()["fields"]
        view.observe()
        after = view.state()["fields"]
        changed = [name for name, values in after.items() if values.tobytes() != before[name].tobytes()]
        if changed:
            fail(f"after {step} steps observe() changes {', '.join(changed)}; do that in reset() or step()")
    return ""


def check_compiled(subject: Subject) -> str:
    """A compiled environment shows exactly what it shows as ordinary Python."""
    _require_compiler(subject)
    started = time.monotonic()
    compiled = subject.threaded_pool(doing="compiling")
    took = time.monotonic() - started
    reason = (
        "Look for whole numbers that overflow, for an index outside its array, and for variables whose type differs (use "
        "np.int64 and np.float64)"
    )
    different = repeat(subject.trajectory, compiled)
    _require_same(different, "compiled and as ordinary Python", reason)
    _try_wrong_actions(compiled, subject.trajectory)
    return f"compiled or loaded in {took:.1f} s; {len(subject.trajectory):,} steps are identical"


def check_bounds(subject: Subject) -> str:
    """Compiled code stays within its arrays."""
    _require_compiler(subject)
    if not subject.effort.full:
        skip("use --full")
    try:
        different = repeat(
            subject.trajectory, subject.threaded_pool(doing="compiling with boundscheck", boundscheck=True)
        )
    except IndexError as error:
        fail(f"an index is outside of its array: {describe_error(error)}")
    if different is not None:
        fail(f"compiled with boundscheck=True it is not the same: {different}")
    return ""


def _require_compiler(subject: Subject) -> None:
    if not subject.is_compiled:
        skip("a Python environment")
    if not _compiles():
        skip("NUMBA_DISABLE_JIT is set")


def _compiles() -> bool:
    import numba

    return not numba.config.DISABLE_JIT  # type: ignore[attr-defined]


def check_threads(subject: Subject) -> str:
    """The number of threads makes no difference."""
    for num_threads in (1, 2, 3) if subject.effort.full else (1, 2):
        pool = subject.threaded_pool(num_threads)
        _require_same(repeat(subject.trajectory, pool), f"with {num_threads} thread{'s' * (num_threads > 1)}", _SHARED)
    return f"{'1, 2 and 3' if subject.effort.full else '1 and 2'} threads are identical"


def check_processes(subject: Subject) -> str:
    """Worker processes give the same trajectories."""
    if not subject.effort.full:
        skip("use --full")
    if sys.platform == "win32":
        skip("worker processes need Linux or macOS")
    from entity_gym.pools.processes.env import ProcessVecEnv

    watch = subject.watch
    try:
        with watch.call("starting worker processes"):
            pool = ProcessVecEnv(subject.source, NUM_ENVS, NUM_PROCESSES, seed=SEED, final_observations="all")
    except ValueError as error:
        if "cannot be sent" not in str(error):
            raise
        skip(str(error))
    try:
        different = repeat(subject.trajectory, watch.over(pool))
    finally:
        pool.close()
    reason = (
        "It depends on something that a worker process does not have: a variable that the script has set, or an "
        "environment variable"
    )
    _require_same(different, f"in {NUM_PROCESSES} processes", reason)
    return f"{NUM_PROCESSES} processes are identical"


def _require_same(different: Difference | None, where: str, reason: str) -> None:
    if different is not None:
        fail(f"{where} it is not the same: {different}. {reason}")


def check_speed(subject: Subject) -> str:
    """Measure the duration of a step."""
    if subject.is_compiled and _compiles():
        pool: VecEnv = subject.threaded_pool(num_envs=MANY)
        subject.step_seconds = seconds = _seconds_per_act(subject, pool) / MANY
        return f"{1 / seconds:,.0f} steps/s with {MANY:,} environments in one thread, {seconds * 1e9:,.0f} ns a step"
    pool = subject.pool(1)
    env, spent = pool.envs[0], []
    act = env.act

    def timed(actions: Any) -> Any:
        started = time.perf_counter()
        obs = act(actions)
        spent.append(time.perf_counter() - started)
        return obs

    env.act = timed  # type: ignore[method-assign]
    through_pool = _seconds_per_act(subject, pool)
    subject.step_seconds = seconds = sum(spent) / len(spent)
    return f"{1 / seconds:,.0f} steps/s, {_spell(seconds)} a step; {_spell(through_pool)} in a pool"


def _seconds_per_act(subject: Subject, pool: VecEnv) -> float:
    """Duration of `pool.act`, without the choice of actions."""
    obs, rng = pool.reset(SEED), np.random.default_rng(SEED)
    spent, acts, begin = 0.0, 0, time.monotonic()
    while acts < 3 or (time.monotonic() - begin < subject.effort.timed_seconds and acts < 10_000):
        actions = random_actions(obs, rng, subject.action_space)
        started = time.perf_counter()
        obs = pool.act(actions)
        spent += time.perf_counter() - started
        acts += 1
    return spent / acts


def _spell(seconds: float) -> str:
    return f"{seconds * 1e6:,.0f} µs" if seconds < 0.01 else f"{seconds * 1e3:,.0f} ms"


# --- All checks


class Check(NamedTuple):
    """A check, and the names of the checks that must not have failed before it.

    `run` returns what it has seen, or ends with a `Finding`.
    """

    name: str
    run: Callable[[Subject], str]
    needs: tuple[str, ...] = ()


_PLAYABLE = ("observations",)
_SEEDED = ("observations", "same seed", "global random")

CHECKS = (
    Check("constructor", check_constructor),
    Check("spaces", check_spaces, ("constructor",)),
    Check("reset", check_reset, ("spaces",)),
    Check("observations", check_observations, ("reset",)),
    Check("rare actions", check_rare_actions, _PLAYABLE),
    Check("end of episode", check_end, _PLAYABLE),
    Check("same seed", check_same_seed, _PLAYABLE),
    Check("global random", check_global_random, ("observations", "same seed")),
    Check("other seed", check_other_seed, _SEEDED),
    Check("fresh start", check_fresh_start, _SEEDED),
    Check("independence", check_independence, _SEEDED),
    Check("own arrays", check_own_arrays, _PLAYABLE),
    Check("saving", check_saving, _SEEDED),
    Check("rendering", check_rendering, _SEEDED),
    Check("drawing", check_drawing, _SEEDED),
    Check("wrong actions", check_wrong_actions, _SEEDED),
    Check("observe", check_observe, _PLAYABLE),
    Check("compiled", check_compiled, (*_SEEDED, "observe")),
    Check("bounds", check_bounds, ("compiled",)),
    Check("threads", check_threads, (*_SEEDED, "independence", "compiled")),
    Check("processes", check_processes, (*_SEEDED, "independence", "compiled")),
    Check("closing", check_closing, _PLAYABLE),
    Check("speed", check_speed, (*_PLAYABLE, "compiled")),
)


def check_environment(
    env: EnvSource,
    parameters: Mapping[str, Any] | None = None,
    *,
    effort: Effort = Effort(),  # noqa: B008 - frozen
    time_limit: float = 60.0,
    on_result: Callable[[Result], None] = lambda result: None,
    watch: Watch | None = None,
) -> Report:
    """Run every check, and return the report; exceptions of the environment become results.

    Args:
        env: the class, a factory, or a compiled environment.
        parameters: the parameters to make it with.
        effort: how much to try; see `QUICK` and `FULL`.
        time_limit: seconds that a call into the environment may take. Applies to Python code in the main thread, on Linux
            and macOS.
        on_result: called with each result.
        watch: None: one with this `time_limit`.

    Raises:
        ValueError: `env` does not make environments.
    """
    if isinstance(env, Environment) or not callable(env) and not is_compiled(env):
        raise ValueError(f"check_environment was given {env!r:.200}; give what makes one, such as its class")
    refuse_batches(env, getattr(env, "__name__", ""))
    watch = Watch(time_limit) if watch is None else watch
    subject = Subject(env, parameters or {}, effort, watch)
    results: list[Result] = []
    causes: dict[str, str] = {}  # a check that failed, or was skipped for that -> the check that failed first
    hanging: str | None = None
    with watch.watching(), global_random(SEED):  # the caller's random numbers stay as they are
        for check in CHECKS:
            watch.on_start(check.name)
            cause, started = next((causes[name] for name in check.needs if name in causes), hanging), time.monotonic()
            if cause is None:
                status, text = _run(check, subject)
                if status is Status.FAILED:
                    causes[check.name] = check.name
                    hanging = check.name if text.startswith(_HANGS) else None
            else:
                causes[check.name] = cause
                status, text = Status.SKIPPED, f"because {cause!r} {'hangs' if cause == hanging else 'failed'}"
            results.append(Result(check.name, status, text, time.monotonic() - started, cause))
            on_result(results[-1])
    return Report(subject.name, tuple(results), subject.step_seconds)


_HANGS = "hangs: "


def _run(check: Check, subject: Subject) -> tuple[Status, str]:
    try:
        try:
            return Status.OK, check.run(subject)
        finally:
            subject.close()
    except Finding as finding:
        return finding.status, finding.text
    except (Exception, SystemExit, HangError) as error:
        return Status.FAILED, describe_failure(error, subject.watch.limit)


def describe_failure(error: BaseException, limit: float) -> str:
    """Describe an exception of the environment's code, or a call that took longer than `limit` seconds."""
    return describe_hang(limit, error_place(error)) if isinstance(error, HangError) else describe_error(error)


def describe_hang(limit: float, place: str | None) -> str:
    """Describe a call that took longer than `limit` seconds."""
    return f"{_HANGS}a call took more than {limit:g} s" + (f", in {place}" if place else "")
