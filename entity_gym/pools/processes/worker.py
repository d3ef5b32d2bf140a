"""The main loop of a worker process: slots whose methods are called on request.

A request is a tuple: the name of a method of `Worker` or of its slots, and its arguments. The answer is a tuple, too: whether all
went well, and the result or else an `ErrorReport`. Environments are numbered from 0 in each worker.
"""

from __future__ import annotations

import pickle
import socket
from collections.abc import Mapping
from typing import Any

import numpy as np

from entity_gym.batch.vec_obs import VecAction, VecObs
from entity_gym.pools.processes.arena import Channel
from entity_gym.pools.processes.interpreter import exit_when_orphaned
from entity_gym.pools.processes.pickling import Buffers, ErrorReport, pickled_for_parent
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
                request, contents = self._channel.receive()
                buffers: Buffers = []
                try:
                    name, *arguments = pickle.loads(request, buffers=contents)
                    del contents  # the arguments hold what they need
                    method = getattr(self, name, None) or getattr(self.slots, name)
                    result = method(*arguments)
                    answer = pickled_for_parent((True, result), buffers, self._name(result))
                except Exception as error:
                    answer, buffers = pickle.dumps((False, ErrorReport.of(error))), []
                self._channel.send(answer, buffers)
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
        return self._collect(ids)

    def step(self, actions: Mapping[str, VecAction], ids: EnvIds) -> VecObs:
        """Step environments."""
        self.slots.step(actions, ids, 0, len(ids))
        return self._collect(ids)

    def load_state(self, state: Mapping[str, Any]) -> VecObs:
        """Restore a saved state."""
        self.slots.load_state(state)
        return self._collect(np.arange(len(self.slots)))

    def _collect(self, ids: EnvIds) -> VecObs:
        obs = self.slots.collect(ids, run_serially)
        for part in (obs, obs.final) if obs.final is not None else (obs,):
            part.end_of_episode_info = dict(part.end_of_episode_info)  # may have been made on demand
        return obs

    def _name(self, result: Any) -> str:
        """Return the name of a result in messages."""
        if isinstance(result, VecObs):
            return f"the reports of environments {(result.env_id + self.slots.options.first_env).tolist()}"
        return "the result"
