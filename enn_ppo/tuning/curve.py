"""The learning curve of a run that is still being written."""

from __future__ import annotations

import json
import math
from pathlib import Path

from enn_ppo.config import TrainConfig


class Curve:
    """One metric over the progress of a run, read from its `metrics.jsonl` as that grows.

    Args:
        path: of the file, which need not exist yet.
        metric: the column.
        config: of the run; its steps, or its seconds where those are nearer, say what progress is.
        last_fraction: of the run, over which values are averaged.

    Attributes:
        progress: how much of the run is done, from 0 to 1.
        names: the columns seen so far.
    """

    def __init__(self, path: Path, metric: str, config: TrainConfig, last_fraction: float) -> None:
        self.progress = 0.0
        self.names: dict[str, None] = {}
        self._path, self._metric, self._last_fraction = path, metric, last_fraction
        self._steps, self._seconds = config.total_timesteps, config.max_train_seconds
        self._offset = 0
        self._points: list[tuple[float, float]] = []  # progress, value

    def follow(self) -> None:
        """Read what was written since the last time. A run that was resumed has dropped rows: then all is read again."""
        if not self._path.exists():
            return
        with open(self._path, "rb") as file:
            if self._path.stat().st_size < self._offset:
                self._offset, self.progress = 0, 0.0
                self._points.clear()
            file.seek(self._offset)
            whole, _, rest = file.read().rpartition(b"\n")  # the last line may be half there
            self._offset = file.tell() - len(rest)
        for line in whole.splitlines():
            self._read(line)

    def mean(self, progress: float | None = None) -> float | None:
        """The mean over the `last_fraction` of a run that ends at `progress`; where that is empty, the last value before it.

        Args:
            progress: from 0 to 1; None: where the run is.

        Returns:
            None where there is no value yet.
        """
        end = self.progress if progress is None else progress
        before = [(at, value) for at, value in self._points if at <= end]
        recent = [value for at, value in before if at > end - self._last_fraction]
        return sum(recent) / len(recent) if recent else before[-1][1] if before else None

    def _read(self, line: bytes) -> None:
        try:
            row = json.loads(line)
        except ValueError:
            return
        if not isinstance(row, dict):
            return
        self.names |= dict.fromkeys(row)
        at = self._progress_of(row.get("step"), row.get("seconds"))
        self.progress = max(self.progress, at)
        value = row.get(self._metric)
        if isinstance(value, int | float) and math.isfinite(value):
            if self._metric.startswith("eval/"):
                at = self._progress_of(row.get("eval/step", row.get("step")), None)
            self._points.append((at, float(value)))

    def _progress_of(self, step: object, seconds: object) -> float:
        by_steps = step / self._steps if isinstance(step, int | float) else 0.0
        timed = self._seconds is not None and isinstance(seconds, int | float)
        by_time = seconds / self._seconds if timed else 0.0  # type: ignore[operator]
        return min(1.0, max(by_steps, by_time))
