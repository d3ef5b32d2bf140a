"""Knapsack: choose items of the largest total value under a weight. `KnapsackUnordered` chooses each item independently."""

from __future__ import annotations

from typing import Any

import numpy as np

from entity_gym.compiled import CompiledEnvironment, Entity, SelectEntities, kernel, rand_float, rand_int
from entity_gym.envs.colours import BLUE, ORANGE

MAX_ITEMS = 200


class Knapsack(CompiledEnvironment):
    """A knapsack takes items of the largest total value that it can carry, as one ordered set.

    **Observation.** One `Knapsack` [capacity], and `Item` [value, weight] for each of n items; values and weights are drawn
    uniformly from 0 to 1, and n from `min_items` to `max_items`.

    **Actions.** `pick`: the knapsack selects an ordered set of items, within a budget: weights count against the capacity.

    **Reward.** The total value of the items taken. Items are taken in the order of the set, each if its weight is at most what
    the capacity has left; the others are skipped.

    **End.** After one step.

    **Best score.** The optimum, with the default 20.12 on average. Items picked by value per weight score 20.06, or 19.91 if the
    set ends at the first that does not fit. The default is the setting of Kwon et al. 2020 (POMO, arXiv 2010.16011).

    Args:
        min_items: the least number of items, 1 to 200.
        max_items: the largest number of items, `min_items` to 200.
        capacity: the largest total weight, at least 0. The default is a quarter of the default number of items.
        max_steps: steps after which an episode is truncated; None (the default) for no limit besides the end above.
    """

    entities = {"Knapsack": Entity(["capacity"], max=1), "Item": Entity(["value", "weight"], max=MAX_ITEMS)}
    actions = {"pick": SelectEntities(actors="Knapsack", actees="Item", ordered=True, cost="weight", budget="capacity")}
    parameters = {"min_items": 50, "max_items": 50, "capacity": 12.5}
    ranges = {"min_items": (1, MAX_ITEMS), "max_items": (1, MAX_ITEMS), "capacity": (0.0, None)}
    state = [
        ("num_items", np.int64),
        ("value", np.float32, (MAX_ITEMS,)),  # float32, so that policies see what counts
        ("weight", np.float32, (MAX_ITEMS,)),
        ("order", np.int64, (MAX_ITEMS,)),  # the items picked, in the order of the set
        ("room", np.float64),  # of the capacity
        ("num_taken", np.int64),
        ("num_skipped", np.int64),
    ]
    info = ["num_items", "num_taken", "num_skipped", "room"]
    reward_threshold = 20.0
    draw = {
        "bounds": [0, 0, 1, 1],
        "y_up": True,
        "types": {
            "Knapsack": {"shape": "square", "color": BLUE, "label": "{capacity}"},
            "Item": {"position": ["weight", "value"], "shape": "circle", "color": ORANGE, "size": 0.03},
        },
    }

    @staticmethod
    def check_parameters(p: Any) -> None:
        if p.min_items > p.max_items:
            raise ValueError(f"Knapsack: min_items={p.min_items} is more than max_items={p.max_items}")

    def reset(s: Any) -> None:
        s.num_items = s.min_items + rand_int(s, s.max_items - s.min_items + 1)
        for k in range(s.num_items):
            s.value[k] = rand_float(s)
            s.weight[k] = rand_float(s)
        s.room = s.capacity
        s.num_taken = 0
        s.num_skipped = 0

    def step(s: Any, act: Any) -> tuple[float, bool, bool]:
        num_picked = 0
        for k in range(s.num_items):
            place = act.pick[0, k]
            if place > 0:
                s.order[place - 1] = k
                num_picked += 1
        total = 0.0
        for i in range(num_picked):
            total += take(s, s.order[i])
        return total, True, False

    def observe(s: Any, obs: Any) -> None:
        obs.n.Knapsack = 1
        obs.Knapsack[0, 0] = s.capacity
        obs.n.Item = s.num_items
        for k in range(s.num_items):
            obs.Item[k, 0] = s.value[k]
            obs.Item[k, 1] = s.weight[k]


class KnapsackUnordered(Knapsack):
    """`Knapsack`, but `pick` selects an unordered set, each item independently, and items are taken in the order of the frame."""

    actions = {"pick": SelectEntities(actors="Knapsack", actees="Item")}

    def step(s: Any, act: Any) -> tuple[float, bool, bool]:
        total = 0.0
        for k in range(s.num_items):
            if act.pick[0, k] > 0:
                total += take(s, k)
        return total, True, False


@kernel
def take(s: Any, item: int) -> float:
    """Take an item if there is room for it, and return the value gained."""
    if s.weight[item] > s.room:
        s.num_skipped += 1
        return 0.0
    s.room -= s.weight[item]
    s.num_taken += 1
    return float(s.value[item])
