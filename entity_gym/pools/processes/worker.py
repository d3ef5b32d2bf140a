"""What runs in a worker process of a `ProcessVecEnv`: environments, stepped on request."""

from __future__ import annotations

import os
import pickle
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from entity_gym.actions import ActionSpace
from entity_gym.batch.ragged import RaggedBufferF32, RaggedBufferI64
from entity_gym.pools.pool import make_slots
from entity_gym.pools.processes.arena import Array, Channel
from entity_gym.pools.processes.frames import flatten
from entity_gym.pools.processes.pickling import ErrorReport, pickled_for_parent
from entity_gym.pools.slots import EnvIds, EnvSlots, FinalObservations
from entity_gym.spaces import ObsSpace

NOBODY: EnvIds = np.zeros(0, np.int64)
ORPHAN_GRACE = 3.0  # seconds that a worker has to close its environments once the main process is gone


class Op(IntEnum):
    """What the main process asks for, and with which value."""

    START = 0  # Start; answered by a Hello
    RESET = 1  # Reset; answered by frames
    STEP = 2  # (one_by_one, names of actions), arrays: ids, values and offsets of each; answered by frames
    RENDER = 3  # ids; answered by a list of images
    STATE = 4  # None; answered by the state
    LOAD_STATE = 5  # the state; answered by frames
    CLOSE = 6  # None; not answered
    CONFIGURE = 7  # parameters for each of the worker's environments; answered by None


class Answer(IntEnum):
    """What a worker answers."""

    FRAMES = 0  # `Frames`, which count environments as the whole pool does
    RESULT = 1  # something else
    ERROR = 2  # (ids, ErrorReport): the environments whose frames will not come


class Start(NamedTuple):
    """Which environments a worker has."""

    env: bytes  # pickled: what was given to `ProcessVecEnv`
    lo: int  # the worker's first environment, as the pool counts
    num_envs: int
    first_env: int  # the number of the pool's environment 0 in seeds and messages
    seed: int
    final_observations: FinalObservations
    compile: bool  # this and the next: of a compiled environment
    boundscheck: bool


class Reset(NamedTuple):
    """Episodes to be started."""

    ids: EnvIds
    one_by_one: bool  # answer for each environment as soon as it is done
    seed: int | None = None  # None: the random numbers go on
    env_info: Sequence[Mapping[str, Any]] | None = None  # one for each of `ids`; None: parameters stay what they are


class Hello(NamedTuple):
    """What a worker says of its environments once they are there."""

    obs_space: ObsSpace
    action_space: Mapping[str, ActionSpace]
    environment: str  # their class, for messages
    can_save: bool


def main(connection: int, write_to: int, read_from: int) -> None:
    """Serve requests until the main process says so or is gone. The arguments are descriptors, see `Channel`."""
    # Ctrl-C goes to the whole process group, but what it means is for the main process to decide. Until here the signal
    # was blocked.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    threading.Thread(target=_exit_when_orphaned, args=(connection,), daemon=True).start()
    worker = Worker(Channel(socket.socket(fileno=connection), write_to, read_from))
    try:
        worker.serve()
    except _GoneError:
        pass
    finally:
        worker.close()


class _GoneError(Exception):
    """The main process is not there any more."""


