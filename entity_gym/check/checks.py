"""The checks of an environment: random play is recorded once, and most checks are ways to play it again.

Shapes: T steps of N environments.
"""

from __future__ import annotations

import math
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial, wraps
from typing import Any, NamedTuple

import numpy as np

from entity_gym.actions.choices import random_actions
from entity_gym.batch.vec_obs import VecObs
from entity_gym.check.loading import describe_error
from entity_gym.check.trajectory import Trajectory, equal, repeat
from entity_gym.environment import Environment, Observation
from entity_gym.pools.pool import ThreadedVecEnv
from entity_gym.pools.python_slots import PythonSlots
from entity_gym.pools.source import EnvFactory, EnvSource, as_source
from entity_gym.pools.vec_env import VecEnv
from entity_gym.replay.hints import check_hints

NUM_ENVS = 3
SEED = 0
SUSPICIOUS = 5  # episodes that end after the same number of steps, none after more
SEARCH_SECONDS = 30.0  # for an episode that ends


# --- Results


class Status(StrEnum):
    """Outcome of a check. Only `FAILED` makes a report fail."""

    OK = "ok"
    WARNING = "warning"
    SKIPPED = "skipped"
    FAILED = "FAILED"


class Finding(Exception):  # noqa: N818 - also ends checks that are skipped
    """Raised by a check that does not end with `Status.OK`: what is wrong, rarely meant, or the reason to skip it."""

    def __init__(self, text: str, status: Status = Status.FAILED) -> None:
        super().__init__(text)
        self.status = status


class Result(NamedTuple):
    """The result of one check."""

    name: str  # of the check
    status: Status
    text: str  # the reason, or for `Status.OK` a summary of the observations
    seconds: float = 0.0

    def __str__(self) -> str:
        return f"{self.status:<8} {self.name:<16} {self.text}".rstrip()


class Report(NamedTuple):
    """The results of the checks of an environment; `print(report)` shows them."""

    environment: str  # its name, with its parameters
    results: Sequence[Result]  # one for each check that was tried, in order
    num_left: int = 0  # checks that were not tried, because the last one of `results` failed

    @property
    def failed(self) -> list[Result]:
        """The results of the checks that failed."""
        return [result for result in self.results if result.status is Status.FAILED]

    @property
    def ok(self) -> bool:
        """True if no check failed."""
        return not self.failed

    def summary(self) -> str:
        """Return one line: the number of checks by status, and the names of those that failed."""
        statuses, seconds = [result.status for result in self.results], sum(result.seconds for result in self.results)
        parts = [f"{statuses.count(each)} {each}" for each in Status if each in statuses]
        if self.failed:
            parts[-1] += f": {', '.join(result.name for result in self.failed)}"
        if self.num_left:
            parts.append(f"{self.num_left} not tried, because {self.results[-1].name!r} failed")
        return f"{self.environment}: {len(statuses)} check{'s' * (len(statuses) > 1)} in {seconds:.1f} s: {', '.join(parts)}"

    def __str__(self) -> str:
        return "\n".join([*map(str, self.results), self.summary()])


# --- The environment that is checked


@dataclass
class Subject:
    """The environment under check, and the random play that later checks need.

    Attributes:
        source: makes the environment.
        steps: random steps of `NUM_ENVS` environments to record.
        seconds: after which no other step is recorded.
        trajectory: random play, set by the check "observations".
    """

    source: EnvSource
    steps: int
    seconds: float
    trajectory: Trajectory = field(init=False)
    _pools: list[VecEnv] = field(default_factory=list)

    def pool(self, num_envs: int = NUM_ENVS, num_threads: int = 1, **options: Any) -> VecEnv:
        """Make a pool as a training does; `options` are those of `ThreadedVecEnv`."""
        pool = ThreadedVecEnv(self.source, num_envs, num_threads, seed=SEED, final_observations="all", **options)
        self._pools.append(pool)
        return pool

    def python_pool(self, num_envs: int = NUM_ENVS, **options: Any) -> VecEnv:
        """Make a pool in which compiled environments run as ordinary Python."""
        return self.pool(num_envs, compile=False, **options)

    def compiled_pool(self) -> VecEnv:
        """Make a pool of compiled environments; skip the check of others."""
        if not self.source.is_compiled:
            raise Finding("not a compiled environment", Status.SKIPPED)
        return self.pool()

    def process_pool(self) -> VecEnv:
        """Make a pool of two worker processes; skip the check where that is not possible."""
        if sys.platform == "win32":
            raise Finding("worker processes need Linux or macOS", Status.SKIPPED)
        try:
            return self.pool(num_processes=2)
        except ValueError as error:
            raise Finding(str(error), Status.SKIPPED) if "cannot be sent" in str(error) else error from None

    def played_pool(self) -> VecEnv:
        """Make a pool that has played episodes of another seed, and stands somewhere within one."""
        pool = self.python_pool()
        # A prime number of steps, so that no length of episodes divides it.
        Trajectory(SEED + 1).record(pool, min(97, max(1, len(self.trajectory) - 3)), self.seconds)
        return pool

    def close(self) -> None:
        """Close all pools; errors of `close` are left to the check "reset"."""
        while self._pools:
            with suppress(Exception):
                self._pools.pop().close()


