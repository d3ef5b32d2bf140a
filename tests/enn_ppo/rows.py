"""What tests of metrics share."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from enn_ppo.training.tracking.logger import MetricsLogger, Row


def log_all(path: Path, rows: Sequence[Row], resume_step: int | None = None) -> None:
    """Write rows as a run does."""
    logger = MetricsLogger(path, resume_step)
    for row in rows:
        logger.log(row)


#: Metrics that depend on the clock.
TIMES = ("seconds", "steps_per_second", "entities_per_second", "share_env", "share_act", "share_update")


def rows_without_times(run_dir: Path) -> list[Row]:
    """A run's metrics, but for those that depend on the clock."""
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if name not in TIMES} for row in rows]


def size_of_png(path: Path) -> tuple[int, int]:
    """Width and height of a whole picture, in dots."""
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG") and data[-8:-4] == b"IEND"
    return int.from_bytes(data[16:20]), int.from_bytes(data[20:24])
