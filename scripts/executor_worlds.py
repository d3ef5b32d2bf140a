"""An environment whose steps only use CPU time, for `bench_executors.py`; worker processes import it from here."""

from __future__ import annotations

from collections.abc import Mapping

from entity_gym import (
    Action,
    ActionSpace,
    CategoricalActionMask,
    CategoricalActionSpace,
    Entity,
    Environment,
    Observation,
    ObsSpace,
)


class BusyPython(Environment):
    """One entity [x]; "go" is ignored. A step is `work` dependent multiplications in pure Python."""

    def __init__(self, work: int) -> None:
        self.work = work
        self.x = 1.0

    def obs_space(self) -> ObsSpace:
        return ObsSpace({"It": Entity(["x"])})

    def action_space(self) -> Mapping[str, ActionSpace]:
        return {"go": CategoricalActionSpace(["left", "right"])}

    def reset(self) -> Observation:
        return self.observe()

    def act(self, actions: Mapping[str, Action]) -> Observation:
        spend(self.work)
        return self.observe()

    def observe(self) -> Observation:
        return Observation(
            features={"It": [[self.x]]}, ids={"It": [0]}, actions={"go": CategoricalActionMask()}, reward=1.0
        )


def spend(work: int) -> float:
    """The computation in a step of `BusyPython`."""
    x = 1.0
    for _ in range(work):
        x = x * 0.999 + 0.001
    return x