@contextmanager
def global_random(seed: int) -> Iterator[None]:
    """Seed the global random numbers of Python and NumPy within the block; restore them afterwards."""
    python, numpy = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


# --- Recording random play


def check_spaces(subject: Subject) -> str:
    """Environments can be made, and have the same valid spaces."""
    slots = subject.python_pool().slots
    if not slots.action_space:
        raise Finding("action_space() names no action; there must be at least one")
    return f"entities {', '.join(slots.obs_space.entities) or 'none'}; actions {', '.join(slots.action_space)}"


def check_reset(subject: Subject) -> str:
    """The first observation is not done and fits the spaces, and environments can be closed twice."""
    pool = subject.python_pool(1)
    obs = pool.reset(SEED)
    acting = [name for name, mask in obs.action_masks.items() if len(mask.actors.values)]
    pool.slots.close()
    pool.slots.close()
    return f"{obs.num_entities} entities; {', '.join(acting) or 'nobody'} to act"


def check_compiling(subject: Subject) -> str:
    """A compiled environment compiles, and its first steps as ordinary Python break no rule."""
    started = time.monotonic()
    subject.compiled_pool()
    return f"compiled or loaded in {time.monotonic() - started:.1f} s"


def check_observations(subject: Subject) -> str:
    """Observations of random play are new and fit the spaces, the last ones of episodes included."""
    played, pool = Trajectory(SEED), subject.python_pool()
    subject.trajectory = played
    for env in pool.slots.envs if isinstance(pool.slots, PythonSlots) else ():
        _require_new_observations(env)
    try:
        with global_random(SEED):
            played.record(pool, subject.steps, subject.seconds)
    except Finding:
        raise
    except Exception as error:
        lag = f". The cause may be that {LAG}" if _lags_behind(subject) else ""
        rare = f" (in which {played.rare}, which is allowed)" if played.rare else ""
        text = f"step {len(played) + 1} of random play with seed {SEED}{rare}: {describe_error(error)}{lag}"
        raise Finding(text) from error
    if not any(len(mask.actors.values) for obs in played.observations for mask in obs.action_masks.values()):
        raise Finding(f"nobody was offered an action in {len(played):,} steps", Status.WARNING)
    # (N,) entities of each observation
    counts = [np.sum([buffer.size1() for buffer in obs.features.values()], axis=0) for obs in played.observations]
    summary = f"{np.mean(counts):.1f} entities each, {np.max(counts):.0f} at most"
    masks = getattr(pool.slots, "found_masks", "")
    summary += f"; action masks are in {masks}" if masks else ""
    return f"{len(played):,} random steps of {NUM_ENVS} environments, {summary}"


def _require_new_observations(env: Environment) -> None:
    """Let `act` fail where it returns the same `Observation` object as the call before it."""
    last = Observation()

    def watched(method: Callable[..., Observation]) -> Callable[..., Observation]:
        @wraps(method)
        def call(*given: Any) -> Observation:
            nonlocal last
            before, last = last, method(*given)
            if last is before:
                raise Finding(
                    f"{method.__name__}() returned the same Observation object as the call before it: either one object is "
                    f"kept for ever, or {LAG}. Return a new Observation, made after the step"
                )
            return last

        return call

    env.reset, env.act = watched(env.reset), watched(env.act)  # type: ignore[method-assign]


LAG = (
    "observations lag one step behind: what act() returns does not show the actions that it was given, but those before"
)


