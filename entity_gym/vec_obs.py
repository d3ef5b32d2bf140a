"""Observations of many environments as packed arrays.

Shapes: N frames (one environment each), A actors, C choices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from entity_gym.ragged import RaggedBufferBool, RaggedBufferF32, RaggedBufferI64


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


@dataclass
class VecCategoricalActionMask:
    """Who takes a categorical (or global categorical) action in each frame.

    Attributes:
        actors: N sequences of (A, 1), entity indices inside the frame.
        mask: N sequences of (A, C), true where the choice is open; None where nothing is masked in any frame.
    """

    actors: RaggedBufferI64
    mask: RaggedBufferBool | None = None


@dataclass
class VecSelectEntityActionMask:
    """Who selects an entity in each frame, and which.

    Attributes:
        actors: N sequences of (A, 1), entity indices inside the frame.
        actees: N sequences of (number of actees, 1), entity indices inside the frame.
        mask: N sequences of (A * number of actees, 1), actor by actor, true where the pair is open; None where nothing is
            masked in any frame.
    """

    actors: RaggedBufferI64
    actees: RaggedBufferI64
    mask: RaggedBufferBool | None = None


VecActionMask = VecCategoricalActionMask | VecSelectEntityActionMask


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
        visible: entity type -> N sequences of (number of entities, 1); types that hide nothing in any frame are left out.
        end_of_episode_info: environment -> what it said about the episode that just ended.
        metrics: name -> what the environments reported with this step.
        final: last observations of episodes that ended with this step; `final.env_id` says whose. None if there are none.
    """

    features: dict[str, RaggedBufferF32]
    action_masks: dict[str, VecActionMask]
    reward: NDArray[np.float32]
    done: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    env_id: NDArray[np.int64]
    visible: dict[str, RaggedBufferBool] = field(default_factory=dict)
    end_of_episode_info: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    metrics: dict[str, Metric] = field(default_factory=dict)
    final: VecObs | None = None

    def __len__(self) -> int:
        return len(self.reward)

    @property
    def num_entities(self) -> int:
        """Entities in all frames together, `__global__` ones included."""
        return sum(len(buffer.values) for buffer in self.features.values())
