"""The last observation of every environment."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from entity_gym.batch.vec_obs import VecActionMask, VecObs

Rows = NDArray[np.int64]


class Shown:
    """The last observation of each of `num_envs` environments, stored as a batch and a row of it."""

    def __init__(self, num_envs: int) -> None:
        self._everyone = np.arange(num_envs)
        self._rows: list[tuple[VecObs, int] | None] = [None] * num_envs
        self._latest: VecObs | None = (
            None  # the last batch, if it has all environments in order; then `_rows` is not used
        )

    def record(self, obs: VecObs) -> None:
        """Store the observations of these environments."""
        if np.array_equal(obs.env_id, self._everyone):
            self._latest = obs
            return
        self._spell_out()
        for row, i in enumerate(obs.env_id.tolist()):
            self._rows[i] = obs, row

    def action_masks(self, ids: Rows) -> Mapping[str, VecActionMask]:
        """Return the last action masks of the environments `ids`, in that order; see `frames`."""
        return self.frames(ids).action_masks

    def frames(self, ids: Rows) -> VecObs:
        """Return the last observations of the environments `ids`, in that order. Do not change them.

        There must be at least one of `ids`, and each must have been observed.
        """
        if self._latest is not None and np.array_equal(ids, self._everyone):
            return self._latest
        self._spell_out()
        shown: list[tuple[VecObs, int]] = [row for i in ids.tolist() if (row := self._rows[i]) is not None]
        assert len(shown) == len(ids)
        first, rows = shown[0][0], [row for _, row in shown]
        if all(obs is first for obs, _ in shown):
            return first if rows == list(range(len(first))) else first.gather(np.array(rows))
        return VecObs.cat([obs.gather(np.array([row])) for obs, row in shown])

    def copy(self) -> Shown:
        """An independent copy."""
        self._spell_out()
        twin = Shown(len(self._rows))
        twin._rows = self._rows.copy()
        return twin

    def _spell_out(self) -> None:
        if self._latest is not None:
            self._rows = [(self._latest, row) for row in range(len(self._rows))]
            self._latest = None