def check_delay(subject: Subject) -> str:
    """An observation shows what the actions right before it did."""
    if _lags_behind(subject):
        raise Finding(f"it seems that {LAG}", Status.WARNING)
    return "an action shows in the next observation"


def _lags_behind(subject: Subject) -> bool:
    """Take other actions than the recorded ones; true if features differ, but never in the next observation."""
    played, pool, rng, differs_later = subject.trajectory, subject.python_pool(), np.random.default_rng(SEED + 1), False
    for step in range(min(len(played) - 1, 20)):
        try:
            repeat(played, pool, stop=step)
            other = random_actions(played.observations[step], rng, pool.action_space())
            shown = [pool.act(other), pool.act(played.actions[step + 1])]
        except Exception:  # these other actions do not tell
            continue
        now, later = (
            all(equal(buffer.values, obs.features[name].values) for name, buffer in played_obs.features.items())
            for obs, played_obs in zip(shown, played.observations[step + 1 :], strict=False)
        )
        if not now:
            return False
        differs_later |= not later
    return differs_later


def check_view(subject: Subject) -> str:
    """Features to which a view adds the actor's are places then, in the range of the actor's."""
    slots, observations = subject.python_pool(1).slots, subject.trajectory.observations
    sums, entities = getattr(slots, "sums", ()), slots.obs_space.entities

    def values_of(name: str, feature: str) -> np.ndarray[Any, Any]:
        rows = [obs.features[name].values[:, entities[name].features.index(feature)] for obs in observations]
        return np.concatenate(rows)

    def counts_of(name: str) -> np.ndarray[Any, Any]:
        return np.concatenate([obs.features[name].size1() for obs in observations])

    for name, feature in sums:
        place = values_of(name, feature)
        for other, entity in entities.items() if len(place) else ():
            if other == name or feature not in entity.features or (counts_of(other) != 1).any():
                continue
            own = values_of(other, feature)
            given = place - np.repeat(own, counts_of(name))
            overlap = min(own.max(), given.max()) - max(own.min(), given.min())
            union = max(own.max(), given.max()) - min(own.min(), given.min())
            if np.ptp(place) > 1.5 * np.ptp(own) and overlap >= 0.4 * union:
                raise Finding(
                    f"{feature!r} of {name} was {given.min():.4g} to {given.max():.4g}, about as that of {other}, and is "
                    f"{place.min():.4g} to {place.max():.4g} with that added: if it was no offset, add nothing to it",
                    Status.WARNING,
                )
    return (
        f"adds the actor's to {', '.join(f'{feature} of {name}' for name, feature in sums)}"
        if sums
        else "no feature is a sum with the actor's"
    )


def check_end(subject: Subject) -> str:
    """Episodes end, and those that a step limit ends are truncated."""
    observations = subject.trajectory.observations
    finals = [obs.final for obs in observations if obs.final is not None and len(obs.final)]
    if not finals:
        return _play_until_an_end(subject)
    lengths = np.concatenate([final.elapsed_step for final in finals])
    is_cut = np.concatenate([final.truncated for final in finals])
    longest = int(lengths.max())
    num_longest, is_told = int((lengths == longest).sum()), _shows_the_step(observations)
    if min(num_longest, longest) >= SUSPICIOUS and not is_cut[lengths == longest].any() and not is_told:
        raise Finding(
            f"{num_longest} of {len(lengths)} episodes ended after exactly {longest} steps, with truncated=False, and none "
            "later: if that is a step limit, set truncated=True, or show the step in a feature",
            Status.WARNING,
        )
    shape = f"{lengths.min()} to {longest} steps" + ", which a feature tells" * is_told
    return f"{len(lengths)} episodes, {shape}, {is_cut.sum()} truncated"


def _shows_the_step(observations: Sequence[VecObs]) -> bool:
    """True if a feature tells the step of the episode, so that an end after so many steps is part of the task."""
    steps = np.concatenate([obs.elapsed_step for obs in observations]).tolist()
    for name in observations[0].features:
        buffers = [obs.features[name] for obs in observations]
        if all((buffer.size1() == 1).all() for buffer in buffers):
            for column in np.concatenate([buffer.values for buffer in buffers]).T.tolist():
                if len(set(zip(steps, column, strict=True))) == len(set(steps)) == len(set(column)) > 1:
                    return True
    return False


