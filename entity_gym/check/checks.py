"""The checks of an environment: random play is recorded once, and most are ways to play it again."""

from __future__ import annotations

import math
import random
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions import ActionSpace
from entity_gym.actions.choices import random_actions
from entity_gym.batch.frame import FrameReader
from entity_gym.batch.ragged import RaggedBuffer
from entity_gym.batch.saving import spaces_difference, spaces_to_dict
from entity_gym.batch.vec_obs import VecAction, VecObs
from entity_gym.check.loading import describe_error
from entity_gym.check.report import Finding, Report, Result, Status
from entity_gym.check.subject import NUM_ENVS, SEED, Subject, global_random
from entity_gym.check.trajectory import Trajectory, equal, repeat
from entity_gym.environment import Environment, Observation
from entity_gym.pools.episodes import EpisodeTracker
from entity_gym.pools.source import EnvFactory, SlotsSource, as_source
from entity_gym.pools.vec_env import VecEnv
from entity_gym.replay.hints import check_hints

# --- Before random play is recorded, and recording it


def check_constructor(subject: Subject) -> str:
    """An environment can be made."""
    if subject.make()._rng is not None:
        text = "__init__ uses self.rng, which is seeded only afterwards; use it in reset() and act()"
        raise Finding(text, Status.WARNING)
    return "a compiled environment" if subject.source.is_compiled else "a Python environment"


def check_spaces(subject: Subject) -> str:
    """The spaces are valid, and always the same."""
    first, second = subject.make(), subject.make()
    names = list(FrameReader(first.obs_space(), first.action_space()).action_space)
    if not names or not all(isinstance(name, str) for name in names):
        raise Finding(f"action_space() has the names {names}; there must be at least one, and they must be texts")
    subject.spaces = spaces_to_dict(first.obs_space(), first.action_space())
    _require_spaces(subject, first, "called again")
    _require_spaces(subject, second, "of a second environment")
    return f"entities {', '.join(first.obs_space().entities) or 'none'}; actions {', '.join(names)}"


def _require_spaces(subject: Subject, env: Environment, when: str) -> None:
    change = spaces_difference(subject.spaces, spaces_to_dict(env.obs_space(), env.action_space()))
    if change:
        raise Finding(f"the spaces change: {when}, {change}")


def check_reset(subject: Subject) -> str:
    """The first observation is not done, and fits the spaces."""
    obs = subject.python_pool(1).reset(SEED)
    acting = [name for name, mask in obs.action_masks.items() if mask.actors.items()]
    return f"{obs.num_entities} entities; {', '.join(acting) or 'nobody'} to act"


def check_compiling(subject: Subject) -> str:
    """A compiled environment compiles, and its first steps as ordinary Python break no rule."""
    started = time.monotonic()
    subject.compiled_pool()
    return f"compiled or loaded in {time.monotonic() - started:.1f} s"


def check_observations(subject: Subject) -> str:
    """In random play every observation is new and fits the spaces, the last ones of episodes included."""
    played = subject.trajectory = Trajectory(SEED)
    try:
        with global_random(SEED):
            pool = subject.python_pool(watch=_watched)
            played.record(pool, subject.steps, subject.seconds)
    except Finding:
        raise
    except Exception as error:
        lag = f". The cause may be that {LAG}" if _lags_behind(subject) else ""
        rare = f" (in which {played.rare}, which is allowed)" if played.rare else ""
        text = f"step {len(played) + 1} of random play with seed {SEED}{rare}: {describe_error(error)}{lag}"
        raise Finding(text) from error
    for env in pool.envs:
        _require_spaces(subject, env, "during play")
    if not any(mask.actors.items() for obs in played.observations for mask in obs.action_masks.values()):
        raise Finding(f"nobody was offered an action in {len(played):,} steps", Status.WARNING)
    # (N,) entities of each observation
    counts = [np.sum([buffer.size1() for buffer in obs.features.values()], axis=0) for obs in played.observations]
    summary = f"{np.mean(counts):.1f} entities each, {np.max(counts):.0f} at most"
    masks = getattr(pool.envs[0], "found_masks", "")
    summary += f"; action masks are in {masks}" if masks else ""
    return f"{len(played):,} random steps of {NUM_ENVS} environments, {summary}"


