"""A compiled environment as a plain `Environment`: the same rules for playing, checking and debugging."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from entity_gym.compiled.description import Description
from entity_gym.compiled.random import random_state
from entity_gym.compiled.record import Record
from entity_gym.compiled.slots import CompiledSlots
from entity_gym.environment import Observation
from entity_gym.pools.one import ONLY, SlotEnvironment
from entity_gym.pools.slots import SlotOptions


class CompiledView(SlotEnvironment):
    """One environment of a `CompiledEnvironment`.

    Args:
        env: the description.
        compile: run the compiled form.

    `record` is the environment's `s`; it may be written to between steps, for example by tests.
    """

    slots: CompiledSlots

    def __init__(self, env: Description, *, compile: bool = False) -> None:
        super().__init__(CompiledSlots(env, 1, SlotOptions(autoreset=False, compile=compile)))
        self.env = env
        self._seeded_by: np.random.Generator | None = None

    @property
    def record(self) -> Record:
        """The record `s`; what is written to it is shown by `observe`."""
        return Record(self.slots.slots["record"][0])

    def reset(self) -> Observation:
        if self.rng is not self._seeded_by:  # a new generator, after which the environment draws its own numbers
            self._seeded_by = self.rng
            sequence = self.rng.bit_generator.seed_seq
            assert isinstance(sequence, np.random.SeedSequence)
            self.record["rng"] = random_state(sequence)
        return super().reset()

    def observe(self) -> Observation:
        """Return what there is to see now, for example after writing to `record`."""
        self.slots.observe(ONLY)
        self._in_episode = True
        return self.show()

    def load_state(self, state: Mapping[str, Any]) -> None:
        super().load_state(state)
        self._seeded_by = self.rng  # the record has its own random state
