"""Rules about which checkpoints of a run are kept."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Retention:
    """Rules for keeping checkpoints; a checkpoint is kept if any rule holds. The settings of the same names explain them."""

    keep_last: int
    keep_best: int = 0
    protected: Collection[int] = ()  # steps of checkpoints that are being evaluated

    def to_remove(self, scores: Mapping[int, float | None], now: int) -> set[int]:
        """The steps of the checkpoints to remove.

        Removing after every save leaves the same checkpoints as removing once at the end, unless scores change.

        `scores` maps the step of every checkpoint to its score, None where it is unknown. The last save, of step `now`, is kept;
        later checkpoints were abandoned when the run was resumed from an earlier one, and are removed.
        """
        ours = sorted((step for step in scores if step <= now), reverse=True)
        best = best_of({step: scores[step] for step in ours})
        return scores.keys() - {*ours[: self.keep_last], *best[: self.keep_best], *self.protected, now}


def best_of(scores: Mapping[int, float | None]) -> list[int]:
    """Steps of the checkpoints with a score, best first; of equal scores, the later checkpoint first."""
    scored = [(score, step) for step, score in scores.items() if score is not None]
    return [step for _, step in sorted(scored, reverse=True)]
