"""How many threads to use: measured on the environments themselves."""

from __future__ import annotations

import time
from statistics import median
from typing import NamedTuple

import numpy as np

from entity_gym.actions.choices import random_actions
from entity_gym.pools.slot_vec_env import SlotVecEnv
from entity_gym.pools.slots import EnvSlots
from entity_gym.pools.workers import SerialWorkers, ThreadWorkers, Workers

#: Threads keep cores busy that others may want, so they have to be this many times as fast as one.
WORTHWHILE = 1.2
_ROUNDS = 5
_SECONDS_PER_ROUND = 0.02
_SECONDS = 2.0  # after which no other round is begun


class ThreadChoice(NamedTuple):
    """A number of threads, and a sentence that says why."""

    num_threads: int
    report: str


def choose_num_threads(slots: EnvSlots, most: int, seed: int) -> ThreadChoice:
    """One thread or `most`, whichever steps these environments faster.

    Where the environments can be saved, some random steps are played on them, and undone.

    Args:
        slots: the environments, not yet reset.
        most: the other number of threads.
        seed: of the episodes to play.
    """
    if most == 1:
        return ThreadChoice(1, "1 thread, since there is only one core or environment")
    if not slots.can_save:
        return ThreadChoice(1, "1 thread, since environments that cannot be saved cannot be tried out")
    try:
        before = slots.state()
    except Exception as error:  # before its first reset an environment may have no state yet
        return ThreadChoice(1, f"1 thread, since the environments have no state before they are reset: {error!r}")
    threads = ThreadWorkers(most)
    try:
        one, many = _seconds_per_step(slots, threads, seed)
    finally:
        threads.close()
        slots.load_state(before)
    faster = one / many
    figures = (
        f"a step of {len(slots)} environments takes {one * 1e6:,.0f} µs with 1 and {many * 1e6:,.0f} µs with {most}"
    )
    if faster >= WORTHWHILE:
        return ThreadChoice(most, f"{most} threads, {faster:.2f} times as fast as one: {figures}")
    return ThreadChoice(1, f"1 thread, since {most} are {faster:.2f} times as fast, less than {WORTHWHILE}: {figures}")


def _seconds_per_step(slots: EnvSlots, threads: ThreadWorkers, seed: int) -> tuple[float, float]:
    """Of a step of all environments, with one thread and with `threads`."""
    timers = [_Timer(slots, SerialWorkers(), seed), _Timer(slots, threads, seed)]
    steps = []
    for timer in timers:
        timer.start()
        timer.play(1)  # compiles, and warms up
        steps.append(max(1, min(200, round(_SECONDS_PER_ROUND / max(timer.play(1), 1e-6)))))
    rounds: list[list[float]] = [[], []]
    deadline = time.perf_counter() + _SECONDS
    # In turn, so that other programs disturb both alike.
    while len(rounds[0]) < _ROUNDS and (not rounds[0] or time.perf_counter() < deadline):
        for timer, count, seconds in zip(timers, steps, rounds, strict=True):
            timer.start()
            seconds.append(timer.play(count) / count)
    return median(rounds[0]), median(rounds[1])


class _Timer:
    """Plays with `slots`, and says how long it took."""

    def __init__(self, slots: EnvSlots, workers: Workers, seed: int) -> None:
        self._pool = SlotVecEnv(slots, workers, seed=seed)
        self._seed = seed
        self._rng = np.random.default_rng(seed)

    def start(self) -> None:
        """Begin new episodes; necessary after somebody else has played with the same slots."""
        self._obs = self._pool.reset(self._seed)

    def play(self, steps: int) -> float:
        """Take random steps. Returns the seconds spent in them, without choosing the actions."""
        seconds = 0.0
        for _ in range(steps):
            actions = random_actions(self._obs, self._rng, self._pool.action_space())
            started = time.perf_counter()
            self._obs = self._pool.act(actions)
            seconds += time.perf_counter() - started
        return seconds
