"""Runs on Ray that the tests share, and what they look at."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psutil

from enn_ppo import TrainConfig
from enn_ppo.settings.config import DistributedConfig
from tests.enn_ppo.rows import rows_without_times
from tests.enn_ppo.worlds import tiny_config


def on_ray(run_dir: Path, num_env_runners: int = 2, changes: dict[str, Any] | None = None, **ray: Any) -> TrainConfig:
    """`tiny_config` with so many runners, and other changes."""
    settings = DistributedConfig(mode="ray", num_env_runners=num_env_runners, **ray)
    return tiny_config(run_dir, **({"distributed": settings, "num_threads": 1} | (changes or {})))


def learned_rows(run_dir: Path) -> list[dict[str, Any]]:
    """A run's rows without times, and without what only runs on Ray tell."""
    return [
        {name: value for name, value in row.items() if not name.startswith("distributed/")}
        for row in rows_without_times(run_dir)
    ]


def rows_of(run_dir: Path) -> list[dict[str, Any]]:
    """All of a run's rows; none as long as there is no file."""
    try:
        return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    except (OSError, json.JSONDecodeError):  # its last line may be half written
        return []


def actors(kind: str, pid: int | None = None) -> list[psutil.Process]:
    """The processes of Ray's actors of a class, among those that a process has started; by default this one."""
    found = []
    for process in psutil.Process(pid).children(recursive=True):
        try:
            if any(f"ray::{kind}" in part for part in process.cmdline()):
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return sorted(found, key=lambda process: process.pid)
