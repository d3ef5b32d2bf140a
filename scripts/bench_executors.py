"""Benchmark of a second thread and a second process for slow environments.

python scripts/bench_executors.py --json executors.json

A step is a fixed amount of work, calibrated once to the wanted time, so that other load on the machine slows steps down instead
of raising the speed-up. One and two workers alternate, and the best round counts. `machine_speedup` is the speed-up of two
independent programs over one, an upper bound for every executor; a value much below 2 means that the machine is not idle, or that
its cores are hardware threads. A single other busy program invalidates the results: Linux may then keep both workers on one core.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from benchmark import Measurement, parser, report
from executor_worlds import BusyPython, spend

from entity_gym.actions.choices import random_actions
from entity_gym.compiled import Categorical, CompiledEnvironment, Entity
from entity_gym.pools.pool import ListEnv, ThreadedVecEnv
from entity_gym.pools.processes.env import ProcessVecEnv
from entity_gym.pools.vec_env import VecEnv

THREADS_MICROSECONDS, PROCESSES_MICROSECONDS = 50, 200


class BusyCompiled(CompiledEnvironment):
    """`BusyPython` as a compiled environment, which releases the GIL."""

    entities = {"It": Entity(["x"], max=1)}
    actions = {"go": Categorical(["left", "right"], actors="It")}
    parameters = {"work": 1}
    state = [("x", np.float64)]

    def reset(s):
        s.x = 1.0

    def step(s, act):
        x = s.x
        for _ in range(s.work):
            x = x * 0.999 + 0.001
        s.x = x
        return 1.0, False, False

    def observe(s, obs):
        obs.n.It = 1
        obs.It[0, 0] = s.x


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--num-envs", type=int, default=64)
    arguments.add_argument("--seconds", type=float, default=0.5, help="seconds per measurement")
    arguments.add_argument("--rounds", type=int, default=7)
    given = arguments.parse_args()
    measurements = [
        bench_machine(given.seconds, given.rounds),
        *bench_threads(given.num_envs, given.seconds, given.rounds),
        *bench_processes(given.num_envs, given.seconds, given.rounds),
    ]
    report(measurements, given.json)


def bench_machine(seconds: float, rounds: int) -> Measurement:
    """Measure the speed-up of two independent programs over one."""
    program = f"from bench_executors import count; print(count({seconds}))"
    folder = Path(__file__).parent

    def computed(num_programs: int) -> int:
        programs = [
            subprocess.Popen([sys.executable, "-c", program], cwd=folder, stdout=subprocess.PIPE)
            for _ in range(num_programs)
        ]
        return sum(int(each.communicate()[0]) for each in programs)

    best = np.array([[computed(1), computed(2)] for _ in range(rounds)]).max(axis=0)
    settings = {"cores": os.cpu_count(), "load": os.getloadavg()[0]}
    return Measurement("machine_speedup", float(best[1] / best[0]), "2 over 1", settings)


def count(seconds: float) -> int:
    """Amount of work that this program does in `seconds`, after all programs have started."""
    time.sleep(-time.time() % 2)
    start, done = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        spend(1000)
        done += 1
    return done


def bench_threads(num_envs: int, seconds: float, rounds: int) -> list[Measurement]:
    """Compare one and two threads, with a compiled environment, which releases the GIL."""

    def pool(num_threads: int, work: int, num_envs: int = num_envs) -> VecEnv:
        env = ThreadedVecEnv(BusyCompiled, num_envs, num_threads)
        env.reset(env_info={"work": [work] * num_envs})
        return env

    def step_time(work: int) -> float:
        with pool(1, work) as env:
            return 1 / steps_per_second(env, 0.01)

    work = calibrated(step_time, THREADS_MICROSECONDS * 1e-6)
    return compare("threads", [pool(1, work), pool(2, work)], THREADS_MICROSECONDS, seconds, rounds)


def bench_processes(num_envs: int, seconds: float, rounds: int) -> list[Measurement]:
    """Compare zero, one and two processes, with an environment in pure Python."""

    def step_time(work: int) -> float:
        start = time.perf_counter()
        spend(work)
        return time.perf_counter() - start

    make = functools.partial(BusyPython, calibrated(step_time, PROCESSES_MICROSECONDS * 1e-6))
    pools = [ProcessVecEnv(make, num_envs, 1), ProcessVecEnv(make, num_envs, 2), ListEnv(make, num_envs)]
    return compare("processes", pools, PROCESSES_MICROSECONDS, seconds, rounds)


def compare(kind: str, pools: list[VecEnv], microseconds: int, seconds: float, rounds: int) -> list[Measurement]:
    """Steps per second with one worker, two workers, and a third pool without workers; and the speed-up of two over one."""
    rates = np.array([[steps_per_second(env, seconds) for env in pools] for _ in range(rounds)])  # (rounds, pools)
    settings = {"num_envs": len(pools[0]), "step_us": microseconds, "cores": os.cpu_count(), "load": os.getloadavg()[0]}
    for env in pools:
        env.close()
    names = [f"{kind}_1", f"{kind}_2", f"{kind}_none"]
    best = rates.max(axis=0)
    return [
        *(Measurement(name, float(rate), "steps/s", settings) for name, rate in zip(names, best, strict=False)),
        Measurement(f"{kind}_speedup", float(best[1] / best[0]), "2 over 1", settings),
    ]


def steps_per_second(env: VecEnv, seconds: float) -> float:
    """Environment steps per second through the public `act`."""
    actions = random_actions(
        env.reset(), np.random.default_rng(0), env.action_space()
    )  # action masks are the same in every observation
    env.act(actions)
    steps, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        env.act(actions)
        steps += 1
    return steps * len(env) / (time.perf_counter() - start)


def calibrated(step_time: Callable[[int], float], seconds: float) -> int:
    """The amount of work that takes `seconds` on an idle machine."""
    work = 1000
    for _ in range(3):  # the fixed part of a step counts as well, so approach it
        work = max(1, round(work * seconds / min(step_time(work) for _ in range(10))))
    return work


if __name__ == "__main__":
    main()
