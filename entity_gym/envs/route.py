"""Route: the shortest closed tour through all cities."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from entity_gym.compiled import CompiledEnvironment, Entity, SelectEntities, rand_float, rand_int
from entity_gym.envs.colours import BLUE, GREEN

MAX_CITIES = 100


class Route(CompiledEnvironment):
    """A traveller orders all cities into a closed tour, at once, as one ordered set. The shorter, the better.

    **Observation.** One `Traveller` without features, and `City` [x, y] for each of n cities, drawn uniformly from the unit
    square. n is drawn uniformly from `min_cities` to `max_cities`.

    **Actions.** `tour`: the traveller selects all cities, in the order in which it visits them.

    **Reward.** Minus the length of the tour, with the way from the last city back to the first one.

    **End.** After one step.

    **Best score.** Minus the length of the shortest tour, with the default -3.83 on average. Going to the nearest city that is
    left scores -4.51, a random order -10.43.

    Args:
        min_cities: the least number of cities, 3 to 100.
        max_cities: the largest number of cities, `min_cities` to 100.
        max_steps: steps after which an episode is truncated; None (the default) for no limit besides the end above.
    """

    entities = {"Traveller": Entity([], max=1), "City": Entity(["x", "y"], max=MAX_CITIES)}
    actions = {"tour": SelectEntities(actors="Traveller", actees="City", ordered=True, min=MAX_CITIES)}
    parameters = {"min_cities": 20, "max_cities": 20}
    ranges = {"min_cities": (3, MAX_CITIES), "max_cities": (3, MAX_CITIES)}
    state = [
        ("num_cities", np.int64),
        ("x", np.float64, (MAX_CITIES,)),
        ("y", np.float64, (MAX_CITIES,)),
        ("order", np.int64, (MAX_CITIES,)),  # the cities in the order of the tour
    ]
    info = ["num_cities"]
    reward_threshold = -4.2
    draw = {
        "bounds": [0, 0, 1, 1],
        "y_up": True,
        "types": {
            "Traveller": {"shape": "square", "color": BLUE},
            "City": {"position": ["x", "y"], "shape": "circle", "color": GREEN, "size": 0.03},
        },
    }

    @staticmethod
    def check_parameters(p: Any) -> None:
        if p.min_cities > p.max_cities:
            raise ValueError(f"Route: min_cities={p.min_cities} is more than max_cities={p.max_cities}")

    def reset(s: Any) -> None:
        s.num_cities = s.min_cities + rand_int(s, s.max_cities - s.min_cities + 1)
        for k in range(s.num_cities):
            s.x[k] = rand_float(s)
            s.y[k] = rand_float(s)

    def step(s: Any, act: Any) -> tuple[float, bool, bool]:
        for k in range(s.num_cities):
            s.order[act.tour[0, k] - 1] = k
        length = 0.0
        before = s.order[s.num_cities - 1]
        for i in range(s.num_cities):
            city = s.order[i]
            length += math.hypot(s.x[city] - s.x[before], s.y[city] - s.y[before])
            before = city
        return -length, True, False

    def observe(s: Any, obs: Any) -> None:
        obs.n.Traveller = 1
        obs.n.City = s.num_cities
        for k in range(s.num_cities):
            obs.City[k, 0] = s.x[k]
            obs.City[k, 1] = s.y[k]
