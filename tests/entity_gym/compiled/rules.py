"""Rules that `worlds.py` shares with nobody: helper functions in another module, and a constant of theirs."""

from typing import Any

from entity_gym.compiled import kernel, rand_float

LUCK = 0.25


@kernel
def is_lucky(s: Any) -> bool:
    return rand_float(s) < LUCK


@kernel
def clamp(x: float, low: float, high: float) -> float:
    return min(max(x, low), high)
