"""Metrics and checkpoints of runs, read and compared."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from enn_ppo.checkpoints import load_checkpoint
from enn_ppo.training.tracking.logger import MetricsLogger, Row


def log_all(path: Path, rows: Sequence[Row], resume_step: int | None = None) -> None:
    """Write rows as a run does."""
    logger = MetricsLogger(path, resume_step)
    for row in rows:
        logger.log(row)


def rows_of(run_dir: Path) -> list[dict[str, Any]]:
    """A run's metrics."""
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def rows_without_times(run_dir: Path) -> list[dict[str, Any]]:
    """A run's metrics, but for those that depend on the clock."""
    timed = ("seconds", "share_", "eval/seconds")
    return [
        {k: v for k, v in row.items() if not k.startswith(timed) and not k.endswith("_per_second")}
        for row in rows_of(run_dir)
    ]


def same(one: Any, other: Any) -> bool:
    """True if two values of a checkpoint are equal bit for bit."""
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


def assert_same_end(run_dir: Path, other: Path) -> None:
    """Policy, optimizer, environments, counters and random states of the last checkpoints are the same."""
    ends = [load_checkpoint(directory) for directory in (run_dir, other)]
    assert ends[0].step == ends[1].step
    assert same(ends[0].policy, ends[1].policy)
    assert same(ends[0].value_net, ends[1].value_net)
    trainers = [{key: value for key, value in end.trainer.items() if key != "seconds"} for end in ends]
    assert trainers[0].keys() == trainers[1].keys()
    for key in trainers[0]:
        assert same(trainers[0][key], trainers[1][key]), key


def size_of_png(path: Path) -> tuple[int, int]:
    """Width and height of a whole picture, in dots."""
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG") and data[-8:-4] == b"IEND"
    return int.from_bytes(data[16:20]), int.from_bytes(data[20:24])


def documented_metrics() -> dict[str, dict[str, str]]:
    """Chapter of docs/metrics.md -> name of a metric -> when it is null."""
    text = (Path(__file__).parents[2] / "docs/metrics.md").read_text("utf-8")
    chapters = {chapter.split("\n", 1)[0]: chapter for chapter in text.split("\n## ")[1:]}
    return {
        title: {
            name: null
            for names, null in re.findall(r"^\| (`.*?) \| .* \| (.*?) \|$", chapter, re.M)
            for name in re.findall(r"`(.*?)`", names)
        }
        for title, chapter in chapters.items()
    }
