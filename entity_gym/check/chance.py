"""Whether the same seed gives the same episodes, whatever happens around them."""

from __future__ import annotations

import random

import numpy as np

from entity_gym.check.report import Outcome, failed, ok, warning
from entity_gym.check.subject import NUM_ENVS, SEED, Subject, global_random
from entity_gym.check.trajectory import follow, record

PLAYED_BEFORE = 97  # steps: a prime, so that no episode length divides it


def check_same_seed(subject: Subject) -> Outcome:
    """The same seed and the same actions give the same episodes."""
    pool = subject.pool()
    with global_random(SEED):
        different = follow(subject.trajectory, pool, subject.watch)
    if different is None:
        return ok(f"{len(subject.trajectory):,} steps twice")
    why = (
        "__init__ uses self.rng, which is seeded only afterwards"
        if subject.draws_too_early
        else "draw every random number from self.rng; a generator of its own, the clock or the order of a set can be behind it"
    )
    return failed(f"not the same twice with seed {SEED}: {different}. {why[0].upper()}{why[1:]}")


def check_global_random(subject: Subject) -> Outcome:
    """Python's and NumPy's global random numbers make no difference."""
    pool = subject.pool()
    with global_random(SEED + 1):
        python, numpy = random.getstate(), _numpy_state()
        different = follow(subject.trajectory, pool, subject.watch)
        used = [
            name
            for name, same in (("random", python == random.getstate()), ("np.random", numpy == _numpy_state()))
            if not same
        ]
    if different is None and not used:
        return ok("not used")
    sources = " and ".join(used) or "a global source"
    if different is None:
        return warning(
            f"random numbers are drawn from {sources}, though it made no difference here: draw from self.rng"
        )
    return failed(f"random numbers come from {sources}, which no seed reaches: draw from self.rng ({different})")


def _numpy_state() -> tuple[bytes, int]:
    state = np.random.get_state(legacy=False)
    return state["state"]["key"].tobytes(), int(state["state"]["pos"])


def check_two_seeds(subject: Subject) -> Outcome:
    """Another seed gives other episodes; where nothing is random, there is nothing wrong with that."""
    different = follow(subject.trajectory, subject.pool(), subject.watch, seed=SEED + 1)
    if different is None:
        return warning(f"seeds {SEED} and {SEED + 1} give the same episodes: is nothing random in it?")
    return ok(f"{different.when} differs")


def check_fresh_start(subject: Subject) -> Outcome:
    """An environment that has been played and is seeded again does what a new one does."""
    pool = subject.pool()
    with global_random(SEED):
        steps = min(PLAYED_BEFORE, max(1, subject.effort.steps - 3))
        record(pool, subject.watch, seed=SEED + 1, steps=steps, seconds=subject.effort.seconds)
    different = follow(subject.trajectory, pool, subject.watch)
    if different is None:
        return ok()
    return warning(
        f"after some episodes, the same seed gives others than at first: {different}. Does reset() forget something?"
    )


def check_independence(subject: Subject) -> Outcome:
    """An environment alone does what it does beside others."""
    i = NUM_ENVS - 1
    different = follow(subject.trajectory.only(i), subject.pool(1, first_env=i), subject.watch)
    if different is None:
        return ok()
    return failed(
        f"an environment alone is not what it is beside others: {different.when}: {different.what}. They share something: "
        "a class attribute, a variable of the module, a mutable default argument"
    )
