"""Shells: find the shell that showed its mark at the start, after all have changed places."""

from __future__ import annotations

from typing import Any

import numpy as np

from entity_gym.compiled import CompiledEnvironment, Entity, SelectEntity, kernel, rand_int
from entity_gym.envs.colours import BLUE, ORANGE
from entity_gym.spaces import Flag

MAX_SHELLS = 16


class Shells(CompiledEnvironment):
    """One shell shows a mark at the start; then all change places. The policy needs memory of each entity.

    **Observation.** `Shell` [place, is_marked] for every shell, and `Player`, without features. The places of k shells
    are 0 to k - 1. In the first observation `is_marked` is 1 for one shell, drawn uniformly; in all later ones it is 0
    for all. In every observation places are dealt anew to the shells, and so is their order in the frame; all
    permutations are equally likely. Each shell keeps its id. k is drawn uniformly from `min_shells` to `max_shells`.

    **Actions.** `pick`: the player selects a shell, in the last step only. Before that nobody acts.

    **Reward.** 1 for the shell that was marked, otherwise 0.

    **End.** Terminates with the pick, after `num_shuffles` + 1 steps.

    **Best score.** 1, with memory that follows ids. Places and order tell nothing about earlier observations, so without
    ids every shell is as likely as the others whatever a policy remembers of whole frames: the mean of 1 / k, with the
    default (1/3 + 1/4 + 1/5 + 1/6) / 4 = 0.2375.

    Args:
        min_shells: the least number of shells, 2 to 16.
        max_shells: the largest number of shells, `min_shells` to 16.
        num_shuffles: observations without the mark, at least 1.
        max_steps: steps after which an episode is truncated; None (the default) for no limit besides the end above.
    """

    entities = {
        "Shell": Entity(["place", Flag("is_marked")], max=MAX_SHELLS, ids=True),
        "Player": Entity([], max=1),
    }
    actions = {"pick": SelectEntity(actors="Player", actees="Shell")}
    parameters = {"min_shells": 3, "max_shells": 6, "num_shuffles": 8}
    ranges = {"min_shells": (2, MAX_SHELLS), "max_shells": (2, MAX_SHELLS), "num_shuffles": (1, None)}
    state = [
        ("num_shells", np.int64),
        ("marked", np.int64),  # the id of the marked shell
        ("place", np.int64, (MAX_SHELLS,)),  # of each shell, by its id
        ("order", np.int64, (MAX_SHELLS,)),  # the shells' ids in the order of the frame
    ]
    info = ["num_shells"]
    reward_threshold = 0.95

    @staticmethod
    def check_parameters(p: Any) -> None:
        if p.min_shells > p.max_shells:
            raise ValueError(f"Shells: min_shells={p.min_shells} is more than max_shells={p.max_shells}")

    def reset(s: Any) -> None:
        s.num_shells = s.min_shells + rand_int(s, s.max_shells - s.min_shells + 1)
        s.marked = rand_int(s, s.num_shells)
        permute(s, s.place, s.num_shells)
        permute(s, s.order, s.num_shells)

    def step(s: Any, act: Any) -> tuple[float, bool, bool]:
        if s.steps > s.num_shuffles:
            picked = s.order[act.pick[0] - act.first.Shell]
            return (1.0 if picked == s.marked else 0.0), True, False
        permute(s, s.place, s.num_shells)
        permute(s, s.order, s.num_shells)
        return 0.0, False, False

    def observe(s: Any, obs: Any) -> None:
        obs.n.Shell = s.num_shells
        for i in range(s.num_shells):
            shell = s.order[i]
            obs.Shell[i, 0] = s.place[shell]
            obs.Shell[i, 1] = 1 if s.steps == 0 and shell == s.marked else 0
            obs.ids.Shell[i] = shell
        obs.n.Player = 1
        if s.steps < s.num_shuffles:
            obs.n.pick = 0

    def draw(s: Any) -> dict[str, Any]:
        """Hints for replays: shells in a row, the marked one above it at first."""
        shell = {"position": ["place", "is_marked"], "shape": "circle", "color": ORANGE, "size": 0.7}
        bounds = [0, 0, int(s.max_shells) - 1, 1]
        types = {"Shell": shell, "Player": {"shape": "square", "color": BLUE}}
        return {"bounds": bounds, "grid": True, "y_up": True, "types": types}


@kernel
def permute(s: Any, numbers: Any, count: int) -> None:
    """Write a uniformly drawn permutation of 0 to count - 1 into the first `count` places (Fisher and Yates, inside out)."""
    for i in range(count):
        j = rand_int(s, i + 1)
        numbers[i] = numbers[j]
        numbers[j] = i
