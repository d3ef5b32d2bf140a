"""The processes that train one policy together, as each of them sees itself among the others.

All ranks run the same program on the same numbers: networks, statistics, counters and schedules are equal everywhere, bit for
bit. Only the environments differ, and rank 0, the lead, is the one that talks: it decides what depends on a clock or on the
user's code, and it alone writes. `ALONE` is the one process of a run that is not distributed; it computes what was computed
without it. `enn_ppo.training.torchrun` has the ranks of torchrun.

Shapes: K ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")


class Ranks(Protocol):
    """Collective calls: every rank makes them in the same order."""

    rank: int
    size: int

    def gather(self, values: Tensor) -> Tensor:
        """(K, ...) tensors of the same shape and type, one of each rank."""

    def sum(self, values: Tensor) -> Tensor:
        """Their sum, the same bits on every rank. May be computed in place."""

    def gather_objects(self, value: T) -> list[T]:
        """The objects of all ranks, in the order of the ranks."""

    def each(self, action: Callable[[], T]) -> T:
        """Do what needs no other rank. Where one fails, all end: the first of them with its error, the others silently.

        Raises:
            RankFailed: it was another one.
        """

    def lead(self, action: Callable[[], T]) -> T:
        """Run `action` on rank 0 alone, and return its result on every rank. Its exceptions are raised on rank 0.

        Raises:
            RankFailed: it was another one.
        """

    def leave(self, error: BaseException | None) -> None:
        """End, because of an error or in order; then no rank ends before the lead has written everything."""


class Alone:
    """One process that is all there is."""

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
