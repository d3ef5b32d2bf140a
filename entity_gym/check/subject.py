"""The environment that is checked, the pools of it that checks play, and the time limit of every call into its code."""

from __future__ import annotations

import faulthandler
import functools
import math
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from types import FrameType
from typing import IO, Any, TypeVar

import numpy as np

from entity_gym.actions import ActionSpace
from entity_gym.check.loading import make_python
from entity_gym.check.trajectory import Trajectory
from entity_gym.environment import Environment
from entity_gym.pools.pool import EnvSource, ListEnv, ThreadedVecEnv, is_compiled
from entity_gym.pools.vec_env import VecEnv
from entity_gym.registry import with_parameters
from entity_gym.spaces import ObsSpace

NUM_ENVS = 3  # as many as three threads need
SEED = 0
SLOW = 10.0  # compiling and starting processes may take this many times as long as other calls

Pool = TypeVar("Pool", bound=VecEnv)


class HangError(BaseException):
    """A call took longer than its time limit. Not an `Exception`, since environments catch those."""


class Watch:
    """Enforces a time limit on calls into the environment's code.

    In the main thread on Linux and macOS an alarm raises `HangError` within Python code. Code that cannot be interrupted
    so, compiled code included, is ended together with its process if `dump` is given.

    Args:
        limit: seconds that a call may take.
        dump: file for the traceback of a call that cannot be interrupted; the process then exits. None: wait forever.
        on_start: called with the name of each check, and with a description and "..." when something slow begins.
    """

    def __init__(
        self, limit: float, dump: IO[bytes] | None = None, on_start: Callable[[str], None] = lambda what: None
    ) -> None:
        self.limit = limit
        self.on_start = on_start
        self._dump = dump
        self._grace = min(limit, 5.0)  # seconds beyond the limit before the process is ended
        self._timer_set = -math.inf
        self._has_alarms = hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Handle alarms, and restore the previous handler afterwards."""
        before = signal.signal(signal.SIGALRM, _raise_hang_error) if self._has_alarms else None
        try:
            yield
        finally:
            if self._has_alarms:
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.signal(signal.SIGALRM, before)
            if self._dump is not None:
                faulthandler.cancel_dump_traceback_later()
                self._timer_set = -math.inf

    @contextmanager
    def call(self, doing: str | None = None) -> Iterator[None]:
        """Limit the time of the calls inside of the block.

        Args:
            doing: description of something slow, which may take `SLOW` times as long.

        Raises:
            HangError: from within the call, again every second until it ends.
        """
        seconds = self.limit if doing is None else self.limit * SLOW
        if doing is not None:
            self.on_start(f"{doing}...")
        if self._dump is not None:
            now = time.monotonic()
            # Each timer is a new thread, so quick calls share one.
            if doing is not None or now - self._timer_set > self._grace / 2:
                faulthandler.dump_traceback_later(seconds + self._grace, exit=True, file=self._dump)
                self._timer_set = now if doing is None else -math.inf
        if self._has_alarms:
            signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
        try:
            yield
        finally:
            if self._has_alarms:
                signal.setitimer(signal.ITIMER_REAL, 0)

    def over(self, pool: Pool) -> Pool:
        """Limit the time of every call of `pool`, which is returned."""
        for name in ("reset", "act", "state", "load_state", "render"):
            setattr(pool, name, self._limited(getattr(pool, name)))
        return pool

    def _limited(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def limited(*args: Any, **kwargs: Any) -> Any:
            with self.call():
                return function(*args, **kwargs)

        return limited


def _raise_hang_error(number: int, frame: FrameType | None) -> None:
    raise HangError


@dataclass(frozen=True)
class Effort:
    """How much is tried.

    Attributes:
        steps: random steps of `NUM_ENVS` environments in each check that plays.
        seconds: time limit for recording these steps; fewer are played if they do not fit. None: no limit.
        longest_episode: steps within which an episode must end.
        search_seconds: time limit for playing until an episode ends.
        timed_seconds: duration of the speed measurement.
        full: also checks bounds in compiled code, three threads, and worker processes.
        is_quick: an episode longer than `longest_episode` is no failure.
    """

    steps: int = 1000
    seconds: float | None = 1.0
    longest_episode: int = 10_000
    search_seconds: float = 30.0
    timed_seconds: float = 0.3
    full: bool = False
    is_quick: bool = False


FULL = Effort(seconds=3.0, timed_seconds=0.5, full=True)
QUICK = Effort(steps=200, seconds=0.5, longest_episode=1000, search_seconds=2.0, timed_seconds=0.1, is_quick=True)


@dataclass
class Subject:
    """The environment under check, and the results that later checks need.

    Attributes:
        given: class, factory, or compiled environment.
        parameters: the parameters to make it with.
        effort: how much to try.
        watch: time limit of every call into its code.
        obs_space, action_space: set by the check "spaces".
        trajectory: random play, set by the check "observations".
        step_seconds: duration of a step, set by the check "speed".
        draws_too_early: a new environment has asked for its random numbers before it could be seeded.
    """

    given: EnvSource
    parameters: Mapping[str, Any]
    effort: Effort
    watch: Watch
    obs_space: ObsSpace = field(init=False)
    action_space: Mapping[str, ActionSpace] = field(init=False)
    trajectory: Trajectory = field(init=False)
    step_seconds: float | None = None
    draws_too_early: bool = False
    _to_close: list[Environment | VecEnv] = field(default_factory=list)

    @property
    def is_compiled(self) -> bool:
        """True for a `CompiledEnvironment`."""
        return is_compiled(self.given)

    @cached_property
    def source(self) -> Any:
        """The environment with its parameters."""
        return with_parameters(self.given, self.parameters)

    @property
    def name(self) -> str:
        """Name of the environment, with its parameters."""
        return str(self.source)

    def make(self) -> Environment:
        """Make one environment that runs as ordinary Python, also if it is a compiled one."""
        with self.watch.call():
            made = make_python(self.given, self.parameters)
        self.draws_too_early = made._rng is not None
        self._to_close.append(made)
        return made

    def pool(self, num_envs: int = NUM_ENVS, first_env: int = 0) -> ListEnv:
        """Make a serial pool of environments that run as ordinary Python."""
        return self.watch.over(ListEnv(self.make, num_envs, SEED, final_observations="all", first_env=first_env))

    def threaded_pool(
        self, num_threads: int = 1, num_envs: int = NUM_ENVS, doing: str = "starting threads", **options: bool
    ) -> ThreadedVecEnv:
        """Make a pool with threads, in which compiled environments run compiled; `doing` describes the slow start."""
        source: EnvSource = self.source if self.is_compiled else self.make
        with self.watch.call(doing):
            pool = ThreadedVecEnv(source, num_envs, num_threads, seed=SEED, final_observations="all", **options)
        self._to_close.append(pool)
        return self.watch.over(pool)

    def close(self) -> None:
        """Close everything that was made; errors of `close` are left to the check "closing"."""
        while self._to_close:
            try:
                with self.watch.call():
                    self._to_close.pop().close()
            except Exception:
                continue


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
