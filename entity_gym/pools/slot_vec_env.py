"""The pool: everything that a `VecEnv` does, over slots that step environments and workers that share out the work."""

from __future__ import annotations

import copy
import warnings
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions import ActionSpace
from entity_gym.batch.vec_obs import VecAction, VecObs
from entity_gym.pools.env_status import Status, Statuses
from entity_gym.pools.slots import EnvIds, EnvSlots
from entity_gym.pools.vec_env import EnvIdLike, EnvInfo, VecEnv, check_env_id, check_env_info
from entity_gym.pools.workers import PATIENCE, SerialWorkers, Task, Workers, run_serially
from entity_gym.spaces import ObsSpace

_READY, _LOST = int(Status.READY), int(Status.LOST)


class SlotVecEnv(VecEnv):
    """A pool over `slots`.

    What environments show depends on their seeds and actions alone: not on the workers, nor on the order in which they are
    stepped. After an error the environments concerned have to be reset, and the others may go on.

    Args:
        slots: the environments; belongs to this pool from now on.
        workers: who steps them. None: the calling thread.
        batch_size: how many environments `recv` returns. None: all.
        seed: see `VecEnv.reset`.
    """

    def __init__(
        self, slots: EnvSlots, workers: Workers | None = None, *, batch_size: int | None = None, seed: int = 0
    ) -> None:
        self.slots = slots
        self._workers = SerialWorkers() if workers is None else workers
        try:
            self._batch_size = check_batch_size(batch_size, len(slots))
            slots.seed(seed)
        except ValueError:
            self._workers.close()
            raise
        self._statuses = Statuses(len(slots), slots.where)
        self._everyone: EnvIds = self._statuses.everyone
        self._finished: deque[int] = deque()  # under way, and done: for `recv`, in this order
        self._waiting = 0  # under way, and not yet done
        self._closed = False

    def obs_space(self) -> ObsSpace:
        return self.slots.obs_space

    def action_space(self) -> Mapping[str, ActionSpace]:
        return self.slots.action_space

    def __len__(self) -> int:
        return len(self.slots)

    @property
    def batch_size(self) -> int:
        return self._batch_size

    def reset(self, seed: int | None = None, env_info: EnvInfo | None = None) -> VecObs:
        self.prepare_reset(seed, env_info)
        return self.start(self._everyone)

    def configure(self, env_info: EnvInfo) -> None:
        self._check_open()
        infos = check_env_info(env_info, len(self))
        error = self._settle()
        if error is not None:
            raise error
        self.slots.configure(self._everyone, infos)

    def start(self, ids: EnvIds) -> VecObs:
        """Start an episode in some environments, none of which is under way."""
        return self._do_and_collect(ids, lambda lo, hi, worker: self.slots.reset(ids[lo:hi], worker))

    def show(self, ids: EnvIds) -> VecObs:
        """What some environments show, none of which is under way."""
        return self.slots.collect(ids, self._workers.run)

    def act(self, actions: Mapping[str, VecAction], env_id: EnvIdLike | None = None) -> VecObs:
        self._check_open()
        ids = self._statuses.ready(env_id, "act")
        self.slots.check(actions, ids)
        return self._do_and_collect(ids, lambda lo, hi, worker: self.slots.step(actions, ids, lo, hi, worker))

    # ---- asynchronously

    def send(self, actions: Mapping[str, VecAction], env_id: EnvIdLike | None = None) -> None:
        self._check_open()
        ids = self._statuses.ready(env_id, "send")
        self.slots.check(actions, ids)
        slots = self.slots  # what the workers hold must not hold the pool
        own = {name: buffer.clone() for name, buffer in actions.items()}  # the caller may write to theirs meanwhile
        self._submit(ids, lambda lo, hi, worker: slots.step(own, ids, lo, hi, worker))

    def async_reset(self) -> None:
        self.prepare_reset(None, None)
        slots, ids = self.slots, self._everyone
        self._submit(ids, lambda lo, hi, worker: slots.reset(ids[lo:hi], worker))

    def recv(self) -> VecObs:
        self._check_open()
        if self._waiting + len(self._finished) < self._batch_size:
            raise ValueError(
                f"recv returns batch_size={self._batch_size} environments, and "
                f"{self._waiting + len(self._finished)} are under way: send them actions, or call async_reset"
            )
        while len(self._finished) < self._batch_size:
            error = self._await_next()
            if error is not None:
                raise error
        ids = np.array(sorted(self._finished.popleft() for _ in range(self._batch_size)), dtype=np.int64)
        self._mark(ids, _LOST)
        return self._collect(ids)

    # ---- the rest

    def render(self, env_ids: EnvIdLike) -> list[NDArray[np.uint8]]:
        self._check_open()
        ids = [int(check_env_id([i], len(self))[0]) for i in env_ids]
        if self._waiting and (self._statuses.of[ids] == Status.UNDER_WAY).any():
            error = self._settle()
            if error is not None:
                raise error
        return [self.slots.render(i) for i in ids]

    @property
    def can_save(self) -> bool:
        return self.slots.can_save

    def state(self) -> dict[str, Any]:
        self._settle_for("state")
        return self.slots.state()

    def load_state(self, state: Mapping[str, Any]) -> VecObs:
        self._check_open()
        self._settle()
        self._finished.clear()
        self._statuses.of[:] = Status.LOST
        self.slots.load_state(state)
        return self._collect(self._everyone)

    def clone(self) -> Self:
        self._settle_for("clone")
        twin = copy.copy(self)
        twin.slots = self.slots.clone()
        twin._workers = self._workers.clone()
        twin._statuses = Statuses(len(self), twin.slots.where)
        twin._statuses.of[:] = self._statuses.of
        twin._everyone = twin._statuses.everyone
        twin._finished = self._finished.copy()
        return twin

    def close(self) -> None:
        self._closed = True
        if self._workers.close():
            self.slots.close()
        else:
            warnings.warn(
                f"environments are still taking a step after {PATIENCE:g} seconds; they are left behind, and not closed",
                RuntimeWarning,
                stacklevel=2,
            )

    # ---- how it is done

    def prepare_reset(self, seed: int | None, env_info: EnvInfo | None) -> None:
        """Everything of `reset` but to start episodes."""
        self._check_open()
        infos = None if env_info is None else check_env_info(env_info, len(self))
        self._settle()
        self._finished.clear()
        self._statuses.of[:] = Status.NEW
        if seed is not None:
            self.slots.seed(seed)
        if infos is not None:
            self.slots.configure(self._everyone, infos)

    def _do_and_collect(self, ids: EnvIds, do: Callable[[int, int, int], None]) -> VecObs:
        """Call do(lo, hi, worker) so that ids[lo:hi] together are `ids`, and return what these environments show then."""
        n = len(ids)
        parts = min(n, self._workers.num_workers)
        self._mark(ids, _LOST)  # unless all goes well
        self._workers.run(lambda worker: do(n * worker // parts, n * (worker + 1) // parts, worker), parts)
        return self._collect(ids)

    def _collect(self, ids: EnvIds) -> VecObs:
        """What environments that are marked as lost show; they are not lost if that succeeds."""
        run = run_serially if self._waiting else self._workers.run  # workers may be busy for long
        obs = self.slots.collect(ids, run)
        self._mark(ids, _READY)
        return obs

    def _mark(self, ids: EnvIds, status: int) -> None:
        if ids is self._everyone:
            self._statuses.of.fill(status)
        else:
            self._statuses.of[ids] = status

    def _submit(self, ids: EnvIds, do: Callable[[int, int, int], None]) -> None:
        """As `_do_and_collect`, without waiting."""
        n, num_workers = len(ids), self._workers.num_workers
        self._statuses.of[ids] = Status.UNDER_WAY
        self._waiting += n
        if self.slots.one_by_one:  # an environment is always stepped by the same worker
            for k, i in enumerate(ids.tolist()):
                self._workers.submit(_part(ids, do, k, k + 1), i * num_workers // len(self))
            return
        parts = min(n, num_workers)
        for worker in range(parts):
            self._workers.submit(_part(ids, do, n * worker // parts, n * (worker + 1) // parts), worker)

    def _await_next(self) -> BaseException | None:
        """Wait until something under way is done. Returns what it raised."""
        ids, error = self._workers.next()
        self._waiting -= len(ids)
        if error is None:
            self._finished.extend(ids.tolist())
        else:
            self._statuses.of[ids] = Status.LOST
        return error

    def _settle(self) -> BaseException | None:
        """Wait until everything under way is done. Returns the first thing that was raised."""
        first = None
        while self._waiting:
            error = self._await_next()
            first = error if first is None else first
        return first

    def _settle_for(self, method: str) -> None:
        self._check_open()
        error = self._settle()
        if error is not None:
            raise error
        self._statuses.check_all_shown(method)

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError("the pool is closed")


def _part(ids: EnvIds, do: Callable[[int, int, int], None], lo: int, hi: int) -> Task:
    return Task(ids[lo:hi], lambda worker: do(lo, hi, worker))


def check_batch_size(batch_size: int | None, num_envs: int) -> int:
    """How many environments `recv` returns.

    Raises:
        ValueError: if that is not from 1 to `num_envs`.
    """
    if batch_size is None:
        return num_envs
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or not 1 <= batch_size <= num_envs:
        raise ValueError(f"batch_size is {batch_size!r}; it must be a whole number from 1 to num_envs={num_envs}")
    return batch_size
