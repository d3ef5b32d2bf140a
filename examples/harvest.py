"""The Gymnasium environment of docs/bring_yours.md: its observation is one flat Box, and it knows nothing of entities.

python -m entity_gym.check gymnasium:examples.harvest:Harvest --view examples/harvest.yaml
python -m enn_ppo.train env=gymnasium env.id=examples.harvest:Harvest env.view=examples/harvest.yaml
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

SIZE = 8  # cells along a side of the field
MOVES = np.array([[1, 0], [-1, 0], [0, 1], [0, -1]])


class Harvest(gymnasium.Env[NDArray[np.float32], np.int64]):
    """A picker walks over a field and picks every apple that it steps on.

    Half of the apples are ripe. Picking all of them earns 1; a rotten apple costs half of what a ripe one earns. The episode ends
    when no ripe apple is left; it is truncated after 50 steps.

    Args:
        slots: most apples of an episode, from 1 to 63. Each episode draws their number, from half of the slots to all.
    """

    action_space = Discrete(len(MOVES))

    def __init__(self, slots: int = 10) -> None:
        if not 1 <= slots < SIZE**2:
            raise ValueError(f"slots is {slots}; expected 1 to {SIZE**2 - 1}")
        # The picker's x and y; then of every slot: 1 if an apple is there, x and y from the picker's place, 1 if it is ripe.
        self.observation_space = Box(-SIZE, SIZE, (2 + 4 * slots,), np.float32)
        self.slots = slots

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed)
        number = self.np_random.integers((self.slots + 1) // 2, self.slots + 1)
        cells = self.np_random.permutation(SIZE**2)[: number + 1]
        self.picker, *places = np.stack(np.divmod(cells, SIZE), axis=1)
        self.places = np.array(places)
        self.there = np.ones(number, bool)
        self.ripe = self.np_random.permutation(number) < (number + 1) // 2
        self.steps = 0
        return self._observe(), {}

    def step(self, action: np.int64) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        self.picker = np.clip(self.picker + MOVES[action], 0, SIZE - 1)
        picked = self.there & (self.places == self.picker).all(axis=1)
        self.there &= ~picked
        self.steps += 1
        reward = (1.0 if self.ripe[picked].all() else -0.5) * picked.sum() / self.ripe.sum()
        return self._observe(), float(reward), not (self.there & self.ripe).any(), self.steps >= 50, {}

    def _observe(self) -> NDArray[np.float32]:
        rows = np.zeros((self.slots, 4), np.float32)
        apples = np.column_stack([self.there, self.places - self.picker, self.ripe])
        rows[: len(apples)] = apples * self.there[:, None]
        return np.concatenate([self.picker, rows.ravel()], dtype=np.float32)
