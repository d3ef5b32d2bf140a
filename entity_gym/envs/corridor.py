"""Corridor: a cue at the start says which way is right at the end."""

from __future__ import annotations

from typing import Any

import numpy as np

from entity_gym.compiled import CompiledEnvironment, GlobalCategorical, rand_int
from entity_gym.envs.colours import BLUE
from entity_gym.spaces import Category

MAX_WAYS = 8


class Corridor(CompiledEnvironment):
    """A cue at the start of a corridor says which way is right at its end. The policy needs memory of the frame.

    **Observation.** Two global features: `distance`, the number of steps to the junction, which is `length` at first, and
    `cue`. The cue is the number of the right way, from 1 to `num_ways`, in the first observation, and 0 in all later ones.
    The right way is drawn uniformly. There are no entities.

    **Actions.** `go`, by the frame: "forward" or one of the ways. Before the junction only "forward" is open, and at the
    junction only the ways 1 to `num_ways`.

    **Reward.** 1 for the right way at the junction, otherwise 0.

    **End.** Terminates with the choice at the junction, after `length` + 1 steps.

    **Best score.** 1, with memory. At the junction all episodes look the same, and every way is right in 1 of `num_ways`
    episodes: without memory every policy scores 1 / `num_ways`, with the default 0.5.

    Args:
        length: steps from the cue to the junction, at least 1.
        num_ways: at the junction, 2 to 8.
        max_steps: steps after which an episode is truncated; None (the default) for no limit besides the end above.
    """

    global_features = ["distance", Category("cue", MAX_WAYS + 1)]
    actions = {"go": GlobalCategorical(["forward", *(f"way {i}" for i in range(1, MAX_WAYS + 1))], masked=True)}
    parameters = {"length": 10, "num_ways": 2}
    ranges = {"length": (1, None), "num_ways": (2, MAX_WAYS)}
    state = [("right_way", np.int64)]
    reward_threshold = 0.95

    def reset(s: Any) -> None:
        s.right_way = 1 + rand_int(s, s.num_ways)

    def step(s: Any, act: Any) -> tuple[float, bool, bool]:
        at_the_end = s.steps > s.length
        return (1.0 if at_the_end and act.go[0] == s.right_way else 0.0), at_the_end, False

    def observe(s: Any, obs: Any) -> None:
        distance = max(s.length - s.steps, 0)
        obs.global_features[0] = distance
        obs.global_features[1] = s.right_way if s.steps == 0 else 0
        obs.go.mask[0, 0] = distance > 0
        for way in range(1, MAX_WAYS + 1):
            obs.go.mask[0, way] = distance == 0 and way <= s.num_ways

    def draw(s: Any) -> dict[str, Any]:
        """Hints for replays: the agent starts as high as the cue says, and walks to the left along the lower border."""
        agent = {"position": ["distance", "cue"], "shape": "square", "color": BLUE, "size": 0.7, "label": "{cue}"}
        bounds = [0, 0, int(s.length), int(s.num_ways)]
        return {"bounds": bounds, "grid": True, "y_up": True, "types": {"__global__": agent}}
