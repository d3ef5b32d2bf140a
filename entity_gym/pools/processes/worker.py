"""The main loop of a worker process: slots whose methods are called on request.

A request is a tuple: the name of a method of `Worker` or of its slots, and its arguments; arrays travel beside it. It has one
answer:

    ("frames", paths, reports)   with arrays: a `VecObs`, see `pack_frames`
    ("result", value)            anything else
    ("error", ErrorReport)       an exception in place of these

Environments are numbered from 0 in each worker.
"""

from __future__ import annotations

import pickle
import socket
from collections.abc import Mapping, Sequence
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
    """Serves requests one after the other."""

    slots: EnvSlots

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def serve(self) -> None:
        """Serve requests until the main process hangs up; then close the environments."""
        try:
            while True:
                request, arrays = self._channel.receive()
                try:
                    name, *arguments = pickle.loads(request)
                    method = getattr(self, name, None) or getattr(self.slots, name)
                    answer, arrays = self._packed(method(*arguments, *arrays))
                except Exception as error:
                    answer, arrays = pickle.dumps(("error", ErrorReport.of(error))), []
                self._channel.send(answer, arrays)
        except (EOFError, ConnectionError):  # the pool is closed, or the main process is gone
            pass
        finally:
            try:
                if hasattr(self, "slots"):
                    self.slots.close()
            finally:
                self._channel.close()

    def start(self, env: bytes, num_envs: int, options: SlotOptions) -> tuple[Any, ...]:
        """Make environments.

        Args:
            env: the pickled `EnvSource`.
            num_envs: of this worker.
            options: of its slots.

        Returns:
            Their observation space, action space, name, and whether they can be saved.
        """
        slots = self.slots = pickle.loads(env).make_slots(num_envs, options)
        name = slots.where(0).partition(" (")[0]
        return slots.obs_space, dict(slots.action_space), name, slots.can_save

    def reset(self, ids: EnvIds) -> VecObs:
        """Start episodes."""
        self.slots.reset(ids)
        return self.slots.collect(ids, run_serially)

    def step(self, paths: Sequence[columns.Path], ids: EnvIds, *arrays: Array) -> VecObs:
        """Step environments; actions are a tree of columns with these paths."""
        actions: Any = columns.unflatten(dict(zip(paths, arrays, strict=True)))
        self.slots.step(actions, ids, 0, len(ids))
        return self.slots.collect(ids, run_serially)

    def load_state(self, state: Mapping[str, Any]) -> VecObs:
        """Restore a saved state."""
        self.slots.load_state(state)
        return self.slots.collect(np.arange(len(self.slots)), run_serially)

    def _packed(self, value: Any) -> tuple[bytes, list[Array]]:
        """Return the pickled answer and its arrays."""
        if not isinstance(value, VecObs):
            return pickled_for_parent(("result", value), "the result"), []
        answer, arrays = pack_frames(value)
        numbers = (value.env_id + self.slots.options.first_env).tolist()
        return pickled_for_parent(answer, f"the reports of environments {numbers}"), arrays


def pack_frames(obs: VecObs) -> tuple[tuple[Any, ...], list[Array]]:
    """Take a batch apart into an answer that can be pickled, and arrays."""
    tree, reports = {"obs": obs.columns()}, {"obs": (dict(obs.end_of_episode_info), obs.metrics)}
    if obs.final is not None:
        tree["final"] = obs.final.columns()
        reports["final"] = dict(obs.final.end_of_episode_info), obs.final.metrics
    arrays = columns.flatten(tree)
    return ("frames", tuple(arrays), reports), list(arrays.values())


def unpack_frames(
    paths: Sequence[columns.Path], reports: Mapping[str, Any], arrays: Sequence[Array], lo: int
) -> VecObs:
    """Put the batch together again that `pack_frames` took apart; it shares the arrays.

    Environments are numbered from `lo`, the pool's number of the worker's first one.
    """
    tree: Any = columns.unflatten(dict(zip(paths, arrays, strict=True)))
    obs = None
    for part in ("final", "obs"):
        if part in tree:
            infos, metrics = reports[part]
            tree[part]["env_id"] += lo
            obs = VecObs.from_columns(tree[part], {i + lo: info for i, info in infos.items()}, metrics, final=obs)
    assert obs is not None
    return obs
