"""Compare a policy of Knapsack or Route with the optimum and with simple rules, on instances that it has not seen.

python scripts/optima.py out/run                                   # 1,000 instances like those of training
python scripts/optima.py out/run min_items=100 max_items=100 capacity=25.0    # of another size
python scripts/optima.py out/run --best-of 16 --temperature 1.5    # and the best of 16 sampled solutions
python scripts/optima.py Route                                     # without a policy
python scripts/optima.py out/run --curve gap.png                   # the run's evaluations over time, beside simple rules; train
                                    # with eval.interval=1e6 eval.seed=7000000 eval.episodes=1000 eval.num_envs=1000

The policy takes its most likely actions. The optimum of Knapsack is exact (branch and bound); that of Route is the best of
local searches from every city, on average 0.004 % longer than the shortest tour of 20 cities, and 0.1 % of 50.
"""

from __future__ import annotations

from argparse import ArgumentParser
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import yaml
from numba import njit
from numpy.typing import NDArray

from enn_ppo import EvalConfig, evaluate
from enn_ppo.training.tracking.logger import read_metrics
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
def tours(distance: Array) -> tuple[float, float, float, float]:
    """Return lengths of closed tours: the shortest found, by 2-opt, by farthest insertion, and of going to the nearest city.

    The shortest one is searched from the tour of the nearest city of each city; 2-opt begins with that of city 0.

    Args:
        distance: (K, K).
    """
    shortest = np.inf
    for start in range(len(distance)):
        shortest = min(shortest, length(improved(nearest(distance, start), distance, True), distance))
    first = nearest(distance, 0)
    by_2_opt, inserted = improved(first.copy(), distance, False), farthest_insertion(distance)
    return shortest, length(by_2_opt, distance), length(inserted, distance), length(first, distance)


@njit(cache=True)  # type: ignore[untyped-decorator]
def nearest(distance: Array, start: int) -> NDArray[np.int64]:
    """Return the tour that goes on to the nearest city that is left."""
    n = len(distance)
    tour, is_left = np.full(n, start), np.full(n, True)
    is_left[start] = False
    for i in range(1, n):
        tour[i] = np.argmin(np.where(is_left, distance[tour[i - 1]], np.inf))
        is_left[tour[i]] = False
    return tour


@njit(cache=True)  # type: ignore[untyped-decorator]
def farthest_insertion(distance: Array) -> NDArray[np.int64]:
    """Return the tour that takes in the city farthest from it, where the detour is shortest (Rosenkrantz et al. 1977)."""
    n = len(distance)
    tour, to_tour = np.zeros(n, np.int64), distance[0].copy()
    for size in range(1, n):
        city = np.argmax(to_tour)
        best, place = np.inf, 0
        for i in range(size):
            before, after = tour[i - 1] if i else tour[size - 1], tour[i]
            detour = distance[before, city] + distance[city, after] - distance[before, after]
            if detour < best:
                best, place = detour, i
        tour[place + 1 : size + 1] = tour[place:size].copy()
        tour[place] = city
        to_tour = np.minimum(to_tour, distance[city])
        to_tour[tour[: size + 1]] = -1.0
    return tour