class Worker:
    """Answers requests one after the other."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._slots: EnvSlots | None = None
        self._lo = 0
        self._answers: dict[int, Callable[[int, Any], None]] = {
            Op.START: self._start,
            Op.RESET: self._reset,
            Op.RENDER: self._render,
            Op.STATE: self._state,
            Op.LOAD_STATE: self._load_state,
            Op.CONFIGURE: self._configure,
        }

    def serve(self) -> None:
        """Answer until told to stop, or until there is nobody to answer."""
        while True:
            try:
                kind, request, _, value, arrays, error = self._channel.receive()
            except (EOFError, OSError):
                return
            if kind == Op.CLOSE:
                return
            if error is not None:
                self._send_error(request, NOBODY, error)
            elif kind == Op.STEP:
                self._step(request, *value, *arrays)
            else:
                self._answers[kind](request, value)

    def close(self) -> None:
        """Close the environments, and hang up."""
        try:
            if self._slots is not None:
                self._slots.close()
        finally:
            self._channel.close()

    @property
    def _there(self) -> EnvSlots:
        assert self._slots is not None, "the environments were not made"
        return self._slots

    def _start(self, request: int, start: Start) -> None:
        def make() -> Hello:
            self._lo = start.lo
            self._slots = slots = make_slots(
                pickle.loads(start.env),
                start.num_envs,
                first_env=start.first_env + start.lo,
                final_observations=start.final_observations,
                compile=start.compile,
                boundscheck=start.boundscheck,
            )
            slots.seed(start.seed)
            name = slots.where(0).partition(" (")[0]
            return Hello(slots.obs_space, slots.action_space, name, slots.can_save)

        self._send_result(request, make)

    def _reset(self, request: int, given: Reset) -> None:
        ids, slots = given.ids - self._lo, self._there
        try:
            if given.seed is not None:
                slots.seed(given.seed)
            if given.env_info is not None:
                slots.configure(ids, given.env_info)
        except Exception as error:
            self._send_error(request, given.ids, error)
            return
        self._send_frames(request, given.ids, given.one_by_one, lambda lo, hi: slots.reset(ids[lo:hi]))

    def _step(self, request: int, one_by_one: bool, names: Sequence[str], ids: EnvIds, *buffers: Array) -> None:
        actions = {
            name: (RaggedBufferF32 if values.dtype == np.float32 else RaggedBufferI64)._of(values, offsets)
            for name, values, offsets in zip(names, buffers[::2], buffers[1::2], strict=True)
        }
        local, slots = ids - self._lo, self._there
        self._send_frames(request, ids, one_by_one, lambda lo, hi: slots.step(actions, local, lo, hi))

    def _render(self, request: int, ids: EnvIds) -> None:
        self._send_result(request, lambda: [self._there.render(i) for i in (ids - self._lo).tolist()])

    def _state(self, request: int, _: None) -> None:
        self._send_result(request, self._there.state)

    def _load_state(self, request: int, state: Mapping[str, Any]) -> None:
        ids = np.arange(self._lo, self._lo + len(self._there))
        self._send_frames(request, ids, False, lambda lo, hi: self._there.load_state(state))

    def _configure(self, request: int, infos: Sequence[Mapping[str, Any]]) -> None:
        self._send_result(request, lambda: self._there.configure(np.arange(len(self._there)), infos))

    def _send_frames(self, request: int, ids: EnvIds, one_by_one: bool, run: Callable[[int, int], None]) -> None:
        """Call `run(lo, hi)` for parts of `ids`, and after each send what the environments of that part show."""
        size = 1 if one_by_one else max(1, len(ids))
        for lo in range(0, max(1, len(ids)), size):  # nobody at all is one part too
            hi = min(lo + size, len(ids))
            last = hi == len(ids)
            try:
                run(lo, hi)
                frames = flatten(self._there.collect(ids[lo:hi] - self._lo, _serially), self._lo)
            except Exception as error:
                self._send_error(request, ids[lo:hi], error, last=last)
                continue
            try:
                pickled = pickled_for_parent(frames.without_arrays())
            except Exception as error:
                which = ids[lo:hi].tolist()
                error.add_note(f"raised while sending what environments {which} returned to the main process")
                self._send_error(request, ids[lo:hi], error, last=last)
                continue
            self._send(Answer.FRAMES, request, pickled, frames.all_arrays(), last=last)

    def _send_result(self, request: int, make: Callable[[], Any]) -> None:
        try:
            pickled = pickled_for_parent(make())
        except Exception as error:
            self._send_error(request, NOBODY, error)
            return
        self._send(Answer.RESULT, request, pickled)

    def _send_error(self, request: int, ids: EnvIds, error: Exception, *, last: bool = True) -> None:
        self._send(Answer.ERROR, request, pickle.dumps((ids, ErrorReport.of(error))), last=last)

    def _send(
        self, kind: Answer, request: int, pickled: bytes, arrays: Sequence[Array] = (), *, last: bool = True
    ) -> None:
        try:
            self._channel.send(kind, request, pickled, arrays, last=last)
        except ConnectionError as error:
            raise _GoneError from error


def _serially(fn: Callable[[int], None], n: int) -> None:
    for k in range(n):
        fn(k)


def _exit_when_orphaned(connection: int) -> None:
    """End this process when the main one is gone, even while an environment is stuck in a step."""
    poll = select.poll()
    poll.register(connection, 0)  # of no events that are asked for, the hang-up alone is reported
    poll.poll()
    time.sleep(ORPHAN_GRACE)  # the request loop notices too, and closes the environments
    os._exit(1)
