"""The environment that is checked, and the pools of it that checks play."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from entity_gym.check.report import Finding, Status
from entity_gym.check.trajectory import Trajectory
from entity_gym.environment import Environment
from entity_gym.pools.pool import ListEnv, ThreadedVecEnv
from entity_gym.pools.source import EnvSource
from entity_gym.pools.vec_env import VecEnv

NUM_ENVS = 3
SEED = 0


@dataclass
class Subject:
    """The environment under check, and the results that later checks need.

    Attributes:
        source: makes the environment.
        steps: random steps of `NUM_ENVS` environments to record.
        seconds: after which no other step is recorded.
        spaces: as a dictionary, set by the check "spaces".
        trajectory: random play, set by the check "observations".
    """

    source: EnvSource
    steps: int
    seconds: float
    spaces: Any = field(init=False)
    trajectory: Trajectory = field(init=False)
    _to_close: list[Environment | VecEnv] = field(default_factory=list)

    def make(self) -> Environment:
        """Make one environment that runs as ordinary Python, also if it is a compiled one."""
        self._to_close.append(made := self.source.as_environment())
        return made

    def python_pool(
        self,
        num_envs: int = NUM_ENVS,
        first_env: int = 0,
        watch: Callable[[Environment], Environment] = lambda env: env,
    ) -> ListEnv:
        """Make a serial pool of environments that run as ordinary Python; each goes through `watch`."""
        return ListEnv(lambda: watch(self.make()), num_envs, SEED, final_observations="all", first_env=first_env)

    def pool(self, threads: int = 1, processes: int = 0) -> VecEnv:
        """Make a pool as a training does, in which compiled environments run compiled."""
        pool = ThreadedVecEnv(
            self.source, NUM_ENVS, threads, seed=SEED, num_processes=processes, final_observations="all"
        )
        self._to_close.append(pool)
        return pool

    def compiled_pool(self) -> VecEnv:
        """Make a pool of compiled environments; skip the check of others."""
        if not self.source.is_compiled:
            raise Finding("a Python environment", Status.SKIPPED)
        return self.pool()

    def process_pool(self) -> VecEnv:
        """Make a pool of two worker processes; skip the check where that is not possible."""
        if sys.platform == "win32":
            raise Finding("worker processes need Linux or macOS", Status.SKIPPED)
        try:
            return self.pool(processes=2)
        except ValueError as error:
            raise Finding(str(error), Status.SKIPPED) if "cannot be sent" in str(error) else error from None

    def played_pool(self) -> VecEnv:
        """Make a pool that has played episodes of another seed, and stands somewhere within one."""
        pool = self.python_pool()
        # A prime number of steps, so that no length of episodes divides it.
        Trajectory(SEED + 1).record(pool, min(97, max(1, len(self.trajectory) - 3)), self.seconds)
        return pool

    def close(self) -> None:
        """Close everything that was made; errors of `close` are left to the check "closing"."""
        while self._to_close:
            with suppress(Exception):
                self._to_close.pop().close()


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
