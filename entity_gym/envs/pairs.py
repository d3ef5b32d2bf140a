"""Pairs: two robots that nothing tells apart take different gates. In `PairsApart` they choose independently."""

from __future__ import annotations

from typing import Any

import numpy as np

from entity_gym.compiled import CompiledEnvironment, Entity, SelectEntity, rand_int
from entity_gym.envs.colours import BLUE, GREEN

MAX_GATES = 16


class Pairs(CompiledEnvironment):
    """Two robots must take different gates at the same time, and nothing tells the robots apart.

    **Observation.** Two `Robot`s without features, and `Gate` [number] for each of n gates, numbered from 0 to n - 1. n is
    drawn uniformly from `min_gates` to `max_gates`.

    **Actions.** `take`: each robot selects a gate, and the second one sees what the first has chosen.

    **Reward.** 1 if the gates differ, otherwise 0.

    **End.** After one step.

    **Best score.** 1. Robots that choose independently (`PairsApart`) see the same, so they choose with the same
    probabilities p. They differ with probability 1 - sum p², which is at most 1 - 1/n, with p = 1/n: with the default (1/2 +
    2/3 + 3/4) / 3 = 0.6389 on average, which is also the score of chance, and 0 where both take the most likely gate.

    Args:
        min_gates: the least number of gates, 2 to 16.
        max_gates: the largest number of gates, `min_gates` to 16.
        max_steps: steps after which an episode is truncated; None (the default) for no limit besides the end above.
    """

    entities = {"Robot": Entity([], max=2), "Gate": Entity(["number"], max=MAX_GATES)}
    actions = {"take": SelectEntity(actors="Robot", actees="Gate", after="actors")}
    parameters = {"min_gates": 2, "max_gates": 4}
    ranges = {"min_gates": (2, MAX_GATES), "max_gates": (2, MAX_GATES)}
    state = [("num_gates", np.int64)]
    info = ["num_gates"]
    reward_threshold = 0.98
    draw = {
        "types": {
            "Robot": {"shape": "square", "color": BLUE},
            "Gate": {"shape": "circle", "color": GREEN, "label": "{number}"},
        }
    }

    @staticmethod
    def check_parameters(p: Any) -> None:
        if p.min_gates > p.max_gates:
            raise ValueError(f"Pairs: min_gates={p.min_gates} is more than max_gates={p.max_gates}")

    def reset(s: Any) -> None:
        s.num_gates = s.min_gates + rand_int(s, s.max_gates - s.min_gates + 1)

    def step(s: Any, act: Any) -> tuple[float, bool, bool]:
        return (1.0 if act.take[0] != act.take[1] else 0.0), True, False

    def observe(s: Any, obs: Any) -> None:
        obs.n.Robot = 2
        obs.n.Gate = s.num_gates
        for i in range(s.num_gates):
            obs.Gate[i, 0] = i


class PairsApart(Pairs):
    """`Pairs`, but neither robot sees what the other one chooses: no policy scores more than 0.6389 with the default."""

    actions = {"take": SelectEntity(actors="Robot", actees="Gate")}
    reward_threshold = 0.6
