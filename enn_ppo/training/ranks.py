"""Communication between the processes (ranks) of data parallel training.

All ranks run the same program: networks, statistics, counters and schedules are equal on all ranks, bit for bit. Only the
environments differ. Rank 0, the lead, alone prints and writes files, and takes decisions that depend on a clock or on the
user's code. `ALONE` is the single process of a run that is not distributed. `enn_ppo.training.torchrun` implements the ranks of
torchrun.

Shapes: K ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")


class Ranks(Protocol):
    """Collective operations; every rank must call them in the same order."""

    rank: int
    size: int

    def gather(self, values: Tensor) -> Tensor:
        """(K, ...) `values` of every rank, which must have the same shape and dtype."""

    def sum(self, values: Tensor) -> Tensor:
        """Sum of `values` over ranks, bit for bit the same on every rank. May be computed in place."""

    def gather_objects(self, value: T) -> list[T]:
        """The objects of all ranks, in rank order."""

    def each(self, action: Callable[[], T]) -> T:
        """Run `action`, which needs no other rank, on every rank. If it fails, the first failed rank raises its error.

        Raises:
            RankFailed: on all other ranks.
        """

    def lead(self, action: Callable[[], T]) -> T:
        """Run `action` on rank 0 alone, and return its result on every rank. Its exceptions are raised on rank 0.

        Raises:
            RankFailed: on the other ranks, if `action` raises.
        """

    def leave(self, error: BaseException | None) -> None:
        """Leave the group. Without an error, ranks wait until the lead has written everything."""


class Alone:
    """`Ranks` of a single process."""

    rank, size = 0, 1

    def gather(self, values: Tensor) -> Tensor:
        return values.unsqueeze(0)

    def sum(self, values: Tensor) -> Tensor:
        return values

    def gather_objects(self, value: T) -> list[T]:
        return [value]

    def each(self, action: Callable[[], T]) -> T:
        return action()

    def lead(self, action: Callable[[], T]) -> T:
        return action()

    def leave(self, error: BaseException | None) -> None:
        pass


ALONE = Alone()
