"""Fair turns: in which order the jobs of several clients are taken."""

from __future__ import annotations

import asyncio

from enn_ppo.serve.turns import FairQueue


def taken(queue: FairQueue[str, str], most: int = 1, most_cost: float = 1e9) -> list[str]:
    return [job for _, job in asyncio.run(queue.take(most, most_cost, kind=lambda job: job.isupper()))]


def test_a_small_job_is_taken_before_the_large_ones_that_came_earlier() -> None:
    queue: FairQueue[str, str] = FairQueue()
    for client in ("a", "b", "c"):
        queue.put(client, client, 1000)
    queue.put("d", "small", 1)
    assert taken(queue) == ["small"]
    assert taken(queue, 3) == ["a", "b", "c"]


def test_a_client_with_many_jobs_waits_for_one_of_each_of_the_others() -> None:
    queue: FairQueue[str, str] = FairQueue()
    for k in range(3):
        queue.put("busy", f"busy {k}", 10)
    queue.put("one", "one", 10)
    queue.put("two", "two", 10)
    assert taken(queue, 9) == ["busy 0", "one", "two", "busy 1", "busy 2"]


def test_a_large_job_is_overtaken_only_as_long_as_others_have_had_less() -> None:
    queue: FairQueue[str, str] = FairQueue()
    queue.put("large", "large", 25)
    order = []
    for k in range(4):
        queue.put("small", f"small {k}", 10)
        order += taken(queue)
    assert [*order, *taken(queue)] == ["small 0", "small 1", "large", "small 2", "small 3"]


def test_a_client_that_has_been_served_for_long_waits_no_longer_than_a_new_one() -> None:
    queue: FairQueue[str, str] = FairQueue()
    for _ in range(100):
        queue.put("old", "old", 10)
        assert taken(queue) == ["old"]
    queue.put("new", "new", 20)
    queue.put("old", "old", 10)
    assert taken(queue, 2) == ["old", "new"]


def test_jobs_are_taken_together_up_to_a_number_a_cost_and_the_first_of_another_kind() -> None:
    queue: FairQueue[str, str] = FairQueue()
    for k, job in enumerate(["a", "B", "c", "d", "e"]):
        queue.put(str(k), job, 10)
    assert queue.cost == 50
    assert taken(queue, 9, 30) == ["a", "c", "d"]
    assert taken(queue, 9) == ["B"]
    assert queue.cost == 10
    assert taken(queue, 9, 5) == ["e"]  # one job is always taken


def test_jobs_of_a_client_that_has_left_are_gone() -> None:
    queue: FairQueue[str, str] = FairQueue()
    queue.put("a", "a", 5)
    queue.put("b", "b", 7)
    queue.forget("a")
    queue.forget("c")
    assert queue.cost == 7
    assert taken(queue, 9) == ["b"]
