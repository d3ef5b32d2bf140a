"""An estimate of the memory that a network needs, so that one that cannot fit is refused before it is made."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from rogue_net.config import RogueNetConfig

#: Files with the limit of this process's memory, in bytes, where a container sets one: cgroup 2, and cgroup 1.
_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
_BYTES = 4  # of a float32


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


def check_fits(config: RogueNetConfig) -> None:
    """Check that the weights of a network with these settings can fit into the memory of this machine.

    Raises:
        ValueError: they cannot; the message names the settings and both sizes.
    """
    weights, memory = least_weights(config), machine_memory()
    if weights * _BYTES > memory:
        raise ValueError(
            f"net.d_model={config.d_model} and net.n_layer={config.n_layer} make a network of at least {weights:,} weights, "
            f"which needs {_gigabytes(weights * _BYTES)}; this machine has {_gigabytes(memory)}: set smaller ones"
        )


def _gigabytes(size: int) -> str:
    """A number of bytes for a message, such as "16 GB"."""
    return f"{size / 1e9:,.3g} GB" if size < 1e12 else f"{round(size / 1e9):,} GB"
