"""Metrics and checkpoints of runs, read and compared."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
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
    """True if two values are equal bit for bit."""
    return difference(one, other) is None


def assert_same(one: Any, other: Any) -> None:
    """Two values are equal bit for bit."""
    found = difference(one, other)
    assert found is None, found


def difference(one: Any, other: Any, where: str = "") -> str | None:
    """The first place where two values are not equal bit for bit; None if there is none."""
    if type(one) is not type(other):
        return f"{where} is a {type(one).__name__}, and the other a {type(other).__name__}"
    if isinstance(one, torch.Tensor):
        return difference(one.detach().cpu().numpy(), other.detach().cpu().numpy(), where)
    if isinstance(one, np.ndarray | np.generic):
        equal = (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
        return None if equal else f"{where} has other numbers"
    if isinstance(one, Mapping):
        if one.keys() != other.keys():
            return f"{where} has {sorted(map(str, one))!r:.200}, and the other {sorted(map(str, other))!r:.200}"
        return _first(difference(one[key], other[key], f"{where}[{key!r}]") for key in one)
    if isinstance(one, list | tuple):
        if len(one) != len(other):
            return f"{where} has {len(one)} items, and the other {len(other)}"
        return _first(difference(*pair, f"{where}[{i}]") for i, pair in enumerate(zip(one, other, strict=True)))
    if is_dataclass(one):
        return difference(fields_of(one), fields_of(other), where)
    equal = one == other or (isinstance(one, float) and math.isnan(one) and math.isnan(other))
    return None if equal else f"{where} is {one!r:.80}, and the other {other!r:.80}"


def fields_of(value: Any) -> dict[str, Any]:
    """Fields of a dataclass by their names."""
    return {field.name: getattr(value, field.name) for field in fields(value)}


def _first(differences: Iterable[str | None]) -> str | None:
    return next((each for each in differences if each is not None), None)


def end_of(path: Path, without: Sequence[str] = ("seconds",)) -> dict[str, Any]:
    """Policy, optimizer, environments, counters and random states of a checkpoint; not how long it took."""
    end = load_checkpoint(path)
    trainer = {name: value for name, value in end.trainer.items() if name not in without}
    return {"step": end.step, "policy": end.policy, "value_net": end.value_net, "trainer": trainer}


def assert_same_end(run_dir: Path, other: Path) -> None:
    assert_same(end_of(run_dir), end_of(other))


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
