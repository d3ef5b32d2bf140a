"""CherryPick: take the better half of the cherries, one by one."""

from __future__ import annotations

from typing import Any

import numpy as np

from entity_gym.compiled import CompiledEnvironment, Entity, SelectEntity, kernel, rand_normal
from entity_gym.envs.colours import BLUE, RED

MAX_CHERRIES = 128


class CherryPick(CompiledEnvironment):
    """Take the better half of the cherries, one by one.

    **Observation.** `Cherry` [quality] for every cherry that is left, in an order without meaning (cherries behind a
    taken one move up), and `Player`, without features.

    **Actions.** `Pick Cherry`: the player selects a cherry, which is taken away.

    **Reward.** The quality of the cherry. Qualities are drawn from a normal distribution and shifted together, so that
    the best num_cherries // 2 sum to 1.

    **End.** Terminates after num_cherries // 2 steps.

    **Best score.** 1.0 in every episode: take the best cherry that is left. Random choices give about -11.5 with 32
    cherries: the mean cherry is 0.78 standard deviations below the mean of the better half, 16 times.

    Args:
        num_cherries: at the start, 2 to 128.
        max_steps: steps after which an episode is truncated; None (the default) for no limit besides the end above.
    """

    entities = {"Cherry": Entity(["quality"], max=MAX_CHERRIES), "Player": Entity([], max=1)}
    actions = {"Pick Cherry": SelectEntity(actors="Player", actees="Cherry")}
    parameters = {"num_cherries": 32}
    ranges = {"num_cherries": (2, MAX_CHERRIES)}
    state = [
        ("cherries_left", np.int64),
        ("quality", np.float64, (MAX_CHERRIES,)),  # of those left
        ("ranked", np.float64, (MAX_CHERRIES,)),  # scratch of `reset`: best first
    ]
    reward_threshold = 0.99
    draw = {
        "types": {
            "Cherry": {"shape": "circle", "color": RED, "label": "{quality}"},
            "Player": {"shape": "square", "color": BLUE},
        }
    }

    def reset(s: Any) -> None:
        s.cherries_left = s.num_cherries
        for i in range(s.num_cherries):
            s.quality[i] = rand_normal(s)
            insert_ranked(s, i, s.quality[i])
        picks = s.num_cherries // 2
        best = 0.0
        for i in range(picks):
            best += s.ranked[i]
        for i in range(s.num_cherries):
            s.quality[i] += (1.0 - best) / picks

    def step(s: Any, act: Any) -> tuple[float, bool, bool]:
        picked = act.Pick_Cherry[0] - act.first.Cherry
        reward = s.quality[picked]
        for i in range(picked + 1, s.cherries_left):
            s.quality[i - 1] = s.quality[i]
        s.cherries_left -= 1
        return reward, s.cherries_left == s.num_cherries - s.num_cherries // 2, False

    def observe(s: Any, obs: Any) -> None:
        obs.n.Cherry = s.cherries_left
        for i in range(s.cherries_left):
            obs.Cherry[i, 0] = s.quality[i]
        obs.n.Player = 1


@kernel
def insert_ranked(s: Any, count: int, quality: float) -> None:
    """Insert a quality among the first `count` of `s.ranked`, which are in descending order."""
    i = count
    while i > 0 and s.ranked[i - 1] < quality:
        s.ranked[i] = s.ranked[i - 1]
        i -= 1
    s.ranked[i] = quality
