"""Seeds of everything that a run draws, keyed by its seed, the step and what for: no generator needs saving."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

import numpy as np
import torch


class Purpose(IntEnum):
    """Purpose of random numbers. The values are part of every run: they never change."""

    ACTING = 0
    SHUFFLING = 1
    PARAMETERS = 2  # of environments
    NEW_EPISODES = 3  # where a checkpoint's cannot go on
    FINAL_EPISODES = 4  # that runners play when training is done


def random_key(seed: int, step: int, purpose: Purpose, *more: int) -> int:
    """A number from 0 to 2^63 - 1 that generators are seeded with."""
    key = np.random.SeedSequence((seed, step, purpose, *more)).generate_state(1, np.uint64)
    return int(key[0] >> np.uint64(1))


@contextmanager
def dropout_seed(seed: int, device: torch.device) -> Iterator[None]:
    """Within this context dropout on `device` is drawn by `seed`: it knows torch's global generators only.

    Afterwards these are as before.
    """
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield
