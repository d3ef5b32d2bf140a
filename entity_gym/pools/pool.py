"""Pools: N environments that are stepped together or asynchronously.

`SlotVecEnv` is the pool over environments of any kind, and the others are `SlotVecEnv` with arguments that suit users.
"""

from __future__ import annotations

import copy
import warnings
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import IntEnum
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions import ActionSpace
from entity_gym.batch.vec_obs import VecAction, VecObs
from entity_gym.environment import Environment
from entity_gym.errors import check_whole
from entity_gym.pools.processes.slots import ProcessSlots
from entity_gym.pools.python_slots import PythonSlots
from entity_gym.pools.slots import EnvIds, EnvSlots, SlotOptions, run_serially
from entity_gym.pools.source import EnvFactory, as_source
from entity_gym.pools.vec_env import EnvIdLike, EnvInfo, VecEnv, check_batch_size, check_env_id, check_env_info
from entity_gym.pools.workers import PATIENCE, Workers, check_affinity, check_num_threads
from entity_gym.spaces import ObsSpace


class Status(IntEnum):
    """The calls that an environment can take now."""

    NEW = 0  # nothing but a reset: there was none yet
    READY = 1
    UNDER_WAY = 2  # nothing until it is received
    LOST = 3  # nothing but a reset: what it showed was lost to an error
    OVER = 4  # nothing but a reset: its episode has ended, and there is no autoreset


_NEW, _READY, _UNDER_WAY, _LOST, _OVER = map(
    int, Status
)  # NumPy takes plain numbers 5 times as fast as members of an enum

