"""Observations of many environments as packed arrays.

Shapes: N frames (one environment each), A actors, C choices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from entity_gym.batch.ragged import RaggedBufferBool, RaggedBufferF32, RaggedBufferI64


@dataclass
class Metric:
    """Count, sum, minimum and maximum of a number that is reported many times."""

    count: int = 0
    sum: float = 0.0
    min: float = float("inf")
    max: float = float("-inf")

    def push(self, value: float) -> None:
        """Take in one value."""
        self.merge(Metric(1, value, value, value))

    def merge(self, other: Metric) -> None:
        """Take in everything that `other` has seen."""
        self.count += other.count
        self.sum += other.sum
        self.min = min(self.min, other.min)
        self.max = max(self.max, other.max)

    @property
    def mean(self) -> float | None:
        """The mean, or None before the first value."""
        return self.sum / self.count if self.count else None


class RaggedArray(NamedTuple):
    """Rows of any shape and type, some for each frame: those of frame i are `values[offsets[i]:offsets[i + 1]]`."""

    values: NDArray[Any]
    offsets: NDArray[np.int64]


@dataclass
class VecCategoricalActionMask:
    """Who takes a categorical (or global categorical) action in each frame.

    Attributes:
        actors: N sequences of (A, 1), entity indices inside the frame.
        mask: N sequences of (A, C), true where the choice is open; None where nothing is masked in any frame.
        num_choices: C, which a mask that is None does not tell.
    """

    actors: RaggedBufferI64
    mask: RaggedBufferBool | None = None
    num_choices: int | None = None


@dataclass
class VecSelectEntityActionMask:
    """Who selects an entity in each frame, and which.

    Attributes:
        actors: N sequences of (A, 1), entity indices inside the frame.
        actees: N sequences of (number of actees, 1), entity indices inside the frame.
        mask: N sequences of (A * number of actees, 1), actor by actor, true where the pair is open; None where nothing is
            masked in any frame. An actor whose pairs are all closed selects nobody. What `exclude_self` of the space closes
            is closed here.
    """

    actors: RaggedBufferI64
    actees: RaggedBufferI64
    mask: RaggedBufferBool | None = None


@dataclass
class VecContinuousActionMask:
    """Who picks numbers in each frame.

    Attributes:
        actors: N sequences of (A, 1), entity indices inside the frame.
    """

    actors: RaggedBufferI64


#: Where `VecObs.arrays` has the rewards of players.
PLAYER_REWARD = "player_reward"

VecActionMask = VecCategoricalActionMask | VecSelectEntityActionMask | VecContinuousActionMask

#: One action of N frames, a sequence each: (A, 1) choices, or entity indices and -1 for nobody, or (A, n) numbers.
VecAction = RaggedBufferI64 | RaggedBufferF32


@dataclass
class VecObs:
    """One step of N environments.

    Attributes:
        features: entity type -> N sequences of (number of entities, F), for every type of the space; with global features or
            a global action also `__global__`, one row a frame.
        action_masks: action -> who may do what, for every action of the space.
        reward: (N,) float32, for the actions that led here.
        done: (N,) bool, an episode ended with this step. The observation is then the first of the next episode.
        truncated: (N,) bool, it ended because it was cut; implies `done`.
        env_id: (N,) int64, the environments that these frames belong to.
        elapsed_step: (N,) int64, steps of the episode that the frame belongs to; 0 for a first observation, so also where
            `done` is set and the next episode has begun.
        visible: entity type -> N sequences of (number of entities, 1); types that hide nothing in any frame are left out.
        end_of_episode_info: environment -> what it said about the episode that just ended.
        metrics: name -> what the environments reported with this step.
        final: last observations of episodes that ended with this step; `final.env_id` says whose. None if there are none.
            They offer no actions.
        arrays: name -> (N, ...) array, or `RaggedArray` with a row a player: fixed arrays that an environment declares
            for consumers that know nothing of entities, and under `PLAYER_REWARD` what each player earned with the step
            that led here, (rows,) float32, with no rows where that is not told. Empty for most.
    """

    features: dict[str, RaggedBufferF32]
    action_masks: dict[str, VecActionMask]
    reward: NDArray[np.float32]
    done: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    env_id: NDArray[np.int64]
    elapsed_step: NDArray[np.int64]
    visible: dict[str, RaggedBufferBool] = field(default_factory=dict)
    end_of_episode_info: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    metrics: dict[str, Metric] = field(default_factory=dict)
    final: VecObs | None = None
    arrays: dict[str, NDArray[Any] | RaggedArray] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.reward)

    @property
    def num_entities(self) -> int:
        """Entities in all frames together, `__global__` ones included."""
        return sum(len(buffer.values) for buffer in self.features.values())

    @staticmethod
    def cat(parts: Sequence[VecObs]) -> VecObs:
        """The frames of all `parts`, one part after another; they must come from the same spaces. `env_id` stays as it is.

        Raises:
            ValueError: if there are no parts.
        """
        if not parts:
            raise ValueError("VecObs.cat was given no parts")
        if len(parts) == 1:
            return parts[0]
        first = parts[0]
        metrics: dict[str, Metric] = {}
        infos: dict[int, Mapping[str, Any]] = {}
        for part in parts:
            infos.update(part.end_of_episode_info)
            for name, metric in part.metrics.items():
                metrics.setdefault(name, Metric()).merge(metric)
        finals = [part.final for part in parts if part.final is not None]
        return VecObs(
            features={name: RaggedBufferF32.cat([part.features[name] for part in parts]) for name in first.features},
            action_masks={name: _cat_masks([part.action_masks[name] for part in parts]) for name in first.action_masks},
            reward=np.concatenate([part.reward for part in parts]),
            done=np.concatenate([part.done for part in parts]),
            truncated=np.concatenate([part.truncated for part in parts]),
            env_id=np.concatenate([part.env_id for part in parts]),
            elapsed_step=np.concatenate([part.elapsed_step for part in parts]),
            visible=_cat_visible(parts),
            end_of_episode_info=infos,
            metrics=metrics,
            final=VecObs.cat(finals) if finals else None,
            arrays=_cat_all_arrays(parts),
        )


def _cat_masks(masks: Sequence[VecActionMask]) -> VecActionMask:
    actors = RaggedBufferI64.cat([mask.actors for mask in masks])
    first = masks[0]
    if isinstance(first, VecContinuousActionMask):
        return VecContinuousActionMask(actors)
    masked = [mask for mask in masks if not isinstance(mask, VecContinuousActionMask)]
    if isinstance(first, VecCategoricalActionMask):
        return VecCategoricalActionMask(actors, _cat_rows(masked), first.num_choices)
    actees = RaggedBufferI64.cat([mask.actees for mask in masks if isinstance(mask, VecSelectEntityActionMask)])
    return VecSelectEntityActionMask(actors, actees, _cat_rows(masked))


def _cat_rows(masks: Sequence[VecCategoricalActionMask | VecSelectEntityActionMask]) -> RaggedBufferBool | None:
    """The masks one after another, open where a part has none; None where no part has one."""
    width = next((mask.mask.size2() for mask in masks if mask.mask is not None), None)
    if width is None:
        return None
    rows = []
    for mask in masks:
        if mask.mask is not None:
            rows.append(mask.mask)
            continue
        lengths = mask.actors.size1()
        if isinstance(mask, VecSelectEntityActionMask):
            lengths = lengths * mask.actees.size1()
        rows.append(RaggedBufferBool.from_flattened(np.ones((int(lengths.sum()), width), np.bool_), lengths))
    return RaggedBufferBool.cat(rows)


def _cat_visible(parts: Sequence[VecObs]) -> dict[str, RaggedBufferBool]:
    visible = {}
    for name, features in parts[0].features.items():
        if any(name in part.visible for part in parts):
            rows = []
            for part in parts:
                features = part.features[name]
                everything = RaggedBufferBool.from_offsets(np.ones((features.items(), 1), np.bool_), features.offsets)
                rows.append(part.visible.get(name, everything))
            visible[name] = RaggedBufferBool.cat(rows)
    return visible


def _cat_all_arrays(parts: Sequence[VecObs]) -> dict[str, NDArray[Any] | RaggedArray]:
    if any(PLAYER_REWARD in part.arrays for part in parts):  # where a part has none, its frames tell none
        parts = [part if PLAYER_REWARD in part.arrays else _telling_no_rewards(part) for part in parts]
    return {name: _cat_arrays([part.arrays[name] for part in parts]) for name in parts[0].arrays}


def _telling_no_rewards(part: VecObs) -> VecObs:
    nothing = RaggedArray(np.zeros(0, np.float32), np.zeros(len(part) + 1, np.int64))
    return replace(part, arrays={**part.arrays, PLAYER_REWARD: nothing})


def _cat_arrays(arrays: Sequence[NDArray[Any] | RaggedArray]) -> NDArray[Any] | RaggedArray:
    ragged = [array for array in arrays if isinstance(array, RaggedArray)]
    if not ragged:
        return np.concatenate([array for array in arrays if not isinstance(array, RaggedArray)])
    lengths = np.concatenate([np.diff(array.offsets) for array in ragged])
    offsets = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)])
    return RaggedArray(np.concatenate([array.values for array in ragged]), offsets)
