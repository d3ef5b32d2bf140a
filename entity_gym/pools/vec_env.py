"""Pools: N environments that are stepped together or asynchronously."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions import ActionSpace
from entity_gym.batch.vec_obs import VecAction, VecObs
from entity_gym.errors import check_whole
from entity_gym.pools.slots import EnvIds, EnvSlots, run_serially
from entity_gym.pools.workers import PATIENCE, Workers
from entity_gym.spaces import ObsSpace

#: Parameters for the coming episodes: one mapping for each environment, or parameter -> one value for each environment.
EnvInfo = Sequence[Mapping[str, Any]] | Mapping[str, Sequence[Any]]

#: Some of the environments of a pool, by number.
EnvIdLike = Sequence[int] | NDArray[np.integer[Any]]

# What an environment can take now. All but READY take nothing but a reset; one that is UNDER_WAY is received first.
_NEW, _READY, _UNDER_WAY, _LOST, _OVER, _CLOSED = range(6)

_REFUSALS = {
    _NEW: "{method} was called before reset",
    _UNDER_WAY: "{method}: {where} is under way; recv it first",
    _LOST: "{method}: what {where} showed last was lost to an error; call reset first",
    _OVER: "{method}: the episode of {where} has ended, and there is no autoreset; step those that go on, or call reset",
    _CLOSED: "the pool is closed",
}


class VecEnv:
    """N environments of one kind that are stepped together, or some of them at a time.

    Autoreset happens in the same step: the observation after `done` is the first of the next episode, and comes with the
    finished episode's reward and info. The finished episode's own last observation is in `VecObs.final`. A pool without
    autoreset shows that last observation itself, in which nobody acts, and the batch shrinks:

        obs = pool.reset()
        while len(obs):
            obs = pool.act(policy(obs), obs.env_id)
            obs = obs.gather(np.flatnonzero(~obs.done))

    Together: `obs = reset()`, then `obs = act(actions)`. Asynchronously: `async_reset()`, then `obs = recv()` and
    `send(actions, obs.env_id)` in turn, where `recv` returns `batch_size` environments, whichever were ready first.
    Both can be mixed: what is not under way may be acted on. No array that a pool returned is ever written to again.

    What environments show depends on their seeds and actions alone: not on the workers, nor on the order in which they are
    stepped. After an error the environments concerned have to be reset, and the others may go on.

    Args:
        slots: the environments; belongs to this pool from now on. `ThreadedVecEnv` makes them.
        workers: who steps them. None: the calling thread.
        batch_size: how many environments `recv` returns, 1 to N. None: all.
        seed: see `reset`.
    """

    def __init__(
        self, slots: EnvSlots, workers: Workers | None = None, *, batch_size: int | None = None, seed: int = 0
    ) -> None:
        self.slots = slots
        self._workers = Workers() if workers is None else workers
        self._everyone: EnvIds = np.arange(len(slots), dtype=np.int64)
        self._status = np.full(len(slots), _NEW, np.int8)  # (N,)
        self._all_ready = np.full(len(slots), _READY, np.int8).tobytes()
        self._shown: VecObs | None = None  # the last batch; slots that act at once check actions without it
        self._finished: deque[int] = deque()  # under way, and done: for `recv`, in this order
        self._waiting = 0  # under way, and not yet done
        try:
            self.batch_size = check_batch_size(batch_size, len(slots))
            slots.seed(seed)
        except ValueError:
            self.close()
            raise

    def obs_space(self) -> ObsSpace:
        """Return the space of their observations."""
        return self.slots.obs_space

    def action_space(self) -> Mapping[str, ActionSpace]:
        """Return their action spaces by name."""
        return self.slots.action_space

    def __len__(self) -> int:
        """The number of environments."""
        return len(self._status)

    def configure(self, env_info: EnvInfo) -> None:
        """Set parameters for the episodes that begin from now on; the running ones go on with theirs, to their ends.

        Environments that are under way are waited for. Until an episode begins, what waits for it is part of `state`, and
        what is given meanwhile comes on top.

        Args:
            env_info: as in `reset`.

        Raises:
            ValueError: for environments that take no parameters, or parameters that do not fit them; an environment that is
                a Python object refuses a value only when the episode begins.
        """
        infos = check_env_info(env_info, len(self))
        self._settle()
        self.slots.configure(self._everyone, infos)

    def seed(self, seed: int) -> None:
        """Seed the environments as `reset` does, without starting episodes.

        Environments that are under way are waited for. In groups (`SlotOptions.group_size`), running episodes keep their
        random numbers, and the next one of each environment is the first that begins from this seed.

        Raises:
            ValueError: for a negative seed.
        """
        check_whole(seed, "seed", 0)
        self._settle()
        self.slots.seed(seed)

    # ---- together

    def reset(self, seed: int | None = None, env_info: EnvInfo | None = None) -> VecObs:
        """Start an episode everywhere. What is under way is finished first, and forgotten.

        Args:
            seed: environment i draws from `SeedSequence((seed, i))`. None: the random numbers go on where they are.
            env_info: parameters for the episodes from now on (see `Environment.configure`), one mapping for each
                environment, or parameter -> one value for each environment. None: they stay what they are.

        Raises:
            ValueError: for a negative seed, or parameters that do not fit the environments.
        """
        infos = None if env_info is None else check_env_info(env_info, len(self))
        if seed is not None:
            check_whole(seed, "seed", 0)
        self._settle(forget=True)
        self._status.fill(_NEW)
        if seed is not None:
            self.slots.seed(seed)
        if infos is not None:
            self.slots.configure(self._everyone, infos)
        slots, ids = self.slots, self._everyone
        return self._together(ids, lambda lo, hi, worker: slots.reset(ids[lo:hi], worker))

    def act(self, actions: Mapping[str, VecAction], env_id: EnvIdLike | None = None) -> VecObs:
        """Step environments, and wait for them.

        Args:
            actions: action -> one sequence for each environment stepped, in that order, aligned with the actors that its
                last observation offered. (A, 1) choices for categorical actions; for select-entity (A, 1) the entity index
                inside the frame, -1 for nobody; for continuous ones (A, n) float32, numbers within the bounds.
            env_id: the environments to step, each at most once. None: all, in order.

        Returns:
            Their observations, in the order of `env_id`.

        Raises:
            ValueError: for actions that were not offered, an observation that does not fit the spaces, environments that are
                not there or under way.
        """
        ids, slots = self._ready(env_id, "act"), self.slots
        if slots.acts_at_once and self._workers.num_threads == 1:
            try:
                obs = slots.act(actions, ids)
            except BaseException:
                self._status[ids] = _LOST
                raise
            if obs is not None:
                if not slots.options.autoreset:
                    self._mark_shown(obs)
                return obs
        self._check(actions, ids)
        return self._together(ids, partial(slots.step, actions, ids))

    def _together(self, ids: EnvIds, do: Callable[[int, int, int], None]) -> VecObs:
        """Call do(lo, hi, worker) in all workers for their parts of `ids`, and return what these show."""
        self._status[ids] = _LOST  # unless all goes well
        n, parts = len(ids), min(len(ids), self._workers.num_threads)
        if self._workers.num_threads == 1:
            do(0, n, 0)
        else:
            self._workers.run(lambda k: do(n * k // parts, n * (k + 1) // parts, k), parts)
        return self._collect(ids)

    def show(self, ids: EnvIds) -> VecObs:
        """Return the observations of some environments, none of which is under way."""
        return self.slots.collect(ids, self._workers.run)

    # ---- asynchronously

    def send(self, actions: Mapping[str, VecAction], env_id: EnvIdLike | None = None) -> None:
        """Step environments without waiting: `recv` returns what they show. Arguments and errors as in `act`."""
        ids = self._ready(env_id, "send")
        self._check(actions, ids)
        own = {name: buffer.clone() for name, buffer in actions.items()}  # the caller may write to theirs meanwhile
        self._submit(ids, partial(self.slots.step, own, ids))

    def async_reset(self) -> None:
        """Start an episode everywhere without waiting: `recv` returns the first observations."""
        self._settle(forget=True)
        slots, ids = self.slots, self._everyone  # what the workers hold must not hold the pool
        self._submit(ids, lambda lo, hi, worker: slots.reset(ids[lo:hi], worker))

    def recv(self) -> VecObs:
        """Wait for `batch_size` of the environments under way.

        Returns:
            Those that were ready first, ordered by number; `VecObs.env_id` says which they are.

        Raises:
            ValueError: if fewer are under way. What an environment raised, is raised here.
        """
        self._check_open()
        if self._waiting + len(self._finished) < self.batch_size:
            raise ValueError(
                f"recv returns batch_size={self.batch_size} environments, and "
                f"{self._waiting + len(self._finished)} are under way: send them actions, or call async_reset"
            )
        while len(self._finished) < self.batch_size:
            ids, error = self._workers.next()
            self._waiting -= len(ids)
            self._note(ids, error)
            if error is not None:
                raise error
        ids = np.array(sorted(self._finished.popleft() for _ in range(self.batch_size)), dtype=np.int64)
        self._status[ids] = _LOST
        return self._collect(ids)

    def _submit(self, ids: EnvIds, do: Callable[[int, int, int], None]) -> None:
        """Have do(lo, hi, worker) called without waiting, so that ids[lo:hi] together are `ids`."""
        n, num_shares = len(ids), max(1, self._workers.num_shares)
        self._status[ids] = _UNDER_WAY
        self._waiting += n
        if self.slots.one_by_one and self.batch_size < len(self):
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
            self._status[ids] = _LOST

    def _settle(self, *, forget: bool = False) -> None:
        """Wait until everything under way is done, and raise the first error; `forget` it instead, with all that is done.

        It does not rely on `_waiting`: Ctrl-C may have come between counting a task and submitting it, or before one was noted.

        Raises:
            ValueError: the pool is closed.
        """
        self._check_open()
        first = None
        for ids, error in self._workers.drain() if self._waiting else ():
            self._note(ids, error)
            first = error if first is None else first
        self._waiting = 0
        if forget:
            self._finished.clear()
        elif first is not None:
            raise first

    # ---- drawing, saving

    def render(self, env_ids: EnvIdLike) -> list[NDArray[np.uint8]]:
        """Draw some of the environments, each as a (height, width, 3) image."""
        return [self.slots.render(i) for i in self._settled(env_ids)]

    def draw(self, env_ids: EnvIdLike) -> list[Mapping[str, Any] | None]:
        """Return how some of the environments want their running episodes to be drawn; see `Environment.draw`."""
        return [self.slots.draw(i) for i in self._settled(env_ids)]

    def _settled(self, env_ids: EnvIdLike) -> list[int]:
        """Return the numbers of some environments, none of which is under way any more."""
        self._check_open()
        ids = [int(check_env_id([i], len(self))[0]) for i in env_ids]
        if (self._status[ids] == _UNDER_WAY).any():
            self._settle()
        return ids

    @property
    def can_save(self) -> bool:
        """True if `state` and `load_state` work for these environments."""
        return self.slots.can_save

    def state(self) -> dict[str, Any]:
        """Return a state from which `load_state` continues exactly, with random numbers and observations.

        Environments that are under way are waited for; what they show then is among the observations of `load_state`.
        """
        self._settle()
        lacking = np.isin(self._status, (_NEW, _LOST))
        if lacking.any():
            self._refuse(int(lacking.argmax()), "state")
        return self.slots.state()

    def load_state(self, state: Mapping[str, Any]) -> VecObs:
        """Continue from what `state` returned; returns the current observations of all environments, without `final`."""
        self._settle(forget=True)
        self._status.fill(_LOST)
        self.slots.load_state(state)
        return self._collect(self._everyone)

    def close(self) -> None:
        """Release everything. May be called twice."""
        self._status.fill(_CLOSED)
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

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # ---- what environments can take

    def _check_open(self) -> None:
        if self._status[0] == _CLOSED:
            self._refuse(0, "")

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
        raise ValueError(_REFUSALS[int(self._status[i])].format(method=method, where=self.slots.where(i)))

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
        self._mark_shown(obs)
        return obs

    def _mark_shown(self, obs: VecObs) -> None:
        """Note that environments can be stepped, but those whose episodes have ended without autoreset."""
        self._status[obs.env_id] = _READY if self.slots.options.autoreset else np.where(obs.done, _OVER, _READY)


def check_env_id(env_id: EnvIdLike, num_envs: int) -> NDArray[np.int64]:
    """(n,) the environments `env_id` of a pool of `num_envs`.

    Raises:
        ValueError: if one is not there or is named twice.
    """
    ids = np.asarray(env_id)
    if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
        raise ValueError(f"env_id is {env_id!r:.200}; it must be a list of environments, as whole numbers")
    ids = ids.astype(np.int64)
    outside = (ids < 0) | (ids >= num_envs)
    if outside.any():
        raise ValueError(f"env_id names environment {ids[outside][0]}; there are 0 to {num_envs - 1}")
    counts = np.bincount(ids, minlength=num_envs)
    if counts.max() > 1:
        raise ValueError(f"env_id names environment {counts.argmax()} {counts.max()} times; each may be stepped once")
    return ids


def check_env_info(env_info: EnvInfo, num_envs: int) -> list[Mapping[str, Any]]:
    """One mapping for each environment, from either form of `env_info`.

    Raises:
        ValueError: if there are not as many as environments.
    """
    if isinstance(env_info, Mapping):
        for name, values in env_info.items():
            given = len(values) if hasattr(values, "__len__") and not isinstance(values, str) else None
            if given != num_envs:
                what = repr(values) if given is None else f"{given} values"
                raise ValueError(f"env_info[{name!r}] is {what}; give one value for each of {num_envs} environments")
        return [{name: values[i] for name, values in env_info.items()} for i in range(num_envs)]
    infos = list(env_info)
    if len(infos) != num_envs:
        raise ValueError(f"env_info has {len(infos)} entries for {num_envs} environments")
    for i, info in enumerate(infos):
        if not isinstance(info, Mapping):
            raise ValueError(f"env_info[{i}] is {info!r:.200}; expected a mapping from parameter to value")
    return infos


def check_batch_size(batch_size: int | None, num_envs: int) -> int:
    """Return the number of environments that `recv` returns.

    Raises:
        ValueError: if that is not from 1 to `num_envs`.
    """
    if batch_size is None:
        return num_envs
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or not 1 <= batch_size <= num_envs:
        raise ValueError(f"batch_size is {batch_size!r}; it must be a whole number from 1 to num_envs={num_envs}")
    return batch_size
