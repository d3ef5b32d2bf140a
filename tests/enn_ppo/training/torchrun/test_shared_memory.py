"""Ranks of one host exchange numbers through shared memory; here they are threads."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor
from torch.distributed import HashStore

from enn_ppo.training.errors import RankFailed
from enn_ppo.training.torchrun import shared_memory
from enn_ppo.training.torchrun.shared_memory import ROOM, SharedMemory, connect
from enn_ppo.training.torchrun.torch_ranks import TorchRanks

T = TypeVar("T")

pytestmark = pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="needs shared memory")

SIZE = 3
PATIENCE = timedelta(seconds=20)


def on_ranks(action: Callable[[int, SharedMemory], T]) -> list[T]:
    """What every rank returns."""
    store = HashStore()

    def act(rank: int) -> T:
        memory = connect(store, rank, SIZE, PATIENCE, PATIENCE)
        assert memory is not None
        try:
            return action(rank, memory)
        finally:
            memory.close()

    with ThreadPoolExecutor(SIZE) as pool:
        return list(pool.map(act, range(SIZE)))


@pytest.mark.parametrize(
    "values",
    [
        torch.tensor(True),
        torch.arange(7),
        torch.zeros(0, 2),
        torch.randn(4, 6, dtype=torch.float64).T,
        torch.randn(ROOM // 2 + 3),
    ],
    ids=lambda values: f"{values.dtype} {tuple(values.shape)}",
)
def test_ranks_gather_numbers_of_any_shape_and_size(values: Tensor) -> None:
    of_each = [values, values.flip(0) if values.dim() else ~values, values]
    for gathered in on_ranks(lambda rank, memory: memory.gather(of_each[rank])):
        assert gathered.dtype == values.dtype and gathered.shape == (SIZE, *values.shape)
        assert torch.equal(gathered, torch.stack(of_each))


@pytest.mark.parametrize("size", [1, 1000, ROOM])  # the last one takes four exchanges
def test_sums_are_in_the_order_of_ranks(size: int) -> None:
    of_each = torch.randn(SIZE, size) * torch.tensor([1e-3, 1.0, 1e3])[:, None]
    expected = of_each[0] + of_each[1] + of_each[2]
    for total in on_ranks(lambda rank, memory: memory.sum(of_each[rank].clone())):
        assert torch.equal(total, expected)


def test_a_rank_that_is_ahead_overwrites_nothing_that_another_one_reads() -> None:
    def act(rank: int, memory: SharedMemory) -> list[list[float]]:
        found = []
        for turn in range(60):
            if (turn // 7 + rank) % SIZE == 0:
                time.sleep(0.001)
            found.append(memory.gather(torch.full((2000,), float(100 * turn + rank)))[:, -1].tolist())
        return found

    for found in on_ranks(act):
        assert found == [[100.0 * turn + rank for rank in range(SIZE)] for turn in range(60)]


def test_a_rank_that_is_gone_ends_the_waiting_of_the_others() -> None:
    def act(rank: int, memory: SharedMemory) -> None:
        memory.sum(torch.ones(1))
        if rank == 1:
            memory.close()
            return
        for _ in range(2):  # it stays gone
            with pytest.raises(OSError):
                memory.sum(torch.ones(1))
        if rank == 0:
            memory.close()

    on_ranks(act)


def test_nothing_is_left_in_the_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "_FOLDER", str(tmp_path))
    assert on_ranks(lambda rank, memory: os.listdir(tmp_path) if rank == 0 else []) == [[]] * SIZE


def test_without_shared_memory_no_rank_takes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    def connect_all() -> list[SharedMemory | None]:
        store = HashStore()
        return [connect(store, rank, SIZE, PATIENCE, PATIENCE) for rank in range(SIZE)]

    monkeypatch.setattr(shared_memory, "_FOLDER", str(tmp_path))
    monkeypatch.setattr(os, "posix_fallocate", full)
    assert connect_all() == [None] * SIZE
    assert os.listdir(tmp_path) == []
    monkeypatch.setattr(shared_memory, "_FOLDER", str(tmp_path / "missing"))
    assert connect_all() == [None] * SIZE


def torch_ranks(rank: int, memory: SharedMemory) -> TorchRanks:
    """Without a process group, which a process has one of."""
    made = TorchRanks.__new__(TorchRanks)
    made.rank, made.size, made._memory = rank, SIZE, memory
    made._in_order = made._lead_is_alone = False
    return made


@pytest.mark.parametrize("length", [0, 10, 5000])  # the last one takes two messages
def test_objects_of_all_ranks_may_be_of_any_size(length: int) -> None:
    expected = ["x" * (length * rank) for rank in range(SIZE)]
    for found in on_ranks(lambda rank, memory: torch_ranks(rank, memory).gather_objects("x" * (length * rank))):
        assert found == expected


def test_what_the_lead_returns_or_raises_reaches_all_ranks() -> None:
    def fail() -> None:
        raise ValueError("the disk is full")

    def act(rank: int, memory: SharedMemory) -> Any:
        ranks = torch_ranks(rank, memory)
        answer = ranks.lead(lambda: {"rank": rank})
        with pytest.raises(ValueError if rank == 0 else RankFailed):
            ranks.lead(fail)
        return answer, ranks._in_order

    assert on_ranks(act) == [({"rank": 0}, True)] * SIZE
