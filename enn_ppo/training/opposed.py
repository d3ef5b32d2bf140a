"""Players that oppose each other, while one policy learns from the sum of their rewards."""

from __future__ import annotations

from collections.abc import Mapping

from entity_gym.batch.vec_obs import Metric

#: Metrics of environments with several players: the reward of each.
REWARD = "reward."
#: Updates after which opposed players are reported, if they were opposed in all of them.
UPDATES = 3


class OpposedPlayers:
    """Notices that some players lose while others win, in every update in which anybody does either."""

    def __init__(self) -> None:
        self._updates: int | None = 0  # None: it is decided

    def note(self, metrics: Mapping[str, Metric]) -> str | None:
        """Take in the metrics of an update. Returns a line for the user, once, or None."""
        earned = {name.removeprefix(REWARD): metric.sum for name, metric in metrics.items() if name.startswith(REWARD)}
        if self._updates is None or len(earned) < 2 or not any(earned.values()):
            return None
        winner, loser = max(earned, key=earned.__getitem__), min(earned, key=earned.__getitem__)
        if not earned[loser] < 0 < earned[winner]:
            self._updates = None
            return None
        self._updates += 1
        if self._updates < UPDATES:
            return None
        self._updates = None
        return (
            f"one policy plays for all, and learns from the sum of their rewards, but {winner} wins while {loser} loses: if they "
            "play against each other, train with self_play.enabled=true"
        )
