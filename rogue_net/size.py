"""Estimates of the memory that a network needs, so that one that cannot fit is refused before it is made."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from rogue_net.config import RogueNetConfig

#: Bytes of a weight for acting: a float32.
BYTES_TO_ACT = 4
#: Bytes of a weight for learning: the weight, its gradient, and the two moments of Adam.
BYTES_TO_LEARN = 16

#: Files with the limit of this process's memory, in bytes, where a container sets one: cgroup 2, and cgroup 1.
_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def least_weights(config: RogueNetConfig) -> int:
    """A lower bound of the number of weights of a network: those of the linear layers of its blocks."""
    mixing = {"none": 4, "mean": 2, "max": 2, "meanmax": 3}[
        config.pooling
    ]  # attention, or pooling, in units of d_model²
    mlp = 8
    return config.d_model + config.n_layer * (mixing + mlp) * config.d_model**2


def machine_memory() -> int:
    """The memory that this process may use, in bytes: the machine's, or its container's if that is less."""
    if not hasattr(os, "sysconf"):  # Windows; what is too large fails when it is allocated
        return sys.maxsize
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for file in _LIMITS:
        try:
            memory = min(memory, int(file.read_text()))
        except (OSError, ValueError):  # no such file, or "max"
            continue
    return memory


def check_fits(config: RogueNetConfig, bytes_per_weight: int = BYTES_TO_ACT, section: str = "net") -> None:
    """Check that a network with these settings can fit into the memory of this machine.

    `section` is the name of the settings in the message.

    Raises:
        ValueError: it cannot; the message names the settings and both sizes.
    """
    weights, memory = least_weights(config), machine_memory()
    if weights * bytes_per_weight > memory:
        raise ValueError(
            f"{section}.d_model={config.d_model} and {section}.n_layer={config.n_layer} make a network of at least "
            f"{weights:,} weights, which needs {gigabytes(weights * bytes_per_weight)}; this machine has {gigabytes(memory)}: "
            "set smaller ones"
        )


def gigabytes(size: int) -> str:
    """A number of bytes for a message, such as "16 GB"."""
    return f"{size / 1e9:,.3g} GB" if size < 1e12 else f"{round(size / 1e9):,} GB"
