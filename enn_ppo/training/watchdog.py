"""Environments that hang: a line says which environment is waited for, and `env.timeout` ends the run."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from enn_ppo.training.errors import EnvironmentHangs
from entity_gym.pools.vec_env import VecEnv

#: Seconds after which a line says which environment is waited for.
PATIENCE = 30.0
#: Seconds that an environment has to be interrupted, after which the process ends where it is.
GRACE = 10.0


class Watchdog:
    """Watches the main thread while it waits for environments: `with watchdog.waiting_for(vec_env): vec_env.act(actions)`.

    An environment that takes longer than `timeout` is interrupted with SIGALRM, whose handler raises `EnvironmentHangs` in the
    main thread. Code that cannot be interrupted, such as a C library that never returns, keeps the process from ending in order:
    after `GRACE` more seconds the process exits with code 1, and so it does on Windows, which has no SIGALRM. Only the main
    thread gets signals: in others the timeout has no effect.

    Args:
        timeout: in seconds; None: environments may take for ever.
    """

    def __init__(self, timeout: float | None) -> None:
        self._timeout = timeout if threading.current_thread() is threading.main_thread() else None
        self._waiting: tuple[VecEnv, float] | None = None  # the pool that is waited for, and since when
        self._closed = threading.Event()
        self._has_alarms = self._timeout is not None and hasattr(signal, "SIGALRM")
        if self._has_alarms:
            self._previous = signal.signal(signal.SIGALRM, self._interrupt)
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    @contextmanager
    def waiting_for(self, vec_env: VecEnv) -> Iterator[None]:
        """The context in which the main thread waits for environments."""
        self._waiting = vec_env, time.monotonic()
        try:
            yield
        finally:
            self._waiting = None

    def close(self) -> None:
        """Stop watching. May be called twice."""
        if self._has_alarms and not self._closed.is_set():
            signal.signal(signal.SIGALRM, self._previous)
        self._closed.set()

    def _watch(self) -> None:
        timeout = self._timeout
        told = None
        while not self._closed.wait(min(1.0, PATIENCE / 2, (timeout or PATIENCE) / 4)):
            waiting = self._waiting
            if waiting is None:
                continue
            vec_env, since = waiting
            seconds = time.monotonic() - since
            if seconds > PATIENCE and told is not waiting:
                told = waiting
                advice = "" if timeout else "; env.timeout=<seconds> would end the run"
                _say(f"waiting for {vec_env.under_way()} for {seconds:.0f} seconds{advice}")
            if timeout is not None and seconds > timeout + GRACE:
                _say(f"error: {self._problem(vec_env)}, and cannot be interrupted; go on from the last checkpoint")
                os._exit(1)
            if timeout is not None and seconds > timeout and self._has_alarms:
                main = threading.main_thread().ident
                assert main is not None
                signal.pthread_kill(main, signal.SIGALRM)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None:  # it has not answered meanwhile
            raise EnvironmentHangs(self._problem(waiting[0]))

    def _problem(self, vec_env: VecEnv) -> str:
        return f"{vec_env.under_way()} has not answered for env.timeout={self._timeout:g} seconds"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
