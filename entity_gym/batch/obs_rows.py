"""Some of the frames of a batch, and frames of environments that crashed: pure functions of a `VecObs`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from entity_gym.batch.ragged import RaggedBufferI64
from entity_gym.batch.vec_obs import (
    RaggedArray,
    VecAction,
    VecActionMask,
    VecCategoricalActionMask,
    VecContinuousActionMask,
    VecObs,
    VecSelectEntityActionMask,
)

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
        return None if shown is None else take(shown[0], np.array([shown[1]]))

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
            return first if rows == list(range(len(first))) else take(first, np.array(rows))
        return VecObs.cat([take(obs, np.array([row])) for obs, row in shown])

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


def take(obs: VecObs, rows: Rows) -> VecObs:
    """The frames `rows` of `obs`, in that order, as copies.

    Metrics, which are sums over all frames, are only there if these are all of the frames.
    """
    env_id = obs.env_id[rows]
    chosen = set(env_id.tolist())
    visible = {name: buffer[rows] for name, buffer in obs.visible.items()}
    return VecObs(
        features={name: buffer[rows] for name, buffer in obs.features.items()},
        action_masks={name: _take_mask(mask, rows) for name, mask in obs.action_masks.items()},
        reward=obs.reward[rows],
        done=obs.done[rows],
        truncated=obs.truncated[rows],
        env_id=env_id,
        elapsed_step=obs.elapsed_step[rows],
        visible={name: buffer for name, buffer in visible.items() if not buffer.values.all()},
        end_of_episode_info={i: info for i, info in obs.end_of_episode_info.items() if i in chosen},
        metrics=dict(obs.metrics) if len(rows) == len(obs) else {},
        final=None if obs.final is None else _take_final(obs.final, env_id),
        arrays={name: _take_array(array, rows) for name, array in obs.arrays.items()},
    )


def sequences(buffer: VecAction, rows: Rows) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Values and offsets of `buffer[rows]`, for rows that increase; several times as fast where they follow one another."""
    if len(rows) == 0 or rows[-1] - rows[0] + 1 != len(rows):
        chosen = buffer[rows]
        return chosen.values, chosen.offsets
    offsets = buffer.offsets[rows[0] : rows[-1] + 2]
    return buffer.values[offsets[0] : offsets[-1]].copy(), offsets - offsets[0]


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
    nobody = {name: _nobody(mask, num_frames) for name, mask in last.action_masks.items()}
    return replace(first, **ended, final=replace(last, **ended, action_masks=nobody, final=None))


def _take_mask(mask: VecActionMask, rows: Rows) -> VecActionMask:
    if isinstance(mask, VecContinuousActionMask):
        return replace(mask, actors=mask.actors[rows])
    allowed = None if mask.mask is None else mask.mask[rows]
    if isinstance(mask, VecCategoricalActionMask):
        return replace(mask, actors=mask.actors[rows], mask=allowed)
    return replace(mask, actors=mask.actors[rows], actees=mask.actees[rows], mask=allowed)


def _nobody(mask: VecActionMask, num_frames: int) -> VecActionMask:
    def empty() -> RaggedBufferI64:
        return RaggedBufferI64.from_flattened(np.zeros((0, 1), np.int64), np.zeros(num_frames, np.int64))

    if isinstance(mask, VecCategoricalActionMask):
        return replace(mask, actors=empty(), mask=None)
    if isinstance(mask, VecContinuousActionMask):
        return VecContinuousActionMask(actors=empty())
    return VecSelectEntityActionMask(actors=empty(), actees=empty())


def _take_final(final: VecObs, env_id: Rows) -> VecObs | None:
    row_of = {i: row for row, i in enumerate(final.env_id.tolist())}
    rows = [row_of[i] for i in env_id.tolist() if i in row_of]
    return take(final, np.array(rows, np.int64)) if rows else None


def _take_array(array: NDArray[Any] | RaggedArray, rows: Rows) -> NDArray[Any] | RaggedArray:
    if not isinstance(array, RaggedArray):
        return np.asarray(array[rows])
    lengths = np.diff(array.offsets)[rows]
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    pieces = [array.values[array.offsets[row] : array.offsets[row + 1]] for row in rows]
    return RaggedArray(np.concatenate([array.values[:0], *pieces]), offsets)
