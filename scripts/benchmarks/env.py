"""Benchmark of environments: steps per second of the public `act`, including the batch. Drawing actions is not measured.

python scripts/bench.py env
python scripts/bench.py env --envs CartPole-v1 --num-envs 1024 --threads 1 --peers
python scripts/bench.py env --envs Skirmish --parameters num_units=32 opponent=0 --num-envs 256 --threads 1

`decisions/s` are the entities that act in a second: an entity that takes several actions in a step counts once.
"""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import yaml

from benchmarks import Measurement, parser, report
from entity_gym.actions.choices import random_actions
from entity_gym.registry import make

SECONDS = 0.5  # per measurement
ROUNDS = 5  # all measurements in each round, so that a disturbance of the machine affects all of them

PEER_ENV_LIST = """
import sys, time, warnings
warnings.filterwarnings("ignore")
import numpy as np
from entity_gym.env.env_list import EnvList
from entity_gym.examples import ENV_REGISTRY
from ragged_buffer import RaggedBufferI64
env, num_envs, seconds = EnvList(ENV_REGISTRY[sys.argv[1]], int(sys.argv[2])), int(sys.argv[2]), float(sys.argv[3])
obs, spent, steps = env.reset(env.obs_space()), 0.0, 0
while spent < seconds:
    actions = {}
    for name, mask in obs.action_masks.items():
        open_ = mask.mask.as_array() if mask.mask is not None else None
        lengths = mask.actors.size1()
        values = (np.random.rand(*open_.shape) * open_).argmax(1) if open_ is not None else np.zeros(int(lengths.sum()))
        actions[name] = RaggedBufferI64.from_flattened(values.astype(np.int64).reshape(-1, 1), lengths)
    start = time.perf_counter()
    obs = env.act(actions, env.obs_space())
    spent, steps = spent + time.perf_counter() - start, steps + num_envs
print(steps / spent)
"""


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--envs", nargs="*", default=["MineSweeper", "MultiSnake", "CartPole-v1"])
    arguments.add_argument("--parameters", nargs="*", default=[], help="of the environments, such as num_units=8")
    arguments.add_argument("--num-envs", nargs="*", type=int, default=[16, 128, 1024, 8192])
    arguments.add_argument("--threads", nargs="*", type=int, default=[1, 2])
    arguments.add_argument(
        "--peers", action="store_true", help="also Gymnasium's and envpool's CartPole, where installed"
    )
    arguments.add_argument(
        "--peer-python", help="a Python with the ancestor entity-gym: also measure its EnvList of --envs"
    )
    given = arguments.parse_args()

    parameters = {name: yaml.safe_load(value) for name, _, value in (each.partition("=") for each in given.parameters)}
    runs: dict[tuple[str, str, int, int], Callable[[], float]] = {}
    for num_envs in given.num_envs:
        for env in given.envs:
            for threads in given.threads:
                runs["entity_gym", env, num_envs, threads] = Ours(env, num_envs, threads, parameters)
            if given.peer_python and not env.startswith("CartPole"):
                runs["ancestor EnvList", env, num_envs, 1] = ancestor(given.peer_python, env, num_envs)
        if given.peers:
            for name, run in peers(num_envs).items():
                runs[name, "CartPole-v1", num_envs, 1] = run
    speeds: dict[tuple[str, str, int, int], list[float]] = {key: [] for key in runs}
    for _ in range(ROUNDS):
        for key, run in runs.items():
            speeds[key].append(run())
    report(
        [
            Measurement(
                f"{who} {env}",
                statistics.median(values),
                "steps/s",
                {"num_envs": num_envs, "threads": threads, "best": f"{max(values):,.0f}", **decisions(run, values)},
            )
            for run, ((who, env, num_envs, threads), values) in zip(runs.values(), speeds.items(), strict=True)
        ],
        given.json,
    )


def decisions(run: Callable[[], float], speeds: Sequence[float]) -> dict[str, str]:
    """The decisions per second of one of our pools, median and best; nothing of others."""
    if not isinstance(run, Ours):
        return {}
    median, best = (run.decisions * speed for speed in (statistics.median(speeds), max(speeds)))
    return {"decisions/s": f"{median:,.0f}", "best decisions/s": f"{best:,.0f}"}


class Ours:
    """Measures `act` of a threaded pool in steps per second.

    Attributes:
        decisions: entities that act in a step of an environment, mean over all that was measured.
    """

    def __init__(self, env: str, num_envs: int, threads: int, parameters: Mapping[str, Any]) -> None:
        self._pool = make(env, num_envs=num_envs, num_threads=threads, seed=1, **parameters)
        self._rng = np.random.default_rng(0)
        self._obs = self._pool.reset(1)
        self._actors = self._steps = 0

    @property
    def decisions(self) -> float:
        return self._actors / self._steps

    def __call__(self) -> float:
        spent, steps = 0.0, 0
        while spent < SECONDS:
            actions = random_actions(self._obs, self._rng, self._pool.action_space())
            self._actors += max(mask.actors.items() for mask in self._obs.action_masks.values())
            start = time.perf_counter()
            self._obs = self._pool.act(actions)
            spent += time.perf_counter() - start
            steps += len(self._pool)
        self._steps += steps
        return steps / spent


def ancestor(python: str, env: str, num_envs: int) -> Callable[[], float]:
    """A function that measures the ancestor's serial pool of Python environments, in its own interpreter."""

    def run() -> float:
        command = [python, "-W", "ignore", "-c", PEER_ENV_LIST, env, str(num_envs), str(SECONDS)]
        return float(subprocess.run(command, capture_output=True, text=True, check=True, cwd="/").stdout)

    return run


def peers(num_envs: int) -> dict[str, Callable[[], float]]:
    """Functions that measure every installed CartPole; drawing actions is not measured."""
    found: dict[str, Callable[[], float]] = {}
    try:
        import gymnasium
    except ImportError:
        print("gymnasium is not installed: its CartPole is left out")
    else:
        for name, mode in (("gymnasium SyncVectorEnv", "sync"), ("gymnasium vector", "vector_entry_point")):
            found[name] = _stepper(
                gymnasium.make_vec("CartPole-v1", num_envs=num_envs, vectorization_mode=mode), num_envs
            )
    try:
        import envpool
    except ImportError:
        print("envpool is not installed: its CartPole is left out")
    else:
        found["envpool"] = _stepper(envpool.make_gymnasium("CartPole-v1", num_envs=num_envs, num_threads=1), num_envs)
    return found


def _stepper(env: Any, num_envs: int) -> Callable[[], float]:
    env.reset()
    rng = np.random.default_rng(0)

    def run() -> float:
        spent, steps = 0.0, 0
        while spent < SECONDS:
            actions = rng.integers(0, 2, size=num_envs)
            start = time.perf_counter()
            env.step(actions)
            spent += time.perf_counter() - start
            steps += num_envs
        return steps / spent

    return run
