"""Messages between learners and runners that pass through the training process: small values, and references."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, NamedTuple

from enn_ppo.training.on_ray.runner import Told
from enn_ppo.training.tracking.logger import Row


@dataclass
class Board:
    """References to the current weights, and counters; the training process has it."""

    num_policies: int = 1
    version: int = 0  # updates that the weights have seen since this process began: of several policies, all of them
    rollouts_lost: int = 0  # since the last row of metrics
    # of each policy, a reference to the present `Weights`; every runner is given all
    weights: list[Any] = field(init=False)

    def __post_init__(self) -> None:
        self.weights = [None] * self.num_policies
        self._new: set[int] = set()

    def publish(self, weights: Any, policy: int = 0) -> None:
        """New weights of a policy are there, the first of which is 0."""
        self.weights[policy] = weights
        self._new.add(policy)
        if len(self._new) == self.num_policies:
            self.version += 1
            self._new.clear()


class Part(NamedTuple):
    """A rollout of a runner."""

    runner: int
    rollouts: Sequence[Any]  # of each policy, a reference to what is `Shipped`
    told: Told
    version: int  # of the weights that have played it


class Gathered(NamedTuple):
    """Rollouts of an update, in the order of their environments, and of one runner the older first."""

    parts: Sequence[Part]
    version: int  # of the present weights

    @property
    def num_runners(self) -> int:
        """Runners that have played a part."""
        return len({part.runner for part in self.parts})

    @property
    def staleness(self) -> list[int]:
        """Updates that the weights of each part are behind."""
        return [self.version - part.version for part in self.parts]

    def metrics(self, load_seconds: float) -> Row:
        """Metrics of the update; the learner needed `load_seconds` to fetch all rollouts."""
        told = [part.told for part in self.parts]
        return {
            "distributed/runners": self.num_runners,
            "distributed/staleness": fmean(self.staleness),
            "distributed/staleness_max": max(self.staleness),
            "distributed/rollout_bytes": fmean(each.num_bytes for each in told),
            "distributed/play_seconds": fmean(each.play_seconds for each in told),
            "distributed/handover_seconds": fmean(each.handover_seconds for each in told) + load_seconds / len(told),
        }
