"""Overhead of the bridge from Gymnasium: time of a pool's `act` minus the time of the environments' own steps.

Both step equal environments with the same actions, alternately in one run; drawing the actions is not measured.

python scripts/bench_bridges.py
python scripts/bench_bridges.py --envs CartPole-v1 --num-envs 64 --json bridges.json
"""

from __future__ import annotations

import statistics
import time
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from benchmark import Measurement, parser, report

from entity_gym.actions.choices import random_actions
from entity_gym.batch.vec_obs import VecAction
from entity_gym.bridges.gymnasium.actions import GymActions
from entity_gym.bridges.gymnasium.incoming import GymFactory, from_gymnasium
from entity_gym.pools.pool import ListEnv
from entity_gym.pools.vec_env import VecEnv

ROUNDS = 15  # all variants in each round, so that a disturbance of the machine affects all of them
STEPS = 60  # steps of all environments per round


class Round(NamedTuple):
    """Microseconds per environment step."""

    bare: float
    pool: float
    one_by_one: float


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--envs", nargs="*", default=["CartPole-v1", "Pendulum-v1"])
    arguments.add_argument("--num-envs", nargs="*", type=int, default=[8, 64])
    given = arguments.parse_args()
    measurements = []
    for env in given.envs:
        for num_envs in given.num_envs:
            measurements += measure(env, num_envs)
    report(measurements, given.json)


def measure(env: str, num_envs: int) -> list[Measurement]:
    bench = Bench(env, num_envs)
    rounds = [bench.round() for _ in range(ROUNDS)]
    settings = {"num_envs": num_envs}
    found = {
        "bare steps": [each.bare for each in rounds],
        "overhead of the bridge": [each.pool - each.bare for each in rounds],
        "overhead of one Environment each": [each.one_by_one - each.bare for each in rounds],
    }
    return [
        Measurement(f"{env} {what}", statistics.median(values), "us/step", {**settings, "best": f"{min(values):.1f}"})
        for what, values in found.items()
    ]


class Bench:
    """Equal environments stepped directly, in a pool, and in a pool of one `Environment` each."""

    def __init__(self, env: str, num_envs: int) -> None:
        self.num_envs = num_envs
        self.bare = [gymnasium.make(env, disable_env_checker=True) for _ in range(num_envs)]
        for i, one in enumerate(self.bare):
            one.reset(seed=i)
        self.actions = GymActions(self.bare[0].action_space)
        factory = GymFactory(env)
        pool = from_gymnasium(env, num_envs)
        assert isinstance(pool, VecEnv)
        self.pools = [pool, ListEnv(factory, num_envs)]
        self.shown = [each.reset(0) for each in self.pools]
        self.rng = np.random.default_rng(0)

    def round(self) -> Round:
        bare = pool = one_by_one = 0.0
        for _ in range(STEPS):
            actions = random_actions(self.shown[0], self.rng, self.pools[0].action_space())
            pool += self.act(0, actions)
            one_by_one += self.act(1, actions)
            bare += self.step_bare(actions)
        return Round(*(1e6 * seconds / STEPS / self.num_envs for seconds in (bare, pool, one_by_one)))

    def act(self, which: int, actions: dict[str, VecAction]) -> float:
        start = time.perf_counter()
        self.shown[which] = self.pools[which].act(actions)
        return time.perf_counter() - start

    def step_bare(self, actions: dict[str, VecAction]) -> float:
        chosen: dict[str, Any] = {
            name: buffer.values if buffer.values.dtype == np.float32 else buffer.values[:, 0]
            for name, buffer in actions.items()
        }
        taken = self.actions.decode(chosen, self.num_envs)
        start = time.perf_counter()
        for env, action in zip(self.bare, taken, strict=True):
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()
        return time.perf_counter() - start


if __name__ == "__main__":
    main()
