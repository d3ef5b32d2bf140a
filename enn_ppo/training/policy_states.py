"""The state of a policy, by environment and from step to step: rollouts, evaluations, opponents and servers keep it here.

    before = states.recall(env_id, begins)           # of B environments
    result = policy.act(batch, before)
    states.keep(env_id, result.state)

A policy that remembers nothing returns no state, and nothing is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from enn_ppo.training.frames import cat_columns
from rogue_net import RaggedTensor, State
from rogue_net.batch.ragged import Cat

Keys = NDArray[np.int64]


class PolicyStates:
    """The states of one policy. Keys are numbers of environments, or of players of them: whatever has episodes of its own."""

    def __init__(self) -> None:
        self._keys: Keys = np.zeros(0, np.int64)
        self._known: State | None = None  # a sequence for each key

    def recall(self, keys: Keys, begins: NDArray[np.bool_]) -> State | None:
        """The state of B environments.

        Args:
            keys: (B,), each at most once.
            begins: (B,) whether an episode begins, of which nothing is known.

        Returns:
            B sequences; None before the first `keep`.
        """
        if self._known is None:
            return None
        row_of = {key: row for row, key in enumerate(self._keys.tolist())}
        rows = np.array([row_of.get(key, -1) for key in keys.tolist()], np.int64)
        return rows_of(self._known, np.where(begins, -1, rows))

    def keep(self, keys: Keys, state: State | None) -> None:
        """Remember the state of B environments, B sequences; None: the policy remembers nothing."""
        if state is None:
            return
        self.forget(keys)
        if self._known is not None and len(self._keys):
            state, keys = cat_columns([self._known, state], Cat()), np.concatenate([self._keys, keys])
        self._keys, self._known = keys, state

    def update(self, other: PolicyStates) -> None:
        """Remember what another one does of its environments."""
        self.keep(other._keys, other._known)

    def forget(self, keys: Keys | None = None) -> None:
        """Forget environments; None: all."""
        if self._known is not None:
            others = np.flatnonzero(~np.isin(self._keys, self._keys if keys is None else keys))
            self._keys, self._known = self._keys[others], rows_of(self._known, others)

    def state(self) -> dict[str, Any] | None:
        """Arrays and tensors on the CPU, for `load_state`; None: nothing is remembered."""
        known = _map(self._known, lambda column: [each.cpu() for each in column]) if self._known is not None else None
        return known and {"keys": self._keys, "known": known}

    def load_state(self, state: Mapping[str, Any] | None, device: torch.device) -> None:
        """Go on from `state()`."""
        self._keys, self._known = np.zeros(0, np.int64), None
        if state is not None:
            self._keys = state["keys"]
            self._known = _map(state["known"], lambda parts: RaggedTensor(*(each.to(device) for each in parts)))


def rows_of(state: State | None, rows: Keys) -> State | None:
    """The sequences numbered `rows` of a state; -1 is an environment of which nothing is known."""

    def choose(column: RaggedTensor) -> RaggedTensor:
        values, offsets = column
        longer = RaggedTensor(values, torch.cat([offsets, offsets[-1:]]))  # the last one is empty
        return longer.gather(torch.from_numpy(rows % len(offsets)).to(values.device))

    chosen: State | None = state and _map(state, choose)
    return chosen


def _map(state: Any, change: Callable[[Any], Any]) -> Any:
    """A state with every column replaced."""
    return {name: _map(each, change) for name, each in state.items()} if isinstance(state, dict) else change(state)
