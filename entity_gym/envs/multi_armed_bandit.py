"""MultiArmedBandit: five levers, of which one pays."""

from __future__ import annotations

from typing import Any

import numpy as np

from entity_gym.compiled import CompiledEnvironment, GlobalCategorical
from entity_gym.envs.drawing import BLUE, CELL, GREEN, GREY, ORANGE, Image, bar, canvas, cell, grid, rectangle

LEVERS = ("A", "B", "C", "D", "E")
NUM_STEPS = 32
NOTHING = -1


class MultiArmedBandit(CompiledEnvironment):
    """The smallest world that can be learned: always pull the same lever. It has no entities.

    **Observation.** One global feature, `step`, from 0 to 32.

    **Actions.** `pull`, by the frame: one of the levers A to E.

    **Reward.** 1/32 for pulling A, otherwise 0.

    **End.** Terminates after the 32nd step. Nothing in this world is random.

    **Best score.** 1, by pulling A in every step; uniformly drawn levers give 0.2.
    """

    global_features = ["step"]
    actions = {"pull": GlobalCategorical(LEVERS)}
    state = [("pulled", np.int64)]  # the lever of the last step, for render
    reward_threshold = 0.95

    def reset(s: Any) -> None:
        s.pulled = NOTHING

    def step(s: Any, act: Any) -> tuple[float, bool, bool]:
        s.pulled = act.pull[0]
        reward = 1.0 / NUM_STEPS if s.pulled == 0 else 0.0
        return reward, s.steps >= NUM_STEPS, False

    def observe(s: Any, obs: Any) -> None:
        obs.global_features[0] = s.steps

    def render(s: Any) -> Image:
        """A bar for the time that has passed, above a (33, 161, 3) row of levers; the one just pulled is filled."""
        levers = grid(len(LEVERS), 1)
        for lever in range(len(LEVERS)):
            colour = GREY if lever != s.pulled else GREEN if lever == 0 else ORANGE
            rectangle(cell(levers, lever, 0), 5, 5, 21, 21, colour)
        clock = canvas(levers.shape[1], CELL // 4)
        bar(clock, 0, 1, levers.shape[1], CELL // 4 - 2, s.steps / NUM_STEPS, BLUE)
        return np.concatenate([clock, levers])
