"""A pool whose environments run in worker processes, for environments that are slow and hold the interpreter's lock."""

from __future__ import annotations

import copy
import logging
import os
import selectors
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self, get_args

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions import ActionSpace
from entity_gym.actions.choices import check_actions
from entity_gym.batch import columns
from entity_gym.batch.frame import FrameReader
from entity_gym.batch.obs_rows import Shown, crashed
from entity_gym.batch.vec_obs import VecAction, VecObs
from entity_gym.pools.pool import EnvSource, is_compiled
from entity_gym.pools.processes.handle import NOBODY, Replies, Request, WorkerDied, WorkerProcess, shut_down
from entity_gym.pools.processes.pickling import pickled_for_worker
from entity_gym.pools.slots import (
    EnvIds,
    FinalObservations,
    check_final_observations,
    check_num_envs,
    check_seed,
    check_state,
)
from entity_gym.pools.vec_env import (
    EnvIdLike,
    EnvInfo,
    Status,
    Statuses,
    VecEnv,
    check_batch_size,
    check_env_id,
    check_env_info,
)
from entity_gym.spaces import ObsSpace

#: Reaction of a pool to the death of a worker process.
OnCrash = Literal["raise", "restart"]

CHECK_INTERVAL = 1.0  # seconds between looks at whether silent workers are alive
MAX_DEATHS_IN_A_ROW = 5  # of a worker that steps nothing in between: then another restart does not help

log = logging.getLogger(__name__)


