"""Two ranks that are threads of one process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

from enn_ppo.training.ranks import Alone

T = TypeVar("T")


class InThread(Alone):
    """One of two ranks that are threads."""

    size = 2

    def __init__(self, rank: int, board: list[Tensor], barrier: threading.Barrier) -> None:
        self.rank, self._board, self._barrier = rank, board, barrier
        self.calls: list[str] = []  # of collective operations

    def gather(self, values: Tensor) -> Tensor:
        self.calls.append("gather")
        return self._gather(values)

    def sum(self, values: Tensor) -> Tensor:
        self.calls.append("sum")
        return self._gather(values).sum(0)

    def _gather(self, values: Tensor) -> Tensor:
        self._board[self.rank] = values
        self._barrier.wait()
        gathered = torch.stack(self._board)
        self._barrier.wait()
        return gathered


def on_two(action: Callable[[InThread], T]) -> list[T]:
    """What two ranks return."""
    board, barrier = [torch.zeros(0)] * 2, threading.Barrier(2, timeout=10)
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(action, [InThread(rank, board, barrier) for rank in range(2)]))
