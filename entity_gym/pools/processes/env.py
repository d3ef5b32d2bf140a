"""Environments in processes of their own, for those that are slow and hold the interpreter's lock."""

from __future__ import annotations

import copy
import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions import ActionSpace
from entity_gym.actions.choices import check_actions
from entity_gym.batch.frame import FrameReader
from entity_gym.batch.obs_rows import Shown, crashed, sequences
from entity_gym.batch.vec_obs import VecAction, VecObs
from entity_gym.pools.pool import EnvSource, check_batch_size, is_compiled
from entity_gym.pools.processes.frames import Frames, flatten, joined
from entity_gym.pools.processes.handle import Replies, Request, WorkerDied, WorkerProcess
from entity_gym.pools.processes.pickling import pickled_for_worker
from entity_gym.pools.processes.pool import OnCrash, WorkerPool, check_workers, crash_seed
from entity_gym.pools.processes.state import merge_states, split_state
from entity_gym.pools.processes.worker import NOBODY, Hello, Op, Reset, Start
from entity_gym.pools.slots import EnvIds, FinalObservations, check_final_observations, check_num_envs, check_seed
from entity_gym.pools.vec_env import EnvIdLike, EnvInfo, Status, Statuses, VecEnv, check_env_id, check_env_info
from entity_gym.spaces import ObsSpace

MAX_DEATHS_IN_A_ROW = 5  # of a worker that shows nothing in between: then another restart does not help

log = logging.getLogger(__name__)


