"""A pool whose environments run in worker processes, for environments that are slow and hold the interpreter's lock."""

from __future__ import annotations

import copy
import os
import selectors
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions import ActionSpace
from entity_gym.actions.choices import check_actions
from entity_gym.batch import columns
from entity_gym.batch.frame import FrameReader
from entity_gym.batch.obs_rows import Shown
from entity_gym.batch.vec_obs import VecAction, VecObs
from entity_gym.pools.processes.handle import Replies, WorkerDied, WorkerProcess, shut_down
from entity_gym.pools.processes.pickling import pickled_for_worker
from entity_gym.pools.slots import (
    EnvIds,
    SlotOptions,
    check_num_envs,
    check_seed,
    check_state,
)
from entity_gym.pools.source import EnvFactory, source_of
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

CHECK_INTERVAL = 1.0  # seconds between looks at whether silent workers are alive


class ProcessVecEnv(VecEnv):
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
        env: anything that `ThreadedVecEnv` takes. It is sent to the workers, so it lives in a module, or cloudpickle is
            installed. Every worker makes its own environments; all must have the same spaces.
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
        check_num_envs(num_envs)
        slot_options = SlotOptions(**options)
        if isinstance(num_processes, bool) or not isinstance(num_processes, int) or num_processes < 1:
            raise ValueError(f"num_processes is {num_processes!r}; it must be a whole number, at least 1")
        check_seed(seed)
        self._batch_size = check_batch_size(batch_size, num_envs)
        self._first_env, self._autoreset = slot_options.first_env, slot_options.autoreset
        self._options = slot_options
        source = source_of(env)
        self._pickled_env = pickled_for_worker(source)
        self._compiled = source.is_compiled
        self.num_processes = min(num_processes, num_envs)
        borders = [num_envs * worker // self.num_processes for worker in range(self.num_processes + 1)]
        self._slices = [range(lo, hi) for lo, hi in zip(borders[:-1], borders[1:], strict=True)]
        self._worker_of = np.repeat(np.arange(self.num_processes), np.diff(borders))  # (N,)
        self._everyone: EnvIds = np.arange(num_envs, dtype=np.int64)
        self._one_by_one = self._batch_size < num_envs
        self._shown = Shown(num_envs)
        self._inbox = Replies()  # of `send` and `async_reset`, for `recv`
        self._start_workers(seed)

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

    def reset(self, seed: int | None = None, env_info: EnvInfo | None = None) -> VecObs:
        self._check_open()
        infos = None if env_info is None else check_env_info(env_info, len(self))
        if seed is not None:
            check_seed(seed)
        self._forget(Status.NEW)
        replies = Replies()
        self._ask_resets(replies, False, seed, infos)
        self._await(replies)
        return self._show(replies.frames, self._everyone)

    def configure(self, env_info: EnvInfo) -> None:
        self._check_open()
        infos = check_env_info(env_info, len(self))
        self._call("configure", {w: ([infos[i] for i in ids],) for w, ids in enumerate(self._slices)})

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
        twin._inbox = Replies()
        twin._start_workers(0)
        try:
            twin.load_state(state)
        except BaseException:
            twin.close()
            raise
        twin._status.of[:] = self._status.of
        twin._shown = self._shown.copy()
        for frames in self._inbox.frames:  # not received from either pool yet
            twin._inbox.add(copy.deepcopy(frames))
        return twin

    def close(self) -> None:
        self._finalizer()

    # ---- requests

    def _start_workers(self, seed: int) -> None:
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
                worker.ask(replies, "start", self._pickled_env, worker.env_id, seed, self._options)
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

    def _call(self, name: str, arguments: Mapping[int, Sequence[Any]]) -> dict[int, Any]:
        """Call a method in some workers, with arguments for each of them. Returns a result for each of them."""
        replies = Replies()
        for index, its in arguments.items():
            self._workers[index].ask(replies, name, *its)
        self._await(replies)
        return replies.results

    def _ask_resets(
        self, replies: Replies, one_by_one: bool, seed: int | None, infos: list[Mapping[str, Any]] | None
    ) -> None:
        """Ask every worker to start episodes everywhere."""
        for worker in self._workers:
            ids, its = np.array(worker.env_id), infos and [infos[i] for i in worker.env_id]
            worker.ask(replies, "reset", ids, one_by_one, seed, its, ids=ids)

    def _ask_steps(self, replies: Replies, one_by_one: bool, actions: Mapping[str, VecAction], ids: EnvIds) -> None:
        """Ask the workers to step `ids`."""
        owners = self._worker_of[ids]
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
        """Wait for answers, at most `CHECK_INTERVAL`, and read them.

        Raises:
            RuntimeError: if Ctrl-C interrupted an earlier call while it read a message, of which half is left.
            WorkerDied: if a worker died.
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
            self._dead = copy.copy(died)  # without its traceback, which leads here
            raise died

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
        if not self._autoreset and obs.done.any():
            self._status.of[obs.env_id[obs.done]] = Status.OVER
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
        self._shown = Shown(len(self))
        self._status.of[:] = status

    def _check_open(self) -> None:
        if not self._finalizer.alive:
            raise ValueError("the pool is closed")
        if self._owner != os.getpid():
            raise ValueError("this pool was made in another process, and cannot be shared with it: make one here")
        if self._dead is not None:
            raise copy.copy(self._dead)


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
