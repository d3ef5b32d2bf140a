"""Worlds that misbehave on one rank."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

from entity_gym import Action, Observation
from tests.enn_ppo.worlds import Copycat


class FailsOnRank1(Copycat):
    """Raises in its tenth step, where torchrun calls it rank 1."""

    acts = 0

    def act(self, actions: Mapping[str, Action]) -> Observation:
        self.acts += 1
        if os.environ.get("RANK") == "1" and self.acts == 10:
            raise ValueError("the third lamp is broken")
        return super().act(actions)


class Slow(Copycat):
    """Takes a moment, and writes the process's number into the folder `pids`."""

    def __init__(self, pids: str) -> None:
        super().__init__()
        (Path(pids) / os.environ.get("RANK", "alone")).write_text(str(os.getpid()))

    def act(self, actions: Mapping[str, Action]) -> Observation:
        time.sleep(0.002)
        return super().act(actions)