class ProcessVecEnv(VecEnv):
    """Steps environments in worker processes, which read actions and write observations in shared memory.

    Worth it where the steps of all environments together take several milliseconds: sharing them out costs about one.
    Each worker owns a slice of the environments and steps them one after the other; observations depend on seeds and actions
    alone, not on the number of processes. With `batch_size < num_envs` every environment is reported as soon as it is done.

    An exception of an environment is raised here with its own type, message and notes, and with the worker's traceback as a
    note; the environments concerned have to be reset, and the others may go on. When a worker dies, calls raise
    `WorkerDied`. With `on_crash="restart"`, its environments are made and reset anew in a new process instead. Each of them
    then shows the first frame of its next episode, once, in answer to its next action, with `done`, `truncated`, reward 0 and
    `end_of_episode_info {"crashed": True}`; the last frame of the lost episode stands in `final`. Environment i then draws
    from `SeedSequence((crash_seed(seed, k), i))`, for the k-th restart of its worker since the seed was set.

    A pool belongs to the thread and process that made it. In workers, numeric libraries use one thread, and Ctrl-C is
    handled by the main process alone. Linux and macOS only.

    Args:
        env: anything that `ThreadedVecEnv` takes. It is sent to the workers, so it lives in a module, or cloudpickle is
            installed. Every worker makes its own environments; all must have the same spaces.
        num_envs: at least 1.
        num_processes: at least 1; one for each core is a good choice. At most one for each environment is started.
        batch_size: number of environments that `recv` returns. None: all.
        seed: see `VecEnv.reset`.
        final_observations: which last observations to keep in `VecObs.final`.
        on_crash: "raise" or "restart".
        first_env: the number of environment 0 in seeds and messages, where this is a part of a larger pool.
        compile: of a compiled environment: false runs it as ordinary Python.
        boundscheck: of a compiled environment: compile checks of array bounds in.
        entity_ids: give every entity a number that it keeps for the whole episode, in `VecObs.ids`.

    Attributes:
        num_processes: the number of workers.

    Raises:
        ValueError: for an invalid argument, or an `env` that cannot be sent. Exceptions of environments are raised here too.
        WorkerDied: if a worker ends while it makes its environments.
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
        entity_ids: bool = False,
    ) -> None:
        check_num_envs(num_envs)
        check_final_observations(final_observations)
        if isinstance(num_processes, bool) or not isinstance(num_processes, int) or num_processes < 1:
            raise ValueError(f"num_processes is {num_processes!r}; it must be a whole number, at least 1")
        if on_crash not in get_args(OnCrash):
            raise ValueError(f"on_crash is {on_crash!r}; allowed: {get_args(OnCrash)}")
        check_seed(seed)
        self._batch_size = check_batch_size(batch_size, num_envs)
        self._final_observations = final_observations
        self._on_crash: OnCrash = on_crash
        self._seed = seed
        self._first_env = first_env
        self._options = {
            "final_observations": final_observations,
            "compile": compile,
            "boundscheck": boundscheck,
            "entity_ids": entity_ids,
        }
        self._pickled_env = pickled_for_worker(env)
        self._compiled = is_compiled(env)
        self.num_processes = min(num_processes, num_envs)
        borders = [num_envs * worker // self.num_processes for worker in range(self.num_processes + 1)]
        self._slices = [range(lo, hi) for lo, hi in zip(borders[:-1], borders[1:], strict=True)]
        self._worker_of = np.repeat(np.arange(self.num_processes), np.diff(borders))  # (N,)
        self._everyone: EnvIds = np.arange(num_envs, dtype=np.int64)
        self._one_by_one = self._batch_size < num_envs
        self._env_info: list[Mapping[str, Any]] | None = None
        self._shown = Shown(num_envs)
        self._crashed: dict[int, VecObs] = {}  # first frames after a crash, each the answer to the next action
        self._inbox = Replies()  # of `send` and `async_reset`, for `recv`
        self._start_workers()

    def obs_space(self) -> ObsSpace:
        return self._reader.obs_space

    def action_space(self) -> Mapping[str, ActionSpace]:
        return self._reader.action_space

    def __len__(self) -> int:
        return len(self._everyone)

    def under_way(self) -> str:
        return ", ".join(str(worker) for worker in self._workers if worker.requests) or super().under_way()

    @property
    def batch_size(self) -> int:
        return self._batch_size

    @property
    def num_restarts(self) -> int:
        """Number of dead workers that have been replaced so far."""
        return sum(worker.restarts for worker in self._workers)

    def reset(self, seed: int | None = None, env_info: EnvInfo | None = None) -> VecObs:
        self._check_open()
        infos = None if env_info is None else check_env_info(env_info, len(self))
        if seed is not None:
            check_seed(seed)
            self._seed = seed
        self._forget(Status.NEW)
        replies = Replies()
        self._ask_resets(replies, False, seed, infos)
        self._await(replies)
        obs = self._show(replies.frames, self._everyone)
        if infos is not None:
            self._remember(infos)
        return obs

    def configure(self, env_info: EnvInfo) -> None:
        self._check_open()
        infos = check_env_info(env_info, len(self))
        self._call("configure", {w: ([infos[i] for i in ids],) for w, ids in enumerate(self._slices)})
        self._remember(infos)

    def act(self, actions: Mapping[str, VecAction], env_id: EnvIdLike | None = None) -> VecObs:
        self._check_open()
        ids = self._status.ready(env_id, "act")
        self._check(actions, ids)
        replies = Replies()
        self._status.of[ids] = Status.LOST  # unless all goes well
        self._ask_steps(replies, False, actions, ids)
        self._await(replies)
        return self._show(replies.frames, ids)

    # ---- asynchronously

    def send(self, actions: Mapping[str, VecAction], env_id: EnvIdLike | None = None) -> None:
        self._check_open()
        ids = self._status.ready(env_id, "send")
        self._check(actions, ids)
        self._status.of[ids] = Status.UNDER_WAY
        self._ask_steps(self._inbox, self._one_by_one, actions, ids)

    def async_reset(self) -> None:
        self._check_open()
        self._forget(Status.UNDER_WAY)
        self._ask_resets(self._inbox, self._one_by_one, None, None)

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
        frames = self._inbox.pop(size)  # with batch_size=num_envs whole slices, otherwise one by one
        return self._show(frames, np.sort(np.concatenate([part.env_id for part in frames])))

    # ---- drawing, saving, copying

    def render(self, env_ids: EnvIdLike) -> list[NDArray[np.uint8]]:
        return self._ask_of_each("render", env_ids)

    def draw(self, env_ids: EnvIdLike) -> list[Mapping[str, Any] | None]:
        return self._ask_of_each("draw", env_ids)

    def _ask_of_each(self, what: str, env_ids: EnvIdLike) -> list[Any]:
        """An answer of the workers for each of these environments."""
        self._check_open()
        for i in env_ids:
            check_env_id([i], len(self))
        ids = np.asarray(env_ids, np.int64)
        wanted = {w: np.unique(ids[self._worker_of[ids] == w]) for w in np.unique(self._worker_of[ids]).tolist()}
        told = self._call(what, {w: (some,) for w, some in wanted.items()})
        answers = {i: answer for w in wanted for i, answer in zip(wanted[w].tolist(), told[w], strict=True)}
        return [answers[i] for i in ids.tolist()]

    @property
    def can_save(self) -> bool:
        return self._can_save

    def state(self) -> dict[str, Any]:
        self._settle_for("state")
        parts = self._call("state", dict.fromkeys(range(self.num_processes), ()))
        merged: dict[str, Any] = merge_states([parts[w] for w in range(self.num_processes)])
        return merged

    def load_state(self, state: Mapping[str, Any]) -> VecObs:
        self._check_open()
        parts = split_state(state, self._slices)
        self._forget(Status.LOST)
        replies = Replies()
        for worker, part in zip(self._workers, parts, strict=True):
            worker.ask(replies, "load_state", part, ids=np.array(worker.env_id))
        self._await(replies)
        return self._show(replies.frames, self._everyone)

    def clone(self) -> Self:
        self._check_open()
        if not self.can_save:
            raise ValueError(
                f"a copy needs environments that can be saved; {self._reader.environment} does not implement both state() "
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
        for frames in self._inbox.frames:  # not received from either pool yet
            twin._inbox.add(copy.deepcopy(frames))
        return twin

    def close(self) -> None:
        self._finalizer()

    # ---- requests

    def _start_workers(self) -> None:
        """Start the processes and wait until all have made their environments."""
        self._owner = os.getpid()
        self._dead: WorkerDied | None = None
        self._interrupted = False
        self._workers: list[WorkerProcess] = []
        # Also ends the workers when this pool is collected as garbage, and when the interpreter exits.
        self._finalizer = weakref.finalize(self, shut_down, self._workers, self._owner)
        try:
            for index, env_id in enumerate(self._slices):
                self._workers.append(WorkerProcess(index, env_id, self._first_env))
            self._watch()
            replies = Replies()
            for worker in self._workers:
                self._ask_start(replies, worker, self._seed)
                if self._compiled:  # the first one may compile, and the others find it in the cache
                    self._await(replies)
            self._await(replies)
            obs_space, action_space, environment, can_save = replies.results[0]
            self._can_save: bool = can_save
            self._reader = FrameReader(obs_space, action_space, environment, self._first_env)
            for worker in self._workers:
                self._check_started(worker, replies)
        except BaseException:
            self.close()
            raise
        self._status = Statuses(len(self), self._reader.where)

    def _check_started(self, worker: WorkerProcess, replies: Replies) -> None:
        """Raise a ValueError unless the environments that a worker has made have the spaces of the pool."""
        spaces = replies.results[worker.index][:2]
        expected = self._reader.obs_space, self._reader.action_space
        for method, given, wanted in zip(("obs_space", "action_space"), spaces, expected, strict=True):
            if given != wanted:
                raise ValueError(
                    f"{self._reader.where(worker.env_id[0])}: {method}() returned {given!r:.300} in worker {worker.index}, "
                    f"and that of {self._reader.where(0)} {wanted!r:.300} in worker 0; environments of one pool must have "
                    "the same spaces"
                )
        worker.starting = False

    def _call(self, name: str, arguments: Mapping[int, Sequence[Any]]) -> dict[int, Any]:
        """Call a method in some workers, with arguments for each of them. Returns a result for each of them."""
        replies = Replies()
        for index, its in arguments.items():
            self._workers[index].ask(replies, name, *its)
        self._await(replies)
        return replies.results

    def _ask_start(self, replies: Replies, worker: WorkerProcess, seed: int) -> None:
        worker.ask(replies, "start", self._pickled_env, worker.env_id, self._first_env, seed, self._options)

    def _ask_resets(
        self, replies: Replies, one_by_one: bool, seed: int | None, infos: list[Mapping[str, Any]] | None
    ) -> None:
        """Ask every worker to start episodes everywhere."""
        for worker in self._workers:
            worker.deaths_in_a_row = 0
            if seed is not None:
                worker.restarts_since_seed = 0
            ids, its = np.array(worker.env_id), infos and [infos[i] for i in worker.env_id]
            worker.ask(replies, "reset", ids, one_by_one, seed, its, ids=ids)

    def _ask_steps(self, replies: Replies, one_by_one: bool, actions: Mapping[str, VecAction], ids: EnvIds) -> None:
        """Ask the workers to step `ids`. Environments that crashed meanwhile show that instead."""
        owners = self._worker_of[ids]
        for k in [k for k, i in enumerate(ids.tolist()) if i in self._crashed] if self._crashed else ():
            replies.add(self._after_crash(self._crashed.pop(int(ids[k]))))
            owners[k] = -1
        for worker in self._workers:
            rows = np.flatnonzero(owners == worker.index)
            if len(rows) or (worker.index == 0 and not len(ids)):  # a step of no environments has an answer too
                together = len(rows) and rows[-1] - rows[0] + 1 == len(rows)  # as in a step of everyone
                its = ids[rows]
                mine = columns.part(actions, rows[0], rows[-1] + 1) if together else columns.gather(actions, rows)
                arrays = columns.flatten(mine)
                worker.ask(replies, "step", one_by_one, tuple(arrays), ids=its, arrays=[its, *arrays.values()])

    def _check(self, actions: Mapping[str, VecAction], ids: EnvIds) -> None:
        """Check actions before any worker steps."""
        if len(ids):
            masks = self._shown.action_masks(ids)
            check_actions(actions, masks, self._reader.action_space, lambda k: self._reader.where(int(ids[k])))

    # ---- answers

    def _await(self, replies: Replies) -> None:
        """Wait for all answers. Raises the first error, and ignores the answers that have not arrived by then."""
        try:
            while replies.waiting and not replies.errors:
                self._take_next()
            if replies.errors:
                raise replies.errors[0][0]
        except BaseException:
            self._ignore(replies)
            raise

    def _take_next(self) -> None:
        """Wait for answers, at most `CHECK_INTERVAL`, and read them. Restarts or reports a worker that died.

        Raises:
            RuntimeError: if Ctrl-C interrupted an earlier call while it read a message, of which half is left.
            WorkerDied: if a worker died, and is not restarted.
        """
        if self._interrupted:
            raise RuntimeError("the pool was interrupted in the middle of a message: close it and make a new one")
        answered = [key.data for key, _ in self._selector.select(CHECK_INTERVAL)]
        died = None
        try:
            for worker in answered:
                worker.take()
        except WorkerDied as error:
            died = error
        except KeyboardInterrupt:
            self._interrupted = True
            raise
        if not answered:  # a dead worker hangs up, unless a process that it started keeps the connection open
            died = next((worker.death() for worker in self._workers if worker.process.poll() is not None), None)
        if died is not None:
            self._restart(died)

    def _watch(self) -> None:
        self._selector = selectors.PollSelector()
        for worker in self._workers:
            self._selector.register(worker.channel.connection, selectors.EVENT_READ, worker)

    def _show(self, parts: Sequence[VecObs], ids: EnvIds) -> VecObs:
        """Join frames in the order of `ids`, and remember them."""
        obs = VecObs.cat(parts)
        if not np.array_equal(obs.env_id, ids):
            row_of = np.argsort(obs.env_id)
            obs = obs.gather(row_of[np.searchsorted(obs.env_id, ids, sorter=row_of)])
        self._shown.record(obs)
        self._status.of[ids] = Status.READY
        return obs

    def _raise_next_error(self) -> None:
        """Raise the next exception of an environment that is under way."""
        if self._inbox.errors:
            error, ids = self._inbox.errors.popleft()
            self._status.of[ids] = Status.LOST
            raise error

    def _settle_for(self, method: str) -> None:
        """Wait until nothing is under way but frames that `recv` can return at once."""
        self._check_open()
        while self._inbox.waiting:
            self._take_next()
        self._raise_next_error()
        self._status.check_all_shown(method)

    def _ignore(self, replies: Replies) -> None:
        """Ignore the answers that are still to come."""
        for worker in self._workers:
            for request in worker.requests:
                if request.replies is replies:
                    request.replies = None

    def _forget(self, status: Status) -> None:
        """Ignore the frames that are under way and those shown so far; give every environment this status."""
        self._ignore(self._inbox)
        self._inbox = Replies()
        self._crashed.clear()
        self._shown = Shown(len(self))
        self._status.of[:] = status

    def _remember(self, infos: list[Mapping[str, Any]]) -> None:
        """Keep parameters for workers that take the place of dead ones."""
        before = self._env_info or [{}] * len(infos)
        self._env_info = [{**old, **new} for old, new in zip(before, infos, strict=True)]

    def _check_open(self) -> None:
        if not self._finalizer.alive:
            raise ValueError("the pool is closed")
        if self._owner != os.getpid():
            raise ValueError("this pool was made in another process, and cannot be shared with it: make one here")
        if self._dead is not None:
            raise copy.copy(self._dead)

    # ---- workers that die

    def _restart(self, died: WorkerDied) -> None:
        """Put a new process in the place of one that died, and reset its environments.

        Raises:
            WorkerDied: if dead workers are not restarted, or this one does not survive it.
        """
        worker = self._workers[died.worker]
        if self._on_crash == "raise" or worker.starting or worker.deaths_in_a_row >= MAX_DEATHS_IN_A_ROW:
            self._dead = copy.copy(died)  # without its traceback, which leads here
            raise died
        worker.deaths_in_a_row += 1
        worker.restarts += 1
        worker.restarts_since_seed += 1
        log.warning("%s; its environments go on in a new process, in new episodes", died)
        infos = self._env_info and [self._env_info[i] for i in worker.env_id]
        ids, replies = np.array(worker.env_id), Replies()
        try:
            worker.channel.close()
            lost = list(worker.requests)
            worker.launch()
            self._watch()
            self._ask_start(replies, worker, crash_seed(self._seed, worker.restarts_since_seed))
            worker.ask(replies, "reset", ids, False, None, infos, ids=ids)
            self._await(replies)
            self._check_started(worker, replies)
        except BaseException:
            self._dead = self._dead or copy.copy(died)
            raise
        self._answer_lost(worker, lost, VecObs.cat(list(replies.frames)), died)

    def _answer_lost(self, worker: WorkerProcess, lost: list[Request], first: VecObs, died: WorkerDied) -> None:
        """Answer the requests that a dead worker lost; `first` are the first frames of its successor."""
        first_frames = {i: first.gather(np.array([row])) for row, i in enumerate(worker.env_id)}
        idle = {i for i in worker.env_id if self._status.of[i] in (Status.READY, Status.UNDER_WAY)}
        for request in lost:
            idle.difference_update(request.ids.tolist())
            if request.replies is None:
                continue
            request.replies.waiting -= 1
            if request.name == "step":
                for i in request.ids.tolist():
                    request.replies.add(self._after_crash(first_frames[i]))
            elif request.name == "reset":  # the new process can be reset like any other
                worker.ask(request.replies, "reset", request.ids, *request.arguments[1:], ids=request.ids)
            elif request.name == "configure":
                worker.ask(request.replies, "configure", *request.arguments)
            else:
                request.replies.errors.append((died, NOBODY))
        for i in idle:  # nobody can act upon its last frame any more
            self._crashed[i] = first_frames[i]

    def _after_crash(self, first: VecObs) -> VecObs:
        """Return the first frame of a new episode, marked as the end of the episode that crashed."""
        last = None if self._final_observations == "none" else self._shown.last(int(first.env_id[0]))
        return crashed(first, last)


def crash_seed(seed: int, restart: int) -> int:
    """Return the seed of a worker's environments after its `restart`-th restart (from 1) since it was seeded with `seed`.

    Deterministic, and unlikely to be a seed that a user gives, so that no episode is repeated. It has 32 bits, as many as
    `numpy.random.RandomState` takes.
    """
    return int(np.random.SeedSequence((seed, restart), spawn_key=(0,)).generate_state(1, np.uint32)[0])


def merge_states(parts: Sequence[Any]) -> Any:
    """Join the states of consecutive slices of environments.

    States are dictionaries of lists and arrays with an entry for each environment, and of numbers of environments.
    """
    first = parts[0]
    if isinstance(first, Mapping):
        return {key: merge_states([part[key] for part in parts]) for key in first}
    if isinstance(first, np.ndarray):
        return np.concatenate(parts)
    if isinstance(first, list):
        return [entry for part in parts for entry in part]
    assert isinstance(first, int), f"a state holds {first!r:.200}"
    return sum(parts)


def split_state(state: Mapping[str, Any], slices: Sequence[range]) -> list[Any]:
    """Cut the state of a pool into those of its slices.

    Raises:
        ValueError: if it is the state of another number of environments, or of another kind.
    """
    num_envs = slices[-1].stop
    if "num_envs" not in state:
        check_state(state, "environments")
    saved = state["num_envs"] if "num_envs" in state else len(state["environments"])
    if saved != num_envs:
        raise ValueError(f"the saved state has {saved} environments; this pool has {num_envs}")

    def part(value: Any, of: range) -> Any:
        if isinstance(value, Mapping):
            return {key: part(item, of) for key, item in value.items()}
        return value[of.start : of.stop] if isinstance(value, np.ndarray | list) else len(of)

    return [part(state, of) for of in slices]
