"""PickMatchingBalls: pick as many balls of one colour as there are."""

from __future__ import annotations

from typing import Any

import numpy as np

from entity_gym.compiled import CompiledEnvironment, Entity, SelectEntity, kernel, rand_int
from entity_gym.envs.colours import DARK

MAX_BALLS, NUM_COLOURS, FEWEST = 64, 6, 3


class PickMatchingBalls(CompiledEnvironment):
    """Pick all balls of one colour. The most frequent colour scores best.

    **Observation.** `Ball` [color0, ..., color5, selected] for every ball, and `Player`, without features. The six
    features all hold the number of the ball's colour, 0 to 5; with `one_hot`, 1 in the place of the colour and 0
    elsewhere. `selected` is 1 for a picked ball, otherwise 0.

    **Actions.** `Pick Ball`: the player selects a ball that has not been picked.

    **Reward.** 0 before the end. Then 1 if all balls are picked, and otherwise (number of balls picked - 1) / (number
    of balls of the most frequent colour): the last ball, of another colour, does not count.

    **End.** Terminates when balls of two colours are picked, or all balls. There are `max_balls` balls at first, with
    `randomize` any number from 3 to `max_balls`, if that is more; colours are drawn uniformly.

    **Best score.** 1.0 in every episode: pick all balls of a most frequent colour, then any other. Picking any colour's
    balls gives its share of the most frequent colour.

    Args:
        max_balls: 1 to 64.
        one_hot: how colours are shown.
        randomize: whether the number of balls differs from episode to episode.
        max_steps: steps after which an episode is truncated; None (the default) for no limit besides the end above.
    """

    entities = {
        "Ball": Entity([*(f"color{i}" for i in range(NUM_COLOURS)), "selected"], max=MAX_BALLS),
        "Player": Entity([], max=1),
    }
    actions = {"Pick Ball": SelectEntity(actors="Player", max_actees=MAX_BALLS)}
    parameters = {"max_balls": 32, "one_hot": False, "randomize": False}
    ranges = {"max_balls": (1, MAX_BALLS)}
    state = [
        ("num_balls", np.int64),
        ("picked", np.int64),
        ("colour", np.int64, (MAX_BALLS,)),
        ("selected", np.int8, (MAX_BALLS,)),  # 1: picked
        ("most", np.int64),  # balls of the most frequent colour
        ("count", np.int64, (NUM_COLOURS,)),  # scratch of `reset`: balls of each colour
    ]
    info = ["num_balls", "picked"]
    reward_threshold = 0.95
    draw = {
        "types": {
            "Ball": {"shape": "circle", "color_by": "color0", "label": "{color0}"},
            "Player": {"shape": "square", "color": DARK},
        }
    }

    def reset(s: Any) -> None:
        s.num_balls = s.max_balls
        if s.randomize and s.max_balls > FEWEST:
            s.num_balls = FEWEST + rand_int(s, s.max_balls - FEWEST + 1)
        s.picked = 0
        s.most = 0
        for colour in range(NUM_COLOURS):
            s.count[colour] = 0
        for i in range(s.num_balls):
            colour = rand_int(s, NUM_COLOURS)
            s.colour[i] = colour
            s.selected[i] = 0
            s.count[colour] += 1
            s.most = max(s.most, s.count[colour])

    def step(s: Any, act: Any) -> tuple[float, bool, bool]:
        ball = act.Pick_Ball[0] - act.first.Ball
        differs = is_another_colour(s, s.colour[ball])
        s.selected[ball] = 1
        s.picked += 1
        if s.picked == s.num_balls:
            return 1.0, True, False
        return (s.picked - 1) / s.most if differs else 0.0, differs, False

    def observe(s: Any, obs: Any) -> None:
        obs.n.Ball = s.num_balls
        obs.n.Player = 1
        open_balls = 0
        for i in range(s.num_balls):
            for colour in range(NUM_COLOURS):
                if s.one_hot:
                    obs.Ball[i, colour] = 1.0 if s.colour[i] == colour else 0.0
                else:
                    obs.Ball[i, colour] = s.colour[i]
            obs.Ball[i, NUM_COLOURS] = s.selected[i]
            if s.selected[i] == 0:
                obs.Pick_Ball.actees[open_balls] = i
                open_balls += 1
        obs.n.Pick_Ball_actees = open_balls


@kernel
def is_another_colour(s: Any, colour: int) -> bool:
    """Whether a ball of another colour has been picked."""
    for i in range(s.num_balls):
        if s.selected[i] == 1 and s.colour[i] != colour:
            return True
    return False
