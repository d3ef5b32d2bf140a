"""Worlds in which something goes wrong."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from entity_gym import Action, Observation
from tests.enn_ppo.worlds import Copycat
from tests.entity_gym.envs.minesweeper_python import PythonMineSweeper


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
