"""The main loop of a worker process of a `ProcessVecEnv`: environments that are stepped on request.

A request is a tuple: the name of a method of `Worker` and its arguments; arrays travel beside it. Answers come in the order of
the requests, each one of

    ("frames", paths, reports)   with arrays: a `VecObs`, see `pack_frames`
    ("result", value)            anything else
    ("error", ErrorReport)       an exception in place of the frames or the result

A request for frames is answered once, or once for each environment in the order of its ids. Requests and answers number
environments as the whole pool does.
"""

from __future__ import annotations

import pickle
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from entity_gym.batch import columns
from entity_gym.batch.vec_obs import VecObs
from entity_gym.pools.processes.arena import Array, Channel
from entity_gym.pools.processes.interpreter import exit_when_orphaned
from entity_gym.pools.processes.pickling import ErrorReport, pickled_for_parent
from entity_gym.pools.slots import EnvIds, EnvSlots, SlotOptions, run_serially

ORPHAN_GRACE = 3.0  # seconds that a worker has to close its environments once the main process is gone


def main(connection: int, write_to: int, read_from: int) -> None:
    """Serve requests until the main process hangs up. The arguments are descriptors, see `Channel`."""
    exit_when_orphaned(connection, ORPHAN_GRACE)
    Worker(Channel(socket.socket(fileno=connection), write_to, read_from)).serve()


class Worker:
    """Serves requests one after the other. Every method that is requested sends its answers itself."""

    slots: EnvSlots

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._lo = 0  # the pool's number of the first environment here

    def serve(self) -> None:
        """Serve requests until the main process hangs up; then close the environments."""
        try:
            while True:
                _, pickled, arrays = self._channel.receive()
                try:
                    name, *arguments = pickle.loads(pickled)
                except Exception as error:  # a module is missing, for example
                    self._send_error(error)
                    continue
                getattr(self, name)(*arguments, *arrays)
        except (EOFError, ConnectionError):  # the pool is closed, or the main process is gone
            pass
        finally:
            try:
                if hasattr(self, "slots"):
                    self.slots.close()
            finally:
                self._channel.close()

    # ---- requests

    def start(self, env: bytes, env_ids: range, seed: int, options: SlotOptions) -> None:
        """Make environments. The result: observation space, action space, name, and whether they can be saved.

        Args:
            env: the pickled `EnvSource`.
            env_ids: the environments of this worker.
            seed: of the pool.
            options: of the pool.
        """

        def make() -> tuple[Any, ...]:
            self._lo = env_ids.start
            mine = replace(options, first_env=options.first_env + self._lo)
            self.slots = pickle.loads(env).make_slots(len(env_ids), mine)
            self.slots.seed(seed)
            name = self.slots.where(0).partition(" (")[0]
            return self.slots.obs_space, dict(self.slots.action_space), name, self.slots.can_save

        self._send_result(make)

    def reset(
        self, ids: EnvIds, one_by_one: bool, seed: int | None, env_info: Sequence[Mapping[str, Any]] | None
    ) -> None:
        """Start episodes, after seeding with `seed` and setting parameters, unless these are None. Answered by frames."""
        assert not one_by_one or (seed is None and env_info is None)
        local = ids - self._lo

        def run(lo: int, hi: int) -> None:
            if seed is not None:
                self.slots.seed(seed)
            if env_info is not None:
                self.slots.configure(local, env_info)
            self.slots.reset(local[lo:hi])

        self._send_frames(ids, one_by_one, run)

    def step(self, one_by_one: bool, paths: Sequence[columns.Path], ids: EnvIds, *arrays: Array) -> None:
        """Step environments; actions are a tree of columns with these paths. Answered by frames."""
        actions: Any = columns.unflatten(dict(zip(paths, arrays, strict=True)))
        local = ids - self._lo
        self._send_frames(ids, one_by_one, lambda lo, hi: self.slots.step(actions, local, lo, hi))

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state. Answered by frames."""
        ids = np.arange(self._lo, self._lo + len(self.slots))
        self._send_frames(ids, False, lambda lo, hi: self.slots.load_state(state))

    def render(self, ids: EnvIds) -> None:
        """The result: a list of images."""
        self._send_result(lambda: [self.slots.render(i) for i in (ids - self._lo).tolist()])

    def draw(self, ids: EnvIds) -> None:
        """The result: a list of hints for drawing, or None in their place."""
        self._send_result(lambda: [self.slots.draw(i) for i in (ids - self._lo).tolist()])

    def state(self) -> None:
        """The result: the saved state."""
        self._send_result(self.slots.state)

    def configure(self, env_info: Sequence[Mapping[str, Any]]) -> None:
        """Set parameters, one mapping for each environment. The result: None."""
        self._send_result(lambda: self.slots.configure(np.arange(len(self.slots)), env_info))

    # ---- answers

    def _send_frames(self, ids: EnvIds, one_by_one: bool, run: Callable[[int, int], None]) -> None:
        """Call `run(lo, hi)` for all of `ids` or one after the other, and send the frames of ids[lo:hi] after each call."""
        size = 1 if one_by_one else max(1, len(ids))
        for lo in range(0, max(1, len(ids)), size):  # no environments at all are answered as well
            hi = min(lo + size, len(ids))
            last = hi == len(ids)
            try:
                run(lo, hi)
                answer, arrays = pack_frames(self.slots.collect(ids[lo:hi] - self._lo, run_serially), self._lo)
                pickled = pickled_for_parent(answer, f"the reports of environments {ids[lo:hi].tolist()}")
            except Exception as error:
                self._send_error(error, last=last)
            else:
                self._channel.send(pickled, arrays, last=last)

    def _send_result(self, make: Callable[[], Any]) -> None:
        try:
            pickled = pickled_for_parent(("result", make()), "the result")
        except Exception as error:
            self._send_error(error)
        else:
            self._channel.send(pickled)

    def _send_error(self, error: Exception, *, last: bool = True) -> None:
        self._channel.send(pickle.dumps(("error", ErrorReport.of(error))), last=last)


def pack_frames(obs: VecObs, lo: int = 0) -> tuple[tuple[Any, ...], list[Array]]:
    """Take a batch apart into an answer that can be pickled, and arrays. Adds `lo` to the numbers of environments."""
    tree, reports = {}, {}
    for name, part in (("obs", obs), ("final", obs.final)):
        if part is not None:
            tree[name] = {**part.columns(), "env_id": part.env_id + lo}
            reports[name] = {i + lo: info for i, info in part.end_of_episode_info.items()}, part.metrics
    arrays = columns.flatten(tree)
    return ("frames", tuple(arrays), reports), list(arrays.values())


def unpack_frames(paths: Sequence[columns.Path], reports: Mapping[str, Any], arrays: Sequence[Array]) -> VecObs:
    """Put the batch together again that `pack_frames` took apart; it shares the arrays."""
    tree: Any = columns.unflatten(dict(zip(paths, arrays, strict=True)))
    final = VecObs.from_columns(tree["final"], *reports["final"]) if "final" in reports else None
    infos, metrics = reports["obs"]
    return VecObs.from_columns(tree["obs"], infos, metrics, final)
