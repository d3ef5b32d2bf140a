"""Some of the frames of a batch, and frames of environments that crashed: pure functions of a `VecObs`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from entity_gym.batch.vec_obs import VecActionMask, VecObs

Rows = NDArray[np.int64]

#: What `VecObs.end_of_episode_info` says of an episode that ended with its worker process.
CRASHED = {"crashed": True}


class Shown:
    """What each of `num_envs` environments showed last, as rows of the batches in which it was shown."""

    def __init__(self, num_envs: int) -> None:
        self._everyone = np.arange(num_envs)
        self._rows: list[tuple[VecObs, int] | None] = [None] * num_envs
        self._latest: VecObs | None = None  # a batch of everyone in order, the usual case; stands for all rows

    def record(self, obs: VecObs) -> None:
        """Remember what these environments show."""
        if np.array_equal(obs.env_id, self._everyone):
            self._latest = obs
            return
        self._spell_out()
        for row, i in enumerate(obs.env_id.tolist()):
            self._rows[i] = obs, row

    def last(self, i: int) -> VecObs | None:
        """The frame that environment `i` showed last, as a copy; None if it has shown nothing."""
        self._spell_out()
        shown = self._rows[i]
        return None if shown is None else shown[0].gather(np.array([shown[1]]))

    def action_masks(self, ids: Rows) -> Mapping[str, VecActionMask]:
        """What the environments `ids`, one or more that have shown something, offered last, in that order."""
        return self.frames(ids).action_masks

    def frames(self, ids: Rows) -> VecObs:
        """What the environments `ids`, one or more that have shown something, showed last, in that order; not to be changed."""
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


def crashed(first: VecObs, last: VecObs | None) -> VecObs:
    """First frames of new episodes, in place of ones that ended with a worker process.

    Args:
        first: what the new episodes show.
        last: what the lost ones showed last, as the observations to bootstrap from. None: not wanted.
    """
    num_frames = len(first)
    ended: dict[str, Any] = {
        "reward": np.zeros(num_frames, np.float32),
        "done": np.ones(num_frames, np.bool_),
        "truncated": np.ones(num_frames, np.bool_),
        "end_of_episode_info": {i: dict(CRASHED) for i in first.env_id.tolist()},
        "metrics": {},
    }
    if last is None:
        return replace(first, **ended, final=None)
    nobody = {name: mask.without_actors() for name, mask in last.action_masks.items()}
    return replace(first, **ended, final=replace(last, **ended, action_masks=nobody, final=None))
