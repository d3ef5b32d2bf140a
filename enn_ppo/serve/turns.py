"""Fair turns of clients at a thread: a client that asks for little does not wait for those that ask for much."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from typing import Generic, TypeVar

C = TypeVar("C")
J = TypeVar("J")


class FairQueue(Generic[C, J]):
    """Jobs of clients, taken in the order of self-clocked fair queueing (Golestani, 1994).

    That is the order in which the jobs would be done if all clients were served at once, each at the same speed. The jobs of one
    client keep their order. All methods are for the thread of the event loop.

    Attributes:
        cost: the sum over the jobs that wait.
    """

    def __init__(self) -> None:
        self._jobs: list[tuple[float, int, float, C, J]] = []  # a heap of (end, number, cost, client, job)
        self._ends: dict[C, float] = {}  # when the last job of a client would be done
        self._now = 0.0  # when the job that was taken last would be done
        self._count = 0  # of all jobs so far: equal ends are taken in the order of their arrival
        self._has_jobs = asyncio.Event()
        self.cost = 0.0

    def put(self, client: C, job: J, cost: float) -> None:
        """Append a job of a client; its cost is a number above 0, in any unit."""
        end = self._ends[client] = max(self._ends.get(client, 0.0), self._now) + cost
        heapq.heappush(self._jobs, (end, self._count, cost, client, job))
        self._count += 1
        self.cost += cost
        self._has_jobs.set()

    async def take(self, most: int, most_cost: float, kind: Callable[[J], object] = type) -> list[tuple[C, J]]:
        """Wait for a job, and take it with those that come next and are of the same kind.

        Args:
            most: number of jobs.
            most_cost: of all of them together; a single job may cost more.
            kind: jobs are taken together if this returns equal values for them.
        """
        while not self._jobs:
            self._has_jobs.clear()
            await self._has_jobs.wait()
        taken: list[tuple[C, J]] = []
        others: list[tuple[float, int, float, C, J]] = []
        first, cost_left = kind(self._jobs[0][-1]), most_cost
        while self._jobs and len(taken) < most:
            end, _, cost, client, job = self._jobs[0]
            if taken and cost > cost_left:
                break
            next_ = heapq.heappop(self._jobs)
            if kind(job) != first:
                others.append(next_)
                continue
            self._now = max(self._now, end)
            cost_left -= cost
            self.cost -= cost
            taken.append((client, job))
        for each in others:
            heapq.heappush(self._jobs, each)
        return taken

    def forget(self, client: C) -> None:
        """Remove a client that has left, with its jobs."""
        self._ends.pop(client, None)
        if left := [each for each in self._jobs if each[3] == client]:
            self._jobs = [each for each in self._jobs if each[3] != client]
            heapq.heapify(self._jobs)
            self.cost -= sum(cost for _, _, cost, _, _ in left)
