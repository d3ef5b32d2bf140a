"""Worlds in which something goes wrong."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from entity_gym import Action, Observation
from tests.enn_ppo.worlds import Copycat


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


class Unmakeable(Copycat):
    """Cannot be made."""

    def __init__(self) -> None:
        raise ValueError("there is no lamp")
