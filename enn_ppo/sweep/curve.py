"""One metric over the progress of a run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from enn_ppo.settings.config import TrainConfig
from entity_gym.errors import nearest


class Curve:
    """The values of a metric, row by row of `metrics.jsonl`.

    Args:
        metric: name of the column.
        config: of the run; progress is the larger fraction of its limits of steps and of seconds.
        last_fraction: fraction of the run over which values are averaged.
        rows: rows to add.

    Attributes:
        progress: of the run, from 0 to 1.
    """

    def __init__(
        self, metric: str, config: TrainConfig, last_fraction: float, rows: Iterable[Mapping[str, Any]] = ()
    ) -> None:
        self.progress = 0.0
        self._metric, self._last_fraction = metric, last_fraction
        self._steps, self._seconds = config.total_timesteps, config.max_train_seconds
        self._names: dict[str, None] = {}
        self._points: list[tuple[float, float]] = []  # progress, value
        for row in rows:
            self.add(row)

    def add(self, row: Mapping[str, Any]) -> None:
        """Add a row. Evaluations count at the step of the evaluated checkpoint."""
        self._names |= dict.fromkeys(row)
        at = self._progress_of(row.get("step"), row.get("seconds"))
        self.progress = max(self.progress, at)
        value = row.get(self._metric)
        if isinstance(value, int | float) and math.isfinite(value):
            if self._metric.startswith("eval/"):
                at = self._progress_of(row.get("eval/step", row.get("step")), None)
            self._points.append((at, float(value)))

    def mean(self) -> float | None:
        """The mean over the last fraction of the run so far; the last value if that is empty; None without values."""
        recent = [value for at, value in self._points if at > self.progress - self._last_fraction]
        return sum(recent) / len(recent) if recent else self._points[-1][1] if self._points else None

    def score(self) -> float:
        """The score of a finished run.

        Raises:
            ValueError: the metric does not exist or has no value.
        """
        value = self.mean()
        if value is None and self._metric not in self._names:
            raise ValueError(f"metrics.jsonl has no column {self._metric}; {nearest(self._metric, self._names)}")
        if value is None:
            raise ValueError(f"{self._metric} has no value: no episode ended")
        return value

    def _progress_of(self, step: object, seconds: object) -> float:
        by_steps = step / self._steps if isinstance(step, int | float) else 0.0
        timed = self._seconds is not None and isinstance(seconds, int | float)
        by_time = seconds / self._seconds if timed else 0.0  # type: ignore[operator]
        return min(1.0, max(by_steps, by_time))
