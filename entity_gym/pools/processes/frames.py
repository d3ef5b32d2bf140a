"""A `VecObs` taken apart into a list of arrays and a layout, which crosses between processes faster than an object.

Batches of the same layout, as almost all of one kind of environment are, are joined array by array.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from entity_gym.batch.ragged import RaggedArray, RaggedBufferBool, RaggedBufferF32, RaggedBufferI64
from entity_gym.batch.vec_obs import Metric, VecActionMask, VecObs

Array = NDArray[Any]

#: What stands where in the list of arrays, after those of one number a frame: (what, name) or (what, name, more).
Layout = tuple[tuple[Any, ...], ...]

# What a layout tells of. Everything but ARRAY is a pair of arrays, values and offsets, or two or three pairs.
FEATURES, VISIBLE, CATEGORICAL, SELECT, CONTINUOUS, ARRAY, RAGGED_ARRAY = range(7)
NUM_SCALARS = 5  # reward, done, truncated, env_id, elapsed_step


class Frames(NamedTuple):
    """N frames, without the names of their parts."""

    layout: Layout
    arrays: list[Array]
    infos: dict[int, Mapping[str, Any]]
    metrics: dict[str, tuple[int, float, float, float]]
    final: Frames | None

    @property
    def num_frames(self) -> int:
        """How many frames there are."""
        return len(self.arrays[0])

    @property
    def env_id(self) -> NDArray[np.int64]:
        """(N,) the environments that they belong to."""
        return self.arrays[3]

    def without_arrays(self) -> tuple[Any, ...]:
        """Everything but the arrays."""
        final = None if self.final is None else self.final.without_arrays()
        return self.layout, len(self.arrays), self.infos, self.metrics, final

    def all_arrays(self) -> list[Array]:
        """The arrays, those of `final` included."""
        return self.arrays if self.final is None else [*self.arrays, *self.final.all_arrays()]

    @classmethod
    def put_together(cls, value: tuple[Any, ...], arrays: list[Array]) -> Frames:
        """The frames that `without_arrays` and `all_arrays` describe."""
        layout, num_arrays, infos, metrics, final = value
        last = None if final is None else cls.put_together(final, arrays[num_arrays:])
        return cls(layout, arrays[:num_arrays], infos, metrics, last)


def flatten(obs: VecObs, first_env: int = 0) -> Frames:
    """Take `obs` apart, copying nothing; `first_env` is added to the numbers of environments."""
    layout: list[tuple[Any, ...]] = []
    arrays = [obs.reward, obs.done, obs.truncated, obs.env_id + first_env, obs.elapsed_step]
    for name, features in obs.features.items():
        layout.append((FEATURES, name))
        arrays += (features.values, features.offsets)
    for name, flags in obs.visible.items():
        layout.append((VISIBLE, name))
        arrays += (flags.values, flags.offsets)
    for name, mask in obs.action_masks.items():
        arrays += (mask.actors.values, mask.actors.offsets)
        layout.append((SELECT if mask.actees is not None else CATEGORICAL, name, mask.mask is not None))
        if mask.actees is not None:
            arrays += (mask.actees.values, mask.actees.offsets)
        if mask.mask is not None:
            arrays += (mask.mask.values, mask.mask.offsets)
    for name, array in obs.arrays.items():
        layout.append((RAGGED_ARRAY if isinstance(array, RaggedArray) else ARRAY, name))
        arrays += [array.values, array.offsets] if isinstance(array, RaggedArray) else [np.asarray(array)]
    return Frames(
        tuple(layout),
        arrays,
        {i + first_env: info for i, info in obs.end_of_episode_info.items()},
        {name: (metric.count, metric.sum, metric.min, metric.max) for name, metric in obs.metrics.items()},
        None if obs.final is None else flatten(obs.final, first_env),
    )


def joined(parts: Sequence[Frames]) -> VecObs:
    """The frames of one or more parts, one part after another; what `VecObs.cat` gives."""
    first = parts[0]
    if len(parts) == 1:
        return rebuilt(first)
    if any(part.layout != first.layout for part in parts):
        return VecObs.cat([rebuilt(part) for part in parts])
    metrics: dict[str, Metric] = {}
    for part in parts:
        for name, numbers in part.metrics.items():
            metrics.setdefault(name, Metric()).merge(Metric(*numbers))
    finals = [part.final for part in parts if part.final is not None]
    columns: list[Array] = []
    pairs = [False] * NUM_SCALARS + [of_pair for item in first.layout for of_pair in _second_of_pair(item)]
    for column, is_offsets in zip(zip(*(part.arrays for part in parts), strict=True), pairs, strict=True):
        columns.append(_joined_offsets(column) if is_offsets else np.concatenate(column))
    obs = rebuilt(
        Frames(first.layout, columns, {i: info for part in parts for i, info in part.infos.items()}, {}, None)
    )
    obs.metrics = metrics
    obs.final = joined(finals) if finals else None
    return obs


def rebuilt(frames: Frames) -> VecObs:
    """The batch that `flatten` took apart, sharing the arrays."""
    it = iter(frames.arrays)
    reward, done, truncated, env_id, elapsed_step = (next(it) for _ in range(NUM_SCALARS))
    obs = VecObs({}, {}, reward, done, truncated, env_id, elapsed_step, end_of_episode_info=frames.infos)
    for what, name, *more in frames.layout:
        if what == FEATURES:
            obs.features[name] = RaggedBufferF32._of(next(it), next(it))
        elif what == VISIBLE:
            obs.visible[name] = RaggedBufferBool._of(next(it), next(it))
        elif what == ARRAY:
            obs.arrays[name] = next(it)
        elif what == RAGGED_ARRAY:
            obs.arrays[name] = RaggedArray(next(it), next(it))
        else:
            actors = RaggedBufferI64._of(next(it), next(it))
            actees = RaggedBufferI64._of(next(it), next(it)) if what == SELECT else None
            allowed = RaggedBufferBool._of(next(it), next(it)) if more[0] else None
            obs.action_masks[name] = VecActionMask(actors, actees, allowed)
    obs.metrics = {name: Metric(*numbers) for name, numbers in frames.metrics.items()}
    obs.final = None if frames.final is None else rebuilt(frames.final)
    return obs


def _second_of_pair(item: tuple[Any, ...]) -> list[bool]:
    """Of each array that a layout's item stands for, whether it holds offsets."""
    if item[0] == ARRAY:
        return [False]
    num_pairs = 1
    if item[0] in (CATEGORICAL, SELECT):
        num_pairs += (item[0] == SELECT) + bool(item[2])
    return [False, True] * num_pairs


def _joined_offsets(parts: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    out = np.empty(1 + sum(map(len, parts)) - len(parts), np.int64)
    out[0] = end = 0
    at = 1
    for offsets in parts:
        out[at : at + len(offsets) - 1] = offsets[1:]
        out[at : at + len(offsets) - 1] += end
        end += int(offsets[-1])
        at += len(offsets) - 1
    return out
