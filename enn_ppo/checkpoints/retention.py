"""Rules about which checkpoints of a run are kept."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Saved(NamedTuple):
    """A checkpoint, as `Retention` needs it."""

    step: int  # environment steps trained
    score: float | None = None  # higher is better; None: unknown, or not evaluated yet


@dataclass(frozen=True)
class Retention:
    """Rules for keeping checkpoints; a checkpoint is kept if any rule holds. The settings of the same names explain them."""

    keep_last: int
    keep_best: int = 0
    protected: Collection[int] = ()  # steps of checkpoints that are being evaluated

    def to_remove(self, saved: Sequence[Saved], now: int) -> set[int]:
        """The steps of the checkpoints to remove.

        Removing after every save leaves the same checkpoints as removing once at the end, unless scores change.

        Args:
            saved: all checkpoints, in any order; their steps differ.
            now: step of the last save, which is kept. Later checkpoints were abandoned when the run was resumed from an earlier
                one, and are removed.
        """
        ours = sorted((each for each in saved if each.step <= now), key=lambda each: each.step, reverse=True)
        stays = {each.step for each in [*ours[: self.keep_last], *best_of(ours)[: self.keep_best]]}
        return {each.step for each in saved} - stays - set(self.protected) - {now}


def best_of(saved: Iterable[Saved]) -> list[Saved]:
    """Checkpoints with a score, best first; of equal scores, the later checkpoint first."""
    scored = [each for each in saved if each.score is not None]
    return sorted(scored, key=lambda each: (each.score, each.step), reverse=True)
