"""Joining the ranks of torchrun, and communication between them, with torch.distributed."""

from __future__ import annotations

import itertools
import os
import pickle
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import reduce
from multiprocessing.connection import Client, Connection, Listener
from operator import itemgetter
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist

# Imported before a process group exists: default arguments of its functions would otherwise keep the group alive until Python
# exits, when the group's threads would abort the process.
import torch.distributed.nn.functional  # noqa: F401
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from enn_ppo.checkpoints.policy import select_device
from enn_ppo.settings.config import TrainConfig
from enn_ppo.training.errors import Interrupted, PartLost, RankFailed
from enn_ppo.training.ranks import ALONE, Ranks
from enn_ppo.training.tracking.run_output import announce

T = TypeVar("T")

# Timeout while the ranks connect.
_PATIENCE = timedelta(minutes=5)
# Timeout of collective calls. It is long because rank 0 may wait for evaluations; a dead rank is noticed at once by its closed
# connection.
_DAY = timedelta(days=1)
_groups = itertools.count()
_LEFT_BY_TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_COMMAND = "torchrun --nproc_per_node=2 -m enn_ppo.train distributed=ddp"


def join_ranks(config: TrainConfig) -> Ranks:
    """Connect this process to the other ranks; returns `ALONE` for a single process.

    Raises:
        ValueError: `distributed=ddp` without torchrun, or torchrun without it; the number of ranks does not divide the settings;
            or this machine has fewer GPUs than ranks.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if config.distributed.mode != "ddp":
        if size > 1 and "TORCHELASTIC_RUN_ID" in os.environ:
            raise ValueError(
                f"torchrun has started {size} processes, which would each train the same: add distributed=ddp, or start this "
                "without torchrun"
            )
        return ALONE
    if any(name not in os.environ for name in _LEFT_BY_TORCHRUN):
        raise ValueError(f"distributed=ddp is for processes that torchrun starts: {_COMMAND}, and the other settings")
    if size == 1:
        return ALONE
    config.rollout.share(size, "ranks of torchrun")
    if config.optim.batch_size < size:
        raise ValueError(
            f"optim.batch_size counts the frames of all ranks together: at least one for each of {size}, got "
            f"{config.optim.batch_size}"
        )
    announce(f"waiting for all {size} ranks")
    device = select_device(config.device)
    if device.type == "cuda":
        number, found = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
        if number >= found:
            raise ValueError(
                f"each rank needs a GPU of its own, and this machine has {found}: --nproc_per_node={found}, or device=cpu"
            )
        torch.cuda.set_device(number)
    return TorchRanks(device)


class TorchRanks:
    """`Ranks` with gloo for CPU tensors, and nccl for CUDA tensors.

    On the CPUs of one machine they talk by pipes with rank 0, since gloo's threads take turns with those that compute: a sum
    takes it 1 to 2 ms on two busy cores.
    """

    def __init__(self, device: torch.device) -> None:
        try:
            store, self.rank, self.size = next(rendezvous("env://", timeout=_PATIENCE))
        except RuntimeError as error:
            minutes = _PATIENCE.total_seconds() / 60
            raise PartLost(f"the other ranks have not connected within {minutes:g} minutes ({error})") from error
        # a process may train several times: ignore the keys that an earlier group left in the store
        store = PrefixStore(f"enn_ppo/{next(_groups)}", store)
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        with self._noticing_death():
            dist.init_process_group(backend, store=store, rank=self.rank, world_size=self.size, timeout=_DAY)
        self._in_order = False  # whether all ranks have agreed to end
        is_one_machine = device.type == "cpu" and os.environ.get("LOCAL_WORLD_SIZE") == str(self.size)
        self._pipes = self._connect(store) if is_one_machine else []

    def _connect(self, store: PrefixStore) -> list[Connection]:
        """Pipes of rank 0 to the others in their order, and of another rank to rank 0."""
        if self.rank > 0:
            pipe = Client(store.get("pipes").decode())
            pipe.send(self.rank)
            return [pipe]
        with Listener(backlog=self.size) as listener:
            store.set("pipes", str(listener.address))
            pipes = [listener.accept() for _ in range(self.size - 1)]
        return [pipe for _, pipe in sorted(((pipe.recv(), pipe) for pipe in pipes), key=itemgetter(0))]

    def _combined(self, value: Any, combine: Callable[[list[Any]], Any]) -> Any:
        """combine(values of all ranks, in their order)."""
        with self._noticing_death():
            if not self._pipes:
                found: list[Any] = [None] * self.size
                dist.all_gather_object(found, value)
                return combine(found)
            if self.rank > 0:
                self._pipes[0].send_bytes(pickle.dumps(value))  # `send` would share the memory of tensors
                return self._pipes[0].recv()
            result = combine([value, *(pipe.recv() for pipe in self._pipes)])
            answer = pickle.dumps(result)
            for pipe in self._pipes:
                pipe.send_bytes(answer)
            return result

    def gather(self, values: Tensor) -> Tensor:
        if self._pipes:
            return torch.from_numpy(self._combined(values.numpy(), np.stack))
        with self._noticing_death():
            parts = [torch.empty_like(values) for _ in range(self.size)]
            dist.all_gather(parts, values.contiguous())
        return torch.stack(parts)

    def sum(self, values: Tensor) -> Tensor:
        if self._pipes:
            return torch.from_numpy(np.asarray(self._combined(values.numpy(), lambda parts: reduce(np.add, parts))))
        with self._noticing_death():
            dist.all_reduce(values)
        return values

    def gather_objects(self, value: T) -> list[T]:
        return list(self._combined(value, list))

    def each(self, action: Callable[[], T]) -> T:
        error: BaseException | None = None
        try:
            result = action()
        except (Exception, SystemExit) as raised:  # environments may call sys.exit
            if isinstance(raised, PartLost | RankFailed):
                raise
            error = raised
        failed = self.gather(torch.tensor(error is not None)).nonzero().flatten().tolist()
        if not failed:
            return result
        self._in_order = True
        if error is None or failed[0] != self.rank:
            raise RankFailed(1)
        if len(failed) < self.size:
            error.add_note(f"(on rank {self.rank} of {self.size})")
        raise error

    def lead(self, action: Callable[[], T]) -> T:
        error: BaseException | None = None
        answer: list[Any] = [None]  # (result,) of rank 0; None: it has failed
        if self.rank == 0:
            try:
                answer = [(action(),)]
            except (Exception, SystemExit) as raised:  # callbacks may call sys.exit
                error = raised
        answer = self._combined(answer, itemgetter(0))
        if answer[0] is None:
            self._in_order = True
            raise error or RankFailed(1)
        result: T = answer[0][0]
        return result

    def leave(self, error: BaseException | None) -> None:
        if error is None or self._in_order or isinstance(error, Interrupted | RankFailed):
            with suppress(PartLost):  # everything is saved already
                self.gather(torch.zeros(1))
        dist.destroy_process_group()

    @contextmanager
    def _noticing_death(self) -> Iterator[None]:
        try:
            yield
        except (RuntimeError, EOFError, ConnectionError) as error:
            if not _is_of_the_connection(error):
                raise
            raise PartLost(
                f"rank {self.rank} of {self.size} has lost another rank: its process was killed, ran out of memory, or its "
                "machine is gone; its own messages are above"
            ) from error


def _is_of_the_connection(error: RuntimeError | EOFError | ConnectionError) -> bool:
    """Whether a collective call failed because another rank died, not because of an error of this rank, such as full memory."""
    if isinstance(error, torch.OutOfMemoryError):
        return False
    of_network = isinstance(error, dist.DistNetworkError | dist.DistStoreError | dist.DistBackendError)
    return (
        of_network
        or not isinstance(error, RuntimeError)
        or re.search(r"gloo|nccl|connection|peer|timed? ?out|socket", str(error), re.IGNORECASE) is not None
    )
