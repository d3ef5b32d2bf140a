"""What can be asked of each environment of a pool now."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from entity_gym.pools.slots import EnvIds
from entity_gym.pools.vec_env import EnvIdLike, check_env_id


class Status(IntEnum):
    """What can be asked of an environment."""

    NEW = 0  # nothing but a reset: there was none yet
    READY = 1
    UNDER_WAY = 2  # nothing until it is received
    LOST = 3  # nothing but a reset: what it showed was lost to an error


_READY = int(Status.READY)  # NumPy compares with a plain number 5 times as fast as with a member of an enum


class Statuses:
    """The status of `num_envs` environments.

    Args:
        num_envs: how many.
        where: names an environment in messages.

    Attributes:
        of: (num_envs,) a `Status` each.
        everyone: (num_envs,) all of them, as `ready` returns them.
    """

    def __init__(self, num_envs: int, where: Callable[[int], str]) -> None:
        self.of: NDArray[np.int8] = np.full(num_envs, Status.NEW, np.int8)
        self._all_ready = np.full(num_envs, _READY, np.int8).tobytes()
        self._where = where
        self.everyone: EnvIds = np.arange(num_envs, dtype=np.int64)

    def ready(self, env_id: EnvIdLike | None, method: str) -> EnvIds:
        """The environments `env_id` (None: all), for a `method` that steps them.

        Raises:
            ValueError: unless they are there, named once, and can be stepped.
        """
        if env_id is None and self.of.tobytes() == self._all_ready:  # by far the quickest way to ask
            return self.everyone
        ids = self.everyone if env_id is None else check_env_id(env_id, len(self.of))
        status = self.of if env_id is None else self.of[ids]
        stopped = status != _READY
        if stopped.any():
            k = int(stopped.argmax())
            self._refuse(int(ids[k]), Status(status[k]), method)
        return ids

    def check_all_shown(self, method: str) -> None:
        """Raise a ValueError unless every environment shows something."""
        for status in (Status.NEW, Status.LOST):
            if (self.of == status).any():
                self._refuse(int((self.of == status).argmax()), status, method)

    def _refuse(self, i: int, status: Status, method: str) -> None:
        if status == Status.NEW:
            raise ValueError(f"{method} was called before reset")
        if status == Status.LOST:
            raise ValueError(f"{method}: what {self._where(i)} showed last was lost to an error; call reset first")
        raise ValueError(f"{method}: {self._where(i)} is under way; recv it first")
