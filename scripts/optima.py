"""Compare a policy of Knapsack or Route with the optimum and with simple rules, on instances that it has not seen.

python scripts/optima.py out/run                                   # 1,000 instances like those of training
python scripts/optima.py out/run min_items=100 max_items=100 capacity=25.0    # of another size
python scripts/optima.py out/run --best-of 16                      # and the best of 16 sampled solutions
python scripts/optima.py Route                                     # without a policy

The policy takes its most likely actions. The optimum of Knapsack is exact (branch and bound); that of Route is the best of
local searches from every city, which for 20 cities is the optimum or within 0.1 % of it.
"""

from __future__ import annotations

from argparse import ArgumentParser
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numba import njit
from numpy.typing import NDArray

from enn_ppo import EvalConfig, evaluate
from entity_gym.registry import make

Array = NDArray[np.float64]
SEED = 7_000_000


def best_items(values: Array, weights: Array, capacity: float) -> tuple[float, float]:
    """Return the largest total value of (K,) items within the capacity, and that of taking what fits by value per weight.

    Branch and bound: items in the order of value per weight, each first taken, then left. The bound fills the room with the
    next items, and with a part of the first that does not fit.
    """
    order = np.argsort(-values / weights, kind="stable")
    value, weight = values[order].tolist(), weights[order].tolist()
    sums, loads = [0.0, *np.cumsum(value).tolist()], [0.0, *np.cumsum(weight).tolist()]
    by_density, room = 0.0, capacity
    for k in range(len(value)):
        if weight[k] <= room:
            by_density, room = by_density + value[k], room - weight[k]
    best, todo = by_density, [(0, capacity, 0.0)]  # (next item, room, total value)
    while todo:
        k, room, total = todo.pop()
        best = max(best, total)
        end = bisect_right(loads, loads[k] + room) - 1  # items k to end - 1 fit
        part = value[end] * (room - loads[end] + loads[k]) / weight[end] if end < len(value) else 0.0
        if k < len(value) and total + sums[end] - sums[k] + part > best:
            todo.append((k + 1, room, total))
            if weight[k] <= room:
                todo.append((k + 1, room - weight[k], total + value[k]))
    return best, by_density


@njit(cache=True)  # type: ignore[untyped-decorator]
def shortest_tour(distance: Array) -> tuple[float, float]:
    """Return the length of the shortest tour found, and of the one that goes to the nearest city, from city 0.

    From such a tour of each city, a search reverses parts of the tour, and swaps parts next to each other, as long as that helps.

    Args:
        distance: (K, K).
    """
    n = len(distance)
    shortest, nearest = np.inf, 0.0
    for start in range(n):
        tour, is_left = np.full(n, start), np.full(n, True)
        is_left[start] = False
        for i in range(1, n):
            tour[i] = np.argmin(np.where(is_left, distance[tour[i - 1]], np.inf))
            is_left[tour[i]] = False
        if start == 0:
            nearest = length(tour, distance)
        improves = True
        while improves:
            improves = False
            for i in range(n - 1):
                for j in range(i + 2, n + (i > 0)):  # the part from i to j - 1
                    before, a, b, after = tour[i - 1], tour[i], tour[j - 1], tour[j % n]
                    if distance[before, b] + distance[a, after] < distance[before, a] + distance[b, after] - 1e-9:
                        tour[i:j] = tour[i:j][::-1].copy()
                        improves = True
                    for m in range(i + 1, j):  # and its parts up to m - 1 and from m on
                        before, a, b, after = tour[i - 1], tour[i], tour[j - 1], tour[j % n]
                        c, d = tour[m - 1], tour[m]
                        now = distance[before, a] + distance[c, d] + distance[b, after]
                        if distance[before, d] + distance[b, a] + distance[c, after] < now - 1e-9:
                            tour[i:j] = np.concatenate((tour[m:j], tour[i:m]))
                            improves = True
        shortest = min(shortest, length(tour, distance))
    return shortest, nearest


@njit(cache=True)  # type: ignore[untyped-decorator]
def length(tour: NDArray[np.int64], distance: Array) -> float:
    """Return the length of a closed tour."""
    return sum([distance[tour[i - 1], tour[i]] for i in range(len(tour))])


def measure(env: str, number: int, parameters: dict[str, Any]) -> dict[str, float]:
    """Return the mean score of the optimum and of a simple rule, on the first instances of `number` environments."""
    obs = make(env, number, seed=SEED, **parameters).reset()
    entities = obs.features["City" if "City" in obs.features else "Item"]
    instances = np.split(entities.values.astype(np.float64), entities.offsets[1:-1])
    if "City" in obs.features:
        found = [shortest_tour(np.linalg.norm(each[:, None] - each, axis=-1)) for each in instances]
        return dict(zip(("shortest tours found", "nearest city"), (-np.mean(found, axis=0)).tolist(), strict=True))
    capacities = obs.features["Knapsack"].values[:, 0].tolist()
    best = [best_items(*each.T, capacity) for each, capacity in zip(instances, capacities, strict=True)]
    return dict(zip(("optimum", "by value per weight"), np.mean(best, axis=0).tolist(), strict=True))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", help="run directory, or a world")
    parser.add_argument("parameters", nargs="*", help="of the world, in place of the run's, such as max_items=100")
    parser.add_argument("--instances", type=int, default=1000)
    parser.add_argument(
        "--best-of", type=int, default=1, help="also the best of so many sampled solutions, and their mean"
    )
    given = parser.parse_args(arguments)
    changed = {name: yaml.safe_load(value) for name, _, value in (each.partition("=") for each in given.parameters)}
    config = Path(given.run) / "config.yaml"
    env = yaml.safe_load(config.read_text("utf-8"))["env"] if config.exists() else {"id": given.run, "kwargs": {}}
    scores = measure(env["id"], given.instances, env["kwargs"] | changed)
    if config.exists():
        sizes = {"episodes": given.instances, "num_envs": given.instances}  # so that each plays its first instance
        how = EvalConfig(checkpoint=given.run, seed=SEED, greedy=True, env_kwargs=changed, **sizes)
        scores["policy"] = evaluate(how).estimates["episodic_reward"].mean
        if given.best_of > 1:
            sampled = evaluate(replace(how, greedy=False, best_of=given.best_of)).estimates
            scores[f"best of {given.best_of}"] = sampled["episodic_reward"].mean
            scores["mean of these"] = sampled["episodic_reward_mean"].mean
    best = next(iter(scores.values()))
    for name, score in scores.items():
        print(f"{score:9.4f}  {score / best:8.2%}  {name}")


if __name__ == "__main__":
    main()
