"""Worlds of the evaluation's tests, in a module that the evaluation process can import."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from entity_gym import Action, Observation
from tests.enn_ppo.worlds import Clock


class Gated(Clock):
    """A clock whose steps wait for a file, and tell in `<file>.pid` which process waits."""

    def __init__(self, short: int = 1, long: int = 12, gate: str = "") -> None:
        super().__init__(short, long)
        self.gate = gate

    def act(self, actions: Mapping[str, Action]) -> Observation:
        if self.gate and not Path(self.gate).exists():
            aside = Path(f"{self.gate}.aside")
            aside.write_text(str(os.getpid()))
            aside.rename(f"{self.gate}.pid")
            while not Path(self.gate).exists():
                time.sleep(0.01)
        return super().act(actions)


class Careless(Clock):
    """A clock that draws from everybody's random numbers instead of its own."""

    def reset(self) -> Observation:
        super().reset()
        if np.random.random() + random.random() + float(torch.rand(())) < 1.5:
            self.length = self.short
        return self._observation()


class Fused(Clock):
    """A clock that breaks at its first step where it is told to."""

    def __init__(self, short: int = 1, long: int = 12, broken: bool = False) -> None:
        super().__init__(short, long)
        self.broken = broken

    def act(self, actions: Mapping[str, Action]) -> Observation:
        if self.broken:
            raise ValueError("the fuse is blown")
        return super().act(actions)
