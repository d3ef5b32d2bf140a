"""Environments in worker processes, for those that are slow and hold the interpreter's lock."""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions.reading import EntityID
from entity_gym.batch import columns
from entity_gym.batch.batching import batch_frames
from entity_gym.batch.vec_obs import VecAction, VecObs
from entity_gym.pools.processes.pickling import pickled_for_worker
from entity_gym.pools.processes.worker import WorkerProcess, shut_down
from entity_gym.pools.slots import EnvIds, EnvSlots, Run, SlotOptions, check_state
from entity_gym.pools.source import EnvSource


class ProcessSlots(EnvSlots):
    """Slots whose environments live in worker processes, a slice in each.

    Requests to several processes are sent before any answer is waited for, so one thread is enough for a step of all
    environments. Each process answers one request after the other; threads that ask the same one wait for each other.

    Args:
        source: sent to the processes, by cloudpickle.
        num_envs: N.
        options: see `SlotOptions`.
        num_processes: 1 to N.

    Raises:
        ValueError: for a source that cannot be sent. Exceptions of environments are raised here too.
        WorkerDied: if a worker ends while it makes its environments.
    """

    one_by_one = True
    closes_at_once = True
    has_groups = True  # if the slots of its processes have

    def __init__(
        self,
        source: EnvSource,
        num_envs: int,
        options: SlotOptions = SlotOptions(),
        *,
        num_processes: int = 1,
    ) -> None:
        self._pickled_env = pickled_for_worker(source)
        self._compiled = source.is_compiled
        borders = [num_envs * worker // num_processes for worker in range(num_processes + 1)]
        self._slices = [range(lo, hi) for lo, hi in zip(borders[:-1], borders[1:], strict=True)]
        self._owner_of = np.repeat(np.arange(num_processes), np.diff(borders))  # (N,) the process of each environment
        obs_space, action_space, name, can_save = self._start(options)
        self._can_save: bool = can_save
        super().__init__(num_envs, options, obs_space, action_space, name)
        # (N,) what was shown last: a batch, and the environment's row there; -1 before the first reset.
        self._shown, self._row_of = np.empty(num_envs, object), np.full(num_envs, -1)

    def _start(self, options: SlotOptions) -> tuple[Any, ...]:
        """Start the processes, wait until all have made their environments, and return the answer of the first."""
        self._pid = os.getpid()
        self._workers: list[WorkerProcess] = []
        # Also ends the processes when these slots are collected as garbage, and when the interpreter exits.
        self._shut_down = weakref.finalize(self, shut_down, self._workers, self._pid)
        try:
            for index, mine in enumerate(self._slices):
                self._workers.append(WorkerProcess(index, mine, options.first_env))
            requests = {}
            for index, mine in enumerate(self._slices):
                its_options = replace(options, first_env=options.first_env + mine.start)
                requests[index] = ("start", (self._pickled_env, len(mine), its_options))
            # A compiled environment is compiled by the first process, and the others find it in the cache.
            answers = self._ask({0: requests.pop(0)} if self._compiled else {})
            answers |= self._ask(requests)
            self._check_spaces(answers, options.first_env)
        except BaseException:
            self.close()
            raise
        first: tuple[Any, ...] = answers[0]
        return first

    def _check_spaces(self, answers: Mapping[int, tuple[Any, ...]], first_env: int) -> None:
        """Raise a ValueError unless the environments of all processes have the same spaces."""
        name = answers[0][2]
        for index, answer in answers.items():
            for method, given, expected in zip(("obs_space", "action_space"), answer, answers[0], strict=False):
                if given != expected:
                    raise ValueError(
                        f"{name} (environment {first_env + self._slices[index].start}): {method}() returned {given!r:.300} "
                        f"in worker {index}, and that of {name} (environment {first_env}) {expected!r:.300} in worker 0; "
                        "environments of one pool must have the same spaces"
                    )

    def under_way(self) -> str:
        return ", ".join(str(worker) for worker in self._workers if worker.is_busy) or super().under_way()

    def seed(self, seed: int) -> None:
        self._ask(dict.fromkeys(range(len(self._slices)), ("seed", (seed,))))

    def configure(self, ids: EnvIds, env_info: Sequence[Mapping[str, Any]]) -> None:
        requests = {}
        for w, rows in self._divided(ids):
            requests[w] = ("configure", (ids[rows] - self._slices[w].start, [env_info[k] for k in rows.tolist()]))
        self._ask(requests)

    def reset(self, ids: EnvIds, worker: int = 0) -> None:
        its = {w: ids[rows] - self._slices[w].start for w, rows in self._divided(ids)}
        self._record(self._ask({w: ("reset", (mine,), mine) for w, mine in its.items()}))

    def step(self, actions: Mapping[str, VecAction], ids: EnvIds, lo: int, hi: int, worker: int = 0) -> None:
        requests = {}
        for w, rows in self._divided(ids[lo:hi]):
            first, last = lo + rows[0], lo + rows[-1]
            together = last - first + 1 == len(rows)  # as in a step of everyone
            mine = columns.part(actions, first, last + 1) if together else columns.gather(actions, lo + rows)
            its_ids = ids[lo + rows] - self._slices[w].start
            requests[w] = ("step", (mine, its_ids, 0, len(rows)), its_ids)
        self._record(self._ask(requests))

    def collect(self, ids: EnvIds, run: Run) -> VecObs:
        shown, row_of, parts = self._shown[ids], self._row_of[ids], []
        assert (row_of >= 0).all(), "an environment has not been reset"
        batches = np.fromiter(map(id, shown), np.int64, len(ids))
        for batch in {id(each): each for each in shown}.values():
            rows = row_of[batches == id(batch)]
            parts.append(batch if np.array_equal(rows, np.arange(len(batch))) else batch.gather(rows))
        if not parts:
            return batch_frames([], [], ids.copy(), np.zeros(0, np.int64), self._reader)
        obs = VecObs.cat(parts)
        if not np.array_equal(obs.env_id, ids):
            order = np.argsort(obs.env_id)
            obs = obs.gather(order[np.searchsorted(obs.env_id, ids, sorter=order)])
        return obs

    def render(self, i: int) -> NDArray[np.uint8]:
        image: NDArray[np.uint8] = self._ask_owner(i, "render")
        return image

    def draw(self, i: int) -> Mapping[str, Any] | None:
        hints: Mapping[str, Any] | None = self._ask_owner(i, "draw")
        return hints

    def world_ids(self, i: int) -> Sequence[EntityID | None] | None:
        ids: Sequence[EntityID | None] | None = self._ask_owner(i, "world_ids")
        return ids

    @property
    def can_save(self) -> bool:
        return self._can_save

    def state(self) -> dict[str, Any]:
        answers = self._ask(dict.fromkeys(range(len(self._slices)), ("state", ())))
        merged: dict[str, Any] = merge_states([answers[w] for w in range(len(self._slices))])
        return merged

    def load_state(self, state: Mapping[str, Any]) -> None:
        parts = split_state(state, self._slices)
        self._record(
            self._ask({w: ("load_state", (part,), np.arange(len(self._slices[w]))) for w, part in enumerate(parts)})
        )

    def close(self) -> None:
        self._shut_down()

    # ---- requests

    def _divided(self, ids: EnvIds) -> list[tuple[int, NDArray[np.int64]]]:
        """Return the processes that own some of `ids`, each with the positions of those."""
        owners = self._owner_of[ids]
        return [(w, np.flatnonzero(owners == w)) for w in sorted(set(owners.tolist()))]

    def _ask_owner(self, i: int, name: str) -> Any:
        """Call a method of the slots that hold environment `i`, and return its result."""
        owner = int(self._owner_of[i])
        return self._ask({owner: (name, (i - self._slices[owner].start,))})[owner]

    def _ask(self, requests: Mapping[int, tuple[Any, ...]]) -> dict[int, Any]:
        """Send each process its request (see `worker`), and return the answers.

        Raises:
            WorkerDied: if a process is gone.
            Exception: what was raised there, the first of several. All have answered by then.
        """
        self._check_alive()
        answers, errors = {}, []
        with ExitStack() as stack:
            for w in sorted(requests):  # the order in which all threads take them
                stack.enter_context(self._workers[w].lock)
            for w, request in requests.items():
                self._workers[w].ask(*request)
            for w in requests:
                try:
                    answers[w] = self._workers[w].answer()
                except Exception as error:
                    errors.append(error)
        if errors:
            raise errors[0]
        return answers

    def _check_alive(self) -> None:
        if os.getpid() != self._pid:
            raise ValueError("this pool was made in another process, and cannot be shared with it: make one here")
        if not self._shut_down.alive:
            raise ValueError("the pool is closed")
        for worker in self._workers:
            worker.check_alive()

    def _record(self, answers: Mapping[int, VecObs]) -> None:
        """Remember what environments show, after numbering them as in the whole pool."""
        for w, obs in answers.items():
            start = self._slices[w].start
            for part in (obs, obs.final) if obs.final is not None else (obs,):
                part.env_id += start
                part.end_of_episode_info = {i + start: info for i, info in part.end_of_episode_info.items()}
            batch = np.empty((), object)
            batch[()] = obs  # for NumPy a batch is one object, and no sequence
            self._shown[obs.env_id], self._row_of[obs.env_id] = batch, np.arange(len(obs))


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
    check_state(state, num_envs, *(() if "num_envs" in state else ("environments",)))

    def part(value: Any, of: range) -> Any:
        if isinstance(value, Mapping):
            return {key: part(item, of) for key, item in value.items()}
        return value[of.start : of.stop] if isinstance(value, np.ndarray | list) else len(of)

    return [part(state, of) for of in slices]
