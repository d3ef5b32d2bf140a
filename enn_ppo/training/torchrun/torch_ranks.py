"""Communication between the ranks of torchrun, with torch.distributed."""

from __future__ import annotations

import itertools
import pickle
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

# Imported before a process group exists: default arguments of its functions would otherwise keep the group alive until Python
# exits, when the group's threads would abort the process.
import torch.distributed.nn.functional  # noqa: F401
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from enn_ppo.training.errors import Interrupted, RankDied, RankFailed

T = TypeVar("T")

# Timeout while the ranks connect.
_PATIENCE = timedelta(minutes=5)
# Timeout of collective calls. It is long because rank 0 may evaluate in line; a dead rank is noticed at once by its closed
# connection.
_DAY = timedelta(days=1)
_groups = itertools.count()
_FAILED = -1  # sent by rank 0 in place of the length of its answer


class TorchRanks:
    """`Ranks` with torch.distributed: gloo for CPU tensors, nccl for CUDA tensors."""

    def __init__(self, device: torch.device) -> None:
        try:
            store, self.rank, self.size = next(rendezvous("env://", timeout=_PATIENCE))
        except RuntimeError as error:
            minutes = _PATIENCE.total_seconds() / 60
            raise RankDied(f"the other ranks have not connected within {minutes:g} minutes ({error})") from error
        # a process may train several times: ignore the keys that an earlier group left in the store
        store = PrefixStore(f"enn_ppo/{next(_groups)}", store)
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        with self._noticing_death():
            dist.init_process_group(backend, store=store, rank=self.rank, world_size=self.size, timeout=_DAY)
        self._in_order = False  # whether all ranks have agreed to end
        self._lead_is_alone = False  # inside `lead`, where the other ranks do not answer

    def gather(self, values: Tensor) -> Tensor:
        self._check_company()
        parts = [torch.empty_like(values) for _ in range(self.size)]
        with self._noticing_death():
            dist.all_gather(parts, values.contiguous())
        return torch.stack(parts)

    def sum(self, values: Tensor) -> Tensor:
        self._check_company()
        with self._noticing_death():
            dist.all_reduce(values)
        return values

    def gather_objects(self, value: T) -> list[T]:
        data = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
        sizes = self.gather(torch.tensor(len(data))).tolist()
        padded = torch.zeros(max(sizes), dtype=torch.uint8)
        padded[: len(data)] = data
        return [_unpickled(part[:size]) for part, size in zip(self.gather(padded), sizes, strict=True)]

    def each(self, action: Callable[[], T]) -> T:
        error: BaseException | None = None
        try:
            result = action()
        except (Exception, SystemExit) as raised:  # environments may call sys.exit
            if isinstance(raised, RankDied | RankFailed):
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
        self._check_company()
        if self.rank != 0:
            size = int(self._from_lead(torch.zeros((), dtype=torch.int64)))
            if size == _FAILED:
                self._in_order = True
                raise RankFailed(1)
            answer: T = _unpickled(self._from_lead(torch.empty(size, dtype=torch.uint8)))
            return answer
        self._lead_is_alone = True
        try:
            result = action()
            data = torch.frombuffer(bytearray(pickle.dumps(result)), dtype=torch.uint8)
        except (Exception, SystemExit):  # callbacks may call sys.exit
            self._in_order = True
            self._from_lead(torch.tensor(_FAILED))
            raise
        finally:
            self._lead_is_alone = False
        self._from_lead(torch.tensor(len(data)))
        self._from_lead(data)
        return result

    def leave(self, error: BaseException | None) -> None:
        if error is None or self._in_order or isinstance(error, Interrupted | RankFailed):
            with suppress(RankDied):  # everything is saved already
                self.gather(torch.zeros(1))
        dist.destroy_process_group()

    def _from_lead(self, values: Tensor) -> Tensor:
        with self._noticing_death():
            dist.broadcast(values, src=0)
        return values

    def _check_company(self) -> None:
        if self._lead_is_alone:
            raise ValueError("a collective call inside `lead`, where the other ranks do not take part")

    @contextmanager
    def _noticing_death(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            if not _is_of_the_connection(error):
                raise
            raise RankDied(
                f"rank {self.rank} of {self.size} has lost another rank: its process was killed, ran out of memory, or its "
                "machine is gone; its own messages are above"
            ) from error


def _is_of_the_connection(error: RuntimeError) -> bool:
    """Whether a collective call failed because another rank died, not because of an error of this rank, such as full memory."""
    if isinstance(error, torch.OutOfMemoryError):
        return False
    of_network = isinstance(error, dist.DistNetworkError | dist.DistStoreError | dist.DistBackendError)
    return (
        of_network or re.search(r"gloo|nccl|connection|peer|timed? ?out|socket", str(error), re.IGNORECASE) is not None
    )


def _unpickled(data: Tensor) -> Any:
    return pickle.loads(data.numpy().tobytes())
