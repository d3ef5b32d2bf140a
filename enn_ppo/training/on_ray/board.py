"""Messages between learners and runners, which pass through the training process: small values, and Ray references."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any, NamedTuple

from enn_ppo.training.on_ray.runner import Told
from enn_ppo.training.tracking.logger import Row


class Board:
    """References to the current weights of each policy, and counters, in the training process."""

    def __init__(self, num_policies: int = 1) -> None:
        self.version = 0  # updates of all policies since this process began
        self.rollouts_lost = 0  # since the last row of metrics
        self.weights: list[Any] = [None] * num_policies  # every runner receives all of them
        self._new: set[int] = set()

    def publish(self, weights: Any, policy: int = 0) -> None:
        """Store a reference to new weights of a policy, numbered from 0."""
        self.weights[policy] = weights
        self._new.add(policy)
        if len(self._new) == len(self.weights):
            self.version += 1
            self._new.clear()


class Part(NamedTuple):
    """A rollout of a runner."""

    runner: int
    rollouts: Sequence[Any]  # a reference to a `Shipped` for each policy
    told: Told
    version: int  # version of the weights that acted


class Gathered(NamedTuple):
    """Rollouts of an update, in the order of their environments; of one runner, the oldest first."""

    parts: Sequence[Part]
    version: int  # version of the current weights

    @property
    def num_runners(self) -> int:
        """Number of runners that collected the parts."""
        return len({part.runner for part in self.parts})

    @property
    def staleness(self) -> list[int]:
        """Policy lag of each part, in updates."""
        return [self.version - part.version for part in self.parts]

    def metrics(self, load_seconds: float) -> Row:
        """Metrics of the update; the learner needed `load_seconds` to fetch all rollouts."""
        return {
            "distributed/runners": self.num_runners,
            "distributed/staleness": fmean(self.staleness),
            "distributed/staleness_max": max(self.staleness),
            "distributed/rollout_bytes": fmean(part.told.num_bytes for part in self.parts),
            "distributed/play_seconds": fmean(part.told.play_seconds for part in self.parts),
            "distributed/handover_seconds": load_seconds / len(self.parts),
        }