class ProcessVecEnv(VecEnv):
    """Steps environments in worker processes, which see the arrays of observations and actions in shared memory.

    Worth it where the steps of all environments together take several milliseconds: sharing them out costs about one.
    Each worker owns a slice of the environments and steps them one after the other; what they show depends on their seeds
    and actions alone, not on the number of processes. With `batch_size < num_envs` every environment is reported as soon
    as it is done.

    What an environment raises arrives with its own type, message and notes, and with the worker's traceback as a note; the
    environments concerned have to be reset, and the others may go on. When a worker dies, calls raise `WorkerDied`; or,
    with `on_crash="restart"`, its slice is made and reset anew and the pool goes on: each of these environments shows the
    first frame of its next episode, once, in answer to the next action, with `done`, `truncated`, reward 0 and
    `end_of_episode_info {"crashed": True}`; what it showed last stands in `final`. Environment i then draws from
    `SeedSequence((crash_seed(seed, k), i))`, for the k-th restart of its worker since the seed was set. Nothing else is
    served while a worker restarts.

    A pool belongs to the thread and process that made it. In workers, numeric libraries use one thread, and Ctrl-C is left to
    the main process. Linux and macOS only.

    Args:
        env: makes one environment (a function or class), or a `CompiledEnvironment` description or class. It is sent to the
            workers, so it lives in a module, or cloudpickle is installed.
        num_envs: at least 1.
        num_processes: at least 1; one for each core is a good choice, and more than environments are not started.
        batch_size: how many environments `recv` returns. None: all.
        seed: see `VecEnv.reset`.
        final_observations: which last observations to keep in `VecObs.final`.
        on_crash: "raise" or "restart".
        first_env: the number of environment 0 in seeds and messages, where this is a part of a larger pool.
        compile: of a compiled environment: false runs it as ordinary Python.
        boundscheck: of a compiled environment: compile checks of array bounds in.

    Attributes:
        num_processes: how many there are.

    Raises:
        ValueError: for arguments that cannot be, or an `env` that cannot be sent.
        WorkerDied: if a worker ends while it makes its environments. What they raise, is raised here.
    """

    def __init__(
        self,
        env: EnvSource,
        num_envs: int,
        num_processes: int,
        batch_size: int | None = None,
        seed: int = 0,
        final_observations: FinalObservations = "truncated",
        on_crash: OnCrash = "raise",
        *,
        first_env: int = 0,
        compile: bool = True,
        boundscheck: bool = False,
    ) -> None:
        check_num_envs(num_envs)
        check_final_observations(final_observations)
        check_workers(num_processes, on_crash)
        check_seed(seed)
        self._batch_size = check_batch_size(batch_size, num_envs)
        self._final_observations = final_observations
        self._given_on_crash: OnCrash = on_crash
        self._seed = seed
        self.num_processes = count = min(num_processes, num_envs)
        borders = [num_envs * worker // count for worker in range(count + 1)]
        pickled = pickled_for_worker(env)
        self._starts = [
            Start(pickled, lo, hi - lo, first_env, seed, final_observations, compile, boundscheck)
            for lo, hi in zip(borders[:-1], borders[1:], strict=True)
        ]
        self._everyone: EnvIds = np.arange(num_envs, dtype=np.int64)
        self._worker_of = np.repeat(np.arange(count), np.diff(borders))  # (N,)
        self._compiled = is_compiled(env)
        self._one_by_one = self._batch_size < num_envs
        self._env_info: list[Mapping[str, Any]] | None = None
        self._shown = Shown(num_envs)
        self._crashed: dict[int, VecObs] = {}  # first frames, each to be shown in answer to the next action
        self._inbox = Replies()  # what `recv` returns
        self._start_workers()

    def obs_space(self) -> ObsSpace:
        return self._hello.obs_space

    def action_space(self) -> Mapping[str, ActionSpace]:
        return self._hello.action_space

    def __len__(self) -> int:
        return len(self._everyone)

    @property
    def batch_size(self) -> int:
        return self._batch_size

    @property
    def num_restarts(self) -> int:
        """How many dead workers have been replaced so far."""
        return sum(worker.restarts for worker in self._pool.workers)

    def reset(self, seed: int | None = None, env_info: EnvInfo | None = None) -> VecObs:
        self._check_open()
        infos = None if env_info is None else check_env_info(env_info, len(self))
        if seed is not None:
            check_seed(seed)
            self._seed = seed
        self._forget(Status.NEW)
        obs = self._everyone_shows(Op.RESET, self._resets(False, seed, infos))
        if infos is not None:
            self._remember(infos)
        return obs

    def configure(self, env_info: EnvInfo) -> None:
        self._check_open()
        infos = check_env_info(env_info, len(self))
        parts = [[infos[i] for i in worker.env_id] for worker in self._pool.workers]
        self._await(self._pool.ask_all(Op.CONFIGURE, parts))
        self._remember(infos)

    def act(self, actions: Mapping[str, VecAction], env_id: EnvIdLike | None = None) -> VecObs:
        self._check_open()
        ids = self._status.ready(env_id, "act")
        self._check(actions, ids)
        replies = Replies()
        self._status.of[ids] = Status.LOST  # unless all goes well
        self._step(actions, ids, replies, one_by_one=False)
        self._await(replies)
        return self._show(replies.frames, ids)

    # ---- asynchronously

    def send(self, actions: Mapping[str, VecAction], env_id: EnvIdLike | None = None) -> None:
        self._check_open()
        ids = self._status.ready(env_id, "send")
        self._check(actions, ids)
        self._status.of[ids] = Status.UNDER_WAY
        self._step(actions, ids, self._inbox, one_by_one=self._one_by_one)

    def async_reset(self) -> None:
        self._check_open()
        self._forget(Status.UNDER_WAY)
        self._inbox = self._pool.ask_all(Op.RESET, self._resets(self._one_by_one, None, None), self._slices())

    def recv(self) -> VecObs:
        self._check_open()
        under_way, size = int((self._status.of == Status.UNDER_WAY).sum()), self._batch_size
        if under_way < size:
            raise ValueError(
                f"recv returns batch_size={size} environments, and {under_way} are under way: send them actions, or call "
                "async_reset"
            )
        while self._inbox.num_frames < size:
            self._raise_next_error()
            self._take_next()
        frames = self._inbox.pop(size)  # several come together only where all of them are waited for
        return self._show(frames, np.sort(np.concatenate([part.env_id for part in frames])))

    # ---- the rest

    def render(self, env_ids: EnvIdLike) -> list[NDArray[np.uint8]]:
        self._check_open()
        ids = np.asarray(env_ids)
        for i in np.unique(ids):
            check_env_id([i], len(self))
        replies = Replies()
        wanted = {w: np.unique(ids[self._worker_of[ids] == w]) for w in np.unique(self._worker_of[ids]).tolist()}
        for w, some in wanted.items():
            self._pool.workers[w].ask(Op.RENDER, some, replies)
        self._await(replies)
        images = {i: image for w in wanted for i, image in zip(wanted[w].tolist(), replies.results[w], strict=True)}
        return [images[int(i)] for i in ids]

    @property
    def can_save(self) -> bool:
        return self._hello.can_save

    def state(self) -> dict[str, Any]:
        self._settle_for("state")
        replies = self._pool.ask_all(Op.STATE, [None] * len(self._pool.workers))
        self._await(replies)
        merged: dict[str, Any] = merge_states([replies.results[worker.index] for worker in self._pool.workers])
        return merged

    def load_state(self, state: Mapping[str, Any]) -> VecObs:
        self._check_open()
        parts = split_state(state, [worker.env_id for worker in self._pool.workers])
        self._forget(Status.LOST)
        return self._everyone_shows(Op.LOAD_STATE, parts)

    def clone(self) -> Self:
        self._check_open()
        if not self.can_save:
            raise ValueError(
                f"a copy needs environments that can be saved; {self._hello.environment} does not implement both state() "
                "and load_state()"
            )
        self._settle_for("clone")
        state = self.state()
        twin = copy.copy(self)
        twin._crashed, twin._inbox = {}, Replies()
        twin._start_workers()
        try:
            twin.load_state(state)
        except BaseException:
            twin.close()
            raise
        twin._status.of[:] = self._status.of
        twin._shown, twin._crashed = self._shown.copy(), self._crashed.copy()
        for frames in self._inbox.frames:  # nobody has received them from either
            twin._inbox.add(copy.deepcopy(frames))
        return twin

    def close(self) -> None:
        self._pool.close()

    # ---- how it is done

    def _start_workers(self) -> None:
        """Start the processes and wait until all have made their environments."""
        self._on_crash: OnCrash = "raise"  # what does not start once does not start twice
        self._dead: WorkerDied | None = None
        self._pool = WorkerPool(self._starts)
        try:
            replies = Replies()
            for worker in self._pool.workers:
                worker.ask(Op.START, worker.start, replies)
                if self._compiled:  # the first one may compile, and the others find it in the cache
                    self._await(replies)
            self._await(replies)
        except BaseException:
            self._pool.close()
            raise
        self._hello: Hello = replies.results[0]
        hello, first_env = self._hello, self._starts[0].first_env
        self._reader = FrameReader(hello.obs_space, hello.action_space, hello.environment, first_env)
        self._on_crash = self._given_on_crash
        self._status = Statuses(len(self), self._reader.where)

    def _forget(self, status: Status) -> None:
        """Nobody waits any more for what is under way, and no environment has shown anything."""
        self._pool.abandon(self._inbox)
        self._inbox = Replies()
        self._crashed.clear()
        self._shown = Shown(len(self))
        self._status.of[:] = status

    def _remember(self, infos: list[Mapping[str, Any]]) -> None:
        """What a worker that takes the place of a dead one has to be told."""
        before = self._env_info or [{}] * len(infos)
        self._env_info = [{**old, **new} for old, new in zip(before, infos, strict=True)]

    def _slices(self) -> list[EnvIds]:
        return [self._everyone[worker.env_id.start : worker.env_id.stop] for worker in self._pool.workers]

    def _resets(self, one_by_one: bool, seed: int | None, infos: list[Mapping[str, Any]] | None) -> list[Reset]:
        """What each worker is asked for, to start an episode everywhere."""
        for worker in self._pool.workers:
            worker.deaths_in_a_row = 0
            worker.restarts_since_seed = worker.restarts_since_seed if seed is None else 0
        return [
            Reset(ids, one_by_one, seed, None if infos is None else [infos[i] for i in ids]) for ids in self._slices()
        ]

    def _everyone_shows(self, op: Op, values: list[Any]) -> VecObs:
        replies = self._pool.ask_all(op, values, self._slices())
        self._await(replies)
        return self._show(replies.frames, self._everyone)

    def _step(self, actions: Mapping[str, VecAction], ids: EnvIds, replies: Replies, *, one_by_one: bool) -> None:
        """Have the workers step `ids`. Those that crashed meanwhile show that, and are not stepped."""
        owners = self._worker_of[ids]
        for k in [k for k, i in enumerate(ids.tolist()) if i in self._crashed] if self._crashed else ():
            replies.add(self._after_crash(self._crashed.pop(int(ids[k]))))
            owners[k] = -1
        for worker in self._pool.workers:
            rows = np.flatnonzero(owners == worker.index)
            if len(rows) or (worker.index == 0 and not len(ids)):  # nobody steps: that has an answer all the same
                its = ids[rows]
                arrays = [its]
                for buffer in actions.values():
                    arrays += sequences(buffer, rows)
                worker.ask(Op.STEP, (one_by_one, list(actions)), replies, its, arrays)

    def _check(self, actions: Mapping[str, VecAction], ids: EnvIds) -> None:
        """Refuse actions that were not offered here, where no worker has stepped anything yet."""
        if len(ids):
            where = lambda position: self._reader.where(int(ids[position]))  # noqa: E731
            check_actions(actions, self._shown.action_masks(ids), self._reader.action_space, where)

    def _show(self, parts: Sequence[Frames], ids: EnvIds) -> VecObs:
        """The frames of `parts`, in the order of `ids`."""
        obs = joined(parts)
        if not np.array_equal(obs.env_id, ids):
            row_of = np.argsort(obs.env_id)
            obs = obs.gather(row_of[np.searchsorted(obs.env_id, ids, sorter=row_of)])
        self._shown.record(obs)
        self._status.of[ids] = Status.READY
        return obs

    def _await(self, replies: Replies) -> None:
        """Wait for all answers; the first error is raised, and the other answers are not waited for."""
        try:
            while replies.waiting and not replies.errors:
                self._take_next()
            if replies.errors:
                raise replies.errors.pop(0)
        except BaseException:
            self._pool.abandon(replies)
            raise

    def _take_next(self) -> None:
        """Wait for any answer, or for a second in vain, and see to a worker that died."""
        died = self._pool.take_next()
        if died is None:
            return
        worker = self._pool.workers[died.worker]
        if self._on_crash == "raise" or worker.deaths_in_a_row >= MAX_DEATHS_IN_A_ROW:
            self._dead = copy.copy(died)  # without its traceback, which leads here
            raise died
        worker.deaths_in_a_row += 1
        worker.restarts += 1
        worker.restarts_since_seed += 1
        log.warning("%s; its environments go on in a new process, in new episodes", died)
        start = worker.start._replace(seed=crash_seed(self._seed, worker.restarts_since_seed))
        infos = None if self._env_info is None else [self._env_info[i] for i in worker.env_id]
        try:
            lost, first = self._pool.replace(worker, start, infos)
        except BaseException as error:
            self._dead = copy.copy(error if isinstance(error, WorkerDied) else died)
            raise
        self._recover(worker, lost, first, died)

    def _recover(self, worker: WorkerProcess, lost: list[Request], first: VecObs, died: WorkerDied) -> None:
        """Answer what a dead worker `lost`; `first` is what the environments of its successor show."""
        idle = {i for i in first.env_id.tolist() if self._status.of[i] in (Status.READY, Status.UNDER_WAY)}
        for request in lost:
            idle.difference_update(request.ids.tolist())
            if request.replies is None:
                continue
            request.replies.waiting -= 1
            if request.op == Op.STEP:
                for i in request.ids.tolist():
                    frame = first.gather(np.array([i - first.env_id[0]]))
                    request.replies.add(self._after_crash(frame))
            elif request.op == Op.RESET:  # a new process can be reset like any other
                worker.ask(Op.RESET, request.value._replace(ids=request.ids), request.replies, request.ids)
            elif request.op == Op.CONFIGURE:
                worker.ask(Op.CONFIGURE, request.value, request.replies)
            else:
                request.replies.fail(died, NOBODY)
        for i in idle:  # it has shown something that nobody can act upon any more
            self._crashed[i] = first.gather(np.array([i - first.env_id[0]]))

    def _after_crash(self, first: VecObs) -> Frames:
        """The first frame of a new episode, with what belongs to the one that crashed."""
        last = None if self._final_observations == "none" else self._shown.last(int(first.env_id[0]))
        return flatten(crashed(first, last))

    def _settle_for(self, method: str) -> None:
        """Wait until nothing is under way but what `recv` can return at once."""
        self._check_open()
        while self._inbox.waiting:
            self._take_next()
        self._raise_next_error()
        self._status.check_all_shown(method)

    def _raise_next_error(self) -> None:
        """Raise what an environment raised that was under way."""
        if self._inbox.errors:
            self._status.of[self._inbox.lost.pop(0)] = Status.LOST
            raise self._inbox.errors.pop(0)

    def _check_open(self) -> None:
        if self._pool.closed:
            raise ValueError("the pool is closed")
        if self._pool.owner != os.getpid():
            raise ValueError("this pool was made in another process, and cannot be shared with it: make one here")
        if self._dead is not None:
            raise copy.copy(self._dead)
