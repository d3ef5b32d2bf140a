"""Rules about which checkpoints of a run are kept, as pure functions."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from rogue_net.checks import check_int


class Saved(NamedTuple):
    """A checkpoint, as `which_to_remove` needs it."""

    step: int  # environment steps trained
    seconds: float | None = None  # training time; None: unknown
    score: float | None = None  # higher is better; None: unknown, or not evaluated yet


@dataclass(frozen=True, kw_only=True)
class Retention:
    """Rules for keeping checkpoints; a checkpoint is kept if any rule holds. See the settings of the same names.

    Args:
        keep_last: number of newest checkpoints, at least 1.
        keep_best: number of checkpoints with the highest scores, at least 0; the later of equal ones counts as better.
        protected: steps of checkpoints that are being evaluated.

    Raises:
        ValueError: a number is not in its range.
    """

    keep_last: int
    keep_best: int = 0
    protected: Collection[int] = field(default=())

    def __post_init__(self) -> None:
        check_int("keep_last", self.keep_last, 1)
        check_int("keep_best", self.keep_best, 0)


def which_to_remove(saved: Sequence[Saved], now: int, retention: Retention) -> set[int]:
    """The steps of the checkpoints to remove.

    Removing after every save leaves the same checkpoints as removing once at the end, unless scores change.

    Args:
        saved: all checkpoints, in any order; their steps differ.
        now: step of the last save, which is kept. Later checkpoints were abandoned when the run was resumed from an earlier
            one, and are removed.
        retention: the rules.
    """
    ours = sorted((each for each in saved if each.step <= now), key=lambda each: each.step, reverse=True)
    stays = {each.step for each in [*ours[: retention.keep_last], *best_of(ours)[: retention.keep_best]]}
    return {each.step for each in saved} - stays - set(retention.protected) - {now}


def best_of(saved: Iterable[Saved]) -> list[Saved]:
    """Checkpoints with a score, best first; of equal scores, the later checkpoint first."""
    scored = [each for each in saved if each.score is not None and not math.isnan(each.score)]
    return sorted(scored, key=lambda each: (each.score, each.step), reverse=True)
