"""Which checkpoints of a run stay on the disk. A pure function; nothing here touches a file."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from rogue_net.checks import check_float, check_int


class Saved(NamedTuple):
    """What retention knows of a checkpoint."""

    step: int  # environment steps trained
    seconds: float | None = None  # spent training; None: not known
    score: float | None = None  # higher is better; None: not known, or not yet


@dataclass(frozen=True, kw_only=True)
class Retention:
    """What stays; a checkpoint stays for any one of these reasons. The settings of the same names say more.

    Args:
        keep_last: the newest ones, at least 1.
        keep_best: those with the highest scores; of equal ones the later. At least 0.
        keep_every_minutes: the first one after every so many minutes of training. Greater than 0; None: no such.
        protected: steps of checkpoints that somebody reads right now.

    Raises:
        ValueError: a number is not in its range.
    """

    keep_last: int
    keep_best: int = 0
    keep_every_minutes: float | None = None
    protected: Collection[int] = field(default=())

    def __post_init__(self) -> None:
        check_int("keep_last", self.keep_last, 1)
        check_int("keep_best", self.keep_best, 0)
        if self.keep_every_minutes is not None:
            check_float("keep_every_minutes", self.keep_every_minutes, 0, open_low=True)


def which_to_remove(saved: Iterable[Saved], now: int, retention: Retention) -> set[int]:
    """The steps of the checkpoints that may go.

    Removing them after every save leaves what removing them once at the end would, as long as scores do not change.

    Args:
        saved: all that are there, with different steps, in any order.
        now: the step that was saved last; it always stays. Later ones were abandoned by resuming from an earlier one: they
            are never the best, and stay only where there are fewer than `keep_last` others.
        retention: what stays.
    """
    all_saved = sorted(saved, key=lambda each: each.step, reverse=True)
    ours = [each for each in all_saved if each.step <= now]
    abandoned = [each for each in all_saved if each.step > now]
    stays = {each.step for each in (ours + abandoned)[: retention.keep_last]}
    stays |= {each.step for each in best_of(ours)[: retention.keep_best]}
    stays |= {each.step for each in _first_of_every(retention.keep_every_minutes, ours)}
    return {each.step for each in all_saved} - stays - set(retention.protected) - {now}


def best_of(saved: Iterable[Saved]) -> list[Saved]:
    """Those with a score, the best first; of equal ones the later first."""
    scored = [each for each in saved if each.score is not None and not math.isnan(each.score)]
    return sorted(scored, key=lambda each: (each.score, each.step), reverse=True)


def _first_of_every(minutes: float | None, saved: Iterable[Saved]) -> Iterable[Saved]:
    """The first checkpoint at or after 1, 2, 3, ... times so many minutes of training."""
    first: dict[int, Saved] = {}
    if minutes is not None:
        for each in saved:
            period = 0 if each.seconds is None else int(each.seconds / (60 * minutes))
            if period > 0 and (period not in first or each.step < first[period].step):
                first[period] = each
    return first.values()
