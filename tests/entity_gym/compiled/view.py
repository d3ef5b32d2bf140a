"""A compiled environment as an ordinary one whose record can be written to between steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from entity_gym.compiled import CompiledEnvironment
from entity_gym.compiled.record import Record
from entity_gym.compiled.slots import CompiledSlots
from entity_gym.environment import Observation
from entity_gym.pools.one import ONLY, SlotEnvironment
from entity_gym.pools.slots import SlotOptions


class CompiledView(SlotEnvironment):
    """One environment; its random numbers begin with the first `reset` after `rng` is set."""

    slots: CompiledSlots

    def __init__(self, env: CompiledEnvironment, *, compile: bool = False) -> None:
        super().__init__(CompiledSlots(env, 1, SlotOptions(autoreset=False, compile=compile)))
        self.env = env
        self.record = Record(self.slots.slots["record"][0])
        self._seeded_by: np.random.Generator | None = None

    def reset(self) -> Observation:
        if self.rng is not self._seeded_by:
            self._seeded_by = self.rng
            sequence = self.rng.bit_generator.seed_seq
            assert isinstance(sequence, np.random.SeedSequence)
            self.record["rng"] = sequence.generate_state(1, np.uint64)[0]
        return super().reset()

    def load_state(self, state: Mapping[str, Any]) -> None:
        super().load_state(state)
        self._seeded_by = self.rng  # the record has the random numbers, too

    def observe(self) -> Observation:
        """Return what there is to see now."""
        self.slots.observe(ONLY)
        self._in_episode = True
        return self.show()
