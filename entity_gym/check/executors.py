"""Whether compiled code, threads and processes do what plain Python does, and how fast."""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np

from entity_gym.actions.choices import random_actions
from entity_gym.check.refusals import refusals
from entity_gym.check.report import Outcome, failed, ok, skipped
from entity_gym.check.subject import NUM_ENVS, SEED, Stopwatch, Subject
from entity_gym.check.trajectory import Difference, follow, record
from entity_gym.pools.pool import EnvSource, ThreadedVecEnv
from entity_gym.pools.vec_env import VecEnv

COMPILING = 10.0  # so many times as long as other calls may it take to compile, and to start processes
MANY = 1024  # compiled environments, to measure their speed
NUM_PROCESSES = 2


def check_observe(subject: Subject) -> Outcome:
    """`observe(s, obs)` changes nothing in `s`, and draws no random numbers."""
    if not subject.is_compiled:
        return skipped("a Python environment")
    pool = subject.pool(1)
    view: Any = pool.envs[0]
    obs, rng = pool.reset(SEED), np.random.default_rng(SEED)
    for step in range(min(len(subject.trajectory), 100)):
        before = view.state()["fields"]
        view.observe()
        changed = [
            name for name, values in view.state()["fields"].items() if values.tobytes() != before[name].tobytes()
        ]
        if changed:
            return failed(f"after {step} steps observe() changes {', '.join(changed)}; do that in reset() or step()")
        with subject.watch.call():
            obs = pool.act(random_actions(obs, rng, pool.action_space()))
    return ok()


def check_compiled(subject: Subject) -> Outcome:
    """Compiled, an environment shows exactly what it shows as ordinary Python."""
    if not subject.is_compiled:
        return skipped("a Python environment")
    if not _compiles():
        return skipped("NUMBA_DISABLE_JIT is set")
    clock = Stopwatch()
    with subject.watch.call(COMPILING):
        compiled = _threads(subject, 1)
    took = clock.seconds
    python = _threads(subject, 1, compile=False)  # shows fixed arrays, too
    seconds = subject.effort.seconds
    arrays = record(python, subject.watch, seed=SEED, steps=100, seconds=None if seconds is None else seconds / 3)
    different = follow(arrays, compiled, subject.watch) or follow(subject.trajectory, compiled, subject.watch)
    if different is not None:
        return failed(
            f"compiled and as ordinary Python it is not the same: {different}. Look for whole numbers that overflow, for an "
            "index outside its array, and for variables whose type differs (use np.int64 and np.float64)"
        )
    found = refusals(compiled, subject.trajectory, subject.watch)
    if found.problem:
        return failed(f"compiled: {found.problem}")
    return ok(f"compiled or loaded in {took:.1f} s; {len(subject.trajectory):,} steps are identical")


def check_threads(subject: Subject) -> Outcome:
    """1, 2 and 3 threads give the same trajectories."""
    for num_threads in (1, 2, 3):
        with subject.watch.call(COMPILING):
            pool = _threads(subject, num_threads)
        try:
            different = follow(subject.trajectory, pool, subject.watch)
        finally:
            pool.close()
        if different is not None:
            return failed(_shared(f"with {num_threads} thread{'s' * (num_threads > 1)} it is not the same", different))
    return ok("1, 2 and 3 threads are identical")


def _threads(subject: Subject, num_threads: int, *, compile: bool = True) -> ThreadedVecEnv:
    source: EnvSource = subject.source if subject.is_compiled else subject.make
    return ThreadedVecEnv(source, NUM_ENVS, num_threads, seed=SEED, final_observations="all", compile=compile)


def _shared(what: str, different: Difference) -> str:
    return f"{what}: {different}. Environments share something: a class attribute, or a variable of the module"


def check_processes(subject: Subject) -> Outcome:
    """Worker processes give the same trajectories."""
    if not subject.effort.processes:
        return skipped("left out by --quick")
    if sys.platform == "win32":
        return skipped("worker processes need Linux or macOS")
    from entity_gym.pools.processes.env import ProcessVecEnv

    try:
        with subject.watch.call(COMPILING):
            pool = ProcessVecEnv(subject.source, NUM_ENVS, NUM_PROCESSES, seed=SEED, final_observations="all")
    except ValueError as error:
        if "cannot be sent" not in str(error):
            raise
        return skipped(str(error))
    try:
        different = follow(subject.trajectory, pool, subject.watch)
    finally:
        pool.close()
    if different is not None:
        return failed(
            f"in {NUM_PROCESSES} processes it is not the same: {different}. It depends on something that a worker process "
            "does not have: a variable that the script has set, or an environment variable"
        )
    return ok(f"{NUM_PROCESSES} processes are identical")


def check_speed(subject: Subject) -> Outcome:
    """What a step takes."""
    return _compiled_speed(subject) if subject.is_compiled and _compiles() else _python_speed(subject)


def _compiles() -> bool:
    import numba

    return not numba.config.DISABLE_JIT  # type: ignore[attr-defined]


def _compiled_speed(subject: Subject) -> Outcome:
    with subject.watch.call(COMPILING):
        pool = ThreadedVecEnv(subject.source, MANY, seed=SEED)
    seconds = _seconds_per_act(subject, pool) / MANY
    subject.step_seconds = seconds
    return ok(f"{1 / seconds:,.0f} steps/s with {MANY:,} environments in one thread, {seconds * 1e9:,.0f} ns a step")


def _python_speed(subject: Subject) -> Outcome:
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
    seconds = sum(spent) / len(spent)
    subject.step_seconds = seconds
    return ok(f"{1 / seconds:,.0f} steps/s, {_spell(seconds)} a step; {_spell(through_pool)} with what a pool adds")


def _seconds_per_act(subject: Subject, pool: VecEnv) -> float:
    """Of `pool.act`, without choosing the actions."""
    obs, rng = pool.reset(SEED), np.random.default_rng(SEED)
    spent, acts, clock = 0.0, 0, Stopwatch()
    while acts < 3 or (clock.seconds < subject.effort.timed_seconds and acts < 10_000):
        actions = random_actions(obs, rng, pool.action_space())
        with subject.watch.call():
            started = time.perf_counter()
            obs = pool.act(actions)
            spent += time.perf_counter() - started
        acts += 1
    return spent / acts


def _spell(seconds: float) -> str:
    return f"{seconds * 1e6:,.0f} µs" if seconds < 0.01 else f"{seconds * 1e3:,.0f} ms"
