"""Xor: two bits, one question."""

from __future__ import annotations

from typing import Any

import numpy as np

from entity_gym.compiled import CompiledEnvironment, Entity, GlobalCategorical, rand_int
from entity_gym.envs.drawing import DARK, GREEN, ORANGE, RED, WHITE, Image, cell, grid, name_of, rectangle

NOTHING = -1


class Xor(CompiledEnvironment):
    """Tell whether two bits differ. Each entity shows one of them, so that neither is enough.

    **Observation.** Two `Input` [is_set], each 0 or 1, and the global feature `negate`, 0 or 1, all drawn independently
    and uniformly.

    **Actions.** `output`, by the frame: "0" or "1".

    **Reward.** 1 for the right output, otherwise 0. With negate 0 the right output is the exclusive or of the inputs: 1
    if they differ, 0 if they are equal. With negate 1 it is the other one.

    **End.** After one step.

    **Best score.** 1; without all three bits no policy scores more than 0.5.
    """

    entities = {"Input": Entity(["is_set"], max=2)}
    global_features = ["negate"]
    actions = {"output": GlobalCategorical(["0", "1"])}
    state = [("bits", np.int64, (2,)), ("negate", np.int64), ("output", np.int64)]  # output: for render
    reward_threshold = 0.99

    def reset(s: Any) -> None:
        s.bits[0] = rand_int(s, 2)
        s.bits[1] = rand_int(s, 2)
        s.negate = rand_int(s, 2)
        s.output = NOTHING

    def step(s: Any, act: Any) -> tuple[float, bool, bool]:
        s.output = act.output[0]
        right = s.bits[0] ^ s.bits[1] ^ s.negate
        return (1.0 if s.output == right else 0.0), True, False

    def observe(s: Any, obs: Any) -> None:
        obs.n.Input = 2
        obs.Input[0, 0] = s.bits[0]
        obs.Input[1, 0] = s.bits[1]
        obs.global_features[0] = s.negate

    def draw(s: Any) -> dict[str, Any]:
        """Hints for replays."""
        return {"types": {"Input": {"shape": "square", "color": name_of(DARK), "label": "{is_set}"}}}

    def render(s: Any) -> Image:
        """A (33, 129, 3) row: the inputs, white if set, then negate, orange if set, then the output in green or red."""
        image = grid(4, 1)
        for x, colour in enumerate([WHITE if bit else DARK for bit in s.bits] + [ORANGE if s.negate else DARK]):
            rectangle(cell(image, x, 0), 5, 5, 21, 21, colour)
        if s.output != NOTHING:
            right = s.output == s.bits[0] ^ s.bits[1] ^ s.negate
            rectangle(cell(image, 3, 0), 5, 5, 21, 21, GREEN if right else RED)
        return image
