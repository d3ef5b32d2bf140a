"""Runs on Ray that the tests share, what they look at, and worlds in which something goes wrong."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from enn_ppo import TrainConfig
from enn_ppo.settings.config import DistributedConfig
from entity_gym import Action, Observation
from tests.enn_ppo.rows import rows_without_times
from tests.enn_ppo.worlds import Copycat, tiny_config
from tests.entity_gym.envs.minesweeper_python import PythonMineSweeper


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


class Fuse(Copycat):
    """Copycat in which a fuse blows as often as there are files in a folder, one after the other."""

    def __init__(self, fuses: str) -> None:
        self.fuses = Path(fuses)
        self.acts = 0

    def act(self, actions: Mapping[str, Action]) -> Observation:
        self.acts += 1
        if self.acts == 21:  # steps of this environment: in its third rollout of 8, of which one is for the statistics
            for fuse in self.fuses.iterdir():
                fuse.unlink()
                raise RuntimeError("the fuse is blown")
        return super().act(actions)


class Doomed(PythonMineSweeper):
    """MineSweeper in which one environment of all writes down its process, once, and waits for it to be killed."""

    def __init__(self, sign: str) -> None:
        super().__init__()
        self.sign = Path(sign)
        self.acts = 0

    def act(self, actions: Mapping[str, Action]) -> Observation:
        self.acts += 1
        if self.acts == 29:  # in its fourth rollout of 8, of which one is for the statistics
            with suppress(FileExistsError), self.sign.open("x") as file:
                file.write(f"{os.getpid()}\n")
                file.flush()
                time.sleep(60)
        return super().act(actions)


class Unmakeable(Copycat):
    """Cannot be made."""

    def __init__(self, mistake: type[Exception] = ValueError) -> None:
        raise mistake("there is no lamp")
