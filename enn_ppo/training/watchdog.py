"""Environments that hang: a line says which environment is waited for."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from entity_gym.output import tell
from entity_gym.pools.vec_env import VecEnv

#: Seconds after which a line says which environment is waited for.
PATIENCE = 30.0


class Watchdog:
    """A thread that watches another one while that waits: `with watchdog.waiting_for(vec_env): vec_env.act(actions)`."""

    def __init__(self) -> None:
        self._waiting: tuple[VecEnv, float] | None = None  # the pool that is waited for, and since when
        self._closed = threading.Event()
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    @contextmanager
    def waiting_for(self, vec_env: VecEnv) -> Iterator[None]:
        """The context in which environments are waited for."""
        self._waiting = vec_env, time.monotonic()
        try:
            yield
        finally:
            self._waiting = None

    def close(self) -> None:
        """Stop watching. May be called twice."""
        self._closed.set()

    def _watch(self) -> None:
        told = None
        while not self._closed.wait(min(1.0, PATIENCE / 2)):
            waiting = self._waiting
            if waiting is not None and waiting is not told and time.monotonic() - waiting[1] > PATIENCE:
                told = waiting
                text = f"waiting for {waiting[0].slots.under_way()} for {PATIENCE:g} seconds; two Ctrl-C end the run"
                tell(text)