@njit(cache=True)  # type: ignore[untyped-decorator]
def improved(tour: NDArray[np.int64], distance: Array, swaps: bool) -> NDArray[np.int64]:
    """Reverse parts of the tour, which is 2-opt (Croes 1958), and swap parts next to each other, as long as that helps."""
    n, improves = len(tour), True
    while improves:
        improves = False
        for i in range(n - 1):
            for j in range(i + 2, n + (i > 0)):  # the part from i to j - 1
                before, a, b, after = tour[i - 1], tour[i], tour[j - 1], tour[j % n]
                if distance[before, b] + distance[a, after] < distance[before, a] + distance[b, after] - 1e-9:
                    tour[i:j] = tour[i:j][::-1].copy()
                    improves = True
                for m in range(i + 1, j if swaps else i):  # and its parts up to m - 1 and from m on
                    before, a, b, after = tour[i - 1], tour[i], tour[j - 1], tour[j % n]
                    c, d = tour[m - 1], tour[m]
                    now = distance[before, a] + distance[c, d] + distance[b, after]
                    if distance[before, d] + distance[b, a] + distance[c, after] < now - 1e-9:
                        tour[i:j] = np.concatenate((tour[m:j], tour[i:m]))
                        improves = True
    return tour


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
        found = [tours(np.linalg.norm(each[:, None] - each, axis=-1)) for each in instances]
        names = ("shortest tours found", "2-opt", "farthest insertion", "nearest city")
        return dict(zip(names, (-np.mean(found, axis=0)).tolist(), strict=True))
    capacities = obs.features["Knapsack"].values[:, 0].tolist()
    best = [best_items(*each.T, capacity) for each, capacity in zip(instances, capacities, strict=True)]
    return dict(zip(("optimum", "by value per weight"), np.mean(best, axis=0).tolist(), strict=True))


def draw(picture: Path, run: str, scores: Mapping[str, float]) -> None:
    """Draw how far evaluations are from the first score, in %, over minutes of training; the other scores are lines."""
    minutes, gaps, seconds = list[float](), list[float](), 0.0
    best, *rules = scores.values()
    figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
    for row in read_metrics(Path(run) / "metrics.jsonl"):
        seconds = row.get("seconds", seconds)  # the evaluation behind the last update has none
        if "eval/episodic_reward" in row:
            minutes.append(seconds / 60)
            gaps.append(100 * abs(1 - row["eval/episodic_reward"] / best))
    axes.plot(minutes, gaps, label="policy, greedy")
    for colour, (name, score) in enumerate(zip(list(scores)[1:], rules, strict=True), 1):
        axes.axhline(100 * abs(1 - score / best), color=f"C{colour}", linestyle="--", label=name)
    axes.set(xlabel="minutes of training", ylabel="% from the optimum", yscale="log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.legend()
    figure.savefig(picture, dpi=100)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", help="run directory, or a world")
    parser.add_argument("parameters", nargs="*", help="of the world, in place of the run's, such as max_items=100")
    parser.add_argument("--instances", type=int, default=1000)
    parser.add_argument(
        "--best-of", type=int, default=1, help="also the best of so many sampled solutions, and their mean"
    )
    parser.add_argument("--temperature", type=float, default=1.0, help="of the sampled solutions")
    parser.add_argument("--curve", type=Path, metavar="PNG", help="draw the gap of the run's evaluations over time")
    given = parser.parse_args(arguments)
    changed = {name: yaml.safe_load(value) for name, _, value in (each.partition("=") for each in given.parameters)}
    config = Path(given.run) / "config.yaml"
    env = yaml.safe_load(config.read_text("utf-8"))["env"] if config.exists() else {"id": given.run, "kwargs": {}}
    scores = measure(env["id"], given.instances, env["kwargs"] | changed)
    if given.curve:
        draw(given.curve, given.run, scores)
    elif config.exists():
        sizes = {"episodes": given.instances, "num_envs": given.instances}  # so that each plays its first instance
        how = EvalConfig(checkpoint=given.run, seed=SEED, greedy=True, env_kwargs=changed, **sizes)
        scores["policy"] = evaluate(how).estimates["episodic_reward"].mean
        if given.best_of > 1:
            sampled = evaluate(
                replace(how, greedy=False, best_of=given.best_of, temperature=given.temperature)
            ).estimates
            scores[f"best of {given.best_of}"] = sampled["episodic_reward"].mean
            scores["mean of these"] = sampled["episodic_reward_mean"].mean
    best = next(iter(scores.values()))
    for name, score in scores.items():
        print(f"{score:9.4f}  {score / best:8.2%}  {name}")


if __name__ == "__main__":
    main()