WATCHED_CALLS = 200  # of an environment's methods, after which arrays are no longer compared


def _watched(env: Environment) -> Environment:
    """Let `reset` and `act` fail where they return an observation again, or write into the arrays of the one before."""
    last, arrays, num_calls = Observation(), list[tuple[str, NDArray[Any], bytes]](), 0

    def watch(method: Callable[..., Observation]) -> Callable[..., Observation]:
        def call(*given: Any) -> Observation:
            nonlocal last, arrays, num_calls
            obs, num_calls = method(*given), num_calls + 1
            if obs is last:
                raise Finding(
                    f"{method.__name__}() returned the same Observation object as the call before it: either one object is "
                    f"kept for ever, or {LAG}. Return a new Observation, made after the step"
                )
            for name, array, content in arrays:
                if array.tobytes() != content:
                    raise Finding(
                        f"{method.__name__}() overwrites {name} of the observation before it: show copies of arrays"
                    )
            arrays = [(name, array, array.tobytes()) for name, array in _arrays(obs) if num_calls < WATCHED_CALLS]
            last = obs
            return obs

        return call

    env.reset, env.act = watch(env.reset), watch(env.act)  # type: ignore[method-assign]
    return env


def _arrays(value: Any, name: str = "") -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield the names and arrays of an observation or a part of it."""
    if isinstance(value, np.ndarray):
        yield name, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _arrays(item, f"{name}[{key!r}]")
    elif is_dataclass(value):
        for each in fields(value):
            yield from _arrays(getattr(value, each.name), f"{name}.{each.name}".lstrip("."))


LAG = (
    "observations lag one step behind: what act() returns does not show the actions that it was given, but those before"
)


def check_delay(subject: Subject) -> str:
    """An observation shows what the actions right before it did."""
    if _lags_behind(subject):
        raise Finding(f"it seems that {LAG}", Status.WARNING)
    return ""


def _lags_behind(subject: Subject) -> bool:
    """Take other actions than the recorded ones; true if features differ, but never in the next observation."""
    played, pool, rng, differs_later = subject.trajectory, subject.python_pool(), np.random.default_rng(SEED + 1), False
    for step in range(min(len(played) - 1, 20)):
        try:
            repeat(played, pool, stop=step)
            next_obs = pool.act(random_actions(played.observations[step], rng, pool.action_space()))
            if not _has_same_features(next_obs, played.observations[step + 1]):
                return False
            later_obs = pool.act(played.actions[step + 1])
            differs_later |= not _has_same_features(later_obs, played.observations[step + 2])
        except Exception:  # these other actions do not tell
            continue
    return differs_later


def _has_same_features(a: VecObs, b: VecObs) -> bool:
    return all(equal(buffer.values, b.features[name].values) for name, buffer in a.features.items())


def check_view(subject: Subject) -> str:
    """Features to which a view adds the actor's are places then, in the range of the actor's."""
    env, observations = subject.make(), subject.trajectory.observations
    entities, sums = env.obs_space().entities, getattr(env, "sums", ())
    for name, feature in sums:
        for other, entity in entities.items():
            actors = [obs.features[other] for obs in observations]
            if other == name or feature not in entity.features or any((each.size1() != 1).any() for each in actors):
                continue
            rows = [obs.features[name] for obs in observations]
            place = np.concatenate([each.values[:, entities[name].features.index(feature)] for each in rows])
            own = np.concatenate([each.values[:, entity.features.index(feature)] for each in actors])
            given = place - np.repeat(own, np.concatenate([each.size1() for each in rows]))
            if not len(place):
                continue
            overlap = min(own.max(), given.max()) - max(own.min(), given.min())
            union = max(own.max(), given.max()) - min(own.min(), given.min())
            if np.ptp(place) > 1.5 * np.ptp(own) and overlap >= 0.4 * union:
                raise Finding(
                    f"{feature!r} of {name} was {given.min():.4g} to {given.max():.4g}, about as that of {other}, and is "
                    f"{place.min():.4g} to {place.max():.4g} with that added: if it was no offset, add nothing to it",
                    Status.WARNING,
                )
    return f"adds the actor's to {', '.join(f'{feature} of {name}' for name, feature in sums)}" if sums else "no sums"


# --- End of episodes

_LIMIT_NAME = re.compile(r"max.*(step|turn|tick|length|time)|(step|turn|tick|length|time|episode).*limit|limit|horizon")
ENOUGH = 2  # episodes that end at the step that a parameter names as the limit
SUSPICIOUS = 5  # episodes that end after the same number of steps, none after more
SEARCH_SECONDS = 30.0  # for an episode that ends


def check_end(subject: Subject) -> str:
    """Episodes end, and those that a step limit ends are truncated."""
    played, tracker = subject.trajectory, EpisodeTracker(NUM_ENVS)
    episodes = [episode for obs in played.observations[1:] for episode in tracker.step(obs)]
    if not episodes:
        return _play_until_an_end(subject)
    lengths = [episode.length for episode in episodes]
    longest, num_truncated = max(lengths), sum(episode.truncated for episode in episodes)
    at_longest = [episode for episode in episodes if episode.length == longest]
    clock = _step_feature(subject)
    if not any(episode.truncated for episode in at_longest) and len(at_longest) >= ENOUGH and clock is None:
        seen = (
            f"{len(at_longest)} of {len(episodes)} episodes ended after exactly {longest} steps, with truncated=False"
        )
        for name, value in (subject.source.values if subject.source.is_compiled else vars(subject.make())).items():
            if type(value) is int and value == longest and _LIMIT_NAME.search(name.lower()):
                raise Finding(
                    f"{seen}, and {name} is {value}: an episode that is cut by a step limit has truncated=True, unless a "
                    "feature tells the step"
                )
        if len(at_longest) >= SUSPICIOUS and longest >= SUSPICIOUS:
            hint = "if that is a step limit, set truncated=True, or show the step in a feature"
            raise Finding(f"{seen}, and none later: {hint}", Status.WARNING)
    shape = f"{min(lengths)} to {longest} steps"
    if min(lengths) == longest:
        shape = f"{longest} step{'s' * (longest > 1)} each" + (f", which {clock} tells" if clock else "")
    return f"{len(episodes)} episodes, {shape}, {num_truncated} truncated"


def _step_feature(subject: Subject) -> str | None:
    """Find a feature that tells the step of the episode, so that the end after so many steps is part of the task."""
    observations, space = subject.trajectory.observations, subject.make().obs_space()
    steps, ranks = np.unique(np.concatenate([obs.elapsed_step for obs in observations]), return_inverse=True)
    for name in observations[0].features if len(steps) > 1 else ():
        buffers = [obs.features[name] for obs in observations]
        if any((buffer.size1() != 1).any() for buffer in buffers):
            continue
        for column, values in enumerate(np.concatenate([buffer.values for buffer in buffers]).T):
            of_step = np.zeros(len(steps), values.dtype)
            of_step[ranks] = values
            if np.array_equal(of_step[ranks], values) and len(np.unique(of_step)) == len(steps):
                features = space.entities[name].features if name in space.entities else space.global_features
                return f"feature {features[column]!r} of {name}"
    return None


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

#: Called before each step with the pool, its observation, and the actions that come next.
BeforeStep = Callable[[VecEnv, VecObs, Mapping[str, VecAction]], Iterable[str]]


def again(
    subject: Subject,
    meaning: str,
    pool: Callable[[Subject], VecEnv] = Subject.python_pool,
    before_step: BeforeStep = lambda *given: (),
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

    def visit(*given: Any) -> None:
        words.update(before_step(*given))

    different = repeat(subject.trajectory, pool(subject), stop=steps, before_step=visit)
    if different is not None:
        raise Finding(meaning.format(different))
    return ", ".join(sorted(words)) or f"{len(subject.trajectory):,} steps are identical"


def check_seeds(subject: Subject) -> str:
    """The same seed gives the same episodes, whatever Python's and NumPy's global random numbers are, and another one others."""
    own = "rand_int(s, n), rand_float(s) or rand_normal(s)" if subject.source.is_compiled else "self.rng"
    used: list[str] = []
    for seed in (SEED, SEED + 1):
        with global_random(seed):
            python, numpy = random.getstate(), np.random.get_state()
            different = repeat(subject.trajectory, subject.python_pool())
            used = ["random"] * (python != random.getstate()) + ["np.random"] * (
                not equal(numpy, np.random.get_state())
            )
        sources = " and ".join(used) or "a global source"
        if different is not None and seed == SEED:
            raise Finding(
                f"not the same twice with seed {SEED}: {different}. Draw every random number from {own}, in reset and steps; a "
                "generator of its own, one that __init__ uses, the clock or the order of a set can be the cause"
            )
        if different is not None:
            raise Finding(f"random numbers come from {sources}, which no seed reaches: draw from {own} ({different})")
    if used:
        text = f"random numbers are drawn from {sources}, though it made no difference here: draw from {own}"
        raise Finding(text, Status.WARNING)
    if repeat(subject.trajectory, subject.python_pool(), seed=SEED + 1) is None:
        text = f"seeds {SEED} and {SEED + 1} give the same episodes: is nothing random in it?"
        raise Finding(text, Status.WARNING)
    return f"{len(subject.trajectory):,} steps are identical"


def check_alone(subject: Subject) -> str:
    """An environment alone does what it does beside others."""
    i = NUM_ENVS - 1
    different = repeat(subject.trajectory.only(i), subject.python_pool(1, first_env=i))
    if different is not None:
        raise Finding(f"environment {i} alone is not what it is beside others: {different}. {SHARED}")
    return ""


def check_saving(subject: Subject) -> str:
    """An environment continues exactly from a loaded state."""
    env, played = subject.make(), subject.trajectory
    own = [name for name in ("state", "load_state") if getattr(type(env), name) is not getattr(Environment, name)]
    if len(own) != 1 and not env.can_save():
        text = "state() and load_state() are not there: a resumed run begins new episodes"
        raise Finding(text, Status.SKIPPED)
    if len(own) == 1:
        raise Finding(f"{own[0]}() is there alone: saving takes both state() and load_state()")
    # At the start, in the middle, and where an episode has just ended.
    ends = [step for step, obs in enumerate(played.observations) if obs.done.any()]
    for step in sorted({0, len(played) // 2, len(played) // 3, *ends[:1]}):
        pool, other = subject.python_pool(), subject.python_pool()
        repeat(played, pool, stop=step)
        state = pool.state()
        for env_state in state["environments"]:
            _require_plain(env_state, "state()")
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
    elif value is not None and not isinstance(value, str | bytes | bool | int | float | np.generic):
        if not isinstance(value, np.ndarray) or value.dtype.kind not in "biufSU":
            raise Finding(
                f"{where} is {value!r:.100} of type {type(value).__name__}; values are arrays, numbers, texts, None, and "
                "lists, tuples and dictionaries of these"
            )


def check_rendering(subject: Subject) -> str:
    """Images have one size, and drawing them changes nothing."""
    sizes = again(subject, "render() changes the episode: {}", before_step=_render, steps=50)
    if "," in sizes:
        text = f"images differ in size: {sizes}; the frames of a film must have the same size"
        raise Finding(text, Status.WARNING)
    return sizes


def _render(pool: VecEnv, obs: VecObs, actions: Mapping[str, VecAction]) -> Iterator[str]:
    """Draw an image, which must be (height, width, 3) uint8; yield its size."""
    try:
        (image,) = pool.render([0])
    except NotImplementedError as error:
        raise Finding(f"no films: {str(error) or 'render() is not there'}", Status.SKIPPED) from None
    if not isinstance(image, np.ndarray) or image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        given = f"{image.dtype} array of shape {image.shape}" if isinstance(image, np.ndarray) else f"{image!r:.100}"
        raise Finding(f"render() returned {given}; it must be a (height, width, 3) array of uint8")
    yield f"{image.shape[0]} x {image.shape[1]} pixels"


def _draw(pool: VecEnv, obs: VecObs, actions: Mapping[str, VecAction]) -> Iterator[str]:
    """Ask for hints for replays, which must have known keys and values; yield how many types have one."""
    hints = check_hints(pool.draw([0])[0], pool.obs_space(), "this environment")
    yield "no hints" if hints is None else f"hints for {len(hints.get('types', ()))} types"


def _try_wrong_actions(pool: VecEnv, obs: VecObs, actions: Mapping[str, VecAction]) -> Iterator[str]:
    """Try actions that were not offered, all of which must raise a ValueError; yield descriptions of them."""
    for what, wrong in wrong_actions(obs, actions, pool.action_space()):
        try:
            pool.act(wrong)
        except ValueError:
            yield what
        else:
            raise Finding(f"{what} was taken; it must be refused")


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
        if len(buffer.values):
            for mistake, values in action_space[name].mistakes(buffer.values, obs.action_masks[name]):
                yield mistake, {**good, name: RaggedBuffer(values, buffer.offsets)}


def check_closing(subject: Subject) -> str:
    """An environment can be closed twice, before and after it was played."""
    for is_played in (False, True):
        env = subject.make()
        if is_played:
            env.reseed(SEED, 0)
            env.reset()
        env.close()
        env.close()
    return ""


# --- All checks


class Check(NamedTuple):
    """A check: `run` returns a summary, or ends with a `Finding`. Where a decisive one fails, no others are tried."""

    name: str
    run: Callable[[Subject], str]
    is_decisive: bool = False


SHARED = "Environments share something: a class attribute, a variable of the module, a mutable default argument"
_FORGETS = "after other episodes, the same seed gives others than at first: {}. Does reset() forget something?"
_COMPILED = (
    "compiled and as ordinary Python it is not the same: {}. Look for whole numbers that overflow, for an index outside its "
    "array, and for variables whose type differs (use np.int64 and np.float64)"
)
_THREADS = "with 2 threads it is not the same: {}. " + SHARED
_PROCESSES = (
    "in 2 processes it is not the same: {}. It depends on something that a worker process does not have: a variable that the "
    "script has set, or an environment variable"
)
_REFUSED = "actions that were refused changed something: {}"

CHECKS = (
    Check("constructor", check_constructor, is_decisive=True),
    Check("spaces", check_spaces, is_decisive=True),
    Check("reset", check_reset, is_decisive=True),
    Check("compiling", check_compiling, is_decisive=True),
    Check("observations", check_observations, is_decisive=True),
    Check("view", check_view),
    Check("end of episode", check_end),
    Check("seeds", check_seeds, is_decisive=True),
    Check("compiled", partial(again, meaning=_COMPILED, pool=Subject.compiled_pool), is_decisive=True),
    Check("fresh start", partial(again, meaning=_FORGETS, pool=Subject.played_pool)),
    Check("independence", check_alone),
    Check("delay", check_delay),
    Check("saving", check_saving),
    Check("rendering", check_rendering),
    Check("drawing", partial(again, meaning="draw() changes the episode: {}", before_step=_draw, steps=50)),
    Check(
        "refused actions",
        partial(again, meaning=_REFUSED, pool=Subject.pool, before_step=_try_wrong_actions, steps=20),
    ),
    Check("threads", partial(again, meaning=_THREADS, pool=partial(Subject.pool, threads=2))),
    Check("processes", partial(again, meaning=_PROCESSES, pool=Subject.process_pool)),
    Check("closing", check_closing),
)


def check_environment(
    env: EnvFactory,
    parameters: Mapping[str, Any] | None = None,
    *,
    steps: int | None = None,
    on_result: Callable[[Result], None] = lambda result: None,
) -> Report:
    """Run every check, and return the report; exceptions of the environment become results.

    Args:
        env: the class, a factory, or a compiled environment.
        parameters: the parameters to make it with.
        steps: random steps to record; an episode must end in ten times as many. None: 1,000, or as many as fit in a second.
        on_result: called with each result.

    Raises:
        ValueError: `env` does not make environments.
    """
    source = as_source(env)
    if isinstance(source, SlotsSource):
        source.as_environment()  # refuses
    source = source.with_values(parameters or {})
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
    return Report(str(source), tuple(results), len(CHECKS) - len(results))