def _play_until_an_end(subject: Subject) -> str:
    pool, rng, started, most = subject.python_pool(1), np.random.default_rng(SEED), time.monotonic(), 10 * subject.steps
    obs = pool.reset(SEED)
    for step in range(1, most + 1):
        obs = pool.act(random_actions(obs, rng, pool.action_space()))
        if obs.done[0]:
            return f"the first episode ended after {step:,} steps{', truncated' * bool(obs.truncated[0])}"
        if time.monotonic() - started > SEARCH_SECONDS:
            raise Finding(f"no episode ended in {step:,} steps, and more take too long", Status.SKIPPED)
    raise Finding(f"no episode ended in {most:,} steps: give it a step limit that truncates")


# --- Ways to play the recorded steps again


def again(
    subject: Subject,
    meaning: str,
    pool: Callable[[Subject], VecEnv] = Subject.python_pool,
    before_step: Callable[[VecEnv], str] = lambda pool: "",
    steps: int | None = None,
) -> str:
    """Play the recorded trajectory again; fail at the first difference, with `meaning`, in which it replaces {}.

    Args:
        subject: the environment.
        meaning: of a difference.
        pool: makes the pool.
        before_step: does what must not make a difference, and returns words for the report.
        steps: None: all.
    """
    words: set[str] = set()
    env = pool(subject)
    played = subject.trajectory if len(env) == NUM_ENVS else subject.trajectory.only(NUM_ENVS - 1)
    different = repeat(played, env, stop=steps, before_step=lambda env: words.add(before_step(env)))
    if different is not None:
        raise Finding(meaning.format(different))
    return ", ".join(sorted(words - {""})) or f"{len(played):,} steps are identical"


def check_seeds(subject: Subject) -> str:
    """Check that a seed gives the same episodes, whatever global random numbers are, and another seed others."""
    own = "rand_int(s, n), rand_float(s) or rand_normal(s)" if subject.source.is_compiled else "self.rng"
    for seed in (SEED, SEED + 1):
        with global_random(seed):
            python, numpy = random.getstate(), np.random.get_state()
            different = repeat(subject.trajectory, subject.python_pool())
            used = ["random"] * (python != random.getstate())
            used += ["np.random"] * (not equal(numpy, np.random.get_state()))
        sources = " and ".join(used) or "a global source"
        if different is not None and seed == SEED:
            raise Finding(
                f"not the same twice with seed {SEED}: {different}. Draw every random number from {own}, in reset and steps; a "
                "generator of its own, one that __init__ uses, the clock or the order of a set can be the cause"
            )
        if different is not None:
            raise Finding(f"random numbers come from {sources}, which no seed reaches: draw from {own} ({different})")
    if repeat(subject.trajectory, subject.python_pool(), seed=SEED + 1) is None:
        text = f"seeds {SEED} and {SEED + 1} give the same episodes: is nothing random in it?"
        raise Finding(text, Status.WARNING)
    return f"{len(subject.trajectory):,} steps are identical"


