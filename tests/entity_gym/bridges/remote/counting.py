"""Pools of the worlds of `counting_program.py`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from entity_gym.batch.ragged import RaggedBuffer
from entity_gym.batch.vec_obs import VecObs
from entity_gym.bridges.remote import ProgramWorlds
from entity_gym.pools.pool import ThreadedVecEnv

PROGRAM = Path(__file__).with_name("counting_program.py")


def counting(fault: str = "", **settings: Any) -> ProgramWorlds:
    return ProgramWorlds(command=[sys.executable, "-S", str(PROGRAM), fault or "none"], **settings)


def both_add(*amounts: int) -> dict[str, RaggedBuffer[np.int64]]:
    """Both actors of environment i add amounts[i]."""
    values = np.repeat(np.array(amounts, dtype=np.int64), 2)[:, None]
    return {"add": RaggedBuffer(values, 2 * np.arange(len(amounts) + 1))}


def counters(obs: VecObs) -> list[float]:
    return [float(value) for value in obs.features["Counter"].values[:, 0]]


def pool(num_envs: int, fault: str = "", **settings: Any) -> ThreadedVecEnv:
    return ThreadedVecEnv(counting(fault, **settings), num_envs)
