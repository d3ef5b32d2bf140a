"""FloorIsLava: one step to safety."""

from __future__ import annotations

from typing import Any

import numpy as np

from entity_gym.compiled import Categorical, CompiledEnvironment, Entity, rand_int
from entity_gym.envs.drawing import BLUE, GREEN, RED, Image, cell, disc, grid, name_of, rectangle

DIRECTIONS = ("n", "ne", "e", "se", "s", "sw", "w", "nw")
DX = (0, 1, 1, 1, 0, -1, -1, -1)
DY = (1, 1, 0, -1, -1, -1, 0, 1)
NUM_DIRECTIONS = len(DIRECTIONS)
EXTENT = 1000  # the player starts with |x|, |y| up to this


class FloorIsLava(CompiledEnvironment):
    """A player steps on the one tile that is not lava. Where the tiles are matters only relative to the player.

    **Observation.** `Lava` [x, y], `HighGround` [x, y] and `Player` [x, y], whole numbers; x grows to the east and y to
    the north. The player starts anywhere in -1000 <= x, y <= 1000. One to eight of the eight tiles around it are
    observed, a number drawn uniformly: one of them, drawn uniformly, is high ground, the others (none to seven) are
    lava. The player, the actor, is the last entity of a frame, at index (number of lava) + 1.

    **Actions.** `move`: one of eight directions, by one tile. Tiles that are not shown can be stepped on as well.

    **Reward.** 1 for stepping on the high ground, otherwise 0.

    **End.** After one step.

    **Best score.** 1. A uniformly drawn direction scores 0.125, and so does every policy that cannot relate the tiles
    to the player.
    """

    entities = {
        "Lava": Entity(["x", "y"], max=NUM_DIRECTIONS - 1),
        "HighGround": Entity(["x", "y"], max=1),
        "Player": Entity(["x", "y"], max=1),
    }
    actions = {"move": Categorical(DIRECTIONS, actors="Player")}
    state = [
        ("x", np.int64),  # of the player
        ("y", np.int64),
        ("high_ground", np.int64, (2,)),
        ("num_lava", np.int64),
        ("lava", np.int64, (NUM_DIRECTIONS - 1, 2)),
    ]
    reward_threshold = 0.99

    def reset(s: Any) -> None:
        s.x = rand_int(s, 2 * EXTENT + 1) - EXTENT
        s.y = rand_int(s, 2 * EXTENT + 1) - EXTENT
        num_tiles = 1 + rand_int(s, NUM_DIRECTIONS)
        high_ground = rand_int(s, num_tiles)  # which of the tiles
        # Go through the directions and show each with the chance that makes all sets of `num_tiles` equally likely.
        shown = 0
        s.num_lava = 0
        for i in range(NUM_DIRECTIONS):
            if rand_int(s, NUM_DIRECTIONS - i) < num_tiles - shown:
                if shown == high_ground:
                    s.high_ground[0] = s.x + DX[i]
                    s.high_ground[1] = s.y + DY[i]
                else:
                    s.lava[s.num_lava, 0] = s.x + DX[i]
                    s.lava[s.num_lava, 1] = s.y + DY[i]
                    s.num_lava += 1
                shown += 1

    def step(s: Any, act: Any) -> tuple[float, bool, bool]:
        s.x += DX[act.move[0]]
        s.y += DY[act.move[0]]
        safe = s.x == s.high_ground[0] and s.y == s.high_ground[1]
        return (1.0 if safe else 0.0), True, False

    def observe(s: Any, obs: Any) -> None:
        obs.n.Lava = s.num_lava
        for i in range(s.num_lava):
            obs.Lava[i, 0] = s.lava[i, 0]
            obs.Lava[i, 1] = s.lava[i, 1]
        obs.n.HighGround = 1
        obs.HighGround[0, 0] = s.high_ground[0]
        obs.HighGround[0, 1] = s.high_ground[1]
        obs.n.Player = 1
        obs.Player[0, 0] = s.x
        obs.Player[0, 1] = s.y

    def draw(s: Any) -> dict[str, Any]:
        """Hints for replays: the 5 x 5 tiles around the player's first one."""
        place, x, y = ["x", "y"], int(s.x), int(s.y)
        return {
            "bounds": [x - 2, y - 2, x + 2, y + 2],
            "grid": True,
            "y_up": True,
            "types": {
                "Lava": {"position": place, "shape": "square", "color": name_of(RED), "size": 1},
                "HighGround": {"position": place, "shape": "square", "color": name_of(GREEN), "size": 1},
                "Player": {"position": place, "shape": "circle", "color": name_of(BLUE), "size": 0.6, "layer": 1},
            },
        }

    def render(s: Any) -> Image:
        """The 5 x 5 tiles around the player as a (161, 161, 3) image: lava red, high ground green, the player blue."""
        image = grid(5, 5)
        for x, y in s.lava[: s.num_lava].tolist():
            rectangle(cell(image, x - int(s.x) + 2, y - int(s.y) + 2), 0, 0, 31, 31, RED)
        x, y = s.high_ground.tolist()
        rectangle(cell(image, x - int(s.x) + 2, y - int(s.y) + 2), 0, 0, 31, 31, GREEN)
        disc(cell(image, 2, 2), 15, 15, 9, BLUE)
        return image
