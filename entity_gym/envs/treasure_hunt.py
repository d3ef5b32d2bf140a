"""TreasureHunt: collect the treasures, avoid the traps. `examples/treasure_hunt.py` is the same world in plain Python."""

from __future__ import annotations

from typing import Any

import numpy as np

from entity_gym.compiled import CompiledEnvironment, Entity, GlobalCategorical, kernel, rand_int
from entity_gym.envs.colours import BLUE, DARK, ORANGE

MOVES = ("up", "down", "left", "right")
DX = (0, 0, -1, 1)
DY = (1, -1, 0, 0)
SPREAD = 5  # traps and treasures lie within |x|, |y| <= 5
BORDER = 10  # the player moves within |x|, |y| <= 10
MOST = 16  # of traps, and of treasures
PLACE = ["x_pos", "y_pos"]


class TreasureHunt(CompiledEnvironment):
    """A player walks over a grid, collects treasures and keeps off traps. The player is no entity: it is the frame itself.

    **Observation.** Global features `x_pos`, `y_pos`, the player's position; `Trap` [x_pos, y_pos] and `Treasure`
    [x_pos, y_pos]. All are whole numbers; x grows to the right and y upwards. The player starts at (0, 0); traps and
    treasures lie in different cells with -5 <= x, y <= 5, drawn uniformly, never at (0, 0). Collected treasures are
    gone; traps stay.

    **Actions.** `move`, by the frame: up, down, left or right, by one. A move out of -10 <= x, y <= 10 does nothing.

    **Reward.** 1 for every treasure that the player steps on; otherwise 0.

    **End.** Terminates when the player steps on a trap or has collected every treasure. Truncated after `max_steps`
    steps unless that step terminates. `end_of_episode_info` then has `treasures_left`.

    **Best score.** 5, all treasures of the default board: 100 steps are more than enough to walk around traps. (One
    board in about 300,000 has a treasure, or the player, walled in.)

    Args:
        num_traps: from 0 to 16.
        num_treasures: from 1 to 16.
        max_steps: steps after which an episode is truncated, at least 1; None for no limit.
    """

    entities = {"Trap": Entity(PLACE, max=MOST), "Treasure": Entity(PLACE, max=MOST)}
    global_features = PLACE
    actions = {"move": GlobalCategorical(MOVES)}
    parameters = {"num_traps": 5, "num_treasures": 5}
    ranges = {"num_traps": (0, MOST), "num_treasures": (1, MOST)}
    max_steps = 100
    state = [
        ("x", np.int64),
        ("y", np.int64),
        ("trap", np.int64, (MOST, 2)),
        ("treasure", np.int64, (MOST, 2)),  # the first `treasures_left` rows are there
        ("treasures_left", np.int64),
    ]
    info = ["treasures_left"]
    reward_threshold = 4.5
    draw = {  # the player is the frame itself, and stands where its global features say
        "bounds": [-BORDER, -BORDER, BORDER, BORDER],
        "grid": True,
        "y_up": True,
        "types": {
            "Trap": {"position": PLACE, "shape": "cross", "color": DARK, "size": 0.7},
            "Treasure": {"position": PLACE, "shape": "circle", "color": ORANGE, "size": 0.6},
            "__global__": {"position": PLACE, "shape": "square", "color": BLUE, "size": 0.7, "layer": 1},
        },
    }

    def reset(s: Any) -> None:
        s.x = 0
        s.y = 0
        s.treasures_left = 0
        for i in range(s.num_traps):
            place(s, s.trap, i, i)
        for i in range(s.num_treasures):
            place(s, s.treasure, i, s.num_traps)
            s.treasures_left += 1

    def step(s: Any, act: Any) -> tuple[float, bool, bool]:
        s.x = min(max(s.x + DX[act.move[0]], -BORDER), BORDER)
        s.y = min(max(s.y + DY[act.move[0]], -BORDER), BORDER)
        reward = 0.0
        found = find(s.treasure, s.treasures_left, s.x, s.y)
        if found >= 0:
            reward = 1.0
            s.treasures_left -= 1
            for i in range(found, s.treasures_left):
                s.treasure[i, 0] = s.treasure[i + 1, 0]
                s.treasure[i, 1] = s.treasure[i + 1, 1]
        trapped = find(s.trap, s.num_traps, s.x, s.y) >= 0
        return reward, trapped or s.treasures_left == 0, False

    def observe(s: Any, obs: Any) -> None:
        obs.global_features[0] = s.x
        obs.global_features[1] = s.y
        obs.n.Trap = s.num_traps
        for i in range(s.num_traps):
            obs.Trap[i, 0] = s.trap[i, 0]
            obs.Trap[i, 1] = s.trap[i, 1]
        obs.n.Treasure = s.treasures_left
        for i in range(s.treasures_left):
            obs.Treasure[i, 0] = s.treasure[i, 0]
            obs.Treasure[i, 1] = s.treasure[i, 1]


@kernel
def place(s: Any, places: Any, i: int, num_traps: int) -> None:
    """Put `places[i]` on a free square, beside the player, the first `num_traps` traps and the treasures so far."""
    while True:
        x = rand_int(s, 2 * SPREAD + 1) - SPREAD
        y = rand_int(s, 2 * SPREAD + 1) - SPREAD
        free = x != s.x or y != s.y
        if free and find(s.trap, num_traps, x, y) < 0 and find(s.treasure, s.treasures_left, x, y) < 0:
            places[i, 0] = x
            places[i, 1] = y
            return


@kernel
def find(places: Any, num_places: int, x: int, y: int) -> int:
    """Return which of the first `num_places` places is (x, y), or -1."""
    for i in range(num_places):
        if places[i, 0] == x and places[i, 1] == y:
            return i
    return -1
