"""Knapsack: items are taken in the order of the set while they fit, and their values are paid."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from entity_gym.actions import SelectEntitiesAction
from entity_gym.environment import Observation
from entity_gym.envs.knapsack import Knapsack, KnapsackUnordered
from tests.entity_gym.compiled.view import CompiledView
from tests.entity_gym.envs.playing import resets, rows, started


def pick(env: CompiledView, items: Sequence[int]) -> Observation:
    return env.act({"pick": SelectEntitiesAction([("Knapsack", 0)], [[("Item", item) for item in items]])})


#: Four items, exact in float32, and a capacity of 1.
VALUES, WEIGHTS = [0.5, 0.75, 0.25, 0.125], [0.5, 0.75, 0.25, 0.5]


def four_items(env: type[Knapsack]) -> CompiledView:
    return started(env(min_items=4, max_items=4, capacity=1.0), value=VALUES, weight=WEIGHTS)


@pytest.mark.parametrize(
    ("items", "reward", "taken", "skipped", "room"),
    [
        ([], 0.0, 0, 0, 1.0),
        ([1], 0.75, 1, 0, 0.25),
        ([1, 2], 1.0, 2, 0, 0.0),  # full to the last bit
        ([0, 1, 2], 0.75, 2, 1, 0.25),  # item 1 is too heavy after item 0, and item 2 still fits
        ([1, 0, 2], 1.0, 2, 1, 0.0),  # item 0 is too heavy after item 1
        ([3, 2, 1, 0], 0.375, 2, 2, 0.25),
    ],
)
def test_items_are_taken_in_the_order_of_the_set_and_those_that_do_not_fit_are_skipped(
    items: list[int], reward: float, taken: int, skipped: int, room: float
) -> None:
    end = pick(four_items(Knapsack), items)
    assert (end.reward, end.done, end.truncated) == (reward, True, False)
    assert end.end_of_episode_info == {"num_items": 4, "num_taken": taken, "num_skipped": skipped, "room": room}


@pytest.mark.parametrize("items", [[1, 0, 2], [2, 1, 0]])
def test_items_of_an_unordered_set_are_taken_in_the_order_of_the_frame(items: list[int]) -> None:
    end = pick(four_items(KnapsackUnordered), items)
    assert (end.reward, end.end_of_episode_info["num_skipped"]) == (0.75, 1)  # items 0 and 2


@given(capacity=st.floats(0, 4), num_items=st.integers(1, 20), seed=st.integers(0, 2**31), data=st.data())
@pytest.mark.parametrize("env", [Knapsack, KnapsackUnordered])
def test_what_is_taken_never_weighs_more_than_the_capacity(
    env: type[Knapsack], capacity: float, num_items: int, seed: int, data: st.DataObject
) -> None:
    world = started(env(min_items=num_items, max_items=num_items, capacity=capacity), seed)
    value, weight = np.array(rows(world.observe(), "Item")).T
    items = data.draw(st.lists(st.integers(0, num_items - 1), unique=True))
    room, total = capacity, 0.0
    for item in items if env is Knapsack else sorted(items):
        if weight[item] <= room:
            room, total = room - weight[item], total + value[item]
    end = pick(world, items)
    assert (end.reward, end.end_of_episode_info["room"]) == (pytest.approx(total), pytest.approx(room))
    assert end.end_of_episode_info["room"] >= 0


def test_numbers_of_items_values_and_weights_are_uniform() -> None:
    sizes, items = Counter[int](), []
    for env in resets(Knapsack(min_items=2, max_items=4, capacity=3.0), 600):
        obs = env.observe()
        assert rows(obs, "Knapsack") == [[3.0]]
        sizes[len(rows(obs, "Item"))] += 1
        items += rows(obs, "Item")
    assert sizes == {size: pytest.approx(200, abs=58) for size in (2, 3, 4)}  # 5 standard deviations
    assert len(rows(started(Knapsack).observe(), "Item")) == 50
    for numbers in np.array(items).T:  # values, then weights
        counts, _ = np.histogram(numbers, bins=4, range=(0, 1))
        assert counts.sum() == len(items) and (abs(counts - len(items) / 4) < 5 * np.sqrt(len(items) * 3 / 16)).all()
