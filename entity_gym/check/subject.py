"""The environment that is checked, and the pools of it that checks play."""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from entity_gym.check.find import describe_with, make_plain
from entity_gym.check.trajectory import Spaces, Trajectory
from entity_gym.check.watch import Watch
from entity_gym.environment import Environment
from entity_gym.pools.pool import EnvSource, ListEnv, is_compiled

if TYPE_CHECKING:
    from entity_gym.compiled import CompiledEnvironment

NUM_ENVS = 3  # as many as three threads need
SEED = 0


@dataclass(frozen=True)
class Effort:
    """How much is tried.

    Attributes:
        steps: random steps of each check that plays, of `NUM_ENVS` environments.
        seconds: fewer steps are taken where so many do not fit into this. None: never fewer.
        longest_episode: steps in which an episode must end.
        hunt_seconds: fewer steps are looked at where so many do not fit into this.
        timed_seconds: for measuring the speed.
        processes: whether worker processes are started.
        is_quick: an episode that is longer than `longest_episode` is nothing to worry about.
    """

    steps: int = 1000
    seconds: float | None = 3.0
    longest_episode: int = 10_000
    hunt_seconds: float = 30.0
    timed_seconds: float = 0.5
    processes: bool = True
    is_quick: bool = False


QUICK = Effort(
    steps=200,
    seconds=0.5,
    longest_episode=1000,
    hunt_seconds=2.0,
    timed_seconds=0.1,
    processes=False,
    is_quick=True,
)


@dataclass
class Subject:
    """An environment under check, and what is known of it so far.

    Attributes:
        given: what makes it.
        parameters: to make it with.
        effort: how much to try.
        watch: over every call into its code.
        step_seconds: what a step takes, once it was measured.
        draws_too_early: whether a new environment has asked for its random numbers before anybody could seed them.
    """

    given: EnvSource
    parameters: Mapping[str, Any]
    effort: Effort
    watch: Watch
    step_seconds: float | None = None
    draws_too_early: bool = False
    _spaces: Spaces | None = None
    _trajectory: Trajectory | None = None
    _made: list[Environment] = field(default_factory=list)

    @property
    def is_compiled(self) -> bool:
        """Whether it is a `CompiledEnvironment`."""
        return is_compiled(self.given)

    @cached_property
    def description(self) -> CompiledEnvironment:
        """A compiled environment with its parameters."""
        return describe_with(self.given, self.parameters)

    @cached_property
    def source(self) -> EnvSource:
        """What pools take."""
        if self.is_compiled:
            return self.description
        given: Any = self.given
        return functools.partial(given, **self.parameters) if self.parameters else given

    @property
    def name(self) -> str:
        """What to call it."""
        given: Any = self.given
        name = getattr(given, "__qualname__", None) or type(given).__name__
        parameters = {**(given.values if self.is_compiled and not isinstance(given, type) else {}), **self.parameters}
        return name + (f"({', '.join(f'{key}={value!r}' for key, value in parameters.items())})" if parameters else "")

    @property
    def spaces(self) -> Spaces:
        """What it may show, and what can be done."""
        assert self._spaces is not None
        return self._spaces

    @property
    def trajectory(self) -> Trajectory:
        """What was seen of it."""
        assert self._trajectory is not None
        return self._trajectory

    def learn_spaces(self, spaces: Spaces) -> None:
        """They are right."""
        self._spaces = spaces

    def learn_trajectory(self, trajectory: Trajectory) -> None:
        """It can be played."""
        self._trajectory = trajectory

    def draws_nothing(self) -> bool:
        """Whether it has no `render`."""
        if self.is_compiled:
            return type(self.description).render is None
        return type(self.make()).render is Environment.render

    def make(self) -> Environment:
        """One environment in plain Python; a compiled one runs as such."""
        with self.watch.call():
            made = make_plain(self.given, self.parameters)
        self.draws_too_early = made._rng is not None
        self._made.append(made)
        return made

    def pool(self, num_envs: int = NUM_ENVS, first_env: int = 0) -> ListEnv:
        """A serial pool of plain ones."""
        return ListEnv(self.make, num_envs, SEED, final_observations="all", first_env=first_env)

    def close(self) -> None:
        """Close every environment that was made, whatever they say to that."""
        while self._made:
            try:
                with self.watch.call():
                    self._made.pop().close()
            except Exception:  # has a check of its own
                continue


@contextmanager
def global_random(seed: int) -> Iterator[None]:
    """Seed Python's and NumPy's global random numbers; they go on as before afterwards."""
    python, numpy = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


class Stopwatch:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._started = time.monotonic()

    @property
    def seconds(self) -> float:
        """So far."""
        return time.monotonic() - self._started
