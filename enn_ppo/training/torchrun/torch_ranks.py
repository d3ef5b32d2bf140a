"""Communication between the ranks of torchrun, with torch.distributed."""

from __future__ import annotations

import itertools
import pickle
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TypeVar

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
# Bytes of a message that travel with its length.
_FIRST_BYTES = 2**12


class TorchRanks:
    """`Ranks` with gloo for CPU tensors, and nccl for CUDA tensors."""

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
        with self._noticing_death():
            parts = [torch.empty_like(values) for _ in range(self.size)]
            dist.all_gather(parts, values.contiguous())
        return torch.stack(parts)

    def sum(self, values: Tensor) -> Tensor:
        self._check_company()
        with self._noticing_death():
            dist.all_reduce(values)
        return values

    def gather_objects(self, value: T) -> list[T]:
        return [pickle.loads(data) for data in self._gather_bytes(pickle.dumps(value))]

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
            data = self._gather_bytes(b"")[0]
            if not data:  # no pickle is empty
                self._in_order = True
                raise RankFailed(1)
            answer: T = pickle.loads(data)
            return answer
        self._lead_is_alone = True
        try:
            result = action()
            data = pickle.dumps(result)
        except (Exception, SystemExit):  # callbacks may call sys.exit
            self._in_order, self._lead_is_alone = True, False
            self._gather_bytes(b"")
            raise
        finally:
            self._lead_is_alone = False
        self._gather_bytes(data)
        return result

    def leave(self, error: BaseException | None) -> None:
        if error is None or self._in_order or isinstance(error, Interrupted | RankFailed):
            with suppress(RankDied):  # everything is saved already
                self.gather(torch.zeros(1))
        dist.destroy_process_group()

    def _gather_bytes(self, data: bytes) -> list[bytes]:
        """The bytes of all ranks, with one collective call if they are few."""
        message = len(data).to_bytes(8, "little") + data
        first = self._gather_padded(message, _FIRST_BYTES)
        sizes = [8 + int.from_bytes(each[:8], "little") for each in first]
        if max(sizes) > _FIRST_BYTES:
            rest = self._gather_padded(message[_FIRST_BYTES:], max(sizes) - _FIRST_BYTES)
            first = [start + end for start, end in zip(first, rest, strict=True)]
        return [each[8:size] for each, size in zip(first, sizes, strict=True)]

    def _gather_padded(self, data: bytes, size: int) -> list[bytes]:
        """The bytes of all ranks, cut or padded to `size`."""
        padded = bytearray(data[:size].ljust(size, b"\0"))
        return [each.numpy().tobytes() for each in self.gather(torch.frombuffer(padded, dtype=torch.uint8))]

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