_REFUSALS = {
    Status.NEW: "{method} was called before reset",
    Status.UNDER_WAY: "{method}: {where} is under way; recv it first",
    Status.LOST: "{method}: what {where} showed last was lost to an error; call reset first",
    Status.OVER: "{method}: the episode of {where} has ended, and there is no autoreset; step those that go on, or call reset",
}


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
        self._workers = Workers() if workers is None else workers
        self._closed = False
        try:
            self._batch_size = check_batch_size(batch_size, len(slots))
            slots.seed(seed)
        except ValueError:
            self.close()
            raise
        self._everyone: EnvIds = np.arange(len(slots), dtype=np.int64)
        self._status = np.full(len(slots), _NEW, np.int8)  # (N,) a `Status` each
        self._all_ready = np.full(len(slots), _READY, np.int8).tobytes()
        self._shown: VecObs | None = None  # the last batch; slots that act at once check actions without it
        self._finished: deque[int] = deque()  # under way, and done: for `recv`, in this order
        self._waiting = 0  # under way, and not yet done

    def obs_space(self) -> ObsSpace:
        return self.slots.obs_space

    def action_space(self) -> Mapping[str, ActionSpace]:
        return self.slots.action_space

    def __len__(self) -> int:
        return len(self.slots)

    @property
    def batch_size(self) -> int:
        return self._batch_size

    @property
    def envs(self) -> list[Environment]:
        """The environments, where they are Python objects."""
        if not isinstance(self.slots, PythonSlots):
            raise AttributeError(f"environments of {type(self.slots).__name__} are no Python objects")
        return self.slots.envs

    def under_way(self) -> str:
        return self.slots.under_way()

    def configure(self, env_info: EnvInfo) -> None:
        self._check_open()
        infos = check_env_info(env_info, len(self))
        self._settle()
        self.slots.configure(self._everyone, infos)

    # ---- together

    def reset(self, seed: int | None = None, env_info: EnvInfo | None = None) -> VecObs:
        self._prepare_reset(seed, env_info)
        ids, slots = self._everyone, self.slots
        if self._workers.num_threads == 1:
            slots.reset(ids)
        else:
            self._share(len(ids), lambda lo, hi, worker: slots.reset(ids[lo:hi], worker))
        return self._collect(ids)

    def act(self, actions: Mapping[str, VecAction], env_id: EnvIdLike | None = None) -> VecObs:
        self._check_open()
        ids, slots = self._ready(env_id, "act"), self.slots
        alone = self._workers.num_threads == 1
        if alone and slots.acts_at_once:
            self._mark(ids, _LOST)  # unless all goes well
            obs = slots.act(actions, ids)
            self._mark(ids, _READY)
            if obs is not None:
                self._mark_over(obs)
                return obs
        self._check(actions, ids)
        self._mark(ids, _LOST)
        if alone:
            slots.step(actions, ids, 0, len(ids))
        else:
            self._share(len(ids), partial(slots.step, actions, ids))
        return self._collect(ids)

    def _share(self, n: int, do: Callable[[int, int, int], None]) -> None:
        """Call do(lo, hi, worker) in all workers for their parts of 0 ... n - 1."""
        parts = min(n, self._workers.num_threads)
        self._workers.run(lambda k: do(n * k // parts, n * (k + 1) // parts, k), parts)

    def show(self, ids: EnvIds) -> VecObs:
        """Return the observations of some environments, none of which is under way."""
        return self.slots.collect(ids, self._workers.run)

    # ---- asynchronously

    def send(self, actions: Mapping[str, VecAction], env_id: EnvIdLike | None = None) -> None:
        self._check_open()
        ids = self._ready(env_id, "send")
        self._check(actions, ids)
        own = {name: buffer.clone() for name, buffer in actions.items()}  # the caller may write to theirs meanwhile
        self._submit(ids, partial(self.slots.step, own, ids))

    def async_reset(self) -> None:
        self._prepare_reset(None, None)
        slots, ids = self.slots, self._everyone  # what the workers hold must not hold the pool
        self._submit(ids, lambda lo, hi, worker: slots.reset(ids[lo:hi], worker))

    def recv(self) -> VecObs:
        self._check_open()
        if self._waiting + len(self._finished) < self._batch_size:
            raise ValueError(
                f"recv returns batch_size={self._batch_size} environments, and "
                f"{self._waiting + len(self._finished)} are under way: send them actions, or call async_reset"
            )
        while len(self._finished) < self._batch_size:
            ids, error = self._workers.next()
            self._waiting -= len(ids)
            self._note(ids, error)
            if error is not None:
                raise error
        ids = np.array(sorted(self._finished.popleft() for _ in range(self._batch_size)), dtype=np.int64)
        self._mark(ids, _LOST)
        return self._collect(ids)

    def _submit(self, ids: EnvIds, do: Callable[[int, int, int], None]) -> None:
        """Have do(lo, hi, worker) called without waiting, so that ids[lo:hi] together are `ids`."""
        n, num_shares = len(ids), max(1, self._workers.num_shares)
        self._mark(ids, _UNDER_WAY)
        self._waiting += n
        if self.slots.one_by_one and self._batch_size < len(self):
            # An environment is always stepped by the same thread.
            for k, i in enumerate(ids.tolist()):
                share = ((i + 1) * num_shares - 1) // len(self)
                self._workers.submit(ids[k : k + 1], partial(do, k, k + 1), share)
            return
        parts = min(n, num_shares)
        for k in range(parts):
            lo, hi = n * k // parts, n * (k + 1) // parts
            self._workers.submit(ids[lo:hi], partial(do, lo, hi), k)

    def _note(self, ids: EnvIds, error: BaseException | None) -> None:
        """Note that a task on these environments is done."""
        if error is None:
            self._finished.extend(ids.tolist())
        else:
            self._mark(ids, _LOST)

    def _settle(self, *, forget: bool = False) -> None:
        """Wait until everything under way is done, and raise the first error; `forget` it instead, with all that is done.

        It does not rely on `_waiting`: Ctrl-C may have come between counting a task and submitting it, or before one was noted.
        """
        first = None
        for ids, error in self._workers.drain() if self._waiting else ():
            self._note(ids, error)
            first = error if first is None else first
        self._waiting = 0
        if forget:
            self._finished.clear()
        elif first is not None:
            raise first

    # ---- drawing, saving, copying

    def render(self, env_ids: EnvIdLike) -> list[NDArray[np.uint8]]:
        return [self.slots.render(i) for i in self._settled(env_ids)]

    def draw(self, env_ids: EnvIdLike) -> list[Mapping[str, Any] | None]:
        return [self.slots.draw(i) for i in self._settled(env_ids)]

    def _settled(self, env_ids: EnvIdLike) -> list[int]:
        """The numbers of some environments, none of which is under way any more."""
        self._check_open()
        ids = [int(check_env_id([i], len(self))[0]) for i in env_ids]
        if (self._status[ids] == _UNDER_WAY).any():
            self._settle()
        return ids

    @property
    def can_save(self) -> bool:
        return self.slots.can_save

    def state(self) -> dict[str, Any]:
        self._settle_all("state")
        return self.slots.state()

    def load_state(self, state: Mapping[str, Any]) -> VecObs:
        self._check_open()
        self._settle(forget=True)
        self._mark(self._everyone, _LOST)
        self.slots.load_state(state)
        return self._collect(self._everyone)

    def clone(self) -> Self:
        self._settle_all("clone")
        twin = copy.copy(self)
        twin.slots = self.slots.clone()
        twin._workers = self._workers.clone()
        twin._status = self._status.copy()
        twin._finished = self._finished.copy()
        return twin

    def _settle_all(self, method: str) -> None:
        """Wait until nothing is under way, for a `method` of environments that have all shown something."""
        self._check_open()
        self._settle()
        lacking = np.isin(self._status, (_NEW, _LOST))
        if lacking.any():
            self._refuse(int(lacking.argmax()), method)

    def close(self) -> None:
        self._closed = True
        if self.slots.closes_at_once:
            self.slots.close()  # threads that wait for it come back
        if self._workers.close():
            self.slots.close()
        else:
            warnings.warn(
                f"environments are still taking a step after {PATIENCE:g} seconds; they are left behind, and not closed",
                RuntimeWarning,
                stacklevel=2,
            )

    # ---- what environments can take

    def _prepare_reset(self, seed: int | None, env_info: EnvInfo | None) -> None:
        """Validate arguments, and apply seeds and parameters."""
        self._check_open()
        infos = None if env_info is None else check_env_info(env_info, len(self))
        self._settle(forget=True)
        self._mark(self._everyone, _NEW)
        if seed is not None:
            self.slots.seed(seed)
        if infos is not None:
            self.slots.configure(self._everyone, infos)

    def _ready(self, env_id: EnvIdLike | None, method: str) -> EnvIds:
        """Return the environments `env_id` (None: all), for a `method` that steps them.

        Raises:
            ValueError: unless they are there, named once, and can be stepped.
        """
        if env_id is None and self._status.tobytes() == self._all_ready:  # by far the quickest way to ask
            return self._everyone
        ids = self._everyone if env_id is None else check_env_id(env_id, len(self))
        stopped = self._status[ids] != _READY
        if stopped.any():
            self._refuse(int(ids[stopped.argmax()]), method)
        return ids

    def _refuse(self, i: int, method: str) -> None:
        raise ValueError(_REFUSALS[Status(self._status[i])].format(method=method, where=self.slots.where(i)))

    def _check(self, actions: Mapping[str, VecAction], ids: EnvIds) -> None:
        """Raise a ValueError unless the last observations of `ids` offered `actions`."""
        shown = self._shown
        self.slots.check(actions, ids, shown if shown is not None and np.array_equal(shown.env_id, ids) else None)

    def _collect(self, ids: EnvIds) -> VecObs:
        """Return the observations of environments, which are ready from then on."""
        run = run_serially if self._waiting else self._workers.run  # workers may be busy for long
        obs = self.slots.collect(ids, run)
        if not self.slots.acts_at_once:
            self._shown = obs
        self._mark(ids, _READY)
        self._mark_over(obs)
        return obs

    def _mark(self, ids: EnvIds, status: int) -> None:
        if ids is self._everyone:
            self._status.fill(status)
        else:
            self._status[ids] = status

    def _mark_over(self, obs: VecObs) -> None:
        """Without autoreset: note whose episodes have ended."""
        if not self.slots.options.autoreset and obs.done.any():
            self._status[obs.env_id[obs.done]] = _OVER

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError("the pool is closed")


class ThreadedVecEnv(SlotVecEnv):
    """Steps environments in fixed threads, each with a slice of them.

    Compiled environments run at the same time, since they need no GIL. Python environments run at the same time only where
    they release it: waiting for a simulator, another process or the network, or in compiled libraries. Pure Python gains
    nothing here, see `ProcessVecEnv`. A second thread costs 40 to 100 microseconds a step for waking it, so it pays only
    if a step of all environments together takes several times that. One thread is the default, and is the calling thread.

    Trajectories do not depend on the number of threads. Together, environments are divided into slices of equal size, and the
    calling thread takes the first. Asynchronously (`send`, `recv`), all work is done by threads, with a queue each:
    Python environments one by one, so that the first to be done is returned first, and compiled ones in chunks. With one
    thread, `recv` itself takes the steps that were sent, unless `background` gives them a thread of their own.

    Args:
        env: what the environments are made from, of any kind; see `EnvFactory`.
        num_envs: at least 1.
        num_threads: at least 1, the calling thread included. At most one for each environment is used.
        batch_size: how many environments `recv` returns. None: all.
        seed: see `VecEnv.reset`.
        thread_affinity_offset: bind the thread of slice t to core (offset + t) % cores. -1: leave it to the system. The
            calling thread, which has slice 0 of steps together, is never bound. Linux only.
        background: with one thread, steps that are sent are taken by a thread of their own, so that the caller can do
            something else until `recv`.
        num_processes: worker processes that step the environments in place of threads, see `ProcessVecEnv`; 0: none.
        options: fields of `SlotOptions`, by name.

    Attributes:
        num_threads: the number of threads in use.
        num_processes: the number of worker processes.

    Raises:
        ValueError: for an argument that is not allowed.
    """

    num_threads, num_processes = 1, 0

    def __init__(
        self,
        env: EnvFactory,
        num_envs: int,
        num_threads: int = 1,
        batch_size: int | None = None,
        seed: int = 0,
        *,
        thread_affinity_offset: int = -1,
        background: bool = False,
        num_processes: int = 0,
        **options: Any,
    ) -> None:
        check_whole(num_envs, "num_envs")
        check_batch_size(batch_size, num_envs)
        check_whole(seed, "seed", 0)
        check_whole(num_processes, "num_processes", 0)
        check_affinity(thread_affinity_offset)
        source, slot_options = as_source(env), SlotOptions(**options)
        if num_processes:
            self.num_processes = min(num_processes, num_envs)
            processes = ProcessSlots(source, num_envs, slot_options, num_processes=self.num_processes)
            # The calling thread asks all processes for a step together; submitted steps have a thread for each process.
            workers = Workers(num_shares=self.num_processes)
            super().__init__(processes, workers, batch_size=batch_size, seed=seed)
            return
        most = min(check_num_threads(num_threads), num_envs)
        num_workers = most + 1 if most > 1 or background else 1
        slots = source.make_slots(num_envs, replace(slot_options, num_workers=num_workers))
        self.num_threads = most
        num_shares = self.num_threads if self.num_threads > 1 or background else 0
        workers = Workers(self.num_threads, num_shares, thread_affinity_offset)
        super().__init__(slots, workers, batch_size=batch_size, seed=seed)


class ListEnv(ThreadedVecEnv):
    """Steps environments in the calling thread: `ThreadedVecEnv` with one thread.

    Args:
        env, num_envs, seed: as in `ThreadedVecEnv`.
        options: those of `ThreadedVecEnv` that are not about threads, by name.
    """

    def __init__(self, env: EnvFactory, num_envs: int, seed: int = 0, **options: Any) -> None:
        super().__init__(env, num_envs, seed=seed, **options)


class ProcessVecEnv(ThreadedVecEnv):
    """Steps environments in worker processes, which read actions and write observations in shared memory.

    Worth it where the steps of all environments together take several milliseconds: sharing them out costs about one.
    Each worker owns a slice of the environments and steps them one after the other; observations depend on seeds and actions
    alone, not on the number of processes. With `batch_size < num_envs` every environment is reported as soon as it is done.

    An exception of an environment is raised here with its own type, message and notes, and with the worker's traceback as a
    note; the environments concerned have to be reset, and the others may go on. When a worker dies, calls raise
    `WorkerDied`, and the pool has to be made anew.

    A pool belongs to the thread and process that made it. In workers, numeric libraries use one thread, and Ctrl-C is
    handled by the main process alone. Linux and macOS only.

    Args:
        env: anything that `ThreadedVecEnv` takes. It is sent to the workers, by cloudpickle. Every worker makes its own
            environments; all must have the same spaces.
        num_envs: at least 1.
        num_processes: at least 1; one for each core is a good choice. At most one for each environment is started.
        batch_size: number of environments that `recv` returns. None: all.
        seed: see `VecEnv.reset`.
        options: fields of `SlotOptions`, by name.

    Attributes:
        num_processes: the number of workers.

    Raises:
        ValueError: for an invalid argument, or an `env` that cannot be sent. Exceptions of environments are raised here too.
        WorkerDied: if a worker ends while it makes its environments.
    """

    def __init__(
        self,
        env: EnvFactory,
        num_envs: int,
        num_processes: int,
        batch_size: int | None = None,
        seed: int = 0,
        **options: Any,
    ) -> None:
        check_whole(num_processes, "num_processes")
        super().__init__(env, num_envs, 1, batch_size, seed, num_processes=num_processes, **options)
