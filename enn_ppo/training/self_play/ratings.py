"""Ratings of a policy and its snapshots, from the games between them.

Ratings are normal distributions of skill: mean `mu`, uncertainty `sigma`, beginning at 25 and 25/3 (Weng and Lin 2011, "A
Bayesian Approximation Method for Online Ranking", the Plackett-Luce model; computed by openskill). A player 25/6 points above
another one wins clearly more often than not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

MU, SIGMA = 25.0, 25.0 / 3.0
#: Standard deviation that every update adds to the current policy's rating, since the policy changes: variances add.
DRIFT = SIGMA / 100
#: Factor by which a game's weight in the win rate decays with every later game: the last 100 count most.
FADING = 0.99


class Rating(NamedTuple):
    """A normal distribution of skill."""

    mu: float = MU
    sigma: float = SIGMA


@dataclass
class Record:
    """Rating and results of a snapshot."""

    rating: Rating
    wins: float = 0.0  # decayed count of the current policy's wins against it, ties half
    games: float = 0.0  # decayed count of games
    total_games: int = 0

    @property
    def win_rate(self) -> float:
        """Win rate of the current policy against this snapshot; 0.5 before the first game."""
        return self.wins / self.games if self.games else 0.5


class Ratings:
    """The current policy's rating, and the record of every snapshot, by step."""

    def __init__(self) -> None:
        from openskill.models import PlackettLuce  # imported here: an extra, which only self-play needs

        self._model = PlackettLuce(mu=MU, sigma=SIGMA)
        self.current = Rating()
        self.snapshots: dict[int, Record] = {}

    def add(self, step: int) -> None:
        """Add a snapshot with the current policy's rating."""
        self.snapshots[step] = Record(self.current)

    def drift(self) -> None:
        """Increase the uncertainty of the current policy's rating, after an update."""
        self.current = Rating(self.current.mu, min(SIGMA, math.hypot(self.current.sigma, DRIFT)))

    def play(self, step: int, result: float) -> None:
        """Update both ratings with a game of the current policy against a snapshot: 1 for a win, 0.5 for a tie, 0 for a loss."""
        record = self.snapshots[step]
        ranks = [1 - result, result]  # the lower, the better
        teams = [[self._model.create_rating(list(rating))] for rating in (self.current, record.rating)]
        (own,), (other,) = self._model.rate(teams, ranks=ranks)
        self.current, record.rating = Rating(own.mu, own.sigma), Rating(other.mu, other.sigma)
        record.wins = FADING * record.wins + result
        record.games = FADING * record.games + 1.0
        record.total_games += 1

    def table(self) -> dict[str, Any]:
        """The snapshots' ratings in the order of their steps, for the file that users read."""

        def shown(rating: Rating) -> dict[str, Any]:
            return {"rating": rating.mu, "rating_sigma": rating.sigma}

        snapshots = [
            {"step": step, **shown(each.rating), "win_rate_against": each.win_rate, "games": each.total_games}
            for step, each in sorted(self.snapshots.items())
        ]
        return {"current": shown(self.current), "snapshots": snapshots}

    def state(self) -> dict[str, Any]:
        """State for `load_state`."""
        rows = [[step, *r.rating, r.wins, r.games, r.total_games] for step, r in self.snapshots.items()]
        return {"current": list(self.current), "snapshots": rows}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the ratings from `state()`."""
        self.current = Rating(*state["current"])
        self.snapshots = {step: Record(Rating(mu, sigma), *rest) for step, mu, sigma, *rest in state["snapshots"]}
