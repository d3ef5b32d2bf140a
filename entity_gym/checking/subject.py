"""The environment that is checked, and the pools of it that checks play."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from entity_gym.checking.trajectory import Spaces, Trajectory
from entity_gym.checking.watch import Watch
from entity_gym.environment import Environment
from entity_gym.list_env import ListEnv
from entity_gym.threaded_env import EnvSource, is_compiled

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
        processes: whether worker processes are started.
    """

    steps: int = 1000
    seconds: float | None = 3.0
    longest_episode: int = 10_000
    hunt_seconds: float = 30.0
    processes: bool = True


QUICK = Effort(steps=200, seconds=0.5, longest_episode=1000, hunt_seconds=2.0, processes=False)


@dataclass
class Subject:
    """An environment under check, and what is known of it so far.

    Attributes:
        source: what was given.
        effort: how much to try.
        watch: over every call into its code.
        spaces: once they are known to be right.
        trajectory: of `NUM_ENVS` environments with `SEED`, once one could be played.
        step_seconds: once it was measured.
    """

    source: EnvSource
    effort: Effort
    watch: Watch
    _spaces: Spaces | None = None
    _trajectory: Trajectory | None = None
    step_seconds: float | None = None
    _opened: list[Any] = field(default_factory=list)

    @property
    def is_compiled(self) -> bool:
        """Whether it is a `CompiledEnvironment`."""
        return is_compiled(self.source)

    @property
    def description(self) -> Any:
        """A compiled environment with its parameters."""
        assert self.is_compiled
        from entity_gym.compiled.environment import describe

        return describe(self.source)  # type: ignore[arg-type]

    @property
    def name(self) -> str:
        """What to call it."""
        if self.is_compiled and not isinstance(self.source, type):
            return repr(self.source)
        return getattr(self.source, "__qualname__", None) or repr(self.source)

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

    def make(self) -> Environment:
        """One environment in plain Python; a compiled one runs as such."""
        create: Callable[[], Any] = self.description.as_environment if self.is_compiled else self.source
        with self.watch.call():
            made = create()
        if isinstance(made, Environment):
            self._opened.append(made)
            return made
        hint = "; give the compiled environment itself" if is_compiled(made) else ""
        raise ValueError(f"{self.name} made {made!r:.200}; it must make an entity_gym.Environment{hint}")

    def pool(self, num_envs: int = NUM_ENVS, first_env: int = 0) -> ListEnv:
        """A serial pool of plain ones."""
        return ListEnv(self.make, num_envs, SEED, final_observations="all", first_env=first_env)

    def close(self) -> None:
        """Close every environment that was made, whatever they say to that."""
        while self._opened:
            try:
                with self.watch.call():
                    self._opened.pop().close()
            except Exception:  # noqa: S112 - its own check looks at it
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