def check_saving(subject: Subject) -> str:
    """An environment continues exactly from a loaded state."""
    played, pool = subject.trajectory, subject.python_pool()
    if not pool.can_save:
        text = "state() and load_state() are not both there: a resumed run begins new episodes"
        raise Finding(text, Status.SKIPPED)
    # At the start, in the middle, and where an episode has just ended.
    ends = [step for step, obs in enumerate(played.observations) if obs.done.any()]
    for step in sorted({0, len(played) // 2, len(played) // 3, *ends[:1]}):
        other = subject.python_pool()
        repeat(played, pool, stop=step)
        state = pool.state()
        _require_plain(state, "state()")
        for name, target in (("a new environment", other), ("the environment itself", pool)):
            different = repeat(played, target, start=step, stop=step + 100, obs=target.load_state(state))
            if different is not None:
                raise Finding(f"saved after {step} steps and loaded into {name}: {different}")
    return "exact"


def _require_plain(value: Any, where: str) -> None:
    """Fail if a checkpoint cannot hold `value`."""
    if isinstance(value, Mapping | list | tuple):
        for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
            _require_plain(item, f"{where}[{key!r}]")
    elif value is not None and not isinstance(value, str | bytes | bool | int | float | np.generic | np.ndarray):
        raise Finding(
            f"{where} is {value!r:.100} of type {type(value).__name__}; values are arrays, numbers, texts, None, and "
            "lists, tuples and dictionaries of these"
        )


def _draw(pool: VecEnv) -> str:
    """Ask for the hints for drawing and for an image of environment 0; return words about both."""
    hints = check_hints(pool.draw([0])[0], pool.obs_space(), "this environment")
    words = "no hints" if hints is None else f"hints for {len(hints.get('types', ()))} types"
    try:
        (image,) = pool.render([0])
    except NotImplementedError:
        return f"no images, {words}"
    if not isinstance(image, np.ndarray) or image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        given = f"{image.dtype} array of shape {image.shape}" if isinstance(image, np.ndarray) else f"{image!r:.100}"
        raise Finding(f"render() returned {given}; it must be a (height, width, 3) array of uint8")
    return f"images of {image.shape[0]} x {image.shape[1]} pixels, {words}"


# --- All checks


class Check(NamedTuple):
    """A check: `run` returns a summary, or ends with a `Finding`. Where a decisive one fails, no others are tried."""

    name: str
    run: Callable[[Subject], str]
    is_decisive: bool = False


_SHARED = "Environments share something: a class attribute, a variable of the module, a mutable default argument"
_ALONE = f"environment {NUM_ENVS - 1} alone is not what it is beside others: {{}}. {_SHARED}"
_FORGETS = "after other episodes, the same seed gives others than at first: {}. Does reset() forget something?"
_COMPILED = (
    "compiled and as ordinary Python it is not the same: {}. Look for whole numbers that overflow, for an index outside its "
    "array, and for variables whose type differs (use np.int64 and np.float64)"
)
_PROCESSES = (
    "in 2 processes it is not the same: {}. It depends on something that a worker process does not have: a variable that the "
    "script has set, or an environment variable"
)
_DRAWN = "render() or draw() changes the episode: {}"

CHECKS = (
    Check("spaces", check_spaces, is_decisive=True),
    Check("reset", check_reset, is_decisive=True),
    Check("compiling", check_compiling, is_decisive=True),
    Check("observations", check_observations, is_decisive=True),
    Check("view", check_view),
    Check("end of episode", check_end),
    Check("seeds", check_seeds, is_decisive=True),
    Check("compiled", partial(again, meaning=_COMPILED, pool=Subject.compiled_pool), is_decisive=True),
    Check("fresh start", partial(again, meaning=_FORGETS, pool=Subject.played_pool)),
    Check(
        "independence",
        partial(again, meaning=_ALONE, pool=partial(Subject.python_pool, num_envs=1, first_env=NUM_ENVS - 1)),
    ),
    Check("delay", check_delay),
    Check("saving", check_saving),
    Check("drawing", partial(again, meaning=_DRAWN, before_step=_draw, steps=50)),
    Check(
        "threads", partial(again, meaning="with 2 threads: {}. " + _SHARED, pool=partial(Subject.pool, num_threads=2))
    ),
    Check("processes", partial(again, meaning=_PROCESSES, pool=Subject.process_pool)),
)


def check_environment(
    env: EnvFactory,
    *,
    steps: int | None = None,
    on_result: Callable[[Result], None] = lambda result: None,
) -> Report:
    """Run every check, and return the report; exceptions of the environment become results.

    Args:
        env: the class, a factory, a compiled environment, or a class of `EnvSlots`.
        steps: random steps to record; an episode must end in ten times as many. None: 1,000, or as many as fit in a second.
        on_result: called with each result.

    Raises:
        ValueError: `env` does not make environments.
    """
    source = as_source(env)
    subject = Subject(source, steps or 1000, 1.0 if steps is None else math.inf)
    results: list[Result] = []
    with global_random(SEED):  # the caller's random numbers stay as they are
        for check in CHECKS:
            started, status = time.monotonic(), Status.OK
            try:
                text = check.run(subject)
            except Finding as finding:
                status, text = finding.status, str(finding)
            except (Exception, SystemExit) as error:
                status, text = Status.FAILED, describe_error(error)
            finally:
                subject.close()
            results.append(Result(check.name, status, text, time.monotonic() - started))
            on_result(results[-1])
            if status is Status.FAILED and check.is_decisive:
                break
    return Report(str(source), results, len(CHECKS) - len(results))
