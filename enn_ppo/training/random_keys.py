"""Seeds of a run's random generators, derived from its seed, the step and a purpose: checkpoints save no generator state."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

import numpy as np
import torch


class Purpose(IntEnum):
    """Purpose of random numbers. The values must never change: runs would not be reproducible."""

    ACTING = 0
    SHUFFLING = 1
    PARAMETERS = 2  # environment parameters
    NEW_EPISODES = 3  # after a resume that cannot restore the environments
    EPISODES = 4  # that groups of environments begin in a rollout


def random_key(seed: int, step: int, purpose: Purpose, *more: int) -> int:
    """A seed from 0 to 2^63 - 1."""
    key = np.random.SeedSequence((seed, step, purpose, *more)).generate_state(1, np.uint64)
    return int(key[0] >> np.uint64(1))


@contextmanager
def dropout_seed(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's global generators, which dropout on `device` draws from, within this context; then restore them."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        # `torch.manual_seed` would note a call for every kind of device that is not in use yet, each time anew
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            torch.cuda.manual_seed(seed)
        yield
